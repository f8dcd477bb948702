"""A plan's case on the device: `make(case, device)` allocates operands and returns the calls to be timed, by operator."""

from __future__ import annotations

from typing import Callable

from ..plan.case import Case
from . import compute, layers, memory, operands
from .work import Work

_MAKERS: dict[str, Callable[[Case, str], dict[str, Work]]] = {
    "gemm": compute.gemm, "scaled_mm": compute.scaled_mm, "recurrent": compute.recurrent,
    "recurrent_bidirectional": compute.recurrent,
    **{family: compute.convolution for family in ("conv", "depthwise", "grouped", "conv1d", "conv3d", "conv_dilated",
                                                  "conv_transpose")},
    **{family: compute.sdpa for family in ("sdpa", "sdpa_gqa", "sdpa_mask", "sdpa_cross")},
    "elementwise": memory.elementwise, "pointwise": memory.pointwise, "rows": memory.rows,
    "broadcast": memory.broadcast, "reduce": memory.reduce, "permute": memory.permute, "copies": memory.copies,
    "index": memory.index, "sort": memory.sort, "loss": memory.loss, "quantise": memory.quantise,
    "transfer": memory.transfer, "image": layers.image, "norm": layers.norm, "pool": layers.pool, "resize": layers.resize,
    "fold": layers.fold, "edge": layers.edge, "sampled": layers.sampled,
    "strided": operands.strided, "reduce_strided": operands.reduce_strided, "scan": operands.scan, "joined": operands.joined,
    "vocabulary": layers.vocabulary, "maps": layers.maps, "optimizer": layers.optimizer}


def make(case: Case, device: str) -> dict[str, Work]:
    return _MAKERS[case.family](case, device)
