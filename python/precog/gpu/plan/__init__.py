"""What `precog profile` measures, in which order. Plain data, no torch: `plan()` is a list of cases.

The order is a round robin over groups (a family's operators by type): every beginning of the list is a balanced set, so a
measurement that is stopped is worth what it lasted. `quick` is the first few of each group but the runs of seconds.
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

# Cases of each group in the two-minute profile: 2,700 lines, of which an H200's machine took about 30 a second. Products and optimizers take a
# third of a step's predicted time (mean of 240 steps of 120 models) and are hardest to carry over, so they have most; of convolutions and
# attention twice as many gained nothing. Chosen by the error on operators of other campaigns (decision 23).
QUICK = {"gemm": 26, "bmm": 6, "conv": 6, "sdpa": 5, "scaled_mm": 4, "optimizer": 4, "elementwise": 4, "rows": 3, "pointwise": 2, "image": 2, "norm": 2,
         "broadcast": 2, "reduce": 2, "copies": 2, "permute": 2, "grouped": 2, "depthwise": 2, "vocabulary": 2}
QUICK_OTHER = 1
QUICK_IF_ASKED = {"sustained"}  # seconds on end: they tell of power, and no cost of a kernel is fitted to them


def plan(quick: bool = False, only: Iterable[str] | None = None, small: bool = False) -> list[Case]:
    """`only`: names of FAMILIES. `small`: one cheap case of each group, for a rehearsal without a GPU."""
    wanted = set(only) if only is not None else set(FAMILIES) - (QUICK_IF_ASKED if quick else set())
    chosen = {name: family for name, family in FAMILIES.items() if name in wanted}
    groups: Groups = []
    for name, family in chosen.items():
        limit = QUICK.get(name, QUICK_OTHER) if quick else None
        groups += [group[:limit] for group in family(small) if group]
    return unique(interleave(groups))
