#!/usr/bin/env python3
"""Operators that few models have and that were predicted worst (a plan of precog.gpu.plan with `NAMED`): first under the profiler, kernel by kernel, then timed.

  python3 tools/gpu/odd_operators.py --out DIR [--plan odd_ops|thin_ops] [--seconds 200] [--workers 4] [--dry-run]

A quarter of the time goes to DIR/odd_kernels.jsonl.gz (a case's line with "kernels": [[number of the name, microseconds], ...], lines
{"name": number, "is": "..."} before a number's first use), the rest to DIR/operators.jsonl.gz, as dense_operators.py writes it
and `precog calibrate` reads it. Both are written as they go.
"""
from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import in_package  # noqa: E402,F401
from kernel_choices import Session, record_sessions  # noqa: E402

NAMED_SHARE = 0.25


def named(arguments: argparse.Namespace) -> int:
    from precog.gpu.device import Device, describe_machine
    from precog.gpu.make import make
    from precog.gpu.plan.dense import Dice
    plan = importlib.import_module("precog.gpu.plan." + arguments.plan)
    device, until = Device(arguments.dry_run), time.time() + arguments.seconds
    cases = {name: plan.SHARES[name][1](Dice("named %s %d" % (name, arguments.seed), device.dry_run)) for name in plan.NAMED}

    def call(session: Session, name: str) -> None:
        session.case(next(cases[name]), make)

    with gzip.open(os.path.join(arguments.out, "odd_kernels.jsonl.gz"), "wt", 6) as lines:
        lines.write(json.dumps({"meta": {"script": "odd_operators.py", "plan": arguments.plan, "seed": arguments.seed, **describe_machine(arguments.dry_run)}}) + "\n")
        return 0 if record_sessions(device, lines, until, plan.NAMED, call) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--plan", default="odd_ops", choices=("odd_ops", "thin_ops"))
    parser.add_argument("--workers", type=int, default=4, help="of the timed part, as dense_operators.py has them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="small cases on the CPU: the times mean nothing")
    parser.add_argument("--named", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    if arguments.named:
        return named(arguments)
    until, dry = time.time() + arguments.seconds, ["--dry-run"] if arguments.dry_run else []
    common = ["--out", arguments.out, "--plan", arguments.plan, "--seed", str(arguments.seed), *dry]
    # A process of its own: what the profiler leaves behind slows the other down.
    first = [sys.executable, os.path.abspath(__file__), *common, "--seconds", str(arguments.seconds * NAMED_SHARE), "--named"]
    status: int | str = "late"
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = subprocess.run(first, timeout=None if arguments.dry_run else arguments.seconds * NAMED_SHARE + 40, check=False).returncode
    print("by name: status", status, flush=True)
    timed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dense_operators.py")
    return subprocess.run([sys.executable, timed, *common, "--workers", str(arguments.workers),
                           "--seconds", str(max(10.0, until - time.time()))], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
