"""Seconds of the same work without a pause: rate, clock and power over time. What minutes of training run at."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import torch

from .clocks import EVERY_S, Sampler
from .device import Device
from .make import make
from .make.work import Work, random
from .plan.case import Case


def work_of(case: Case, device: str) -> Work:
    if case.ops[0] == "chain":
        x, y, z, last = (random(device, case.shape["n"], dtype=torch.bfloat16) for _ in range(4))

        def chain() -> None:
            torch.add(x, y, out=z)
            torch.mul(z, 1.001, out=last)
        return Work(chain, 5 * x.nbytes, kernels=2)
    extents = {axis: case.shape[axis] for axis in "mnk"}
    family, op = ("scaled_mm", "tensor fast") if case.dtype == "fp8" else ("gemm", "nt")
    return make(Case(family, case.dtype, (op,), extents), device)[op]


def measure(device: Device, case: Case) -> dict[str, Any]:
    return watch(device, work_of(case, device.type), case.shape["seconds"])


def watch(device: Device, work: Work, seconds: float) -> dict[str, Any]:
    """s: per call, the median over the last third; s_min: of the best quarter second; docs/how_to/measure_a_gpu.md has the rest."""
    work.call()
    device.sync()
    calls = _calls_in(device, work.call, 0.01 if device.dry_run else EVERY_S)
    uuid = None if device.dry_run else str(getattr(torch.cuda.get_device_properties(0), "uuid", "")) or None
    with Sampler(f"GPU-{uuid}" if uuid and not uuid.startswith("GPU") else uuid) as sampler:
        begun = time.perf_counter()
        marks = [device.event()]
        marks[0].record()
        while time.perf_counter() - begun < seconds or len(marks) < 4:
            for _ in range(calls):
                work.call()
            marks.append(device.event())
            marks[-1].record()
            if len(marks) > 2:  # one block queued behind the one that runs
                marks[-2].synchronize()
        device.sync()
    times = [earlier.elapsed_time(later) * 1e-3 / calls for earlier, later in zip(marks, marks[1:])]
    ends = [round(marks[0].elapsed_time(mark) * 1e-3, 3) for mark in marks[1:]]
    unit = {"flops": int(work.flops)} if work.flops else {"bytes": int(work.bytes)}
    return {"s": statistics.median(times[len(times) * 2 // 3:]), "s_min": min(times), "calls": calls * len(times), **unit,
            "blocks": [list(block) for block in zip(ends, times)], "samples": sampler.entries}


def _calls_in(device: Device, call: Callable[[], Any], seconds: float) -> int:
    begin, end = device.event(), device.event()
    begin.record()
    for _ in range(3):
        call()
    end.record()
    device.sync()
    return max(1, int(seconds / max(begin.elapsed_time(end) * 1e-3 / 3, 1e-6)))
