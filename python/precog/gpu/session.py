"""One sitting of measurements: a device, a time budget, lines that are on the disk before the next measurement starts,
and what went wrong. A failed measurement is recorded and the sitting goes on.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Callable, Iterator, Protocol

import torch

from .device import Device

# What a measurement adds to the record that says what is measured.
RESULTS = {"s", "s_min", "calls", "bytes", "flops", "rotated", "blocks", "samples", "oom", "error",
           "host_us", "host_us_min", "host_us_max", "total_us", "kernel_us", "kernel_us_min", "gap_us", "gap_us_min",
           "start_to_start_us", "count", "length"}


class BudgetSpent(Exception):
    """Raised between measurements when no time is left; ends a part, never counts as a failure."""


class Clock:
    """Seconds since the script started, against a budget."""

    def __init__(self, budget_s: float) -> None:
        self.start = time.perf_counter()
        self.budget_s = budget_s

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def left(self) -> float:
        return self.budget_s - self.elapsed()


class Writer(Protocol):
    def write(self, record: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def identity(record: dict[str, Any]) -> str:
    """What was measured, without what came out."""
    if "group" in record:
        return json.dumps(["host", record["group"], record["name"]])
    what = {key: value for key, value in record.items() if key not in RESULTS}
    if "rotated" in record:
        what["cold"] = True  # files from before `cold` had a key of its own
    return json.dumps(what, sort_keys=True)


class Session:
    """`quick` takes a fraction of the shapes; `only` names families of operators; what `has` knows is not measured again."""

    quick = False
    only: list[str] | None = None
    verbose = True

    def __init__(self, device: Device, budget_s: float) -> None:
        self.device, self.dry_run = device, device.dry_run
        self.clock = Clock(budget_s)
        self.notes: list[str] = []
        self.failures = 0
        self.lost = False  # the GPU no longer answers this process
        self.measured: set[str] = set()
        self.progress: Callable[[str], None] = lambda text: None

    def lines(self, name: str) -> Writer:
        raise NotImplementedError

    def trying(self, records: list[dict[str, Any]]) -> None:
        """Told before each case, for those who want to know afterwards which one ended the process."""

    def has(self, record: dict[str, Any]) -> bool:
        return bool(self.measured) and identity(record) in self.measured

    def some(self, cases: Any, dry: int = 1) -> list[Any]:
        """All of the cases; the first few in a dry run, every fourth when quick."""
        cases = list(cases)
        return cases[:dry] if self.dry_run else cases[::4] if self.quick else cases

    def note(self, text: str) -> None:
        self.notes.append(text)
        if self.verbose:
            print("  note:", text, flush=True)

    def say(self, text: str) -> None:
        if self.verbose:
            print("%6.1fs %s" % (self.clock.elapsed(), text), flush=True)

    @contextlib.contextmanager
    def survive(self, what: str, lines: Writer | None = None, record: dict[str, Any] | None = None) -> Iterator[None]:
        try:
            yield
        except BudgetSpent:
            raise
        except torch.cuda.OutOfMemoryError:
            failure: dict[str, Any] = {"oom": True}
        except Exception as error:  # noqa: BLE001: whatever one library call throws, the rest is worth measuring
            failure = {"error": "%s: %s" % (type(error).__name__, str(error)[:300])}
        else:
            return
        if "error" in failure:
            self.note("%s: %s" % (what, failure["error"]))
        if lines is not None:
            lines.write(dict(record or {}, **failure))
