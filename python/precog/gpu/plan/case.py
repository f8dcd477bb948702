"""One thing to set up on the GPU and the operators timed on it. Plain data: a plan needs no torch."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterable, Iterator

from .sampling import Draw, draws

FLOATS = ("fp32", "tf32", "fp16", "bf16")
WIDE_AND_NARROW = ("fp32", "bf16", "fp16")
BOTH = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Case:
    family: str
    dtype: str
    ops: tuple[str, ...]  # one line each, in this order
    shape: dict[str, Any]

    def line(self, op: str) -> dict[str, Any]:
        """What a measurement's line says beside its results; also what tells one measurement from another."""
        return {"family": self.family, "op": op, "dtype": self.dtype, **self.shape}


Groups = list[list[Case]]


def cold_some(index: int, shape: dict[str, Any], elements: float, every: int = 2, least: float = 2 ** 18) -> dict[str, Any]:
    """Every second case (or so) whose operands would fit in an L2 cache, and are large enough to be kept out of it by rotation."""
    return {**shape, "cold": True} if index % every == every - 1 and least <= elements <= 2 ** 24 else shape


_times = 1


@contextlib.contextmanager
def denser(times: int) -> Iterator[None]:
    """Plans made inside have so many times as many cases, the usual ones first."""
    global _times
    before, _times = _times, times
    try:
        yield
    finally:
        _times = before


def filling(name: str, dimensions: int, small: bool, count: int) -> Iterator[tuple[int, Draw]]:
    """The first `count` draws of a sequence, numbered; one in a rehearsal."""
    return zip(range(1 if small else count * _times), draws(name, dimensions, small))


def unique(cases: Iterable[Case]) -> list[Case]:
    seen: dict[str, Case] = {}
    for case in cases:
        seen.setdefault(repr((case.family, case.dtype, case.ops, sorted(case.shape.items(), key=lambda item: item[0]))), case)
    return list(seen.values())
