"""What every part of the campaign shares: the clock, the output files, the device, the timing loops.

Takes nothing from the measured models. `Device` hides whether a GPU is there, so that a dry run on a CPU goes
through the same lines as the real run; a dry run's numbers mean nothing and its files say so.
"""
import contextlib
import datetime
import gc
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
import zlib

import torch

warnings.filterwarnings("ignore")


class BudgetSpent(Exception):
    """Raised between measurements when no time is left; ends a part, never counts as a failure."""


class Clock:
    """Seconds since the script started, against a budget."""

    def __init__(self, budget_s):
        self.start = time.perf_counter()
        self.budget_s = budget_s

    def elapsed(self):
        return time.perf_counter() - self.start

    def left(self):
        return self.budget_s - self.elapsed()


class Lines:
    """A jsonl file whose every line is on the disk before the next measurement starts."""

    def __init__(self, path, meta):
        self.gz = path.endswith(".gz")
        # A gzip member per line would cost ratio; a sync flush keeps one stream and still survives a kill.
        self.file = gzip.open(path, "wb", compresslevel=6) if self.gz else open(path, "wb")
        self.write({"meta": meta})

    def write(self, record):
        self.file.write((json.dumps(record, separators=(",", ":")) + "\n").encode())
        if self.gz:
            self.file.flush(zlib.Z_SYNC_FLUSH)
        else:
            self.file.flush()

    def close(self):
        self.file.close()


class Device:
    def __init__(self, dry_run):
        self.dry_run = dry_run
        self.type = "cpu" if dry_run else "cuda"

    def sync(self):
        if not self.dry_run:
            torch.cuda.synchronize()

    def sleep(self, cycles):
        """Keeps the GPU busy so that the host can queue work behind it."""
        if not self.dry_run:
            torch.cuda._sleep(int(cycles))

    def event(self):
        return _FakeEvent() if self.dry_run else torch.cuda.Event(enable_timing=True)

    def free(self, kept_bytes=None):
        """Returns cached memory. A full collection takes 0.1 s with these libraries loaded, so when told how much
        should be left (`kept_bytes`) it is done only if more is."""
        if kept_bytes is None or (not self.dry_run and torch.cuda.memory_allocated() > kept_bytes * 1.02 + 64e6):
            gc.collect()
        if not self.dry_run:
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()  # they live in the caching allocator and would count as ours
            torch.cuda.empty_cache()

    def reset_peak(self):
        if not self.dry_run:
            torch.cuda.reset_peak_memory_stats()

    def memory(self):
        if self.dry_run:
            return {"peak_bytes": 0, "reserved_bytes": 0, "rest_bytes": 0}
        return {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
                "rest_bytes": torch.cuda.memory_allocated()}

    def tf32(self, matmul, cudnn):
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = cudnn


class _FakeEvent:
    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


class Campaign:
    """One run of the script: device, clock, files, and what went wrong."""

    def __init__(self, args, parts):
        self.device = Device(args.dry_run)
        self.dry_run = args.dry_run
        self.clock = Clock(args.budget)
        self.out = args.out
        self.only = args.only
        self.held_out = args.held_out
        self.parts = parts
        self.notes = []
        os.makedirs(self.out, exist_ok=True)
        self.meta = describe_machine(args, parts)
        with open(os.path.join(self.out, "meta_%s.json" % "".join(parts)), "w") as file:
            json.dump(self.meta, file, indent=1)

    def lines(self, name):
        return Lines(os.path.join(self.out, name), self.meta)

    def note(self, text):
        self.notes.append(text)
        print("  note:", text, flush=True)

    def say(self, text):
        print("%6.1fs %s" % (self.clock.elapsed(), text), flush=True)

    @contextlib.contextmanager
    def survive(self, what, lines=None, record=None):
        """A failed measurement is recorded and the campaign goes on."""
        try:
            yield
        except BudgetSpent:
            raise
        except torch.cuda.OutOfMemoryError:
            failure = {"oom": True}
        except Exception as error:  # noqa: BLE001: whatever one library call throws, the rest is worth measuring
            failure = {"error": "%s: %s" % (type(error).__name__, str(error)[:300])}
        else:
            return
        if "error" in failure:
            self.note("%s: %s" % (what, failure["error"]))
        if lines is not None:
            lines.write(dict(record or {}, **failure))


def describe_machine(args, parts):
    meta = {"script": os.path.basename(sys.argv[0]), "parts": parts, "dry_run": args.dry_run, "host": "h200-vm",
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
            "cpu_count": os.cpu_count()}
    meta["torch_threads"] = torch.get_num_threads()
    for name in ("transformers", "torchvision", "numpy"):
        try:
            meta[name] = __import__(name).__version__
        except Exception as error:
            meta[name] = "absent: %s" % error
    with contextlib.suppress(Exception):
        with open("/proc/cpuinfo") as file:
            meta["cpu"] = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    if args.dry_run:
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


def clocks_now():
    """SM clock (MHz), power (W) and temperature, for judging throttling; {} where nvidia-smi does not answer."""
    with contextlib.suppress(Exception):
        answer = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu",
                                 "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10).stdout
        sm, power, temperature = [float(value) for value in answer.strip().split("\n")[0].split(",")]
        return {"sm_mhz": sm, "power_w": power, "temperature_c": temperature}
    return {}


def gpu_seconds(device, call, target_s=2e-3, most=50, repeats=3, kernels=1):
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
    calls = int(min(max(target_s / first, 3), most, max(3, 600 // kernels)))
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
