#!/usr/bin/env python3
"""Compiled training steps beside eager ones: what `--mode compile` is held against.

  python3 tools/gpu/compiled_steps.py --out results --budget 540
  python3 tools/gpu/compiled_steps.py --out results --budget 320 --unopened --precisions amp-bf16,bf16,tf32
  python3 tools/gpu/compiled_steps.py --out results --budget 360 --third --compiled-only --processes 12 --precisions amp-bf16,bf16,tf32
  python3 tools/gpu/compiled_steps.py --out /tmp/dry --dry-run --only bert-base --precisions bf16

One process per (model, precision): it compiles the model (torch.compile, Inductor's default mode; the optimizer stays eager),
and when it is ready everybody else is stopped while it times eager and compiled steps (compiled ones only, if asked: the
garden's eager steps are garden_steps.py's), so that compilation runs on all cores and timing runs alone. Rows are those of first_steps.py part A with `mode`; kernels are kept complete, not the longest
only, because their names and counts are the fusion groups. Output, all written as it goes:

  compiled_steps.jsonl     measured runs, one line per mode
  compiled_kernels.jsonl.gz   {"id", "kernels": [[name, count, microseconds]]}
  wrappers.tar.gz          the programs that Inductor wrote, by row: which operators each kernel holds
"""
from __future__ import annotations

import argparse
import glob
import io
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# (model, layers, batch, seq, src_seq); sizes that first_steps.py measured too.
MODELS: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("bert-base", None, 64, 128, None),
    ("gpt2", None, 8, 1024, None),
    ("resnet50", None, 128, None, None),
    ("qwen2.5-0.5b", None, 2, 2048, None),
    ("vit-b", None, 64, None, None),
    ("mobilenet_v2", None, 256, None, None),
    ("llama3-8b", 2, 2, 2048, None),
    ("t5-base", None, 16, 128, 512),
    ("vgg16", None, 64, None, None),
    ("bert-base", None, 4, 128, None),
]
PRECISIONS = ("amp-bf16", "bf16", "tf32", "amp-fp16", "fp32")
# Of the garden's unopened half (garden_steps.py), for `--unopened`: measured once, like the rest of it.
UNOPENED: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:electra-base", None, 32, 256, None),
    ("garden:resnext50_32x4d", None, 96, None, None),
    ("garden:qwen3-0.6b", None, 3, 1024, None),
    ("garden:beit_base_patch16_224", None, 64, None, None),
    ("garden:mobilenet_v3_large", None, 192, None, None),
    ("garden:dit-b2", None, 64, None, None),
    ("garden:stablelm2-1.6b", None, 2, 1024, None),
    ("garden:seresnet50", None, 16, None, None),
    ("garden:marian-en-de", None, 32, 128, None),
    ("garden:bloom-560m", None, 2, 256, None),
]
# Of the garden's third list, for `--third`: most of them compile quickly (compiling is what takes the time); the
# longest first, and sizes small enough for a dozen processes on one GPU.
THIRD: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:gemma3-1b", None, 1, 1024, None),
    ("garden:siglip-base", None, 32, 64, None),
    ("garden:shufflenet_v2_x1_0", None, 192, None, None),
    ("garden:pvt_v2_b1", None, 64, None, None),
    ("garden:twins_svt_small", None, 64, None, None),
    ("garden:convnextv2_tiny", None, 64, None, None),
    ("garden:mpnet-base", None, 24, 256, None),
    ("garden:dinov2-base", None, 32, None, None),
    ("garden:ast-base", None, 6, None, None),
    ("garden:segformer-b0", None, 12, None, None),
    ("garden:r3d_18", None, 12, None, None),
    ("garden:unet3d", None, 2, None, None),
    ("garden:two-towers", None, 8192, None, None),
]
# Inductor's reduce-overhead mode on two of them, last.
GRAPHED = (("bert-base", None, 4, 128, None), ("gpt2", None, 8, 1024, None))
MODES = {"compile": None, "compile-cudagraphs": "reduce-overhead"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which everything is ended")
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these models")
    parser.add_argument("--unopened", action="store_true", help="models of the garden's unopened half in place of the zoo's")
    parser.add_argument("--third", action="store_true", help="models of the garden's third list")
    parser.add_argument("--compiled-only", action="store_true", help="no eager steps beside the compiled ones")
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=list(PRECISIONS))
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the CPU, same code, no meaning")
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(json.loads(args.worker))
    return coordinate(args)


