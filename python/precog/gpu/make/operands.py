"""Calls on operands that lie in memory in any way (plan/operands.py), on the device."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
import torch.nn.functional as F

from ..plan.case import Case
from ..plan.operands import STRIDED, span
from .work import DTYPES, Work, random

Made = dict[str, Work]
_aten = torch.ops.aten


def _operand(device: str, shape: list[int], strides: list[int], dtype: torch.dtype) -> torch.Tensor:
    size = span(shape, strides)
    if dtype == torch.bool:
        plain = (random(device, size, dtype=torch.float16) > 0)
    else:
        plain = random(device, size, dtype=dtype)
    return plain.as_strided(shape, strides)


def _own(x: torch.Tensor) -> int:
    """Elements that it has, the same ones along a broadcast axis counted once."""
    return math.prod(extent for extent, stride in zip(x.shape, x.stride()) if stride != 0)


def strided(case: Case, device: str) -> Made:
    shape, op, dtype = case.shape["shape"], case.ops[0], DTYPES[case.dtype]
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    inputs, masked = STRIDED[op]
    types = [torch.bool] * masked + [dtype] * inputs
    if op == "add mixed":
        types[-1] = other
    x = [_operand(device, shape, one, kind) for one, kind in zip(case.shape["strides"], types)]
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: x[0] + x[1], "add mixed": lambda: x[0] + x[1], "mul": lambda: x[0] * x[1], "sub": lambda: x[0] - x[1],
        "div": lambda: x[0] / x[1], "add_": lambda: x[0].add_(x[1]), "clone": lambda: x[0].clone(),
        "copy": lambda: x[0].clone(memory_format=torch.contiguous_format), "cast": lambda: x[0].to(other), "mul scalar": lambda: x[0] * 0.5,
        "neg": lambda: -x[0], "silu": lambda: F.silu(x[0]), "gelu": lambda: F.gelu(x[0]), "exp": lambda: x[0].exp(),
        "relu backward": lambda: _aten.threshold_backward(x[0], x[1], 0), "silu backward": lambda: _aten.silu_backward(x[0], x[1]),
        "gelu backward": lambda: _aten.gelu_backward(x[0], x[1]), "where": lambda: torch.where(x[0], x[1], x[2]),
        "masked_fill": lambda: x[1].masked_fill(x[0], 0.0), "dropout backward": lambda: _aten.native_dropout_backward(x[1], x[0], 1.1),
        "addcmul": lambda: torch.addcmul(x[0], x[1], x[2]), "pow 2": lambda: x[0].pow(2), "rsqrt": lambda: x[0].rsqrt()}
    wide = {"cast": other.itemsize, "add mixed": 4}.get(op, dtype.itemsize)
    return {op: Work(calls[op], sum(_own(one) * one.element_size() for one in x) + math.prod(shape) * wide)}


def reduce_strided(case: Case, device: str) -> Made:
    shape, over, op = case.shape["shape"], case.shape["over"], case.ops[0]
    x = _operand(device, shape, case.shape["strides"], DTYPES[case.dtype])
    calls: dict[str, Callable[[], Any]] = {
        "sum": lambda: x.sum(over), "mean": lambda: x.mean(over), "amax": lambda: x.amax(over), "var": lambda: x.var(over),
        "norm": lambda: torch.linalg.vector_norm(x, dim=over), "argmax": lambda: x.argmax(over[0])}
    kept = math.prod(shape) / math.prod(shape[axis] for axis in over)
    return {op: Work(calls[op], _own(x) * x.element_size() + kept * (8 if op == "argmax" else x.element_size()), kernels=2)}


def scan(case: Case, device: str) -> Made:
    axis, op = case.shape["over"][0], case.ops[0]
    x = _operand(device, case.shape["shape"], case.shape["strides"], DTYPES[case.dtype])
    calls: dict[str, Callable[[], Any]] = {"cumsum": lambda: x.cumsum(axis), "cumprod": lambda: x.cumprod(axis),
                                           "logcumsumexp": lambda: torch.logcumsumexp(x, axis), "flip": lambda: x.flip(axis)}
    return {op: Work(calls[op], 2 * x.nbytes, kernels=2)}


def joined(case: Case, device: str) -> Made:
    axis, op = case.shape["over"][0], case.ops[0]
    x = [_operand(device, case.shape["shape"], case.shape["strides"], DTYPES[case.dtype]) for _ in range(case.shape["parts"])]
    return {op: Work((lambda: torch.stack(x)) if op == "stack" else (lambda: torch.cat(x, axis)), 2 * len(x) * x[0].nbytes)}
