#!/usr/bin/env python3
"""Where memory runs out: for a few jobs the largest batch that runs and the smallest that dies, by running them.

  python3 tools/gpu/memory_limits.py --out memory_limits.jsonl --budget 150
  python3 tools/gpu/memory_limits.py --out /tmp/dry.jsonl --dry-run
  python3 tools/gpu/memory_limits.py --predict build/precog       (no GPU: writes memory_limits.json anew)

Starts from precog's own answers (memory_limits.json beside this file: `precog predict --max-batch` on the same GPU with
so much memory), tries them at 0.9, 0.95, 1, 1.05 and 1.1 times, then halves the gap while there is time. Most jobs run
under a limit of their own (torch.cuda.set_per_process_memory_fraction: the same allocator, the same error, steps that take
milliseconds instead of seconds); those with a limit of null have the whole device. One line per attempt:
  {"id", "source", "job", "request", "limit_bytes", "batch", "predicted_batch", "predicted_next", "measured": {"ran", "peak_bytes", ...}}
and one per job: {"job", "largest_ran", "smallest_died", "predicted_batch"}.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

GIGABYTE = 10**9
# What precog takes off for the driver and the CUDA context (src/memory/memory.cpp); an allocator's limit does not hold it.
CONTEXT, DRIVER = 810_000_000, 0.0043
# (model, layers, precision, seq, src_seq, limit); the limit in GB, None for the whole device
JOBS: list[tuple[str, int | None, str, int | None, int | None, float | None]] = [
    ("bert-base", None, "amp-bf16", 512, None, 24),
    ("resnet50", None, "amp-bf16", None, None, 24),
    ("gpt2", None, "tf32", 1024, None, 32),
    ("qwen2.5-0.5b", None, "bf16", 1024, None, 32),
    ("t5-base", None, "amp-fp16", 128, 512, 24),
    ("vit-b", None, "fp32", None, None, 16),
    ("mobilenet_v2", None, "fp16", None, None, 16),
    ("llama3-8b", 4, "bf16", 2048, None, None),
    ("gpt2-large", None, "amp-bf16", 1024, None, None),
]

FACTORS = (1.0, 1.05, 0.95, 1.1, 0.9)
STEPS = 3  # states appear in the first, the allocator's segments have settled by the third


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="memory_limits.jsonl")
    parser.add_argument("--budget", type=float, default=150, help="seconds after which no further attempt is made")
    parser.add_argument("--jobs", default=os.path.join(HERE, "memory_limits.json"))
    parser.add_argument("--predict", metavar="PRECOG", help="write the predictions to start from, with this program")
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the CPU, same code, no meaning")
    args = parser.parse_args()
    if args.predict:
        return predict_jobs(args.predict, args.jobs)
    started = time.perf_counter()

    def left() -> float:
        return args.budget - (time.perf_counter() - started)

    import common
    import torchvision  # noqa: F401: imported before the first job's time is counted
    import transformers  # noqa: F401
    device = common.Device(args.dry_run)
    with open(args.jobs) as file:
        jobs = json.load(file)["jobs"]
    os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
    lines = common.Lines(args.out, {"script": "memory_limits.py", "host": common.HOST, **common._device.describe_machine(args.dry_run)})
    for index, job in enumerate(jobs):
        if left() < 8:
            lines.write({"job": job["id"], "dropped": "out of time"})
            continue
        share = left() / (len(jobs) - index)  # an equal part of what is left
        try:
            run_job(device, job, lines, min(left() - 3, share), args.dry_run)
        except Exception as error:  # noqa: BLE001: the next job may run
            lines.write({"job": job["id"], "error": "%s: %s" % (type(error).__name__, str(error)[:300])})
        device.free()
    lines.close()
    print("%.0f s" % (time.perf_counter() - started))
    return 0


def with_memory(spec: str, limit: float | None) -> str:
    """The GPU's file, with so much memory for the allocator as a limit leaves it."""
    gpu = json.loads(spec)
    for field in ("capacity", "reported") if limit is not None else ():
        gpu["memory"][field]["value"] = "%d B" % ((limit + CONTEXT) / (1 - DRIVER))
    return json.dumps(gpu)


