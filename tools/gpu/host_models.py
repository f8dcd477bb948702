#!/usr/bin/env python3
"""What the host pays inside models: the issue time of small random stacks of modules, phase by phase.

  python3 tools/gpu/host_models.py --out RAW --seconds 180         about three minutes on a GPU
  python3 tools/gpu/host_models.py --out /tmp/dry --seconds 40 --dry-run

A loop over one operator keeps its code in the caches; a model does not, and it has Python between its operators, modules
inside modules, a gradient to hand to every parameter and, under autocast, a copy of every weight. The stacks of host_stacks.py
are issued from an idle GPU with tensors so small that the host alone decides. The machine's speed wanders: all stacks take
turns, round after round, and a fixed little stack (the anchor) is timed before and after each.

Written as it goes: host_models.jsonl. A first line {"meta"}; per stack and precision {"stack", "precision", "kernels": {phase:
launches by the profiler}, "tensors", "modules"}; then per turn {"stack", "precision", "round", "steps", "<phase>_s", "<phase>_min_s"
(zero_grad, forward, backward, optimizer), "step_s", "finished_s" (until the GPU was done), "anchor_s": [before, after]}; a stack
that failed has "error". host_fit.py reads it.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any, Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import common  # noqa: E402
import host_stacks  # noqa: E402
from precog.gpu import kernels, trainer  # noqa: E402

PHASES = ("zero_grad", "forward", "backward", "optimizer")
DTYPES = trainer.DTYPES


class Case:
    """One stack in one precision, ready to step."""

    def __init__(self, device: common.Device, stack: host_stacks.Stack, precision: str) -> None:
        self.stack, self.precision, self.device = stack, precision, device
        torch.manual_seed(0)
        model = stack.build().to(device.type).train()
        host_stacks.train_only(model, stack.frozen)
        data = stack.inputs(device.type)
        if precision in DTYPES:
            model = model.to(DTYPES[precision])
            data = {key: value.to(DTYPES[precision]) if value.is_floating_point() else value for key, value in data.items()}
        self.model, self.data = model, data
        trainer.switch(device, precision)
        self.trainer = trainer.Trainer(device, lambda m: stack.loss(m, data), model, precision, stack.optimizer, stack.implementation)

    def step(self) -> list[float]:
        """Moments: start, then the end of issuing each phase. The GPU is idle at the start."""
        t, marks = self.trainer, [time.perf_counter()]
        t.optimizer.zero_grad(set_to_none=True)
        marks.append(time.perf_counter())
        with t.autocast():
            loss = t.loss_fn(t.model)
        marks.append(time.perf_counter())
        (t.scaler.scale(loss) if t.scaler else loss).backward()
        marks.append(time.perf_counter())
        if t.scaler:
            t.scaler.step(t.optimizer)
            t.scaler.update()
        else:
            t.optimizer.step()
        marks.append(time.perf_counter())
        return marks

    def launches(self) -> dict[str, int]:
        """Kernels launched up to the end of forward, of backward, of the step: by the profiler, each part in its own run."""
        t = self.trainer

        def forward() -> Any:
            t.optimizer.zero_grad(set_to_none=True)
            with t.autocast():
                return t.loss_fn(t.model)

        ahead = len(kernels.record(self.device, forward))
        both = len(kernels.record(self.device, lambda: forward().backward()))
        return {"forward": ahead, "backward": both - ahead}

    def turn(self, steps: int) -> dict[str, float]:
        trainer.switch(self.device, self.precision)
        taken: list[list[float]] = []
        finished = []
        for _ in range(steps):
            self.device.sync()
            marks = self.step()
            self.device.sync()
            finished.append(time.perf_counter() - marks[0])
            taken.append([end - start for start, end in zip(marks, marks[1:])] + [marks[-1] - marks[0]])
        out: dict[str, float] = {}
        for name, values in zip((*PHASES, "step"), zip(*taken)):
            out[f"{name}_s"] = round(statistics.median(values), 7)
            out[f"{name}_min_s"] = round(min(values), 7)
        out["finished_s"] = round(statistics.median(finished), 7)
        return out


def make_anchor(device: common.Device) -> Callable[[], float]:
    """Seconds of one fixed stack of two-layer blocks, forward and backward: the machine's speed at this moment."""
    weights = [torch.randn(32, 32, device=device.type, requires_grad=True) for _ in range(24)]
    x = torch.randn(4, 32, device=device.type)

    def once() -> float:
        for weight in weights:
            weight.grad = None
        device.sync()
        started = time.perf_counter()
        y = x
        for weight in weights:
            y = F.relu(F.linear(y, weight)) + y
        y.sum().backward()
        taken = time.perf_counter() - started
        device.sync()
        return taken
    return lambda: round(statistics.median(once() for _ in range(3)), 7)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--seconds", type=float, default=180.0, help="stop after this long, whatever is left")
    parser.add_argument("--only", default="", help="stacks whose name contains this")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU; the figures mean nothing")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    begun = time.perf_counter()
    device = common.Device(args.dry_run)
    meta = {"script": "host_models.py", "host": common.HOST, **common._device.describe_machine(args.dry_run)}
    lines = common.Lines(os.path.join(args.out, "host_models.jsonl"), meta)
    anchor = make_anchor(device)
    for _ in range(5):
        anchor()
    cases: list[Case] = []
    listed = [(i, stack) for i, stack in enumerate(host_stacks.stacks()) if args.only in stack.name]
    # Every stack in fp32 and autocast before any in the others, so that a short budget loses the least.
    wanted = [(stack, precision) for rank in range(4) for i, stack in listed for precision in host_stacks.precisions(i)[rank:rank + 1]]
    wanted.sort(key=lambda pair: 0 if pair[1] in ("fp32", "amp-bf16") else 1)
    for stack, precision in wanted:
        if time.perf_counter() - begun > 0.45 * args.seconds:
            print("building stopped at %s %s: %d cases" % (stack.name, precision, len(cases)), flush=True)
            break
        row: dict[str, Any] = {"stack": stack.name, "precision": precision}
        try:
            case = Case(device, stack, precision)
            for _ in range(3):
                case.step()
            device.sync()
            row["kernels"] = {} if args.dry_run else case.launches()
        except Exception as error:  # noqa: BLE001: one library's refusal must not end the sitting
            lines.write({**row, "error": "%s: %s" % (type(error).__name__, str(error)[:300])})
            print("%s %s: %s" % (stack.name, precision, str(error)[:200]), flush=True)
            continue
        row["tensors"] = sum(1 for p in case.model.parameters() if p.requires_grad)
        row["modules"] = sum(1 for _ in case.model.modules())
        lines.write(row)
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
    lines.close()
    print("%d rounds in %.0f s" % (round_, time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
