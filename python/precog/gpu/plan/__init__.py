"""What `precog profile` measures, in which order. Plain data, no torch: `plan()` is a list of cases.

The order is a round robin over groups (a family's operators by type): every beginning of the list is a balanced set, so a
measurement that is stopped is worth what it lasted. `quick` is the first few of each group.
"""

from __future__ import annotations

from typing import Callable, Iterable

from . import attention, compute, layers, memory
from .case import Case, Groups, unique
from .sampling import interleave

FAMILIES: dict[str, Callable[[bool], Groups]] = {
    "gemm": compute.gemm, "bmm": compute.bmm, "scaled_mm": compute.scaled_mm, "conv": compute.convolution,
    "depthwise": compute.depthwise, "grouped": compute.grouped, "other convolutions": compute.other_convolutions, "recurrent": compute.recurrent,
    "sdpa": attention.sdpa, "sdpa variants": attention.sdpa_variants,
    "elementwise": memory.elementwise, "pointwise": memory.pointwise, "rows": memory.rows,
    "broadcast": memory.broadcast, "reduce": memory.reduce, "permute": memory.permute, "copies": memory.copies,
    "index": memory.index, "sort": memory.sort, "loss": memory.loss, "quantise": memory.quantise,
    "transfer": memory.transfers, "image": layers.image, "norm": layers.norm, "pool": layers.pool, "resize": layers.resize,
    "vocabulary": layers.vocabulary, "optimizer": layers.optimizer, "sustained": layers.sustained}

# Cases of each group in the two-minute profile: more where one offset is fitted from few groups.
QUICK = {"gemm": 6, "bmm": 3, "conv": 6, "sdpa": 5, "elementwise": 3, "rows": 2, "sustained": 2, "scaled_mm": 4}
QUICK_OTHER = 1


def plan(quick: bool = False, only: Iterable[str] | None = None, small: bool = False) -> list[Case]:
    """`only`: names of FAMILIES. `small`: one cheap case of each group, for a rehearsal without a GPU."""
    chosen = FAMILIES if only is None else {name: FAMILIES[name] for name in FAMILIES if name in set(only)}
    groups: Groups = []
    for name, family in chosen.items():
        limit = QUICK.get(name, QUICK_OTHER) if quick else None
        groups += [group[:limit] for group in family(small) if group]
    return unique(interleave(groups))
