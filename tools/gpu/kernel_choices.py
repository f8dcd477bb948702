#!/usr/bin/env python3
"""Which kernels a library takes for each case of a plan: their names and times, in the order they ran.

  python3 tools/gpu/kernel_choices.py --out DIR [--plan convolutions] [--seconds 90] [--only pictures] [--dry-run]

Goes through the same cases as dense_operators.py with the same plan and seed, so its lines can be joined to those: the times
there are the ones to trust, since a profiler watches here. Writes DIR/choices.jsonl.gz: a case's line with "kernels":
[[number of the name, microseconds], ...], and lines {"name": number, "is": "..."} before a number's first use.
A profiler's session holds many calls; a small kernel of a known name before and after each tells them apart.
"""
from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from typing import Any, Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import in_package  # noqa: E402,F401
from dense_operators import FLUSH_BYTES, POOL_BYTES, shares_of  # noqa: E402

MARK = "hypot"
SESSION_S = 1.5  # a session's calls; reading it takes as long again
LONGEST_NAME = 300


class Session:
    """Calls under one profiler session, with marks between them."""

    def __init__(self, device: Any) -> None:
        import torch
        self.device = device
        self.one = torch.ones(1, device=device.type)
        self.scratch = torch.empty(64 if device.dry_run else FLUSH_BYTES // 4, device=device.type)
        self.calls: list[dict[str, Any] | None] = []  # what follows each mark

    def mark(self, record: dict[str, Any] | None) -> None:
        import torch
        torch.hypot(self.one, self.one)
        self.calls.append(record)

    def case(self, case: Any, make: Any) -> None:
        self.device.tf32(case.dtype == "tf32", case.dtype == "tf32")
        made = make(case, self.device.type)
        for op in case.ops:
            with made[op].within():
                self.scratch.zero_()
                self.mark(case.line(op))
                made[op].call()
                self.mark(None)


def split(found: list[tuple[int, int, str]], calls: list[dict[str, Any] | None]) -> list[tuple[dict[str, Any], list[tuple[str, int]]]]:
    """Each marked call with its kernels; nothing where marks were lost."""
    parts: list[list[tuple[str, int]]] = []
    for _, duration, name in found:
        if MARK in name.lower():
            parts.append([])
        elif parts:
            parts[-1].append((name, duration))
    if len(parts) != len(calls):
        print("a session's marks were lost: %d of %d" % (len(parts), len(calls)), flush=True)
        return []
    return [(record, part) for record, part in zip(calls, parts) if record is not None and part]


def record_sessions(device: Any, lines: Any, until: float, shares: dict[str, float], call: Callable[[Session, str], None]) -> int:
    """`call(session, part)`, always of the part furthest behind its share of the time, under the profiler, session by session; a line for
    each marked call. Returns how many."""
    import torch
    from precog.gpu.kernels import record
    numbers: dict[str, int] = {}
    spent = dict.fromkeys(shares, 0.0)
    rows = failed = 0
    slowest = 0.0
    while time.time() + SESSION_S + 2 * slowest < until - 1:
        session = Session(device)

        def calls() -> None:
            nonlocal failed
            end = time.time() + SESSION_S
            while time.time() < end:
                part = min(shares, key=lambda one: spent[one] / shares[one])
                begin = time.perf_counter()
                try:
                    call(session, part)
                except Exception as error:  # noqa: BLE001: whatever one library call throws, the rest is worth seeing
                    failed += 1
                    session.calls = [None if at == len(session.calls) - 1 else one for at, one in enumerate(session.calls)]
                    if isinstance(error, torch.cuda.OutOfMemoryError):
                        device.free()
                device.sync()
                spent[part] += time.perf_counter() - begin
        begin = time.time()
        found = record(device, calls)
        for line, kernels in split(found, session.calls):
            for name, _ in kernels:
                if name not in numbers:
                    numbers[name] = len(numbers)
                    lines.write(json.dumps({"name": numbers[name], "is": name[:LONGEST_NAME]}, separators=(",", ":")) + "\n")
            line["kernels"] = [[numbers[name], round(duration * 1e-3, 2)] for name, duration in kernels]
            lines.write(json.dumps(line, separators=(",", ":")) + "\n")
            rows += 1
        slowest = max(slowest, time.time() - begin - SESSION_S)
        print("%4.0f s left: %d rows, %d names, %d failed" % (until - time.time(), rows, len(numbers), failed), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--plan", default="convolutions", choices=("dense", "convolutions"))
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--only", default="", help="families, with commas: see the plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="small cases on the CPU: the times mean nothing")
    arguments = parser.parse_args()
    until = time.time() + arguments.seconds
    from precog.gpu.device import Device, describe_machine
    from precog.gpu.make import make
    from precog.gpu.plan.dense import Dice
    from precog.gpu.random_data import Pool, using
    device = Device(arguments.dry_run)
    os.makedirs(arguments.out, exist_ok=True)
    chosen = {name: share for name, share in shares_of(arguments.plan).items() if not arguments.only or name in arguments.only.split(",")}
    cases = {name: make_cases(Dice("%s %d" % (name, arguments.seed), device.dry_run)) for name, (_, make_cases) in chosen.items()}
    pool = Pool(device.type, 1 << 20 if device.dry_run else POOL_BYTES)

    def case(session: Session, name: str) -> None:
        with using(pool):
            session.case(next(cases[name]), make)

    with gzip.open(os.path.join(arguments.out, "choices.jsonl.gz"), "wt", 6) as lines:
        lines.write(json.dumps({"meta": {"script": "kernel_choices.py", "plan": arguments.plan, "seed": arguments.seed,
                                         **describe_machine(arguments.dry_run)}}) + "\n")
        rows = record_sessions(device, lines, until, {name: share for name, (share, _) in chosen.items()}, case)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
