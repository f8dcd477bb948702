"""Small questions about operators and tensors that recording forward and backward share."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import rules

sequence_number = torch._C._autograd._get_sequence_nr  # how many autograd nodes there have been


def takes_device(operator) -> bool:
    return any(argument.name == "device" for argument in operator._schema.arguments)


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch._C._DisablePythonDispatcher():
        yield


def with_gaps(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Of this shape, with the gaps between rows that a part of a larger tensor has (`tokens[:, 1:]`)."""
    strides, padded = tensor.stride(), list(shape)
    if tensor.numel() == 0 or not strides or strides[-1] != 1 or any(s <= 0 for s in strides):
        return torch.empty(shape, dtype=dtype, device="cpu")
    for axis in range(1, len(shape)):
        if strides[axis - 1] % strides[axis] or strides[axis - 1] < strides[axis] * tensor.shape[axis]:
            return torch.empty(shape, dtype=dtype, device="cpu")
        padded[axis] += strides[axis - 1] // strides[axis] - tensor.shape[axis]
    made = torch.empty(padded, dtype=dtype, device="cpu")
    for axis, extent in enumerate(shape):
        made = made.narrow(axis, 0, extent)
    return made


def has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


def is_composite(operator) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


def is_view(entry: tuple) -> bool:
    operator, args, kwargs, result, _ = entry
    if rules.is_mutable(operator):
        return False
    first = result[0] if isinstance(result, (list, tuple)) and result else result
    if not isinstance(first, torch.Tensor) or not args or not isinstance(args[0], torch.Tensor):
        return False
    return first.untyped_storage()._cdata == args[0].untyped_storage()._cdata


def view_kind(shape: tuple[int, ...], tensor: torch.Tensor) -> str:
    before = 1
    for extent in shape:
        before *= extent
    after = tensor.numel()
    if after != before:
        return "slice" if after < before else "expand"
    return "reshape" if tensor.is_contiguous() else "transpose"


def is_strided(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Whether large operands are laid out differently from each other, or with gaps."""
    largest = max((tensor.numel() for tensor in inputs + outputs), default=0)
    layouts = set()
    for tensor in inputs + outputs:
        if tensor.numel() != largest or largest <= 1:
            continue
        if tensor.is_contiguous():
            layouts.add("contiguous")
        elif rules.is_dense(tensor):
            layouts.add(tuple(stride for stride, size in zip(tensor.stride(), tensor.shape) if size != 1))
        else:
            return True
    return len(layouts) > 1


def window_attrs(operator: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A pooling's window, one number for each image axis."""
    given = {**dict(zip((argument.name for argument in operator._schema.arguments), args)), **kwargs}
    kernel = list(given["kernel_size"])
    padding = given.get("padding") or 0
    axes = len(kernel)
    listed = list(padding) if isinstance(padding, (list, tuple)) else [padding]
    return {"kernel": kernel, "stride": list(given.get("stride") or kernel), "padding": listed * axes if len(listed) == 1 else listed}


def gemm_attrs(name: str, inputs: list[torch.Tensor]) -> dict[str, Any]:
    a, b = inputs[-2], inputs[-1]
    if name == "dot":
        return {"gemm": [1, 1, 1, a.shape[0]]}
    if name in ("mv", "addmv"):
        return {"gemm": [1, a.shape[0], 1, a.shape[1]]}
    attrs: dict[str, Any] = {"gemm": [a.shape[0] if a.dim() == 3 else 1, a.shape[-2], b.shape[-1], a.shape[-1]]}
    if a.stride(-2) == 1 and a.shape[-1] > 1 and a.stride(-1) != 1:
        attrs["transposed_a"] = True
    return attrs
