"""The seven precisions as training loops: how the model is cast, which switches are set, what one step does.

`Trainer` owns the optimizer and the scaler; `step()` is the loop body as users write it, and `phases()` runs the
same body with a callback after each phase.
"""
import contextlib

import torch

import models

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
ALL = ("fp32", "tf32", "fp32-default", "amp-bf16", "amp-fp16", "bf16", "fp16")


def of_model(name):
    """fp32-default differs from fp32 in convolutions alone."""
    return [p for p in ALL if p != "fp32-default" or name in models.CONVOLUTIONAL]


def switch(device, precision):
    matmul = precision == "tf32"
    # Autocast and 16-bit rows run with PyTorch's own defaults for whatever stays in fp32.
    cudnn = precision != "fp32"
    device.tf32(matmul, cudnn)
    return {"matmul_allow_tf32": matmul, "cudnn_allow_tf32": cudnn}


class Trainer:
    def __init__(self, device, name, model, data, precision, optimizer="foreach"):
        self.name, self.model, self.data = name, model, data
        self.amp = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}.get(precision)
        self.device_type = device.type
        # The default eps is zero in fp16, which turns every weight into NaN in the first step, and arithmetic on
        # NaN draws less power than on numbers: a larger eps costs the same kernels and keeps the data random.
        self.eps = 1e-3 if precision == "fp16" else 1e-8
        # On a GPU foreach is what PyTorch chooses by itself; a dry run on a CPU has to ask for it.
        chosen = {"fused": True} if optimizer == "fused" else {"foreach": True} if device.dry_run else {}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=self.eps, **chosen)
        # A small first scale: with the default 65536 the first steps overflow and the optimizer is skipped.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=1024.0) if precision == "amp-fp16" else None
        self.last_loss = None

    def autocast(self):
        return torch.autocast(self.device_type, dtype=self.amp) if self.amp else contextlib.nullcontext()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = models.loss(self.name, self.model, self.data)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        self.last_loss = loss.detach()

    def phases(self, after):
        """The same step, calling after(phase) when the host has issued the phase."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = models.loss(self.name, self.model, self.data)
        after("forward")
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        after("backward")
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        after("optimizer")

    def scale(self):
        return self.scaler.get_scale() if self.scaler else None

    def close(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()  # whatever still refers to the optimizer, its tensors go now
        self.optimizer.param_groups.clear()
        self.optimizer = self.scaler = self.data = self.model = self.last_loss = None
