"""Normalisation, pooling, resizing, token losses and optimizers of a plan's cases, on the device."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F

from .. import operator_cases as known
from ..plan.case import Case
from .work import DTYPES, Work, formatted, gradient, random

Made = dict[str, Work]


def image(case: Case, device: str) -> Made:
    made: Made = {}
    for op in case.ops:
        call, moved = known.IMAGE_OPS[op](device, tuple(case.shape["shape"]), DTYPES[case.dtype], case.shape["layout"])
        made[op] = Work(call, moved, kernels=2)
    return made


def vocabulary(case: Case, device: str) -> Made:
    made: Made = {}
    for op in case.ops:
        shape = case.shape
        call, moved = known.VOCABULARY_OPS[op](device, shape["tokens"], shape["vocabulary"], shape["hidden"], DTYPES[case.dtype])
        made[op] = Work(call, moved, kernels=6)
    return made


def maps(case: Case, device: str) -> Made:
    """A loss of every pixel, call by call."""
    batch, classes, *sides = case.shape["shape"]
    x = random(device, *case.shape["shape"], dtype=DTYPES[case.dtype])
    target = torch.randint(0, classes, (batch, *sides), device=device)
    y, aten = torch.log_softmax(x, 1), torch.ops.aten
    loss, weight = aten.nll_loss2d_forward(y, target, None, 1, -100)
    calls: dict[str, tuple[Callable[[], Any], float]] = {
        "log_softmax": (lambda: torch.log_softmax(x, 1), 2 * x.nbytes),
        "log_softmax backward": (lambda: aten._log_softmax_backward_data(x, y, 1, x.dtype), 3 * x.nbytes),
        "nll_loss": (lambda: aten.nll_loss2d_forward(y, target, None, 1, -100), target.nbytes + 32 * target.numel()),
        "nll_loss backward": (lambda: aten.nll_loss2d_backward(loss, y, target, None, 1, -100, weight), x.nbytes + target.nbytes + 32 * target.numel())}
    return {op: Work(call, moved, kernels=3) for op, (call, moved) in calls.items() if op in case.ops}


def _both(case: Case, x: torch.Tensor, forward: Callable[[], Any], wanted: Any, passes: tuple[float, float]) -> Made:
    made = {case.ops[0]: Work(forward, x.nbytes * passes[0], kernels=4)}
    made[case.ops[1]] = Work(gradient(forward(), wanted), x.nbytes * passes[1], kernels=6)
    return made


def norm(case: Case, device: str) -> Made:
    shape, dtype, op = case.shape["shape"], DTYPES[case.dtype], case.ops[0]
    channels = shape[1]
    if case.shape.get("lies") == "rows":  # channels innermost
        x = random(device, shape[0], *shape[2:], channels, dtype=dtype).movedim(-1, 1).requires_grad_()
    else:
        x = formatted(random(device, *shape, dtype=dtype), case.shape["layout"]).requires_grad_()
    weight, bias = (torch.ones(channels, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    mean, var = torch.zeros(channels, device=device, dtype=dtype), torch.ones(channels, device=device, dtype=dtype)
    order = (0, *range(2, x.dim()), 1)
    back = (0, x.dim() - 1, *range(1, x.dim() - 1))
    calls: dict[str, Callable[[], Any]] = {
        "batch_norm, weights alike":
            lambda: torch.batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5, torch.backends.cudnn.enabled),
        "group_norm": lambda: F.group_norm(x, case.shape.get("groups", 32), weight, bias),
        "instance_norm": lambda: F.instance_norm(x, None, None, weight, bias),
        "channel layer_norm": lambda: F.layer_norm(x.permute(order), (channels,), weight, bias).permute(back)}
    return _both(case, x, calls[op], (x, weight, bias), (3, 5))


def pool(case: Case, device: str) -> Made:
    shape, op, dims = case.shape, case.ops[0], len(case.shape["shape"]) - 2
    x = formatted(random(device, *shape["shape"], dtype=DTYPES[case.dtype]), shape["layout"]).requires_grad_()
    if op == "adaptive average":
        function = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1]
        forward: Callable[[], Any] = lambda: function(x, shape["output"])
    else:
        functions = {"max": (F.max_pool1d, F.max_pool2d, F.max_pool3d),
                     "average": (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)}[op]
        forward = lambda: functions[dims - 1](x, shape["kernel"], shape["stride"], shape["padding"])
    ratio = 1 + forward().numel() / x.numel()
    return _both(case, x, forward, x, (ratio, ratio))


def resize(case: Case, device: str) -> Made:
    shape, mode = case.shape, case.ops[0]
    x = formatted(random(device, *shape["shape"], dtype=DTYPES[case.dtype]), shape["layout"]).requires_grad_()
    corners = {} if mode == "nearest" else {"align_corners": shape.get("align", False)}
    wanted = {"size": shape["to"]} if "to" in shape else {"scale_factor": shape["scale"]}
    forward = lambda: F.interpolate(x, mode=mode, **wanted, **corners)
    ratio = 1 + forward().numel() / x.numel()
    return _both(case, x, forward, x, (ratio, ratio))


def fold(case: Case, device: str) -> Made:
    """Blocks of an image as columns, and columns added up to an image."""
    shape, dtype, aten = case.shape, DTYPES[case.dtype], torch.ops.aten
    window = [[shape[key]] * 2 for key in ("kernel", "dilation", "padding", "stride")]
    batch, channels, *sides = shape["shape"]
    blocks = [(side + 2 * shape["padding"] - shape["dilation"] * (shape["kernel"] - 1) - 1) // shape["stride"] + 1 for side in sides]
    x = random(device, batch, channels, *sides, dtype=dtype)
    columns = random(device, batch, channels * shape["kernel"] ** 2, blocks[0] * blocks[1], dtype=dtype)
    moved = x.nbytes + columns.nbytes
    return {"im2col": Work(lambda: aten.im2col(x, *window), moved, kernels=batch), "col2im": Work(lambda: aten.col2im(columns, sides, *window), moved)}


def edge(case: Case, device: str) -> Made:
    """Padding by what lies at the edge, `by` elements each way."""
    by, dtype = case.shape["by"], DTYPES[case.dtype]
    batch, channels, *sides = case.shape["shape"]
    x = random(device, batch, channels, *sides, dtype=dtype)
    grad = random(device, batch, channels, *(side + 2 * by for side in sides), dtype=dtype)
    forward, backward = (getattr(torch.ops.aten, op) for op in case.ops)
    padding = [by] * 2 * len(sides)
    return {case.ops[0]: Work(lambda: forward(x, padding), x.nbytes + grad.nbytes), case.ops[1]: Work(lambda: backward(grad, x, padding), x.nbytes + grad.nbytes, kernels=2)}


def sampled(case: Case, device: str) -> Made:
    """An image at random places, bilinear."""
    dtype, aten = DTYPES[case.dtype], torch.ops.aten
    batch, channels, *sides = case.shape["shape"]
    x, grad = random(device, batch, channels, *sides, dtype=dtype), random(device, batch, channels, *case.shape["to"], dtype=dtype)
    places = torch.rand(batch, *case.shape["to"], 2, device=device).to(dtype) * 2 - 1
    moved = x.nbytes + grad.nbytes + places.nbytes
    return {case.ops[0]: Work(lambda: aten.grid_sampler_2d(x, places, 0, 0, False), moved),
            case.ops[1]: Work(lambda: aten.grid_sampler_2d_backward(grad, x, places, 0, 0, False, [True, True]), moved + x.nbytes + places.nbytes, kernels=2)}


def optimizer(case: Case, device: str) -> Made:
    op, dtype, tensors = case.ops[0], DTYPES[case.dtype], case.shape["tensors"]
    each, e = case.shape["elements"] // tensors, dtype.itemsize
    grads = [random(device, each, dtype=dtype) for _ in range(tensors)]
    total = each * tensors
    if op == "unscale":
        found, inverse = torch.zeros(1, device=device), torch.ones(1, device=device)
        unscale = lambda: torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        return {op: Work(unscale, 2 * e * total, kernels=_launches(tensors))}
    if op == "scaler update":
        scale, found = torch.ones((), device=device), torch.zeros((), device=device)
        growth = torch.zeros((), device=device, dtype=torch.int32)
        return {op: Work(lambda: torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 2000), 12)}
    if op.startswith("foreach "):
        return {op: Work(*_listed(op, grads, dtype), kernels=_launches(tensors))}
    if op.endswith("foreach") and not op.startswith(("adam", "sgd")):
        other = [torch.empty_like(grad, dtype=torch.bfloat16 if dtype == torch.float32 else torch.float32) for grad in grads]
        scale = torch.ones((), device=device)
        calls: dict[str, tuple[Callable[[], Any], float]] = {
            "grad norm foreach": (lambda: torch.nn.utils.get_total_norm(grads), e),
            "grad scale foreach": (lambda: torch._foreach_mul_(grads, scale), 2 * e),
            "cast foreach": (lambda: torch._foreach_copy_(other, grads), 6), "zero foreach": (lambda: torch._foreach_zero_(grads), e)}
        call, per_element = calls[op]
        return {op: Work(call, total * per_element, kernels=_launches(tensors))}
    parameters = [torch.nn.Parameter(random(device, each, dtype=dtype)) for _ in range(tensors)]
    for parameter, grad in zip(parameters, grads):
        parameter.grad = grad
    name, form = op.split(" ")
    stepper: Any
    if name.startswith("adam"):
        stepper = (torch.optim.AdamW if name == "adamw" else torch.optim.Adam)(
            parameters, lr=1e-4, eps=1e-3 if dtype == torch.float16 else 1e-8, **{form: True})  # 1e-8 is zero in fp16
    else:
        stepper = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9 if name == "sgd-momentum" else 0.0, **{form: True})
    stepper.step()  # the first makes the states
    # Parameters, gradients and states are read, all but gradients written.
    passes = 7 if name.startswith("adam") else 5 if name == "sgd-momentum" else 3
    return {op: Work(stepper.step, total * passes * e, kernels=_launches(tensors))}


def _listed(op: str, grads: list[torch.Tensor], dtype: torch.dtype) -> tuple[Callable[[], Any], float]:
    """One of the calls that AdamW's foreach form makes, and its bytes."""
    others = [torch.empty_like(grad).uniform_(0.5, 1.5) for grad in grads]
    third = [torch.empty_like(grad).uniform_(0.5, 1.5) for grad in grads]
    scalars, size = [1.0 + 1e-6 * at for at in range(len(grads))], sum(grad.nbytes for grad in grads)
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "foreach mul": (lambda: torch._foreach_mul_(others, 0.999), 2), "foreach add": (lambda: torch._foreach_add_(others, 1e-8), 2),
        "foreach lerp": (lambda: torch._foreach_lerp_(others, grads, 0.1), 3), "foreach addcmul": (lambda: torch._foreach_addcmul_(others, grads, grads, 0.001), 3),
        "foreach sqrt": (lambda: torch._foreach_sqrt(others), 2), "foreach div list": (lambda: torch._foreach_div_(others, scalars), 2),
        "foreach addcdiv list": (lambda: torch._foreach_addcdiv_(others, grads, third, scalars), 4)}
    call, passes = calls[op]
    return call, passes * size


def _launches(tensors: int) -> int:
    return 40 if tensors < 100 else 150
