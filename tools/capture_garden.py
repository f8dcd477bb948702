#!/usr/bin/env python3
"""Captures the garden's models, several at a time: at full size for the coverage table, or as the recorded GPU steps ran them.

  python3 tools/capture_garden.py --out DIR [--traced] [--jobs N] [--timeout S] [NAME...]

Writes DIR/captures.jsonl (model, operators, parameters, seconds, memory, notes; or the error) and DIR/graphs.tar.gz with one
NAME.precog.json each. Needs torch, torchvision, timm and transformers; no GPU. Then, without any of these:
  tools/coverage DIR                   predicts every captured model at every precision and writes docs/coverage.md
  tools/keep_traced DIR                keeps the traced ones for tests/garden_trace_test.py
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import resource
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def one(name, out, traced):
    """Captures one model in this process and prints its record."""
    import torch

    import garden
    from precog.capturing import capture
    torch.set_num_threads(1)
    entry = garden.find(name)
    sizes = entry.trace if traced else {"batch": entry.batch, "seq": entry.seq}
    begin = time.monotonic()
    with torch.device("meta"):
        layers = entry.trace.get("layers") if traced else None
        model = entry.build(layers=layers) if layers else entry.build()
    built = time.monotonic() - begin
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = entry.inputs(model, sizes["batch"], sizes.get("seq"), torch.device("cpu"), torch.float32)
    begin = time.monotonic()
    graph = capture(lambda one: entry.loss(one, data), model, name=name)
    seconds = time.monotonic() - begin
    graph.save(out / f"{name}.precog.json")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"model": name, "family": entry.family, "source": entry.source, "operators": graph.operators,
                      "parameters": graph.parameters, "symbols": graph.symbols, "build_s": round(built, 1), "capture_s": round(seconds, 1),
                      "peak_mb": peak // 1024, "imported_mb": before // 1024, "notes": graph.notes, "fixed": graph.document.get("fixed", {})}))


def in_process(name, arguments):
    command = [sys.executable, __file__, "--out", str(arguments.out), "--one", name] + (["--traced"] if arguments.traced else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout)
    except subprocess.TimeoutExpired:
        return {"model": name, "error": f"took longer than {arguments.timeout} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    return {"model": name, "error": (done.stderr.strip().splitlines() or ["no message"])[-1][:500]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--traced", action="store_true")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        return one(arguments.one, arguments.out, arguments.traced)
    import garden
    names = arguments.names or [entry.name for entry in garden.entries() if entry.trace or not arguments.traced]
    slow = ("405b", "70b", "deepseek", "rcnn", "mamba", "rwkv", "xlarge", "-xl", "20b", "moe", "densenet", "whisper-large", "retina", "fcos")
    names.sort(key=lambda name: not any(word in name for word in slow))
    failed = 0
    with open(arguments.out / "captures.jsonl", "w") as lines, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool, \
            tarfile.open(arguments.out / "graphs.tar.gz", "w:gz") as graphs:
        for done in concurrent.futures.as_completed([pool.submit(in_process, name, arguments) for name in names]):
            record = done.result()
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            path = arguments.out / f"{record['model']}.precog.json"
            if "error" in record:
                failed += 1
                print(f"{record['model']:28} FAILED {record['error'][:200]}", flush=True)
            else:
                graphs.add(path, path.name)
                path.unlink()
                print(f"{record['model']:28} {record['operators']:6} operators {record['capture_s']:6.1f} s {record['peak_mb']:6} MB"
                      f" {'; '.join(record['notes'])[:150]}", flush=True)
    print(f"{len(names) - failed} captured, {failed} failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
