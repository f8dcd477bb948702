"""A case on the device: closures over random data (zeros draw less power and run faster), and what one call does at least."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Callable, ContextManager, Sequence

import torch

from ..random_data import random  # noqa: F401: for the makers beside this file

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn,
          "u8": torch.uint8}


@dataclasses.dataclass
class Work:
    """`call` does it once. `bytes`: what it must at least read and write. `kernels`: about how many launches it makes.
    `written`: whether the line says `bytes`, which are for memory-bound operators (others: how many copies keep them cold)."""
    call: Callable[[], Any]
    bytes: float = 0
    flops: float = 0
    kernels: int = 1
    written: bool = True
    within: Callable[[], ContextManager[Any]] = contextlib.nullcontext


def gradient(outputs: torch.Tensor, inputs: Any) -> Callable[[], Any]:
    """The backward pass alone, again and again."""
    grad = torch.randn_like(outputs)
    return lambda: torch.autograd.grad(outputs, inputs, grad, retain_graph=True)


def formatted(x: torch.Tensor, layout: str) -> torch.Tensor:
    """nhwc is channels last, of 2-D and 3-D images."""
    if layout != "nhwc":
        return x
    return x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def laid(device: str, shape: Sequence[int], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """A random image or filter, as `formatted` would leave it, but made so: no copy. One channel or one pixel lies in both ways."""
    if layout != "nhwc" or shape[1] == 1 or math.prod(shape[2:]) == 1:
        return random(device, *shape, dtype=dtype)
    return random(device, shape[0], *shape[2:], shape[1], dtype=dtype).movedim(-1, 1)
