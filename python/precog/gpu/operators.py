"""Single operators on the GPU, for fitting kernel costs. `run(session)` measures a plan's cases and writes one line each:

  {"family", "op", "dtype", ...shape..., "bytes" or "flops", "s", "s_min", "calls"[, "cold", "rotated"]}
`s` is GPU time per call (the median of repeats; see device.gpu_seconds). `bytes` is what the operator must at least read and
write. `cold`: operands and results rotate through `rotated` copies, too many to stay in the L2 cache; else the operands may
be L2-resident. A case that fails leaves a line with "error" or "oom". The keys by family: docs/how_to/measure_a_gpu.md.
The cases are in plan/, how they are made on the device in make/.
"""
from __future__ import annotations

from typing import Any, Callable

import torch

from . import sustained
from .device import clocks_now, gpu_seconds
from .make import make
from .make.work import DTYPES, Work
from .plan import FAMILIES, plan
from .plan.case import Case
from .session import BudgetSpent, Session

__all__ = ["FAMILIES", "PRECISIONS", "Bench", "run"]

PRECISIONS = tuple((label, DTYPES[label]) for label in ("fp32", "tf32", "fp16", "bf16"))
L2_BYTES = 64e6  # where the driver does not say
MOST_COPIES, MOST_COPIED = 256, 4e9
RESERVE_S = 3.0  # kept for closing files


class Bench:
    def __init__(self, campaign: Session) -> None:
        self.campaign, self.device = campaign, campaign.device
        self.lines = campaign.lines("operators.jsonl")
        self.count = 0
        self.best: dict[tuple[str, str, str, str], float] = {}

    def over(self) -> bool:
        return self.campaign.clock.left() < RESERVE_S

    def time(self, call: Callable[[int], Any], family: str, op: str, dtype: str, kernels: int = 1, target_s: float = 2e-3,
             most: int = 50, **shape: Any) -> None:
        """Measures call(i) and writes a line, unless an earlier sitting did."""
        record: dict[str, Any] = {"family": family, "op": op, "dtype": dtype, **shape}
        if self.campaign.has(record):
            return
        if self.over():
            raise BudgetSpent
        self.campaign.progress("%s %s %s" % (family, op, dtype))
        with self.campaign.survive("%s %s %s %s" % (family, op, dtype, shape), self.lines, record):
            record["s"], record["s_min"], record["calls"] = gpu_seconds(self.device, call, target_s, most, kernels=kernels)
            self.write(record)

    def write(self, record: dict[str, Any]) -> None:
        self.lines.write(record)
        self.count += 1
        for unit in ("bytes", "flops"):
            if record.get(unit):
                key = (record["family"], record["op"], record["dtype"], unit)
                self.best[key] = max(self.best.get(key, 0), record[unit] / record["s"])


def run(campaign: Session) -> None:
    bench = Bench(campaign)
    cases = plan(campaign.quick, campaign.only, small=campaign.dry_run)
    for number, case in enumerate(cases):
        wanted = [op for op in case.ops if not campaign.has(case.line(op))]
        if not wanted or not _supported(campaign, case):
            continue
        needed = RESERVE_S + case.shape.get("seconds", 0)
        if campaign.clock.left() < needed:
            campaign.note("budget: operators stopped after %d of %d cases" % (number, len(cases)))
            break
        campaign.progress("case %d of %d: %s %s %s" % (number + 1, len(cases), case.family, case.ops[0], case.dtype))
        campaign.trying([case.line(op) for op in wanted])
        if not _measure(bench, case, wanted):
            campaign.lost = True
            campaign.note("the GPU no longer answers after %s; the same call goes on behind it" % case.line(wanted[0]))
            return
        if number % 500 == 499:
            bench.lines.write({"clocks": {} if campaign.dry_run else clocks_now()})
            campaign.say("%d of %d cases, %d measurements" % (number + 1, len(cases), bench.count))
    bench.lines.write({"clocks": {} if campaign.dry_run else clocks_now()})
    bench.lines.close()
    if campaign.verbose:
        _print_best(bench)


