#!/usr/bin/env python3
"""What the host pays inside models: the issue time of small random stacks of modules, phase by phase.

  python3 tools/gpu/host_models.py --out RAW --seconds 180         about three minutes on a GPU
  python3 tools/gpu/host_models.py --out /tmp/dry --seconds 40 --dry-run

A loop over one operator keeps its code in the caches; a model does not, and it has Python between its operators, modules
inside modules, a gradient to hand to every parameter and, under autocast, a copy of every weight. The stacks of precog.gpu.host_stacks
are issued from an idle GPU with tensors so small that the host alone decides. The machine's speed wanders: all stacks take
turns, round after round, and a fixed little stack (the anchor) is timed before and after each.

A process that keeps many models alive is slower than one that trains: `--alone` builds, times and drops one stack after another.

Written as it goes: host_models.jsonl (host_models_alone.jsonl). A first line {"meta"}; per stack and precision {"stack", "precision", "kernels": {phase:
launches by the profiler}, "tensors", "modules"}; then per turn {"stack", "precision", "round", "steps", "<phase>_s", "<phase>_min_s"
(zero_grad, forward, backward, optimizer), "step_s", "finished_s" (until the GPU was done), "anchor_s": [before, after]}; a stack
that failed has "error". host_fit.py reads it.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import common  # noqa: E402
from precog.gpu import host_stacks  # noqa: E402
from precog.gpu.host_issue import Case, make_anchor  # noqa: E402


UNPROFILED = 24


def ready(device: common.Device, stack: host_stacks.Stack, precision: str, lines: common.Lines, profiled: bool) -> Case | None:
    """The case after three steps, its facts written; None where it failed, which is written too."""
    row: dict[str, Any] = {"stack": stack.name, "precision": precision}
    try:
        case = Case(device, stack, precision)
        for _ in range(3):
            case.step()
        device.sync()
        row["kernels"] = case.launches() if profiled else {}
    except Exception as error:  # noqa: BLE001: one library's refusal must not end the sitting
        lines.write({**row, "error": "%s: %s" % (type(error).__name__, str(error)[:300])})
        print("%s %s: %s" % (stack.name, precision, str(error)[:200]), flush=True)
        return None
    row["tensors"] = sum(1 for p in case.model.parameters() if p.requires_grad)
    row["modules"] = sum(1 for _ in case.model.modules())
    lines.write(row)
    return case


def in_turns(device: common.Device, wanted: list[Any], lines: common.Lines, anchor: Any, begun: float, args: argparse.Namespace) -> int:
    """All stacks are built, profiled once and kept; then they take turns."""
    cases: list[Case] = []
    for stack, precision in wanted:
        if time.perf_counter() - begun > 0.45 * args.seconds:
            print("building stopped at %s %s: %d cases" % (stack.name, precision, len(cases)), flush=True)
            break
        case = ready(device, stack, precision, lines, not args.dry_run)
        if case is not None:
            cases.append(case)
    print("%d cases built in %.0f s" % (len(cases), time.perf_counter() - begun), flush=True)
    round_ = 0
    while cases and time.perf_counter() - begun < args.seconds:
        before = anchor()
        for case in cases:
            if time.perf_counter() - begun > args.seconds:
                break
            row = {"stack": case.stack.name, "precision": case.precision, "round": round_, "steps": 5, **case.turn(5)}
            after = anchor()
            lines.write({**row, "anchor_s": [before, after]})
            before = after
        round_ += 1
    return round_


def one_by_one(device: common.Device, wanted: list[Any], lines: common.Lines, anchor: Any, begun: float, args: argparse.Namespace) -> int:
    """Each stack is built, stepped, profiled and dropped, as recorded training steps are. The first ones are not profiled: the
    anchor beside them says what a profiler that has run once costs from then on."""
    for index, (stack, precision) in enumerate(wanted):
        if time.perf_counter() - begun > args.seconds:
            print("stopped after %d cases" % index, flush=True)
            break
        case = ready(device, stack, precision, lines, False)
        if case is None:
            continue
        before = anchor()
        row = {"stack": stack.name, "precision": precision, "round": 0, "steps": 9, **case.turn(9)}
        lines.write({**row, "anchor_s": [before, anchor()]})
        if index >= UNPROFILED and not args.dry_run and not args.unprofiled:
            lines.write({"stack": stack.name, "precision": precision, "kernels": case.launches(), "tensors": 0})
        case.close()
    return 1


def options(description: str, seconds: float) -> argparse.ArgumentParser:
    """What every sitting over stacks takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--seconds", type=float, default=seconds, help="stop after this long, whatever is left")
    parser.add_argument("--only", default="", help="stacks whose name contains this")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU; the figures mean nothing")
    return parser


def sitting(script: str, file: str, args: argparse.Namespace) -> tuple[common.Device, common.Lines, Any]:
    """The device, the file that is written as it goes, and the anchor, warm."""
    os.makedirs(args.out, exist_ok=True)
    device = common.Device(args.dry_run)
    lines = common.Lines(os.path.join(args.out, file), {"script": script, "host": common.HOST, **common._device.describe_machine(args.dry_run)})
    anchor = make_anchor(device)
    for _ in range(5):
        anchor()
    return device, lines, anchor


def main() -> int:
    parser = options(__doc__ or "", 180.0)
    parser.add_argument("--alone", action="store_true", help="one stack at a time, dropped before the next")
    parser.add_argument("--unprofiled", action="store_true", help="with --alone: never profile; launches are taken from another sitting")
    args = parser.parse_args()
    begun = time.perf_counter()
    device, lines, anchor = sitting("host_models.py", "host_models_alone.jsonl" if args.alone else "host_models.jsonl", args)
    listed = [(i, stack) for i, stack in enumerate(host_stacks.stacks()) if args.only in stack.name]
    # Every stack in fp32 and autocast before any in the others, so that a short budget loses the least.
    wanted = [(stack, precision) for rank in range(4) for i, stack in listed for precision in host_stacks.precisions(i)[rank:rank + 1]]
    wanted.sort(key=lambda pair: 0 if pair[1] in ("fp32", "amp-bf16") else 1)
    round_ = (one_by_one if args.alone else in_turns)(device, wanted, lines, anchor, begun, args)
    lines.close()
    print("%d rounds in %.0f s" % (round_, time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
