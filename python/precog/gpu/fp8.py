"""Linear layers in fp8 by hand, on torch._scaled_mm: what the recipes `fp8` and `fp8-rowwise` mean, as running code.

The sequence of operators is that of torchao's eager float8 training (Float8Linear, dynamic scaling): every operand is quantised
from high precision in front of each product, forward and backward; weights from what they are stored in; the bias is added after.
`convert(model)` replaces every nn.Linear whose extents fp8 products can take.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 1e-12
MULTIPLE = 16  # torch._scaled_mm wants rows of 16 bytes


def quantised(x: torch.Tensor, dtype: torch.dtype, axis: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in 8 bits and the scale it was multiplied by: one for all of it, or one along each `axis`."""
    largest = torch.finfo(dtype).max
    amax = torch.max(torch.abs(x)) if axis is None else torch.amax(torch.abs(x), dim=axis, keepdim=True)
    scale = (largest / torch.clamp(amax.to(torch.float64), min=SMALLEST)).to(torch.float32)
    if axis is not None:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    return torch.clamp(x.to(torch.float32) * scale, min=-largest, max=largest).to(dtype), scale


def product(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor,
            out_dtype: torch.dtype) -> torch.Tensor:
    """a[m,k] b[k,n]. The library wants a by rows and b by columns; another layout is copied."""
    if not a.is_contiguous():
        a = a.contiguous()
    if not b.t().is_contiguous():
        b = b.t().contiguous().t()
    return torch._scaled_mm(a, b, scale_a=torch.reciprocal(scale_a), scale_b=torch.reciprocal(scale_b), out_dtype=out_dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, rowwise: bool) -> torch.Tensor:
        context.save_for_backward(x, weight)
        context.rowwise = rowwise
        along = 1 if rowwise else None
        rows = x.reshape(-1, x.shape[-1])
        a, scale_a = quantised(rows, E4M3, along)
        b, scale_b = quantised(weight, E4M3, along)
        out = product(a, b.t(), scale_a, scale_b.t() if rowwise else scale_b, x.dtype)
        return out.reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = context.saved_tensors
        rowwise, grad = context.rowwise, gradients[0]
        narrow = E4M3 if rowwise else E5M2
        rows = grad.reshape(-1, grad.shape[-1])
        g, scale_g = quantised(rows, narrow, 1 if rowwise else None)
        w, scale_w = quantised(weight, E4M3, 0 if rowwise else None)
        grad_x = product(g, w, scale_g, scale_w, grad.dtype).reshape(x.shape)
        g, scale_g = quantised(rows, narrow, 0 if rowwise else None)
        a, scale_a = quantised(x.reshape(-1, x.shape[-1]), E4M3, 0 if rowwise else None)
        grad_w = product(g.t(), a, scale_g.t() if rowwise else scale_g, scale_a, grad.dtype)
        return grad_x, grad_w, None


class Fp8Linear(nn.Linear):
    rowwise = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.numel() // x.shape[-1]
        if rows % MULTIPLE:
            return super().forward(x)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        out: torch.Tensor = _Product.apply(x, self.weight, self.rowwise)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def convert(model: nn.Module, rowwise: bool = False) -> int:
    """Turns linear layers into fp8 ones in place; returns how many."""
    converted = 0
    for module in model.modules():
        if type(module) is nn.Linear and module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0:
            module.__class__ = Fp8Linear
            module.rowwise = rowwise  # type: ignore[assignment]
            converted += 1
    return converted
