#!/usr/bin/env python3
"""What precision costs the host: each small stack in several precisions that take turns, in a process that never ran the profiler.

  python3 tools/gpu/host_turns.py --out RAW --seconds 90                       about a minute and a half on a GPU
  python3 tools/gpu/host_turns.py --out RAW --launches --seconds 25            a second process: launches by the profiler
  python3 tools/gpu/host_turns.py --out /tmp/dry --seconds 20 --dry-run

host_models.py has nearly all its cases in fp32 and amp-bf16, minutes apart on a machine whose speed wanders. Here a stack is
built in all of its precisions at once, they step in turns, and are dropped before the next stack: their ratios are free of
the wandering. The stacks of host_stacks_more.py come first, then every third of the others. Written as it goes, in the form of
host_models.py: host_turns.jsonl (host_turns_launches.jsonl).
"""
from __future__ import annotations

import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from host_models import options, ready, sitting  # noqa: E402
from precog.gpu import host_stacks  # noqa: E402

PRECISIONS = ("fp32", "amp-bf16", "bf16", "amp-fp16", "fp16")
TURNS, STEPS = 3, 4


def chosen() -> list[host_stacks.Stack]:
    listed = host_stacks.stacks()
    more = [stack for stack in listed if stack.family == "more"]
    others = [stack for stack in listed if stack.family != "more"]
    return more + [stack for start in (0, 1, 2) for stack in others[start::3]]


def main() -> int:
    parser = options(__doc__ or "", 90.0)
    parser.add_argument("--launches", action="store_true", help="count launches instead of timing")
    args = parser.parse_args()
    begun = time.perf_counter()
    device, lines, anchor = sitting("host_turns.py", "host_turns_launches.jsonl" if args.launches else "host_turns.jsonl", args)
    done = 0
    for stack in chosen():
        if args.only not in stack.name:
            continue
        if time.perf_counter() - begun > args.seconds:
            print("stopped before %s" % stack.name, flush=True)
            break
        cases = [case for precision in PRECISIONS if (case := ready(device, stack, precision, lines, args.launches and not args.dry_run))]
        before = anchor()
        for turn in range(0 if args.launches else 1 if args.dry_run else TURNS):
            for case in cases[turn % len(cases):] + cases[:turn % len(cases)] if cases else []:
                row: dict[str, Any] = {"stack": stack.name, "precision": case.precision, "round": turn, "steps": STEPS, **case.turn(STEPS)}
                after = anchor()
                lines.write({**row, "anchor_s": [before, after]})
                before = after
        for case in cases:
            case.close()
        done += 1
    lines.close()
    print("%d stacks in %.0f s" % (done, time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
