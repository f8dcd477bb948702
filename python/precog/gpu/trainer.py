"""The seven precisions as training loops: which switches are set, what one step does. The model is cast by the caller.

`Trainer` owns the optimizer and the scaler; `step()` is the loop body as users write it, and `phases()` runs the same
body with a callback after each phase.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch

from .device import Device

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
AUTOCAST = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
PRECISIONS = ("fp32", "tf32", "fp32-default", "fp16", "bf16", "amp-fp16", "amp-bf16")
OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum")
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")


def switch(device: Device, precision: str) -> dict[str, bool]:
    matmul = precision == "tf32"
    # Autocast and 16-bit rows run with PyTorch's own defaults for whatever stays in fp32.
    cudnn = precision != "fp32"
    device.tf32(matmul, cudnn)
    return {"matmul_allow_tf32": matmul, "cudnn_allow_tf32": cudnn}


def make_optimizer(device: Device, parameters: Any, name: str, implementation: str, eps: float) -> torch.optim.Optimizer:
    if implementation == "foreach":  # on a GPU this is what PyTorch chooses by itself; a dry run on a CPU has to ask for it
        chosen: dict[str, Any] = {"foreach": True} if device.dry_run else {}
    else:
        chosen = {"fused": True} if implementation == "fused" else {"foreach": False}
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, eps=eps, **chosen)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-4, eps=eps, **chosen)
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9 if name == "sgd-momentum" else 0.0, **chosen)


class Trainer:
    def __init__(self, device: Device, loss_fn: Callable[[Any], torch.Tensor], model: torch.nn.Module, precision: str,
                 optimizer: str = "adamw", implementation: str = "foreach") -> None:
        self.loss_fn: Any = loss_fn
        self.model: Any = model
        self.amp = AUTOCAST.get(precision)
        self.device_type = device.type
        # The default eps is zero in fp16, which turns every weight into NaN in the first step, and arithmetic on
        # NaN draws less power than on numbers: a larger eps costs the same kernels and keeps the data random.
        self.eps = 1e-3 if precision == "fp16" else 1e-8
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer: Any = make_optimizer(device, trained, optimizer, implementation, self.eps)
        # A small first scale: with the default 65536 the first steps overflow and the optimizer is skipped.
        self.scaler: Any = torch.amp.GradScaler(device.type, init_scale=1024.0) if precision == "amp-fp16" else None
        self.last_loss: Any = None

    def autocast(self) -> Any:
        return torch.autocast(self.device_type, dtype=self.amp) if self.amp else contextlib.nullcontext()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_fn(self.model)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        self.last_loss = loss.detach()

    def phases(self, after: Callable[[str], None]) -> None:
        """The same step, calling after(phase) when the host has issued the phase."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_fn(self.model)
        after("forward")
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        after("backward")
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        after("optimizer")

    def scale(self) -> float | None:
        return self.scaler.get_scale() if self.scaler else None

    def close(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()  # whatever still refers to the optimizer, its tensors go now
        self.optimizer.param_groups.clear()
        self.optimizer = self.scaler = self.loss_fn = self.model = self.last_loss = None