# --- the coordinator: starts processes, lets one at a time measure, writes what they say

def coordinate(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    os.makedirs(args.out, exist_ok=True)
    if args.dry_run:
        args.processes = min(args.processes, 1)
    listed = THIRD if args.third else UNOPENED if args.unopened else MODELS
    waiting = [{"model": m, "precision": p, "mode": "compile"} for p in args.precisions for m in listed]
    if listed is MODELS:
        waiting += [{"model": m, "precision": "amp-bf16", "mode": "compile-cudagraphs"} for m in GRAPHED]
    for job in waiting:
        job.update(dry_run=args.dry_run, compiled_only=args.compiled_only)
    waiting = [job for job in waiting if not args.only or job["model"][0] in args.only]
    if args.dry_run:
        waiting = waiting[:2]
    scratch = tempfile.mkdtemp(prefix="compiled_steps_")
    import common
    lines = [common.Lines(os.path.join(args.out, name), {"host": common.HOST, "script": "compiled_steps.py", "dry_run": args.dry_run})
             for name in ("compiled_steps.jsonl", "compiled_kernels.jsonl.gz")]
    wrappers = tarfile.open(os.path.join(args.out, "wrappers.tar.gz"), "w:gz")
    running: dict[Any, dict[str, Any]] = {}
    ready: list[Any] = []
    measuring: Any = None
    selector = selectors.DefaultSelector()

    def signal_others(number: int) -> None:
        for process in running:
            if process is not measuring and process.poll() is None:
                os.killpg(process.pid, number)  # its own session: it and its compile workers

    def say(text: str) -> None:
        print("%6.1fs %s" % (time.perf_counter() - started, text), flush=True)

    while (waiting or running) and time.perf_counter() - started < args.budget:
        while waiting and len(running) < args.processes and measuring is None:
            job = waiting.pop(0)
            job["cache"] = os.path.join(scratch, "%d" % len(waiting))
            process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", json.dumps(job)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                                       env=dict(os.environ, TORCHINDUCTOR_CACHE_DIR=job["cache"], TORCHINDUCTOR_COMPILE_THREADS="3",
                                                TRITON_CACHE_DIR=os.path.join(job["cache"], "triton"), OMP_NUM_THREADS="4"))
            running[process] = job
            selector.register(process.stdout, selectors.EVENT_READ, process)
            say("started %s %s %s" % (job["model"][0], job["precision"], job["mode"]))
        if measuring is None and ready:
            measuring = ready.pop(0)
            signal_others(signal.SIGSTOP)
            time.sleep(0.2)  # what they had queued drains
            measuring.stdin.write(b"go\n")
            measuring.stdin.flush()
        for key, _ in selector.select(timeout=1.0):
            process = key.data
            text = key.fileobj.readline()
            if not text:  # it has ended
                selector.unregister(key.fileobj)
                job = running.pop(process)
                process.wait()
                if process in ready:
                    ready.remove(process)
                if process is measuring:
                    measuring = None
                    signal_others(signal.SIGCONT)
                save_wrappers(wrappers, job)
                shutil.rmtree(job["cache"], ignore_errors=True)
                continue
            if not text.startswith(b"{"):
                continue
            message = json.loads(text)
            if message.get("ready"):
                ready.append(process)
            elif "kernels" in message:
                lines[1].write(message)
            elif "id" in message:
                lines[0].write(message)
                measured = message.get("measured", {})
                say("%s %s: %s" % (message["id"], message["request"]["mode"], "%.2f ms, GPU %.2f ms, %d kernels, host %.2f ms" % (
                    measured["step_s"] * 1e3, measured["gpu_busy_s"] * 1e3, measured["kernels"], measured["host_enqueue_s"] * 1e3)
                    if measured else message.get("error", "out of memory")))
            elif "meta" in message:
                lines[0].write(message)
            elif message.get("done") and process is measuring:
                measuring = None
                signal_others(signal.SIGCONT)
    for process in running:
        os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        say("budget: %s %s ended" % (running[process]["model"][0], running[process]["precision"]))
    for job in running.values():
        save_wrappers(wrappers, job)
    for file in lines:
        file.close()
    wrappers.close()
    shutil.rmtree(scratch, ignore_errors=True)
    say("done, %d rows not started" % len(waiting))
    return 0


