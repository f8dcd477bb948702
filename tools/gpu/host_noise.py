#!/usr/bin/env python3
"""How steady the host is, and whether pinning, the garbage collector or a profiler that has run make a difference.

  python3 tools/gpu/host_noise.py --out RAW --seconds 3        a line per way of running, half a minute in all; host_noise.jsonl

Each way runs in its own process: a stack of modules (host_stacks) and the anchor are issued again and again from an idle GPU.
"""
import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

WAYS = ("plain", "cores:4", "cores:2", "cores:1", "frozen", "profiled", "torn-down", "plain")  # the first again: what the order does


def one(way, seconds, dry_run):
    if way.startswith("cores:"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[len(allowed) // 2:][:int(way[6:])])  # before any thread is made
    if way == "torn-down":
        os.environ["TEARDOWN_CUPTI"] = "1"  # Kineto then ends CUPTI with the profile
    import common
    from precog.gpu import host_issue, host_stacks, kernels
    device = common.Device(dry_run)
    anchor = host_issue.make_anchor(device)
    case = host_issue.Case(device, host_stacks.stacks()[0], "fp32")
    for _ in range(5):
        anchor(), case.step()
    if way in ("profiled", "torn-down"):
        kernels.record(device, case.step)
    if way == "frozen":
        gc.collect()
        gc.freeze()
        gc.disable()
    anchors, phases = [], {phase: [] for phase in host_issue.PHASES}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        anchors.append(anchor())
        device.sync()
        marks = case.step()
        device.sync()
        for phase, start, end in zip(host_issue.PHASES, marks, marks[1:]):
            phases[phase].append(end - start)
    row = {"way": way, "turns": len(anchors)}
    for name, values in {"anchor": anchors, **phases}.items():
        values = sorted(values)
        row[name + "_s"] = {"median": statistics.median(values), "p10": values[len(values) // 10], "p90": values[len(values) * 9 // 10]}
    print(json.dumps(row))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if args.way:
        one(args.way, args.seconds, args.dry_run)
        return 0
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "host_noise.jsonl"), "w") as file:
        for way in WAYS:
            command = [sys.executable, os.path.abspath(__file__), "--way", way, "--seconds", str(args.seconds)] + (["--dry-run"] if args.dry_run else [])
            done = subprocess.run(command, capture_output=True, text=True)
            line = (done.stdout.strip().splitlines() or [json.dumps({"way": way, "error": done.stderr[-300:]})])[-1]
            file.write(line + "\n")
            file.flush()
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
