#!/usr/bin/env python3
"""As many operator shapes as a few minutes hold, timed on the GPU with operands out of its caches.

  python3 tools/gpu/dense_operators.py --out DIR [--seconds 540] [--plan dense|dense_ops|convolutions] [--only gemm,conv] [--dry-run]

Writes DIR/operators.jsonl line by line (as precog.gpu.operators does; `precog calibrate` reads it) and packs it at the end;
DIR/clocks.csv beside it has clock, power and temperature twice a second. What is measured: precog.gpu.plan.dense, or as --plan says.

A case costs a few milliseconds, because nothing waits: operands are cut out of gigabytes of random numbers; every timed call
has operands of its own, and the L2 cache is overwritten before the first; calls are queued behind a sleeping GPU in three
blocks between events, and the events are read much later. A block's own time (the events') is measured first and taken off.
The measuring process is started again when a library call takes it down.

`--workers N`: for cases that cost the host far more than the GPU (cuDNN plans an attention for a third of a second). So many
processes prepare cases side by side; who measures holds a lock, and the GPU is otherwise idle but for first calls. With `--names`
those are captured instead of run, so that it is idle, and DIR/choices.jsonl.gz has the kernels of every case and the memory it took;
of `--untimed` processes that is all. A plan's `space` says which cases want much: one process at a time has those.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import gc
import gzip
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import in_package  # noqa: E402,F401
from captured import Choices  # noqa: E402

BLOCKS = 3
BLOCK_S, MOST_IN_BLOCK = 8e-5, 6
FILLS = ("zero_", "fill_")  # have a pool of their own: what others read stays random
SMALL_BYTES = 256 * 1024  # what a step has in its cache too: repeated on the same operands
PEAK = {"fp32": 40e12, "tf32": 300e12, "fp16": 600e12, "bf16": 600e12, "fp8": 1100e12}
BANDWIDTH, LAUNCH_S = 3.8e12, 3e-6
CYCLES_PER_S = 1.98e9
POOL_BYTES, FLUSH_BYTES = 4 << 30, 160 << 20
MOST_APART = 1.15  # the second of the blocks from the fastest
TIGHT_S = 2.0  # kept for the last events
DIED = 3
MOST_PASSED = 10000  # cases, before one that was asked for
RESERVED_BYTES = {"convolutions_fp32": 16 << 30}  # of all processes together
LARGE_SPACE, MOST_RESERVED = 8e9, 9e9  # bytes of one call, of one process
REFUSED = "memory was refused to the library, which went another way"
TRACES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../data/measured/2026-11-15-h200-garden/garden_traces.jsonl.gz")
ALONE = ("optimizer", "recurrent", "recurrent_bidirectional")  # many kernels a call
LISTED_BYTES = 160e6  # lists of tensors that move less are kept out of the cache too
SLOW = ("resize",)  # than their bytes say
QUICK = ("products", "strided", "reduce_strided", "joined", "tiny", "gemm", "bmm", "scaled_mm", "elementwise", "pointwise", "rows", "broadcast", "reduce", "permute", "copies", "quantise")


class Timer:
    """Queues timed calls and reads their times when the GPU is past them."""

    def __init__(self, device: Any, write: Callable[[dict[str, Any]], None]) -> None:
        import torch
        self.device, self.write = device, write
        self.waiting: deque[tuple[dict[str, Any], list[Any], int]] = deque()
        self.host: dict[str, float] = {}  # seconds to queue a call, by operator
        self.free: list[Any] = []
        self.event_s = 0.0
        self.late = self.apart = 0
        self.steady = False  # whether blocks that differ are thrown away: another process may have been at work
        self.scratch = torch.empty(64 if device.dry_run else FLUSH_BYTES // 4, device=device.type)

    def event(self) -> Any:
        return self.free.pop() if self.free else self.device.event()

    def queue(self, record: dict[str, Any], key: str, calls: list[Callable[[], Any]], each_s: float, flush: bool) -> None:
        """Times all of `calls`, in BLOCKS blocks."""
        per_block = len(calls) // BLOCKS
        for attempt in range(3):
            host = self.host.get(key, 6e-5)
            if flush:
                self.scratch.zero_()
            self.device.sleep((host * len(calls) * 1.4 * 2.5 ** attempt + 3e-5) * CYCLES_PER_S)
            events, kept = [self.event()], []
            events[0].record()
            begin = time.perf_counter()
            for block in range(BLOCKS):
                for call in calls[block * per_block:(block + 1) * per_block]:
                    kept.append(call())
                events.append(self.event())
                events[-1].record()
            spent = (time.perf_counter() - begin) / len(calls)
            self.host[key] = 0.6 * host + 0.4 * min(spent, 3 * host + 1e-4)
            late = not self.device.dry_run and events[0].query()
            if not late or each_s > 3 * spent:
                self.waiting.append((record, events, per_block))
                return
            self.late += 1

    def read(self, all_of_them: bool = False) -> None:
        if all_of_them:
            self.device.sync()
        while self.waiting and (all_of_them or self.device.dry_run or self.waiting[0][1][-1].query()):
            record, events, calls = self.waiting.popleft()
            times = sorted((a.elapsed_time(b) * 1e-3 - self.event_s) / calls for a, b in zip(events, events[1:]))
            self.free += [] if self.device.dry_run else events
            if self.steady and times[1] > MOST_APART * times[0]:
                self.apart += 1
            elif times[0] > 0:
                record.update(s=round(times[1], 9), s_min=round(times[0], 9), calls=calls * BLOCKS)
                self.write(record)

    def measure_events(self) -> None:
        """A block of so many calls takes a + b x calls: a is the events' own."""
        import torch
        x = torch.randn(1 << 20, device=self.device.type)
        found: dict[int, list[float]] = {}
        keep, self.write = self.write, lambda record: found.setdefault(record["calls"] // BLOCKS, []).append(record["s"] * record["calls"] / BLOCKS)
        for _ in range(12):
            for per_block in (1, 2, 4, 8):
                self.queue({}, "relu", [lambda: torch.relu(x)] * (BLOCKS * per_block), 0, False)
        self.read(True)
        self.write = keep
        points = [(n, sorted(times)[len(times) // 2]) for n, times in found.items()]
        mean_n, mean_s = (sum(p[axis] for p in points) / len(points) for axis in (0, 1))
        slope = sum((n - mean_n) * (s - mean_s) for n, s in points) / sum((n - mean_n) ** 2 for n, _ in points)
        self.event_s = min(max(mean_s - slope * mean_n, 0.0), 3e-6)


def shares_of(plan: str) -> dict[str, Any]:
    return importlib.import_module("precog.gpu.plan." + plan).SHARES


def space_of(plan: str) -> Callable[[Any], float]:
    return getattr(importlib.import_module("precog.gpu.plan." + plan), "space", lambda case: 0.0)


def wanted(cases: Iterator[Any], arguments: argparse.Namespace) -> Iterator[Any]:
    """Those of the types and the operators that were asked for."""
    types, operators = (text.split(",") if text else [] for text in (arguments.types, arguments.operators))
    passed = 0
    for case in cases:
        ops = tuple(op for op in case.ops if not operators or op in operators)
        if ops and (not types or case.dtype in types):
            passed = 0
            yield case if ops == case.ops else dataclasses.replace(case, ops=ops)
        elif (passed := passed + 1) > MOST_PASSED:
            raise SystemExit("no such types or operators: " + case.family)


def ready(case: Any, make: Callable[..., Any], device: Any) -> tuple[list[Any], list[tuple[str, int, float, bool]]]:
    """A case's operands, as often as it is timed; of each operator how many calls a block has, how long one may take, whether out of the cache."""
    copies = [make(case, device.type)]
    plans: list[tuple[str, int, float, bool]] = []
    for op in case.ops:
        work = copies[0][op]
        each_s = max(work.flops / PEAK.get(case.dtype, 40e12), work.bytes / BANDWIDTH) + LAUNCH_S
        alone = case.family in ALONE
        listed = case.family == "optimizer" and work.bytes < LISTED_BYTES
        cold = (listed or not alone) and work.bytes > SMALL_BYTES
        once = alone or case.family in SLOW
        plans.append((op, 1 if once else int(min(max(BLOCK_S / each_s, 1), MOST_IN_BLOCK)), each_s, cold))
    wanted = 1 + max([BLOCKS * count for _, count, _, cold in plans if cold], default=0)
    while len(copies) < wanted:
        copies.append(make(case, device.type))
    return copies, plans


def measure(timer: Timer, case: Any, copies: list[Any], plans: list[tuple[str, int, float, bool]]) -> int:
    """Queues a case's operators; returns how many."""
    timer.device.tf32(case.dtype == "tf32", case.dtype == "tf32")
    for op, count, each_s, cold in plans:
        works = [copy[op] for copy in copies]
        with works[0].within():
            refused = timer.device.refused()
            works[0].call()
            if timer.device.refused() > refused:
                raise RuntimeError(REFUSED)
            calls = [work.call for work in works[1:1 + BLOCKS * count]] if cold else [works[0].call] * (BLOCKS * count)
            record = case.line(op)
            record.pop("cold", None)
            if works[0].flops:
                record["flops"] = int(works[0].flops)
            elif works[0].written:
                record["bytes"] = int(works[0].bytes)
            if cold:
                record.update(cold=True, rotated=len(calls))
            timer.queue(record, "%s %s" % (case.family, op), calls, each_s, cold)
        timer.read()
    return len(plans)


@contextlib.contextmanager
def held(lock: Any) -> Iterator[None]:
    if lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock:
            fcntl.flock(lock, fcntl.LOCK_UN)


def prepare(device: Any, case: Any, made: dict[str, Any]) -> None:
    """The first call of each operator, in which libraries plan."""
    device.tf32(case.dtype == "tf32", case.dtype == "tf32")
    for work in made.values():
        with work.within():
            work.call()
    device.sync()


def child(arguments: argparse.Namespace) -> int:
    import torch
    from precog.gpu.device import Device, describe_machine
    from precog.gpu.make import make
    from precog.gpu.plan import operands
    from precog.gpu.plan.dense import Dice
    from precog.gpu.random_data import Pool, using
    shares = shares_of(arguments.plan)
    device = Device(arguments.dry_run)
    lines = open(arguments.file, "a")
    rows: Counter[str] = Counter()
    failed: Counter[str] = Counter()

    def write(record: dict[str, Any]) -> None:
        lines.write(json.dumps(record, separators=(",", ":")) + "\n")
        rows[record["family"]] += 1

    timer = Timer(device, write)
    timer.steady = arguments.workers > 1 and not device.dry_run

    def reserve() -> None:
        if not device.dry_run and not arguments.untimed:  # one cudaMalloc now instead of thousands later
            torch.empty(RESERVED_BYTES.get(arguments.plan, 60 << 30) // arguments.workers, dtype=torch.uint8, device="cuda")

    reserve()
    space = space_of(arguments.plan)
    share = 1 if arguments.workers < 2 else 2 if arguments.workers < 8 else 3
    pools = [Pool(device.type, 1 << 20 if device.dry_run else POOL_BYTES // share // part) for part in (1, 1, 4)]
    lock, room = (open(os.path.join(arguments.out, name), "w") if arguments.workers > 1 else None for name in ("lock", "room"))
    with held(lock):
        timer.measure_events()
        choices = Choices(device, arguments.file.replace("operators", "choices")) if arguments.names and not device.dry_run else None
    lines.write(json.dumps({"meta": {"script": "dense_operators.py", "seed": arguments.seed, "event_s": timer.event_s,
                                     **describe_machine(arguments.dry_run)}}) + "\n")
    if arguments.plan == "dense_ops" and os.path.exists(TRACES):
        operands.RECORDED.read(TRACES)
    chosen = {name: share for name, share in shares.items()
              if (not arguments.only or name in arguments.only.split(",")) and name not in arguments.skip.split(",")}
    cases = {name: wanted(make_cases(Dice("%s %d" % (name, arguments.seed), device.dry_run)), arguments) for name, (_, make_cases) in chosen.items()}
    spent = {name: 0.0 for name in chosen}
    said = time.time()
    gc.freeze()  # what is alive now stays so: collections look at cases only
    while time.time() < arguments.until - TIGHT_S:
        name = min(chosen, key=lambda one: spent[one] / chosen[one][0])
        case, begin = next(cases[name]), time.perf_counter()
        computes = case.family.startswith(("gemm", "scaled", "conv", "depth", "group", "sdpa"))
        try:
            with using(pools[0 if computes else 2 if case.ops[0] in FILLS else 1]):
                large = space(case) > LARGE_SPACE and not device.dry_run
                copies, plans = ([make(case, device.type)], []) if arguments.untimed else ready(case, make, device)
                with held(room if large else None):
                    if choices and choices.note(case, copies[0], large):
                        raise RuntimeError(REFUSED)
                    if lock and not arguments.names:
                        prepare(device, case, copies[0])
                    with held(None if arguments.untimed else lock):
                        measure(timer, case, copies, plans)
                        if lock:
                            timer.read(True)
                        if large or (arguments.plan in RESERVED_BYTES and not device.dry_run and torch.cuda.memory_reserved() > MOST_RESERVED):
                            torch.cuda.empty_cache()
                            reserve()
        except Exception as error:  # noqa: BLE001: whatever one library call throws, the rest is worth measuring
            failed["%s %s %s: %s" % (case.family, case.ops[0], case.dtype, str(error).split("\n")[0][:90])] += 1
            try:
                device.sync()
            except Exception:  # noqa: BLE001
                lines.close()
                print("the GPU no longer answers after", case, error, flush=True)
                os._exit(DIED)
            if isinstance(error, torch.cuda.OutOfMemoryError):
                device.free()
        if name not in QUICK:  # else the GPU's time would be charged to whoever has to wait for it
            device.sync()
        spent[name] += time.perf_counter() - begin
        if time.time() > said + 20:
            said = time.time()
            lines.flush()
            print("%4.0f s left: %d rows, %d failed, %d late, %d apart, %.0f GB" % (
                arguments.until - said, sum(rows.values()), sum(failed.values()), timer.late, timer.apart,
                0 if device.dry_run else torch.cuda.memory_reserved() / 1e9), flush=True)
    timer.read(True)
    lines.close()
    if choices:
        choices.close()
    for name in chosen:
        print("%-20s %6.1f s" % (name, spent[name]))
    print(dict(rows), "late", timer.late, "apart", timer.apart, choices.said() if choices else "")
    for text, count in failed.most_common(25):
        print(count, text)
    return 0


def keep_measuring(arguments: argparse.Namespace, until: float, worker: int) -> str:
    """Processes one after the other until the time is over; returns the file that they wrote."""
    path = os.path.join(arguments.out, "operators.%d.jsonl" % worker)
    first = seed = arguments.seed + 100 * worker
    while time.time() < until - 15 or seed == first:
        command = [sys.executable, os.path.abspath(__file__), "--out", arguments.out, "--plan", arguments.plan, "--only", arguments.only,
                   "--skip", arguments.skip, "--types", arguments.types, "--operators", arguments.operators, "--seed", str(seed), "--until", str(until), "--file", path, "--workers", str(arguments.workers)]
        untimed = ["--untimed", "1"] if worker >= arguments.workers - arguments.untimed else []
        names = ["--names", *untimed] if arguments.names and (untimed or seed == first) else []  # what died may have died of it
        status = subprocess.run(command + names + (["--dry-run"] if arguments.dry_run else [])).returncode
        if status == 0:
            break
        print("the measuring process ended with", status, flush=True)
        seed += 1000
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--plan", default="dense", choices=("dense", "dense_ops", "convolutions", "convolutions_more", "convolutions_fp32", "convolutions_stems", "convolutions_gaps", "odd_ops", "thin_ops", "gaps"), help="which module of precog.gpu.plan")
    parser.add_argument("--only", default="", help="families, with commas: see the plan's SHARES")
    parser.add_argument("--skip", default="", help="families that are left out")
    parser.add_argument("--types", default="", help="with commas: others are passed over")
    parser.add_argument("--operators", default="", help="with commas: of a case's, those that are timed")
    parser.add_argument("--workers", type=int, default=1, help="processes that prepare cases side by side")
    parser.add_argument("--names", action="store_true", help="record the kernels of each case too (convolutions), without running them: captured.py")
    parser.add_argument("--untimed", type=int, default=0, help="so many of the processes record kernels and memory alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="small cases on the CPU: the times mean nothing")
    parser.add_argument("--until", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--file", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.until:
        return child(arguments)
    until = time.time() + arguments.seconds
    os.makedirs(arguments.out, exist_ok=True)
    watch = None
    with contextlib.suppress(OSError):
        query = "timestamp,clocks.sm,power.draw,temperature.gpu"
        watch = subprocess.Popen(["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader,nounits", "-lms", "500"],
                                 stdout=open(os.path.join(arguments.out, "clocks.csv"), "w"), stderr=subprocess.DEVNULL)
    with ThreadPoolExecutor(arguments.workers) as workers:
        files = list(workers.map(lambda worker: keep_measuring(arguments, until, worker), range(arguments.workers)))
    if watch:
        watch.terminate()
    pack(files, os.path.join(arguments.out, "operators.jsonl.gz"))
    if arguments.names:
        pack([path.replace("operators", "choices") for path in files], os.path.join(arguments.out, "choices.jsonl.gz"))
    return 0


def pack(files: list[str], into: str) -> None:
    with gzip.open(into, "wb", 9) as packed:
        for path in files:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as plain:
                shutil.copyfileobj(plain, packed)
                os.remove(path)


if __name__ == "__main__":
    sys.exit(main())
