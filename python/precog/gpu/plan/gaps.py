"""Endless cases of operators that looked-at steps showed to be mispredicted: products of a few columns over millions of rows, sums over images whose
tokens and channels were exchanged, rows added to at neighbouring places, scores masked, small batch norms. Plain data, no torch. `SHARES` is read
as that of dense.py.
"""

from __future__ import annotations

import math
from typing import Callable, Iterator

from .case import FLOATS, WIDE_AND_NARROW, Case
from .dense import Dice
from .thin_ops import chosen

MOST = 2 ** 25
SIDES = (49, 64, 100, 144, 196, 197, 256, 400, 576, 784, 1024, 3136)
FEW = (4, 6, 8, 8, 12, 16, 16, 24, 32, 48, 64)


def thin_products(dice: Dice) -> Iterator[Case]:
    """Heads mixed with heads at every score, and the like: one side long, the others short."""
    while True:
        long, one, other = dice.number(2 ** 15, 2 ** 22), dice.one(FEW), dice.one(FEW)
        long -= long % dice.one((1, 8, 8, 64))
        op = dice.one(("nt", "nn", "tn", "nt+bias"))
        if long * max(one, other) <= MOST * 2:
            m, n, k = (one, other, long) if op == "tn" else (long, one, other)
            yield Case("gemm", dice.one(FLOATS, (3, 5, 2, 2)), (op,), {"m": m, "n": n, "k": k})


def turned_sums(dice: Dice) -> Iterator[Case]:
    """Over samples and tokens, or over copies, of what lies with the last two axes exchanged."""
    while True:
        batch, tokens, channels = dice.one((2, 4, 8, 12, 16, 32, 64, 96, 128)), dice.one(SIDES), dice.one((32, 48, 64, 96, 128, 192, 256, 384, 512, 768))
        if dice.chance(0.55):
            shape, over = [batch, tokens, channels], [0, 1]
            strides = [tokens * channels, 1, tokens]
        else:
            heads = dice.one((1, 2, 3, 4, 6, 8, 12, 16))
            shape, over = [batch, heads, tokens, min(channels, 128)], dice.one(([0], [0, 1], [0, 2]))
            strides = [heads * tokens * shape[3], tokens * shape[3], 1, tokens]
        if math.prod(shape) <= MOST:
            yield Case("reduce_strided", dice.one(WIDE_AND_NARROW), (dice.one(("sum", "sum", "mean")),), {"shape": shape, "strides": strides, "over": over})


def neighbours(dice: Dice) -> Iterator[Case]:
    """Places side by side of every row, as relative positions are."""
    while True:
        columns = dice.one((64, 128, 256, 512, 512, 1024)) if dice.chance(0.7) else dice.number(16, 2048)
        rows, picked = dice.one((1, 4, 12, 24, 96, 144, 384, 768, 1152)) * dice.number(16, 512), dice.number(max(1, columns // 16), columns)
        if rows * columns <= MOST * 2:
            yield Case("index", dice.one(WIDE_AND_NARROW), (dice.one(("scatter_add last", "gather last"), (4, 1)),), {"rows": rows, "columns": columns, "picked": picked})


def batch_norms(dice: Dice) -> Iterator[Case]:
    """Of batches that a GPU has room for many times over, in 16 bits."""
    while True:
        side, channels = dice.one((7, 10, 14, 14, 20, 28, 28, 32, 56, 56, 112)), dice.one((8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 240, 256, 320, 480, 512, 640, 960, 1024, 2048))
        shape = [dice.one((2, 4, 4, 8, 8, 16, 16, 24, 32)), channels, side, side]
        if math.prod(shape) <= 2 ** 23:
            yield Case("norm", dice.one(WIDE_AND_NARROW, (1, 3, 2)), ("batch_norm, weights alike", "batch_norm, weights alike backward"), {"shape": shape, "layout": "nchw" if dice.chance(0.8) else "nhwc"})


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "thin_products": (26, thin_products), "turned_sums": (22, turned_sums), "neighbours": (20, neighbours), "masked_scores": (10, chosen), "small_batch_norms": (22, batch_norms)}