def _supported(campaign: Session, case: Case) -> bool:
    """Not types that this GPU has no units for, nor in a rehearsal what a CPU has no kernels for or takes seconds for."""
    if campaign.dry_run:
        slow = case.dtype in ("fp16", "bf16") and case.family.startswith(("conv", "depthwise", "grouped", "recurrent"))
        return not slow and not case.ops[0].startswith(("cudnn", "efficient", "block", "row"))
    capability = torch.cuda.get_device_capability()
    return capability >= {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}.get(case.dtype, (0, 0))


def _measure(bench: Bench, case: Case, wanted: list[str]) -> bool:
    """Writes a line for each wanted operator, of a failure too. False: the GPU is lost to this process."""
    campaign, device = bench.campaign, bench.device
    device.tf32(case.dtype == "tf32", case.dtype == "tf32")
    left = list(wanted)
    failed: dict[str, Any] = {}
    try:
        if case.family == "sustained":
            bench.write({**case.line(left[0]), **sustained.measure(device, case)})
            return True
        copies = [make(case, device.type)]
        while left:
            op = left[0]
            work = copies[0][op]
            with work.within():
                if case.shape.get("cold"):
                    _rotate(case, device.type, copies, work.bytes)
                bench.write({**case.line(op), **_timed(bench, [copy[op] for copy in copies], case)})
            left.pop(0)
    except torch.cuda.OutOfMemoryError:
        failed = {"oom": True}
    except Exception as error:  # noqa: BLE001: whatever one library call throws, the rest is worth measuring
        failed = {"error": "%s: %s" % (type(error).__name__, str(error)[:200])}
    copies = []
    try:
        if failed:
            device.sync()
    except Exception:  # noqa: BLE001
        bench.lines.write({**case.line(left[0]), **failed})
        return False
    for op in left if failed else ():
        bench.lines.write({**case.line(op), **failed})
    if failed:
        campaign.failures += 1
    if not device.dry_run:
        if failed or torch.cuda.memory_reserved() > 0.5 * torch.cuda.get_device_properties(0).total_memory:
            device.free()
    return True


def _rotate(case: Case, device: str, copies: list[dict[str, Work]], moved: float) -> None:
    """Adds copies until they are more than twice what the L2 holds."""
    count = 2
    if device != "cpu":
        l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", None) or L2_BYTES
        count = int(min(MOST_COPIES, 2 * l2 / max(moved, 1) + 2, MOST_COPIED / max(moved, 1) + 1))
    while len(copies) < count:
        copies.append(make(case, device))


def _timed(bench: Bench, copies: list[Work], case: Case) -> dict[str, Any]:
    work, count = copies[0], len(copies)
    kept: list[Any] = [None] * count

    def rotated(index: int) -> None:
        kept[index % count] = copies[index % count].call()
    if case.shape.get("cold"):
        for index in range(count):  # results exist before the clock runs
            rotated(index)
    call: Callable[[int], Any] = rotated if case.shape.get("cold") else lambda index: work.call()
    seconds, least, calls = gpu_seconds(bench.device, call, 1.5e-3, 50, kernels=work.kernels)
    line: dict[str, Any] = {"flops": int(work.flops)} if work.flops else {"bytes": int(work.bytes)} if work.written else {}
    line.update(s=seconds, s_min=least, calls=calls)
    return {**line, "rotated": count} if case.shape.get("cold") else line


def _print_best(bench: Bench) -> None:
    print("\nbest rate per operator (TB/s or TFLOP/s)")
    table: dict[tuple[str, str, str], list[str]] = {}
    for (family, op, dtype, unit), rate in bench.best.items():
        table.setdefault((family, op, "TB/s" if unit == "bytes" else "TFLOP/s"), []).append("%s %.3g" % (dtype, rate / 1e12))
    for (family, op, unit), rates in table.items():
        print("%-12s %-26s %-7s %s" % (family, op, unit, "  ".join(rates)))
