"""Pointwise operators, reductions, copies, indexing, sorting of a plan's cases, on the device."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
import torch.nn.functional as F

from .. import operator_cases as known
from ..plan.case import Case
from ..plan.memory import PERMUTES
from .work import DTYPES, Work, gradient, random

Made = dict[str, Work]
AXES = {"outer": 0, "middle": 1, "inner": 2}
_aten = torch.ops.aten

# op -> the function of as many tensors as the plan says, the mask last
_POINTWISE: dict[str, Callable[..., Any]] = {
    "sub": torch.sub, "div": torch.div, "maximum": torch.maximum, "lerp": lambda x, y: torch.lerp(x, y, 0.1), "exp": torch.exp,
    "sigmoid backward": _aten.sigmoid_backward, "tanh backward": _aten.tanh_backward, "addcmul": torch.addcmul, "sqrt": torch.sqrt,
    "where": lambda x, y, mask: torch.where(mask, x, y), "masked_fill": lambda x, mask: x.masked_fill(mask, 0.0),
    "rsqrt": torch.rsqrt,
    "mul mask": lambda x, mask: x * mask, "add scalar": lambda x: x + 1.5, "neg": torch.neg, "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "clamp": lambda x: x.clamp(-1, 1), "greater": lambda x: x > 0, "leaky_relu": F.leaky_relu, "hardswish": F.hardswish,
    "mish": F.mish, "mish backward": _aten.mish_backward, "softplus": F.softplus, "softplus backward": lambda x, y: _aten.softplus_backward(x, y, 1.0, 20.0), "relu6": F.relu6,
    "hardtanh backward": lambda x, y: _aten.hardtanh_backward(x, y, 0.0, 6.0), "hardsigmoid": F.hardsigmoid, "hardsigmoid backward": _aten.hardsigmoid_backward,
    "hardswish backward": _aten.hardswish_backward, "leaky_relu backward": lambda x, y: _aten.leaky_relu_backward(x, y, 0.01, False), "elu": F.elu,
    "elu backward": lambda x, y: _aten.elu_backward(x, 1.0, 1.0, 1.0, False, y), "log": torch.log, "cos": torch.cos, "erf": torch.erf, "abs": torch.abs,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "is finite": torch.isfinite, "fill_": lambda x: x.fill_(1.5)}
_ONE_BYTE_OUT = ("greater", "is finite")


def elementwise(case: Case, device: str) -> Made:
    n, dtype, op = case.shape["n"], DTYPES[case.dtype], case.ops[0]
    make, per_element = known.ELEMENTWISE[op]
    return {op: Work(make(device, n, dtype), n * per_element(dtype.itemsize), kernels=2)}


def pointwise(case: Case, device: str) -> Made:
    n, dtype, op = case.shape["n"], DTYPES[case.dtype], case.ops[0]
    inputs, masked = case.shape["inputs"], case.shape["masked"]
    operands = [random(device, n, dtype=dtype) for _ in range(max(inputs, 1))]
    if masked:
        operands.append(operands[0] > 0)
    written = 1 if op in _ONE_BYTE_OUT else dtype.itemsize
    return {op: Work(lambda: _POINTWISE[op](*operands), n * (inputs * dtype.itemsize + masked + written))}


def rows(case: Case, device: str) -> Made:
    count, columns, dtype, op = case.shape["rows"], case.shape["columns"], DTYPES[case.dtype], case.ops[0]
    if op in known.ROWS:
        call, moved, launches = known.ROWS[op](device, count, columns, dtype)
        return {op: Work(call, moved, kernels=launches)}
    x = random(device, count, columns, dtype=dtype)
    size, half = x.nbytes, x[:, :columns // 2].contiguous() if op == "glu backward" else None
    if op == "rms_norm backward":
        x.requires_grad_()
        weight = torch.ones(columns, device=device, dtype=dtype, requires_grad=True)
        return {op: Work(gradient(F.rms_norm(x, (columns,), weight, 1e-6), (x, weight)), 3 * size, kernels=10)}
    if op == "log_softmax backward":
        y, grad = torch.log_softmax(x, -1), torch.randn_like(x)
        return {op: Work(lambda: _aten._log_softmax_backward_data(grad, y, -1, dtype), 3 * size)}
    calls: dict[str, tuple[Callable[[], Any], float]] = {
        "log_softmax": (lambda: torch.log_softmax(x, -1), 2 * size), "var over columns": (lambda: x.var(-1), size),
        "norm over columns": (lambda: torch.linalg.vector_norm(x, dim=-1), size),
        "argmax over columns": (lambda: x.argmax(-1), size),
        "cumsum over columns": (lambda: x.cumsum(-1), 2 * size), "tril": (lambda: x.tril(), 2 * size), "triu": (lambda: x.triu(1), 2 * size),
        "glu": (lambda: F.glu(x), 1.5 * size), "glu backward": (lambda: _aten.glu_backward(half, x, -1), 2.5 * size)}
    call, moved = calls[op]
    return {op: Work(call, moved, kernels=2)}


def broadcast(case: Case, device: str) -> Made:
    extents, dtype, op = [case.shape[axis] for axis in AXES], DTYPES[case.dtype], case.ops[0]
    kept = {AXES[axis] for axis in case.shape["operand"].split("+") if axis != "one"}
    x = random(device, *extents, dtype=dtype)
    y = random(device, *[extent if at in kept else 1 for at, extent in enumerate(extents)], dtype=dtype)
    function = {"add": torch.add, "mul": torch.mul}[op]
    return {op: Work(lambda: function(x, y), 2 * x.nbytes + y.nbytes)}


def reduce(case: Case, device: str) -> Made:
    x, op = random(device, *[case.shape[axis] for axis in AXES], dtype=DTYPES[case.dtype]), case.ops[0]
    over = case.shape["over"]
    axes = [0, 1, 2] if over == "all" else [AXES[axis] for axis in over.split("+")]
    function = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "var": torch.var}[op]
    written = x.nbytes / math.prod(x.shape[axis] for axis in axes)
    return {op: Work(lambda: function(x, dim=axes), x.nbytes + written, kernels=2)}


def permute(case: Case, device: str) -> Made:
    x = random(device, *case.shape["shape"], dtype=DTYPES[case.dtype])
    y = x.permute(PERMUTES[case.ops[0]])
    return {case.ops[0]: Work(lambda: y.clone(memory_format=torch.contiguous_format), 2 * x.nbytes)}


def copies(case: Case, device: str) -> Made:
    count, columns, parts, dtype = case.shape["rows"], case.shape["columns"], case.shape["parts"], DTYPES[case.dtype]
    x = random(device, count, columns, dtype=dtype)
    size, wide, high = x.nbytes, max(1, columns // parts), max(1, count // parts)
    piece = random(device, count, wide, dtype=dtype)
    calls: dict[str, tuple[Callable[[], Any], float]] = {
        "slice inner": (lambda: x[:, :wide].clone(memory_format=torch.contiguous_format), 2 * size / parts),
        "slice outer": (lambda: x[:high].clone(), 2 * size / parts),
        "cat inner": (lambda: torch.cat([piece] * parts, 1), piece.nbytes * (1 + parts)),
        "cat outer": (lambda: torch.cat([piece] * parts, 0), piece.nbytes * (1 + parts)),
        "stack": (lambda: torch.stack([piece] * parts), piece.nbytes * (1 + parts)),
        "pad": (lambda: F.pad(x, (parts, parts)), 2 * size),
        "roll": (lambda: x.roll(parts, 0), 2 * size), "repeat": (lambda: piece.repeat(1, parts), piece.nbytes * (1 + parts)),
        "slice backward": (lambda: _aten.slice_backward(piece, [count, columns], 1, 0, wide, 1), size + 2 * piece.nbytes),
        "split copy": (lambda: [part.contiguous() for part in x.split(wide, 1)], 2 * size)}
    call, moved = calls[case.ops[0]]
    return {case.ops[0]: Work(call, moved, kernels=parts + 2)}


def index(case: Case, device: str) -> Made:
    size, columns, count = case.shape["rows"], case.shape["columns"], case.shape["picked"]
    dtype, op = DTYPES[case.dtype], case.ops[0]
    if op.endswith(" last"):
        return {op: _picked_last(op, random(device, size, columns, dtype=dtype), random(device, size, count, dtype=dtype))}
    table = random(device, size, columns, dtype=dtype)
    ids = torch.randint(0, size, (count,), device=device)
    moved = 2 * count * columns * dtype.itemsize + 8 * count
    added = op in ("scatter_add", "index_add", "index_put", "embedding backward")
    source = random(device, count, columns, dtype=dtype) if added else table
    wide = ids[:, None].expand(count, columns)
    calls: dict[str, Callable[[], Any]] = {
        "index_select": lambda: table.index_select(0, ids), "gather": lambda: table.gather(0, wide),
        "scatter_add": lambda: table.scatter_add_(0, wide, source), "index_add": lambda: table.index_add_(0, ids, source),
        "index_put": lambda: table.index_put_((ids,), source, accumulate=True), "embedding": lambda: F.embedding(ids, table),
        "embedding backward": lambda: _aten.embedding_dense_backward(source, ids, size, -1, False),
        "embedding_bag": lambda: F.embedding_bag(ids.view(-1, 1), table, mode="sum")}
    if op == "embedding backward":
        moved += table.nbytes
    return {op: Work(calls[op], moved, kernels=8)}


def _picked_last(op: str, table: torch.Tensor, source: torch.Tensor) -> Work:
    """The same places of every row; those that are scattered to lie side by side, as relative positions do."""
    count, columns = source.shape[1], table.shape[1]
    ids = torch.arange(count, device=table.device) + (columns - count) // 2 if op == "scatter_add last" else torch.randperm(columns, device=table.device)[:count]
    wide = ids.expand(len(table), -1)
    calls: dict[str, Callable[[], Any]] = {"index_select last": lambda: table.index_select(1, ids), "gather last": lambda: table.gather(1, wide),
                                           "index_add last": lambda: table.index_add_(1, ids, source), "scatter_add last": lambda: table.scatter_add_(1, wide, source)}
    return Work(calls[op], (3 if "_add" in op else 2) * source.nbytes + ids.nbytes)


def sort(case: Case, device: str) -> Made:
    x, k = random(device, case.shape["rows"], case.shape["columns"], dtype=DTYPES[case.dtype]), case.shape["k"]
    op = case.ops[0]
    calls: dict[str, Callable[[], Any]] = {
        "sort": lambda: x.sort(-1), "topk": lambda: x.topk(k, -1), "argsort": lambda: x.argsort(-1), "kthvalue": lambda: x.kthvalue(k, -1),
        "cumsum over rows": lambda: x.cumsum(0)}
    return {op: Work(calls[op], 2 * x.nbytes, kernels=20)}


def loss(case: Case, device: str) -> Made:
    n, dtype, op = case.shape["n"], DTYPES[case.dtype], case.ops[0]
    x, y = random(device, n, dtype=dtype).requires_grad_(), random(device, n, dtype=dtype).sigmoid()
    function = {"mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss,
                "bce_with_logits": F.binary_cross_entropy_with_logits, "kl_div": lambda a, b: F.kl_div(a, b, reduction="batchmean")}[op]
    forward: Callable[[], Any] = lambda: function(x, y)
    return {op: Work(forward, 2 * x.nbytes, kernels=6), op + " backward": Work(gradient(forward(), x), 3 * x.nbytes, kernels=6)}


def quantise(case: Case, device: str) -> Made:
    count, columns, dtype, op = case.shape["rows"], case.shape["columns"], DTYPES[case.dtype], case.ops[0]
    x = random(device, count, columns, dtype=dtype)
    eight, narrow, e = torch.float8_e4m3fn, x.to(torch.float8_e4m3fn), dtype.itemsize
    scale, per_row = torch.ones((), device=device), torch.ones(count, 1, device=device)
    blocks = x.view(count, columns // 128, 128)
    calls: dict[str, tuple[Callable[[], Any], float]] = {
        "abs": (lambda: x.abs(), 2 * e), "max of abs": (lambda: x.abs().max(), 3 * e), "aminmax": (lambda: torch.aminmax(x), e),
        "amax rows": (lambda: x.amax(1, keepdim=True), e), "amax blocks": (lambda: blocks.amax(-1), e),
        "mul scale": (lambda: x * scale, 2 * e), "mul rows": (lambda: x * per_row, 2 * e),
        "clamp": (lambda: x.clamp(-448.0, 448.0), 2 * e), "cast": (lambda: x.to(eight), e + 1),
        "mul clamp cast": (lambda: (x * scale).clamp(-448.0, 448.0).to(eight), 5 * e + 1),
        "transpose 8": (lambda: narrow.t().contiguous(), 2)}
    call, per_element = calls[op]
    return {op: Work(call, count * columns * per_element, kernels=4)}


def transfer(case: Case, device: str) -> Made:
    n, op = case.shape["n"], case.ops[0]
    pinned = op.endswith("pinned") and device != "cpu"
    there = torch.randint(0, 255, (n,), dtype=torch.uint8, device=device)
    here, other = torch.empty(n, dtype=torch.uint8, pin_memory=pinned).copy_(there), torch.empty_like(there)
    calls: dict[str, Callable[[], Any]] = {"d2d": lambda: other.copy_(there), "memset": lambda: other.zero_()}
    if op.startswith("h2d"):
        calls[op] = lambda: there.copy_(here, non_blocking=pinned)
    elif op.startswith("d2h"):
        calls[op] = lambda: here.copy_(there, non_blocking=pinned)
    return {op: Work(calls[op], n * (2 if op == "d2d" else 1))}