def predict_jobs(program: str, path: str) -> int:
    """The largest batch of each job on an H200 with so much memory, as `precog predict --max-batch` finds it."""
    import pathlib
    import shutil
    import subprocess
    import tempfile
    jobs = []
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "data"
        shutil.copytree(pathlib.Path(HERE).parent.parent / "data", data, ignore=shutil.ignore_patterns("measured"))
        whole = (data / "gpus" / "h200-sxm.json").read_text()
        for model, layers, precision, seq, src_seq, limit in JOBS:
            (data / "gpus" / "h200-sxm.json").write_text(with_memory(whole, limit and limit * GIGABYTE))
            request: dict[str, Any] = {"schema": 1, "model": {"name": model, "layers": layers} if layers else model, "precision": precision,
                                       "optimizer": "adamw", "cluster": {"gpu": "h200-sxm", "gpus": 1}}
            request.update({key: value for key, value in (("seq", seq), ("src_seq", src_seq)) if value})
            job = pathlib.Path(folder) / "job.json"
            job.write_text(json.dumps(request))
            done = subprocess.run([program, "predict", str(job), "--max-batch", "--json", "--data", str(data)], capture_output=True, text=True)
            if done.returncode not in (0, 3):
                sys.exit(done.stderr)
            report = json.loads(done.stdout)
            name = "-".join([model + ("-%dl" % layers if layers else ""), precision, *("s%d" % s for s in (seq, src_seq) if s), "%dgb" % limit if limit else "whole"])
            jobs.append({"id": name, "request": request, "limit_bytes": int(limit * GIGABYTE) if limit else None, "predicted_batch": report["max_batch"]["batch"],
                         "predicted_next": report["max_batch"]["next_batch"], "predicted_peak_bytes": report["peak_bytes"],
                         "predicted_reserved_bytes": report["reserved_bytes"], "predicted_device_bytes": report["device_bytes"], "predicted_step_s": report["step_s"]})
            print("%-44s largest batch %5d, step %.3f s, peak %.2f GB" % (name, jobs[-1]["predicted_batch"], report["step_s"], report["peak_bytes"] / 1e9))
    with open(path, "w") as file:
        json.dump({"made_by": "tools/gpu/memory_limits.py --predict", "jobs": jobs}, file, indent=1)
        file.write("\n")
    return 0


def run_job(device: Any, job: dict[str, Any], lines: Any, seconds: float, dry_run: bool) -> None:
    import torch

    import models
    import precisions
    began = time.perf_counter()
    request, limit = job["request"], job["limit_bytes"]
    spec = request["model"] if isinstance(request["model"], dict) else {"name": request["model"]}
    name, layers, precision = spec["name"], spec.get("layers"), request["precision"]
    switches = precisions.switch(device, precision)
    dtype = precisions.DTYPES.get(precision, torch.float32)
    if not dry_run:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else min(1.0, limit / total))
    model = models.build(name, device.type, layers, tiny=dry_run).to(dtype)
    device.free()
    outcomes: dict[int, bool] = {}
    longest = [0.0]  # seconds of an attempt

    def attempt(batch: int) -> None:
        record: dict[str, Any] = {"id": "%s-b%d" % (job["id"], batch), "source": "measured: tools/gpu/memory_limits.py", "job": job["id"], "request": {**request, "batch": batch}, "limit_bytes": limit, "batch": batch,
                  "predicted_batch": job["predicted_batch"], "predicted_next": job["predicted_next"], **switches}
        at = time.perf_counter()
        ran, error = one_run(device, name, model, 2 if dry_run else batch, request, precision, dtype, dry_run)
        outcomes[batch] = ran
        longest[0] = max(longest[0], time.perf_counter() - at)
        record["measured"] = measured = {"ran": ran, "error": error, "wall_s": round(time.perf_counter() - at, 2), **device.memory()}
        if not dry_run:
            free, all_of_it = torch.cuda.mem_get_info()
            measured.update(device_free_bytes=free, device_total_bytes=all_of_it)
        for parameter in model.parameters():
            parameter.grad = None
        device.free(0)
        lines.write(record)
        print("%-44s batch %5d %s (%.1f s)" % (job["id"], batch, "ran" if ran else "out of memory", measured["wall_s"]), flush=True)

    def in_time() -> bool:
        return not outcomes or time.perf_counter() - began + 1.3 * longest[0] < seconds

    for factor in FACTORS:
        batch = max(1, round(job["predicted_batch"] * factor))
        if batch in outcomes or not in_time():
            continue
        ran_below = [b for b, ran in outcomes.items() if ran]
        died_above = [b for b, ran in outcomes.items() if not ran]
        if (ran_below and batch < max(ran_below)) or (died_above and batch > min(died_above)):
            continue  # its outcome is known
        attempt(batch)
    while in_time():
        low = max([b for b, ran in outcomes.items() if ran], default=0)
        high = min([b for b, ran in outcomes.items() if not ran], default=0)
        if high and high - low <= 1:
            break
        attempt((low + high) // 2 if high else low + max(1, low // 20))
    lines.write({"job": job["id"], "largest_ran": max([b for b, ran in outcomes.items() if ran], default=None),
                 "smallest_died": min([b for b, ran in outcomes.items() if not ran], default=None),
                 "predicted_batch": job["predicted_batch"], "seconds": round(time.perf_counter() - began, 1)})


def one_run(device: Any, name: str, model: Any, batch: int, request: dict[str, Any], precision: str, dtype: Any, dry_run: bool) -> tuple[bool, str | None]:
    import torch

    import models
    import precisions
    seq, src_seq = request.get("seq"), request.get("src_seq")
    if dry_run:
        seq, src_seq = seq and 16, src_seq and 32
    device.reset_peak()
    trainer = None
    try:
        data = models.inputs(name, model, device.type, batch, seq, src_seq, dtype, tiny=dry_run)
        trainer = precisions.Trainer(device, name, model, data, precision)
        for step in range(STEPS):
            if step == STEPS - 1:
                device.sync()
                device.reset_peak()
            trainer.step()
        device.sync()
        return True, None
    except torch.OutOfMemoryError as error:
        return False, str(error)[:160]
    finally:
        if trainer is not None:
            trainer.close()


if __name__ == "__main__":
    sys.exit(main())
