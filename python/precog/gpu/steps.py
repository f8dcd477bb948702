"""Timing training steps: synchronised blocks, memory, phases, and one profiled step. Used by precog.measure and tools/gpu."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, Callable

from . import kernels
from .device import Device
from .trainer import Trainer


def time_steps(device: Device, trainer: Trainer, warmup: int = 4, steps: int | None = None, blocks: int | None = None,
               progress: Callable[[str], None] = lambda text: None, profiled: bool = True,
               block_s: float = 0.15) -> tuple[dict[str, Any], list[list[Any]]]:
    """The `measured` of a run, and the longest kernels as [name, count, microseconds] (with `profiled`; a process in which the
    profiler has run issues kernels more slowly from then on, so a campaign of many runs asks for `profile_step` when all are timed).

    `steps` and `blocks` are chosen from the first steps' time when not given, for blocks of about `block_s`. `step_s` is the median over blocks of the
    mean step; the device is synchronised around blocks, not inside them, as in a training loop.
    """
    wall = time.perf_counter()
    device.reset_peak()
    start_bytes = device.memory()["rest_bytes"]  # weights and data; more would be a leak from an earlier run
    progress("warming up")
    started, timed = time.perf_counter(), 0
    for index in range(max(warmup, 1)):
        if index == warmup // 2:
            device.sync()
            started, timed = time.perf_counter(), warmup - index
        trainer.step()
    device.sync()
    guess = (time.perf_counter() - started) / max(timed, 1)
    chosen_steps, chosen_blocks = _block(guess, block_s, device.dry_run)
    steps, blocks = steps or chosen_steps, blocks or chosen_blocks
    warm_peak = device.memory()["peak_bytes"]
    scale_before = trainer.scale()
    device.reset_peak()
    means, enqueues = time_blocks(device, trainer, steps, blocks, progress)
    measured: dict[str, Any] = {
        "step_s": statistics.median(means), "step_s_min": min(means), "step_s_max": max(means),
        "steps_per_block": steps, "blocks": blocks, "block_means_s": means, "host_enqueue_s": statistics.median(enqueues),
        **device.memory(), "warmup_peak_bytes": warm_peak, "start_bytes": start_bytes}
    scale_after = trainer.scale()
    if scale_before and scale_after:
        measured["scale"] = [scale_before, scale_after]
        measured["skipped_steps"] = max(0, round(math.log2(scale_before / scale_after)))  # each skipped step halves it
    loss = float(trainer.last_loss)
    measured["finite"] = math.isfinite(loss)
    measured["loss"] = loss if measured["finite"] else None
    measured["phases_s"], measured["host_phases_s"] = phases(device, trainer)
    top: list[list[Any]] = []
    if profiled:
        progress("profiling one step")
        summary, top = profile_step(device, trainer)
        measured.update(summary)
    measured["row_wall_s"] = round(time.perf_counter() - wall, 2)
    return measured, top


def profile_step(device: Device, trainer: Trainer, top: int = 40) -> tuple[dict[str, Any], list[list[Any]]]:
    """GPU-busy time, kernels and their classes in one step, and the longest kernels."""
    return kernels.summarise(kernels.record(device, trainer.step), top)


def time_blocks(device: Device, trainer: Trainer, steps: int, blocks: int,
                progress: Callable[[str], None] = lambda text: None) -> tuple[list[float], list[float]]:
    """The mean step of each block, and how long the host took to issue its first from an idle GPU (amp-fp16 waits inside)."""
    means, enqueues = [], []
    for block in range(blocks):
        progress(f"block {block + 1} of {blocks}, {steps} steps each")
        device.sync()
        started = time.perf_counter()
        trainer.step()
        enqueues.append(time.perf_counter() - started)
        for _ in range(steps - 1):
            trainer.step()
        device.sync()
        means.append((time.perf_counter() - started) / steps)
    return means, enqueues


def _block(guess: float, block_s: float, dry_run: bool) -> tuple[int, int]:
    """(steps per block, blocks): about `block_s` a block and five blocks, less for slow steps."""
    if dry_run:
        return 2, 2
    if guess > 0.1:
        return 2, 3
    steps = int(min(max(block_s / guess, 3), 40))
    return steps, 5 if steps * guess < 0.2 else 3


def phases(device: Device, trainer: Trainer) -> tuple[dict[str, float], dict[str, float]]:
    """Time between phase ends in one step from an idle GPU: on the GPU's own clock (idle gaps included), and on the host's, which
    issues them (it waits where a loss scaler or a full queue makes it)."""
    marks: list[tuple[str, Any, float]] = []

    def after(phase: str) -> None:
        event = device.event()
        event.record()
        marks.append((phase, event, time.perf_counter()))
    device.sync()
    after("start")
    trainer.phases(after)
    device.sync()
    pairs = list(zip(marks, marks[1:]))
    return ({mark[0]: before[1].elapsed_time(mark[1]) * 1e-3 for before, mark in pairs},
            {mark[0]: mark[2] - before[2] for before, mark in pairs})
