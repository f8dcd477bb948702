"""The GPU's clock, power and temperature while it works, read from the driver's management library; nothing is ever set.

`Sampler` reads in a thread of its own; entries are (seconds since the start, SM MHz, watts, degrees, limiting reasons).
The reasons are the library's bits (0x4 is the power limit, 0x20 and 0x40 heat). Without the library nvidia-smi is asked, without reasons.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any, Callable

from .device import clocks_now

EVERY_S = 0.25
Entry = tuple[float, float, float, float, int]


def _reader(uuid: str | None) -> Callable[[], tuple[float, float, float, int] | None]:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2():
            raise OSError("nvmlInit")
        found = 1 if uuid is None else library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        if found and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
            raise OSError("nvmlDeviceGetHandleByIndex")
    except (OSError, AttributeError):
        return _asked

    def read() -> tuple[float, float, float, int] | None:
        clock, power, heat, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        if (library.nvmlDeviceGetClockInfo(handle, 1, ctypes.byref(clock))
                or library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power))):
            return _asked()
        library.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(heat))
        with contextlib.suppress(AttributeError):
            library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
        return float(clock.value), power.value / 1e3, float(heat.value), int(reasons.value)
    return read


def _asked() -> tuple[float, float, float, int] | None:
    seen = clocks_now()
    return (seen["sm_mhz"], seen["power_w"], seen["temperature_c"], 0) if seen else None


class Sampler:
    def __init__(self, uuid: str | None = None) -> None:
        self.entries: list[Entry] = []
        self.read = _reader(uuid)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Sampler":
        self.start = time.perf_counter()
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop.set()
        self.thread.join(timeout=20)

    def _run(self) -> None:
        while not self.stop.wait(EVERY_S):
            seen = self.read()
            if seen is not None:
                self.entries.append((round(time.perf_counter() - self.start, 3), *seen))
