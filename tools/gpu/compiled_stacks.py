#!/usr/bin/env python3
"""What the host pays to issue compiled steps: small stacks of precog.gpu.host_stacks through torch.compile, phase by phase.

  python3 tools/gpu/compiled_stacks.py --out RAW --budget 85            a minute and a half on a GPU with 16 cores
  python3 tools/gpu/compiled_stacks.py --out /tmp/dry --budget 200 --only crossed,tokens-00 --processes 1 --dry-run

A process per stack and precision compiles it, side by side with the others; then each has the machine to itself (turns.py), times it
issued from an idle GPU and before it has ever run the profiler (which slows a process for good), and only then counts kernels. Written as they come: compiled_stacks.jsonl, in the form of host_models.py's rows: per case {"stack", "precision", "kernels":
{phase: launches}, "generated": {phase: Triton's among them}, "tensors", "modules", "graphs", "graph_breaks"} and per turn the seconds by phase.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import compiled_turns  # noqa: E402
import turns  # noqa: E402

# Stacks of few layers, many parameters or few, convolutions, attention, what libraries wrote. Two precisions each: compiling takes the time.
STACKS = ("crossed", "tokens-28", "tokens-01", "images-15", "tokens-15", "images-01", "GPT2LMHeadModel-5", "images-08", "tokens-24", "images-05",
          "LlamaForCausalLM-4", "ElectraModel-5", "tokens-25", "VisionTransformer", "tokens-09")
PRECISIONS = (("bf16", "amp-bf16"), ("fp32", "amp-bf16"), ("fp32", "bf16"))
TURNS, STEPS = 4, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--budget", type=float, default=85, help="seconds after which everything is ended")
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these stacks")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, not compiled; the figures mean nothing")
    parser.add_argument("--worker", type=json.loads, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return compiled_turns.work(args.worker, measure, {"stack": args.worker["stack"]})
    return compiled_turns.coordinate(args, __file__, cases(args.only), threads=1)


def cases(only: list[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for rank in (0, 1):
        for index, name in enumerate(STACKS):
            precision = PRECISIONS[index % len(PRECISIONS)][rank]
            if not only or name in only:
                yield name + " " + precision, {"stack": name, "precisions": [precision]}


def measure(job: dict[str, Any], worker: turns.Worker) -> None:
    import torch
    from torch._dynamo.utils import counters

    import common
    from precog.gpu import host_stacks
    from precog.gpu.host_issue import Case, make_anchor
    device = common.Device(job["dry_run"])
    stack = next(one for one in host_stacks.stacks() if one.name == job["stack"])
    cases, facts = [], []
    for precision in job["precisions"]:
        begun, before = time.perf_counter(), dict(counters["stats"])
        try:
            case = Case(device, stack, precision, compiled=not job["dry_run"])
            for _ in range(4):
                case.step()
            device.sync()
        except Exception as error:  # noqa: BLE001: one library's refusal must not end the others
            worker.tell(stack=stack.name, precision=precision, error="%s: %s" % (type(error).__name__, str(error)[:300]))
            continue
        cases.append(case)
        facts.append({"compile_s": round(time.perf_counter() - begun, 1), "graphs": counters["stats"].get("unique_graphs", 0) - before.get("unique_graphs", 0),
                      "graph_breaks": sum(counters["graph_break"].values()), "tensors": sum(1 for p in case.model.parameters() if p.requires_grad),
                      "modules": sum(1 for _ in case.model.modules())})
    anchor = make_anchor(device)
    worker.turn()
    worker.tell(meta=common._device.describe_machine(job["dry_run"]))
    for _ in range(3):
        anchor()
    now = anchor()
    for turn in range(TURNS):
        for case in cases:
            row = {"stack": stack.name, "precision": case.precision, "round": turn, "steps": STEPS, **case.turn(STEPS)}
            after = anchor()
            worker.tell(**row, anchor_s=[now, after])
            now = after
    for case, known in zip(cases, facts):
        launched, generated = (case.launches(), case.launches_of("triton")) if not job["dry_run"] else ({}, {})
        worker.tell(stack=stack.name, precision=case.precision, kernels=launched, generated=generated, torch=torch.__version__, **known)


if __name__ == "__main__":
    sys.exit(main())
