"""Products, convolutions, attention and recurrent layers of a plan's cases, on the device."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import torch
import torch.nn.functional as F

from ..plan.case import Case
from .work import DTYPES, Work, gradient, laid, random

Made = dict[str, Work]
FP8 = torch.float8_e4m3fn
BLOCK = 128  # elements that share a scale in the blockwise form


def gemm(case: Case, device: str) -> Made:
    shape, dtype, op = case.shape, DTYPES[case.dtype], case.ops[0]
    m, n, k, batch = shape["m"], shape["n"], shape["k"], shape.get("b")
    layout, *epilogue = op.removeprefix("bmm ").split("+")
    front = () if batch is None else (batch,)
    x = random(device, *front, *((k, m) if layout == "tn" else (m, k)), dtype=dtype)
    w = random(device, *front, *((n, k) if layout == "nt" else (k, n)), dtype=dtype)
    x, w = x.mT if layout == "tn" else x, w.mT if layout == "nt" else w
    count = batch or 1
    moved = count * (m * k + k * n + m * n) * dtype.itemsize
    bias = random(device, n, dtype=dtype) if epilogue else None
    calls: dict[tuple[str, ...], Callable[[], Any]] = {
        (): lambda: torch.matmul(x, w) if batch is None else torch.bmm(x, w), ("bias",): lambda: torch.addmm(bias, x, w),
        ("bias", "relu"): lambda: torch._addmm_activation(bias, x, w, use_gelu=False),
        ("bias", "gelu"): lambda: torch._addmm_activation(bias, x, w, use_gelu=True)}
    return {op: Work(calls[tuple(epilogue)], moved, 2 * count * m * n * k, 2, written=False)}


def scaled_mm(case: Case, device: str) -> Made:
    m, n, k, op = case.shape["m"], case.shape["n"], case.shape["k"], case.ops[0]
    a, b = random(device, m, k).to(FP8), (random(device, n, k) * k ** -0.5).to(FP8).t()
    # Block scales lie with the rows innermost.
    thin_a = torch.ones(k // BLOCK, m, device=device).t() if op.startswith("block") else None
    scales: dict[str, Callable[[], tuple[Any, Any]]] = {
        "tensor": lambda: (torch.ones((), device=device), torch.ones((), device=device)),
        "row": lambda: (torch.ones(m, 1, device=device), torch.ones(1, n, device=device)),
        "block 1x128 128x128": lambda: (thin_a, torch.ones(n // BLOCK, k // BLOCK, device=device).t()),
        "block 1x128 1x128": lambda: (thin_a, torch.ones(k // BLOCK, n, device=device))}
    scale_a, scale_b = scales[op.removesuffix(" fast")]()
    call = lambda: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=op.endswith(" fast"))
    return {op: Work(call, m * k + n * k + 2 * m * n, 2 * m * n * k, written=False)}


def convolution(case: Case, device: str) -> Made:
    """All kinds. Padding is half the kernel, and none for a kernel of 16 (patches), unless the case says. What the axes have each
    of their own is a list."""
    shape, dtype = case.shape, DTYPES[case.dtype]
    dims = {"conv1d": 1, "conv3d": 3}.get(case.family, shape.get("dims", 2))
    each: Callable[[Any], list[int]] = lambda value: list(value) if isinstance(value, (list, tuple)) else [value] * dims
    kernel, groups, transposed = each(shape["kernel"]), shape["groups"], case.family == "conv_transpose"
    padding = each(shape.get("padding", [0 if extent == 16 else extent // 2 for extent in kernel]))
    stride, dilation = each(shape["stride"]), each(shape.get("dilation", 1))
    cin, cout = shape["cin"], shape["cout"]
    size, layout = each(shape["size"]), shape["layout"]
    reach = [spread * (extent - 1) + 1 for spread, extent in zip(dilation, kernel)]
    result = [(s - 1) * t - 2 * p + r if transposed else (s + 2 * p - r) // t + 1 for s, t, p, r in zip(size, stride, padding, reach)]
    x = laid(device, (shape["batch"], cin, *size), dtype, layout)
    w = laid(device, (*((cin, cout // groups) if transposed else (cout, cin // groups)), *kernel), dtype, layout)
    settings = (None, stride, padding, dilation, transposed, [0] * dims, groups)
    forward = functools.partial(torch.ops.aten.convolution, x, w, *settings)
    grad = laid(device, (shape["batch"], cout, *result), dtype, layout)  # as the result lies
    positions = (x if transposed else grad).numel()
    flops = 2 * positions * ((cout if transposed else cin) // groups) * math.prod(kernel)
    moved = x.nbytes + w.nbytes + grad.nbytes

    def backward(*mask: bool) -> Callable[[], Any]:
        return lambda: torch.ops.aten.convolution_backward(grad, x, w, *settings, mask)
    calls = {"forward": forward, "dgrad": backward(True, False, False), "wgrad": backward(False, True, False)}
    return {op: Work(calls[op], moved, flops, 4, written=False) for op in case.ops}


def sdpa(case: Case, device: str) -> Made:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backend = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
               "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}[case.ops[0].split(" ")[0]]
    shape, dtype = case.shape, DTYPES[case.dtype]
    b, heads, seq, dim = shape["b"], shape["heads"], shape["seq"], shape["dim"]
    kv_heads, kv_seq = shape.get("kv_heads", heads), shape.get("kv_seq", seq)
    moved = shape.get("lies") == "bshd"

    def operand(count: int, length: int) -> torch.Tensor:
        plain = random(device, *((b, length, count, dim) if moved else (b, count, length, dim)), dtype=dtype)
        return (plain.transpose(1, 2) if moved else plain).requires_grad_()
    q, k, v = operand(heads, seq), operand(kv_heads, kv_seq), operand(kv_heads, kv_seq)
    mask = None
    if "mask" in shape:
        mask = random(device, b, 1, seq, kv_seq, dtype=dtype)
        mask = mask > -1 if shape["mask"] == "bool" else mask
    forward = lambda: F.scaled_dot_product_attention(q, k, v, mask, is_causal=shape["causal"], dropout_p=shape["dropout"],
                                                     enable_gqa=kv_heads != heads)
    within = lambda: sdpa_kernel(backend)
    with within():
        backward = gradient(forward(), (q, k, v))
    flops = 4 * b * heads * seq * kv_seq * dim // (2 if shape["causal"] else 1)
    least = 2 * q.nbytes + 2 * k.nbytes
    return {case.ops[0]: Work(forward, least, flops, 8, False, within),
            case.ops[1]: Work(backward, 2 * least, flops * 5 // 2, 14, False, within)}


def recurrent(case: Case, device: str) -> Made:
    shape, dtype = case.shape, DTYPES[case.dtype]
    both = case.family == "recurrent_bidirectional"
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[case.ops[0].split(" ")[0]]
    first = shape.get("batch_first", False)
    layer = kind(shape["width"], shape["hidden"], shape["layers"], bidirectional=both, batch_first=first, device=device, dtype=dtype)
    places = (shape["batch"], shape["steps"]) if first else (shape["steps"], shape["batch"])
    x = random(device, *places, shape["width"], dtype=dtype).requires_grad_()
    weights = sum(math.prod(parameter.shape) for parameter in layer.parameters())
    flops = 2 * weights * shape["steps"] * shape["batch"]
    # Hundreds of kernels a call: few calls, so that the launch queue does not fill.
    backward = gradient(layer(x)[0], (x, *layer.parameters()))
    return {case.ops[0]: Work(lambda: layer(x), 0, flops, 200), case.ops[1]: Work(backward, 0, 2 * flops, 200)}
