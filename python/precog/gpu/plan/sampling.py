"""Points that fill a space evenly, and sizes made of them. The same name gives the same points everywhere; nothing is random.

The sequence is the additive recurrence with the generalised golden ratio (M. Roberts, "The unreasonable effectiveness of
quasirandom sequences", 2018): any beginning of it fills the space, so a measurement that stops early has no holes.
"""

from __future__ import annotations

import zlib
from typing import Any, Iterator, Sequence

SHRUNK = 3  # a rehearsal's sizes reach this many times their smallest


def points(name: str, dimensions: int) -> Iterator[list[float]]:
    """Endless points in the unit cube."""
    ratio = 2.0
    for _ in range(60):  # the root of x^(d+1) = x + 1
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    start = zlib.crc32(name.encode()) / 2 ** 32
    index = 0
    while True:
        index += 1
        yield [(start * (axis + 1) + index * ratio ** -(axis + 1)) % 1 for axis in range(dimensions)]


class Draw:
    """One point, used up coordinate by coordinate. `small` keeps sizes near their lower ends (rehearsals on a CPU)."""

    def __init__(self, point: Sequence[float], small: bool) -> None:
        self.left, self.small = list(point), small

    def unit(self) -> float:
        return self.left.pop()

    def number(self, low: float, high: float) -> int:
        """Evenly in the logarithm, any whole number."""
        high = min(high, low * SHRUNK) if self.small else high
        return max(1, round(low * (high / low) ** self.unit()))

    def size(self, low: int, high: int) -> int:
        """Evenly in the logarithm, and as extents are in models: mostly multiples of 64 or 8, one in five ragged."""
        value, kind = self.number(low, high), self.unit()
        multiple = 64 if kind < 0.4 and value >= 96 else 16 if kind < 0.6 and value >= 24 else 8 if kind < 0.8 and value >= 12 else 1
        return max(low, round(value / multiple) * multiple)

    def multiple(self, low: int, high: int, of: int) -> int:
        return max(low, round(self.number(low, high) / of) * of)

    def one(self, choices: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        weights = weights or [1] * len(choices)
        at = self.unit() * sum(weights)
        for choice, weight in zip(choices, weights):
            at -= weight
            if at < 0:
                return choice
        return choices[-1]


def draws(name: str, dimensions: int, small: bool) -> Iterator[Draw]:
    return (Draw(point, small) for point in points(name, dimensions))


def interleave(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """All elements, so that every beginning holds the same share of each list, and the first of each comes first."""
    placed = [(index / len(items), number, item) for number, items in enumerate(lists) for index, item in enumerate(items)]
    return [item for _, _, item in sorted(placed, key=lambda entry: entry[:2])]