def save_wrappers(archive: tarfile.TarFile, job: dict[str, Any]) -> None:
    """The Python programs with a `call` function; their comments name the operators in each kernel."""
    name = "-".join(str(part) for part in [*job["model"], job["precision"], job["mode"]] if part)
    if job["precision"] not in ("amp-bf16", "bf16", "tf32"):
        return
    for number, path in enumerate(sorted(glob.glob(os.path.join(job["cache"], "**", "*.py"), recursive=True), key=os.path.getmtime)):
        with open(path, "rb") as file:
            text = file.read()
        if b"def call(" in text:
            entry = tarfile.TarInfo("%s/%d.py" % (name, number))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))


# --- one process: one model in one precision, eager and compiled

def work(job: dict[str, Any]) -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print does not mix with what is said to the coordinator

    def tell(**message: Any) -> None:
        out.write(json.dumps(message, separators=(",", ":")) + "\n")
        out.flush()

    name, layers, batch, seq, src_seq = job["model"]
    if name.startswith("garden:"):
        import garden_steps  # first: it says where the garden is
        import garden
        entry = garden.find(name.removeprefix("garden:"))
        record = garden_steps.record_of(entry.name, job["precision"], batch, seq, entry.inputs.__name__ == "two_sides")
    else:
        import part_steps
        record = part_steps._record(name, layers, False, job["precision"], batch, seq, src_seq)
    record["source"] = "measured: tools/gpu/compiled_steps.py"
    try:
        measure(job, record, tell)
    except Exception as error:  # noqa: BLE001: the row says what happened
        record["request"]["mode"] = job["mode"]
        tell(**record, error="%s: %s" % (type(error).__name__, str(error)[:400]))
    tell(done=True)
    return 0


def measure(job: dict[str, Any], record: dict[str, Any], tell: Any) -> None:
    import torch

    import common
    import kernels
    import models
    import precisions
    from precog.gpu import steps
    device = common.Device(job["dry_run"])
    name, layers, batch, seq, src_seq = job["model"]
    if job["dry_run"]:
        batch, seq, src_seq = 2, seq and 16, src_seq and 32
    precision = job["precision"]
    switches = precisions.switch(device, precision)
    dtype = precisions.DTYPES.get(precision, torch.float32)
    if name.startswith("garden:"):
        import garden
        from precog.gpu.trainer import Trainer
        entry = garden.find(name.removeprefix("garden:"))
        with torch.device(device.type):
            model = entry.build(tiny=job["dry_run"])
        model = model.to(device=device.type, dtype=dtype)
        data = entry.inputs(model, batch, seq, torch.device(device.type), dtype)
        make = lambda trained: Trainer(device, lambda one: entry.loss(one, data), trained, precision)  # noqa: E731
    else:
        model = models.build(name, device.type, layers, tiny=job["dry_run"]).to(dtype)
        data = models.inputs(name, model, device.type, batch, seq, src_seq, dtype, tiny=job["dry_run"])
        make = lambda trained: precisions.Trainer(device, name, trained, data, precision)  # noqa: E731
    compiled = torch.compile(model, mode=MODES[job["mode"]], dynamic=False)
    started = time.perf_counter()
    trainer = make(compiled)
    for _ in range(3):
        trainer.step()
    device.sync()
    compile_s = time.perf_counter() - started
    trainer.close()
    kernels.record(device, lambda: torch.ones(8, device=device.type).add_(1))  # loads the tracing library
    device.free()
    tell(ready=True)
    sys.stdin.readline()
    tell(meta=common._device.describe_machine(job["dry_run"]))
    from torch._dynamo.utils import counters
    every = kernels.summarise
    kernels_of = lambda intervals, *top: every(intervals, top=1000)  # noqa: E731  (all of them, however many are asked for)
    steps.kernels.summarise = kernels_of
    for mode, trained in (("eager", model), (job["mode"], compiled)):
        if mode == "eager" and (job["mode"] != "compile" or job["compiled_only"]):
            continue
        row = {**record, "request": {**record["request"], "mode": mode}, "id": record["id"] + "-" + mode}
        trainer = make(trained)
        measured, top = steps.time_steps(device, trainer, warmup=3)
        trainer.close()
        device.free()
        row["measured"] = measured
        row["setup"] = {"compile_s": round(compile_s, 1), "graphs": counters["stats"].get("unique_graphs", 0),
                        "graph_breaks": sum(counters["graph_break"].values()), **switches}
        tell(**row)
        tell(id=row["id"], kernels=top)


if __name__ == "__main__":
    sys.exit(main())
