"""Functions in the place of operators whose results CUDA lays out in its own way, that run only there, or whose gradients go another way
around tensors without memory."""
from __future__ import annotations

import torch


class FusedAttention(torch.autograd.Function):
    """Results and gradients laid out as CUDA's fused kernels do: [batch, sequence, heads, width] in memory in fp32 (the memory-efficient
    kernel), like the operands in 16 bits (cuDNN)."""

    @staticmethod
    def forward(ctx, q, k, v, mask):
        ctx.save_for_backward(q, k, v, mask)
        if q.dim() != 4:
            return q.new_empty((*q.shape[:-1], v.shape[-1]))
        shape = (*q.shape[:3], v.shape[3])
        order = [0, 2, 1, 3]
        if q.dtype != torch.float32:  # cuDNN follows the query's order of axes
            order = sorted(range(4), key=lambda axis: -q.stride(axis))
        made = q.new_empty([shape[axis] for axis in order])
        return made.permute([order.index(axis) for axis in range(4)])

    @staticmethod
    def backward(ctx, gradient):
        def like(saved):
            if saved.dtype != torch.float32 or saved.dim() != 4:
                return torch.empty_like(saved)
            return saved.new_empty((saved.shape[0], saved.shape[2], saved.shape[1], saved.shape[3])).transpose(1, 2)
        return tuple(like(saved) if saved is not None and wanted else None
                     for saved, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad))


class RecurrentLayers(torch.autograd.Function):
    """Results and gradients laid out as cuDNN does: time first in memory."""

    @staticmethod
    def forward(ctx, settings, x, *others):
        layers, directions, batch_first, states = settings
        ctx.save_for_backward(x, *others)
        hidden = others[0].shape[-1]
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1] if x.dim() == 3 else 1)
        if x.dim() == 3:
            out = x.new_empty((steps, batch, hidden * directions))
            out = out.transpose(0, 1) if batch_first else out
        else:
            out = x.new_empty((x.shape[0], hidden * directions))
        return (out, *(x.new_empty(others[index].shape) for index in range(states)))

    @staticmethod
    def backward(ctx, *gradients):
        return (None, *(torch.empty_like(saved) if wanted else None for saved, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])))


class GroupedProduct(torch.autograd.Function):
    """Differentiable, of the right shape, for any type: what the capture needs of a grouped product."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.new_empty(x.shape[:-1] + weight.shape[-1:])

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.empty_like(saved) if wanted else None for saved, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad))


class CumulativeProduct(torch.autograd.Function):
    """With the gradient of a real operand that has no zeros. The framework looks for them, and the host waits for the answer; around
    stand-ins it cannot look, and goes through the axis one by one instead (cumprod_backward, autograd/FunctionsManual.cpp)."""

    @staticmethod
    def forward(ctx, x, dim):
        made = torch.cumprod(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(x, made)
        return made

    @staticmethod
    def backward(ctx, gradient):
        x, made = ctx.saved_tensors
        weighted = made * gradient
        (x == 0).any().item()
        return weighted.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim) / x, None


class Product(torch.autograd.Function):
    """As the cumulative one; over all elements the framework looks for zeros with `nonzero` (prod_backward, the same file)."""

    @staticmethod
    def forward(ctx, x, dim=None, keepdim=False):
        made = torch.prod(x) if dim is None else torch.prod(x, dim, keepdim)
        ctx.dim, ctx.keepdim = dim, keepdim
        ctx.save_for_backward(x, made)
        return made

    @staticmethod
    def backward(ctx, gradient):
        x, made = ctx.saved_tensors
        if ctx.dim is None:
            (x == 0).nonzero()
        else:
            if not ctx.keepdim:
                gradient, made = gradient.unsqueeze(ctx.dim), made.unsqueeze(ctx.dim)
            (x == 0).sum(ctx.dim, keepdim=True).sum().item()
        return gradient * (made / x), None, None


def scalar_of(scores):
    """Differentiable and of one element: the loss's stand-in, whose own size depends on values."""
    return scores.sum()
