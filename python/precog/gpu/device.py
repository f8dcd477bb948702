"""The device that is measured, and GPU time of a call.

`Device` hides whether a GPU is there, so that a dry run on a CPU goes through the same lines as the real one; a dry run's
numbers mean nothing, and its files say so.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import platform
import statistics
import subprocess
import time
from typing import Any, Callable

import torch


LONG_S = 0.2  # a call of this length is timed once


class Device:
    def __init__(self, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.type = "cpu" if dry_run else "cuda"

    def sync(self) -> None:
        if not self.dry_run:
            torch.cuda.synchronize()

    def sleep(self, cycles: float) -> None:
        """Keeps the GPU busy so that the host can queue work behind it."""
        if not self.dry_run:
            torch.cuda._sleep(int(cycles))

    def event(self) -> Any:
        return _FakeEvent() if self.dry_run else torch.cuda.Event(enable_timing=True)

    def free(self, kept_bytes: float | None = None) -> None:
        """Returns cached memory. A full collection takes 0.1 s with these libraries loaded, so when told how much
        should be left (`kept_bytes`) it is done only if more is."""
        if kept_bytes is None or (not self.dry_run and torch.cuda.memory_allocated() > kept_bytes * 1.02 + 64e6):
            gc.collect()
        if not self.dry_run:
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()  # they live in the caching allocator and would count as ours
            torch.cuda.empty_cache()

    def refused(self) -> int:
        """How often memory was: a library that asks for room to work in goes another way then."""
        return 0 if self.dry_run else int(torch.cuda.memory_stats().get("num_ooms", 0))

    def reset_peak(self) -> None:
        if not self.dry_run:
            torch.cuda.reset_peak_memory_stats()

    def memory(self) -> dict[str, int]:
        if self.dry_run:
            return {"peak_bytes": 0, "reserved_bytes": 0, "rest_bytes": 0}
        return {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
                "rest_bytes": torch.cuda.memory_allocated()}

    def tf32(self, matmul: bool, cudnn: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = cudnn

    def name(self) -> str:
        return "cpu (dry run)" if self.dry_run else torch.cuda.get_device_name()


class _FakeEvent:
    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "_FakeEvent") -> float:
        return (other.at - self.at) * 1e3


def describe_machine(dry_run: bool) -> dict[str, Any]:
    """Versions, CPU and GPU: what a measurement means nothing without."""
    meta: dict[str, Any] = {
        "dry_run": dry_run, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "cpu_count": os.cpu_count(), "torch_threads": torch.get_num_threads()}
    with contextlib.suppress(Exception):
        with open("/proc/cpuinfo") as file:
            meta["cpu"] = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    if dry_run:
        return meta
    meta["cudnn"] = torch.backends.cudnn.version()
    properties = torch.cuda.get_device_properties(0)
    meta["gpu"] = {"name": properties.name, "sms": properties.multi_processor_count, "bytes": properties.total_memory,
                   "l2_bytes": getattr(properties, "L2_cache_size", None)}
    with contextlib.suppress(Exception):
        fields = "driver_version,clocks.max.sm,clocks.max.mem,power.limit,persistence_mode,ecc.mode.current"
        answer = subprocess.run(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"], capture_output=True,
                                text=True, timeout=20).stdout.strip().split("\n")[0]
        meta["nvidia_smi"] = dict(zip(fields.split(","), [value.strip() for value in answer.split(",")]))
        meta["driver"] = meta["nvidia_smi"]["driver_version"]
    return meta


def clocks_now() -> dict[str, float]:
    """SM clock (MHz), power (W) and temperature, for judging throttling; {} where nvidia-smi does not answer."""
    with contextlib.suppress(Exception):
        answer = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu",
                                 "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10).stdout
        sm, power, temperature = [float(value) for value in answer.strip().split("\n")[0].split(",")]
        return {"sm_mhz": sm, "power_w": power, "temperature_c": temperature}
    return {}


def gpu_seconds(device: Device, call: Callable[[int], Any], target_s: float = 2e-3, most: int = 50, repeats: int = 3,
                kernels: int = 1) -> tuple[float, float, int]:
    """GPU time of one call, from events around calls queued behind a sleeping GPU (so that the host does not show).

    Returns (median, min, calls). `kernels` is about how many launches a call makes: the launch queue holds about a
    thousand, and a call that fills it would wait for the GPU.
    """
    if device.dry_run:
        most, repeats = 2, 1
    call(0)
    device.sync()
    begin, end = device.event(), device.event()
    begin.record()
    host = time.perf_counter()
    call(1)
    host = time.perf_counter() - host
    end.record()
    device.sync()
    first = max(begin.elapsed_time(end) * 1e-3, 1e-6)
    if first > LONG_S and first > 2 * host:
        return first, first, 1
    fewest = 3 if first < max(2e-3, 2 * host) else 1  # what an event's own time is nothing against
    calls = int(min(max(target_s / first, fewest), most, max(3, 600 // kernels)))
    # Queueing goes at the host's speed (seconds per call, seen above); 1.5x and a floor cover its noise. A call that
    # keeps the GPU busy for much longer than the host needs no head start.
    sleep_cycles = 0 if first > 5 * host and first > 1e-3 else min(max(host * calls * 1.5, 3e-4), 6e-2) * 1.9e9
    times = []
    index = 2
    for _ in range(repeats):
        device.sleep(sleep_cycles)
        begin.record()
        for _ in range(calls):
            call(index)
            index += 1
        end.record()
        device.sync()
        times.append(begin.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(times), min(times), calls
