#!/usr/bin/env python3
"""What single operators and modules cost the host inside a model: random mixes of them, and the small stacks once more, all in turns.

  python3 tools/gpu/host_mixes.py --out RAW --seconds 100                 on a GPU: the mixes
  python3 tools/gpu/host_mixes.py --out RAW --seconds 100 --stacks        a second process: every stack of precog.gpu.host_stacks
  python3 tools/gpu/host_mixes.py --out /tmp/dry --seconds 10 --dry-run

Mixes (precog.gpu.host_mixes) are built a few at a time in three precisions; they take turns, so that the machine's wandering falls on all of them alike, and
are dropped. A turn is two steps from an idle GPU of which the first, with cold caches, does not count. Written as it goes: host_mixes.jsonl,
{"mix", "precision", "counts", "tensors", "forward_us", "backward_us", "anchor_us"}: medians over turns, each over its round's anchor and times the group's. Stacks are all
kept and visited round after round: host_stacks.jsonl, in the form of host_models.py. Neither process runs the profiler.
"""
from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402

import common  # noqa: E402
import host_speed  # noqa: E402
from host_models import options, ready, sitting  # noqa: E402
from precog.gpu import host_mixes, host_stacks, trainer  # noqa: E402

PRECISIONS = ("fp32", "bf16", "amp-bf16")
GROUP, TURNS = 4, 6
BETWEEN = 24  # stacks from one visit of the reference's to the next


class Case:
    def __init__(self, device: common.Device, index: int, precision: str) -> None:
        self.device, self.index, self.precision, self.taken = device, index, precision, []
        model = host_mixes.mix(index).to(device.type).train()
        self.x, self.given = host_mixes.inputs(model.family, device.type)
        if dtype := trainer.DTYPES.get(precision):
            model, self.x = model.to(dtype), self.x.to(dtype)
            self.given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in self.given.items()}
        self.model, self.amp = model, trainer.AUTOCAST.get(precision)
        self.tensors = [parameter for parameter in model.parameters()]

    def step(self) -> tuple[float, float]:
        for tensor in self.tensors:
            tensor.grad = None
        self.device.sync()
        started = time.perf_counter()
        with torch.autocast(self.device.type, dtype=self.amp) if self.amp else contextlib.nullcontext():
            loss = self.model(self.x, self.given)
        issued = time.perf_counter()
        if loss.requires_grad:
            loss.backward()
        done = time.perf_counter()
        self.device.sync()
        return issued - started, done - issued


def group_of(device: common.Device, first: int, lines: common.Lines) -> list[Case]:
    out = []
    for index in range(first, first + GROUP):
        for precision in PRECISIONS:
            try:
                trainer.switch(device, precision)
                case = Case(device, index, precision)
                for _ in range(2):
                    case.step()
                out.append(case)
            except Exception as error:  # noqa: BLE001: the others go on
                lines.write({"mix": index, "precision": precision, "error": "%s: %s" % (type(error).__name__, str(error)[:200])})
    return out


def mixes(device: common.Device, lines: common.Lines, anchor: Any, begun: float, args: Any) -> int:
    speed = host_speed.Anchor(device)
    first = written = 0
    while time.perf_counter() - begun < args.seconds or not written:
        lines.write({"speed_s": speed(), "phases_s": speed.phases})
        cases, anchors = group_of(device, first, lines), []
        for turn in range(1 if args.dry_run else TURNS):
            anchors.append(anchor())
            for case in cases[turn:] + cases[:turn]:
                trainer.switch(device, case.precision)
                case.step()
                case.taken.append(case.step())
        usual = statistics.median(anchors)
        for case in cases:
            middle = [statistics.median(part[i] / now * usual for part, now in zip(case.taken, anchors)) for i in (0, 1)]
            lines.write({"mix": case.index, "precision": case.precision, "counts": case.model.counts, "tensors": len(case.tensors), "forward_us": round(middle[0] * 1e6, 2),
                         "backward_us": round(middle[1] * 1e6, 2), "anchor_us": round(usual * 1e6, 2)})
            written += 1
        first += GROUP
    return written


def stacks(device: common.Device, lines: common.Lines, anchor: Any, begun: float, args: Any) -> int:
    # Those that `precog host` holds a machine against come again and again: how they stand to all the others is what its ratio rests on. Products of tensors as small as
    # these take more kernels in fp32 than a model's do, in 16 bits they do not.
    known = host_speed.reference()["reference"]
    wanted = [(stack, precision) for stack in host_stacks.stacks() for precision in ("fp32", "bf16", "amp-bf16") if precision != "fp32" or "%s fp32" % stack.name in known]
    wanted.sort(key=lambda one: "%s %s" % (one[0].name, one[1]) not in known)
    cases = []
    for stack, precision in wanted:
        if time.perf_counter() - begun < 0.5 * args.seconds and args.only in stack.name:
            cases += [case for case in [ready(device, stack, precision, lines, False)] if case]
    print("%d stacks in %.0f s" % (len(cases), time.perf_counter() - begun), flush=True)
    often = [case for case in cases if "%s %s" % (case.stack.name, case.precision) in known]
    rest = [case for case in cases if case not in often]
    order = [case for first in range(0, len(rest), BETWEEN) for case in often + rest[first:first + BETWEEN]] or often
    round_ = 0
    while cases and (time.perf_counter() - begun < args.seconds or not round_):
        before = anchor()
        for case in order:
            if round_ and time.perf_counter() - begun > args.seconds:
                break
            row: dict[str, Any] = {"stack": case.stack.name, "precision": case.precision, "round": round_, "steps": 2, **case.turn(2)}
            after = anchor()
            lines.write({**row, "anchor_s": [before, after]})
            before = after
        round_ += 1
    return round_


def main() -> int:
    parser = options(__doc__ or "", 100.0)
    parser.add_argument("--stacks", action="store_true", help="the stacks instead of the mixes")
    args = parser.parse_args()
    begun = time.perf_counter()
    device, lines, anchor = sitting("host_mixes.py", "host_stacks.jsonl" if args.stacks else "host_mixes.jsonl", args)
    done = (stacks if args.stacks else mixes)(device, lines, anchor, begun, args)
    lines.close()
    print("%d %s in %.0f s" % (done, "rounds" if args.stacks else "cases", time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
