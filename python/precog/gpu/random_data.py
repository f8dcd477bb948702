"""Random operands (random, because zeros draw less power and run faster). `random` makes a tensor; while a `Pool` is in use it
cuts one out of a large buffer instead, which costs no kernel, and comes back to the same bytes only after gigabytes of
others: what it returns is never in a cache. A pool's tensors are each other's neighbours, so what writes to its operands
wants a pool of its own.
"""

from __future__ import annotations

import contextlib
import math
from typing import Iterator

import torch

ALIGNMENT = 512  # bytes, as the allocator's


class Pool:
    def __init__(self, device: str, bytes_each: int) -> None:
        self.device, self.bytes_each = device, bytes_each
        self.buffers: dict[torch.dtype, torch.Tensor] = {}
        self.at: dict[torch.dtype, int] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        if dtype not in self.buffers:
            self.buffers[dtype] = torch.randn(self.bytes_each // dtype.itemsize, device=self.device, dtype=dtype)
            self.at[dtype] = 0
        buffer, at = self.buffers[dtype], self.at[dtype]
        if count > buffer.numel():
            return torch.randn(*shape, device=self.device, dtype=dtype)
        if at + count > buffer.numel():
            at = 0
        unit = ALIGNMENT // dtype.itemsize
        self.at[dtype] = at + -(-count // unit) * unit
        # .data: without the buffer's count of changes, which would forbid gradients after any neighbour was written.
        return buffer[at:at + count].view(shape).data


_pool: Pool | None = None


@contextlib.contextmanager
def using(pool: Pool) -> Iterator[None]:
    global _pool
    before, _pool = _pool, pool
    try:
        yield
    finally:
        _pool = before


def random(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=dtype) if _pool is None else _pool.take(shape, dtype)
