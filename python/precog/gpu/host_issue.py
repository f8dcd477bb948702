"""The issue time of a small stack of modules, phase by phase, from an idle GPU: what the host pays inside a model.

`Case(device, stack, precision)` is a stack of host_stacks.py ready to step; `turn(steps)` times it. `make_anchor` is a fixed little
stack whose time says how fast the machine is at this moment. Used by `precog host` (precog.hosting) and tools/gpu/host_models.py.
"""
from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import torch
import torch.nn.functional as F

from . import host_stacks, kernels, trainer
from .device import Device

PHASES = ("zero_grad", "forward", "backward", "optimizer")
DTYPES = trainer.DTYPES


class Case:
    """One stack in one precision, ready to step."""

    def __init__(self, device: Device, stack: host_stacks.Stack, precision: str, compiled: bool = False) -> None:
        self.stack, self.precision, self.device = stack, precision, device
        torch.manual_seed(0)
        model = stack.build().to(device.type).train()
        host_stacks.train_only(model, stack.frozen)
        data = stack.inputs(device.type)
        if precision in DTYPES:
            model = model.to(DTYPES[precision])
            data = {key: value.to(DTYPES[precision]) if value.is_floating_point() else value for key, value in data.items()}
        self.model: Any = torch.compile(model, dynamic=False) if compiled else model
        self.data: Any = data
        trainer.switch(device, precision)
        self.trainer = trainer.Trainer(device, lambda m: stack.loss(m, data), self.model, precision, stack.optimizer, stack.implementation)

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
        """Kernels launched in forward and in backward, by the profiler."""
        return self.launches_of("")

    def launches_of(self, kind: str) -> dict[str, int]:
        """The same, of kernels whose names begin with `kind`; each part in its own run."""
        t = self.trainer

        def forward() -> Any:
            t.optimizer.zero_grad(set_to_none=True)
            with t.autocast():
                return t.loss_fn(t.model)

        def number(call: Callable[[], Any]) -> int:
            return sum(1 for _, _, name in kernels.record(self.device, call) if name.startswith(kind))

        ahead = number(forward)
        both = number(lambda: forward().backward())
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

    def close(self) -> None:
        """Lets go of model, states and data."""
        self.trainer.close()
        self.model = self.data = None


def make_anchor(device: Device) -> Callable[[], float]:
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
