"""More endless cases, beside those of dense.py: attention as models have it, operands that lie in any way, resizes by any factor,
recurrent layers, token tables, rows of models' widths, tensors so small that only a launch is left. Plain data, no torch.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

from . import dense, operands
from .case import FLOATS, Case
from .dense import BATCHES, LENGTHS, SIZES, VOCABULARIES, WIDTHS, Dice

# (heads, key heads, head size): of published models
HEADS = ((12, 12, 64), (12, 12, 64), (16, 16, 64), (16, 16, 64), (8, 8, 64), (6, 6, 64), (3, 3, 64), (4, 4, 64), (2, 2, 64), (1, 1, 64), (5, 5, 64), (20, 20, 64),
         (24, 24, 64), (32, 32, 64), (4, 4, 32), (8, 8, 32), (12, 12, 32), (3, 3, 32), (6, 6, 32), (24, 24, 32), (8, 8, 40), (8, 8, 80), (8, 8, 160), (16, 16, 72),
         (16, 16, 80), (32, 32, 80), (16, 16, 96), (32, 32, 96), (32, 32, 128), (32, 8, 128), (40, 40, 128), (12, 2, 128), (14, 2, 64), (32, 8, 64),
         (16, 8, 128), (28, 4, 128), (24, 8, 128), (16, 16, 128), (64, 8, 128), (8, 1, 256), (8, 4, 256), (4, 1, 256), (16, 16, 192), (12, 12, 128),
         (20, 20, 24), (16, 16, 48), (4, 4, 16), (10, 10, 64), (9, 3, 64))
QUERIES = (16, 32, 49, 50, 64, 77, 100, 128, 144, 196, 197, 256, 257, 300, 384, 400, 512, 577, 640, 729, 768, 784, 1024, 1214, 1370, 1500, 1568, 2048, 3136, 4096, 8192)
MOST_FLOPS = {"cudnn": 1.2e12, "flash": 1e12, "efficient": 4e11, "wide": 6e10}


def _attention(dice: Dice, backend: str, dtype: str) -> Case | None:
    heads, key_heads, dim = dice.one(HEADS) if dice.chance(0.75) else (dice.number(1, 40), 0, dice.one((32, 64, 96, 128, 192, 256), (2, 5, 1, 4, 1, 1)))
    seq = dice.one(QUERIES) if dice.chance(0.75) else dice.extent(16, 8192, dice.chance(0.3))
    b = dice.one(BATCHES) if dice.chance(0.8) else dice.number(1, 256)
    keys = seq
    kind = dice.one(("plain", "mask", "cross"), (66, 20, 14))
    if kind == "cross":
        keys = dice.one(QUERIES) if dice.chance(0.7) else dice.extent(16, 2048, dice.chance(0.3))
    causal = kind == "plain" and dice.chance(0.45)
    most = MOST_FLOPS["wide" if dtype in ("fp32", "tf32") else backend]
    while 14 * b * heads * seq * keys * dim > most or b * heads * max(seq, keys) * dim > 2 ** 26 or kind == "mask" and b * seq * keys > 2 ** 27:
        if b > 1:
            b = max(1, b // 2)
        elif seq > 64:
            seq, keys = seq // 2, keys if kind == "cross" and keys < seq else max(16, keys // 2)
        else:
            return None
    shape: dict[str, Any] = {"b": b, "heads": heads, "seq": seq, "dim": dim, "causal": causal, "dropout": 0.1 if dice.chance(0.15) else 0.0}
    family = "sdpa"
    if dice.chance(0.75):
        shape["lies"] = "bshd"  # as a projection's result, its heads moved forward without a copy
    if kind == "mask":
        family = "sdpa_mask"
        shape.update(mask=dice.one(("bool", "float"), (3, 2)))
        if backend == "efficient" and seq % 8:
            shape["seq"] = max(16, seq // 8 * 8)
    elif kind == "cross":
        family = "sdpa_cross"
        shape.update(kv_seq=keys)
    elif key_heads and key_heads != heads and backend != "efficient":
        family = "sdpa_gqa"
        shape.update(kv_heads=key_heads, dropout=0.0)
    if backend == "flash" and kind == "mask" or backend != "efficient" and dim % 8 or dim > 128 and backend == "cudnn" and dice.chance(0.4):
        return None
    return Case(family, dtype, (backend + " forward", backend + " backward"), shape)


def cudnn(dice: Dice) -> Iterator[Case]:
    """A new shape costs the library a third of a second: types take turns on none of them."""
    while True:
        if case := _attention(dice, "cudnn", dice.one(("bf16", "fp16"), (3, 2))):
            yield case


def fused(dice: Dice) -> Iterator[Case]:
    """The 2026-11-16 set took (55, 27, 18); since then 16-bit ones have more turns, which were predicted worst."""
    while True:
        backend, dtypes = dice.one((("efficient", ("fp32", "tf32")), ("flash", ("fp16", "bf16")), ("efficient", ("fp16", "bf16"))), (24, 48, 28))
        if case := _attention(dice, backend, dice.one(dtypes)):
            yield case


def products(dice: Dice) -> Iterator[Case]:
    """Half as dense.py draws them; half where those are predicted worst: few rows or columns, ragged ones, long sums, wide types."""
    usual = dense.gemm(dice)
    while True:
        if dice.chance(0.35):
            yield next(usual)
            continue
        dtype, op = dice.one(FLOATS, (4, 4, 2, 3)), dice.one(("nt", "nn", "tn", "nt+bias"), (28, 25, 25, 22))
        kind = dice.one(("linear", "skinny", "ragged", "small", "long"), (4, 3, 2, 3, 2))
        if kind == "linear":
            sizes = dense._linear(dice, op[:2])
        elif kind == "skinny":
            sizes = [dice.number(1, 256), dice.extent(64, 16384, False), dice.extent(64, 16384, False)]
            dice.random.shuffle(sizes)
        elif kind == "ragged":
            sizes = [dice.number(16, 16384), dice.number(8, 8192), dice.number(8, 8192)]
        elif kind == "small":
            sizes = [dice.extent(8, 2048, dice.chance(0.2)) for _ in range(3)]
        else:
            sizes = [dice.extent(16, 2048, False), dice.extent(16, 2048, False), dice.extent(2048, 262144, False)]
        m, n, k = dense._within(dice, dtype, sizes)
        if max(m * n, m * k, n * k) <= dense.MOST_ELEMENTS:
            yield Case("gemm", dtype, (op,), {"m": m, "n": n, "k": k})


def resize(dice: Dice) -> Iterator[Case]:
    """To `to` pixels each way; `align` as align_corners."""
    while True:
        op, dtype, layout = dice.one(("bilinear", "nearest", "bicubic"), (6, 3, 1)), dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), dice.one(("nchw", "nhwc"), (7, 3))
        batch, channels = dice.one(BATCHES[:12]), dice.one((1, 3, 19, 21, 32, 64, 96, 128, 150, 256, 384, 512, 768, 1024))
        sides = [dice.one(SIZES)] * 2 if dice.chance(0.7) else [dice.one(SIZES), dice.one(SIZES)]
        factor = dice.one((2, 4, 8, 0.5, 1)) if dice.chance(0.6) else 0.25 * 2 ** dice.number(1, 32) ** 0.5
        to = [max(1, round(side * factor)) for side in sides]
        most = 2 ** 19 if op == "bicubic" else 2 ** 26 if dice.chance(0.15) else 2 ** 22
        while batch > 1 and batch * channels * max(to[0] * to[1], sides[0] * sides[1]) > most:
            batch //= 2
        # A gradient of many pixels into few adds to the same places again and again: a 1 x 1 source takes whole seconds.
        if batch * channels * max(to[0] * to[1], sides[0] * sides[1]) > most or to[0] * to[1] > 300 * sides[0] * sides[1]:
            continue
        shape: dict[str, Any] = {"shape": [batch, channels, *sides], "layout": layout, "to": to}
        if op != "nearest" and dice.chance(0.25):
            shape["align"] = True
        yield Case("resize", dtype, (op, op + " backward"), shape)


def positions(dice: Dice) -> Iterator[Case]:
    """Tables of positions resized to an image's patches: few images of many planes, often to the size that they have."""
    while True:
        batch, channels = dice.one((1, 1, 2, 6, 11, 12)), dice.one((96, 192, 256, 384, 512, 768, 1024))
        sides = [dice.one((7, 12, 14, 16, 24, 32, 37, 50, 64)), dice.one((7, 12, 14, 16, 24, 32, 37, 50, 64, 83, 84))]
        factor = 1 if dice.chance(0.5) else dice.one((0.5, 0.9, 1.15, 1.5, 2))
        to = [max(1, round(side * factor)) for side in sides]
        if batch * channels * max(to[0] * to[1], sides[0] * sides[1]) <= 2 ** 22:
            yield Case("resize", dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), ("bicubic", "bicubic backward"),
                       {"shape": [batch, channels, *sides], "layout": dice.one(("nchw", "nhwc")), "to": to})


def maps(dice: Dice) -> Iterator[Case]:
    """Classes of every pixel: sums along the second axis of four."""
    while True:
        batch, classes, side = dice.one((1, 2, 4, 8, 16, 32)), dice.one((2, 3, 12, 19, 21, 32, 40, 64, 81, 133, 150, 171)), dice.one((14, 28, 32, 56, 64, 128, 224, 256, 384, 512))
        if batch * classes * side * side <= 2 ** 27:
            yield Case("maps", dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), ("log_softmax", "log_softmax backward", "nll_loss", "nll_loss backward"),
                       {"shape": [batch, classes, side, side]})


def recurrent(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, kind, both = dice.one(FLOATS), dice.one(("lstm", "gru", "rnn"), (6, 4, 1)), dice.chance(0.3)
        hidden = dice.one((32, 64, 100, 128, 200, 256, 300, 320, 512, 640, 650, 768, 1024)) if dice.chance(0.75) else dice.extent(16, 1536, dice.chance(0.3))
        width = hidden if dice.chance(0.5) else dice.one((32, 40, 80, 100, 128, 256, 300, 400, 512, 1024))
        shape = {"batch": dice.one((1, 4, 8, 16, 20, 32, 64, 128, 256)) if dice.chance(0.8) else dice.number(1, 256),
                 "steps": dice.one((10, 16, 28, 32, 35, 50, 64, 70, 100, 128), (1, 2, 2, 2, 2, 2, 3, 1, 1, 2)), "width": width, "hidden": hidden, "layers": dice.one((1, 2, 3), (5, 4, 1))}
        weights = (4 if kind == "lstm" else 3 if kind == "gru" else 1) * hidden * (hidden + width) * shape["layers"] * (2 if both else 1)
        if weights * shape["batch"] * shape["steps"] > (2e10 if dtype == "fp32" else 8e10):
            continue
        yield Case("recurrent_bidirectional" if both else "recurrent", dtype, (kind + " forward", kind + " backward"), shape)


def tables(dice: Dice) -> Iterator[Case]:
    """Of tokens, positions (all of them again and again), kinds (two or a few)."""
    while True:
        dtype = dice.one(("fp32", "bf16", "fp16"), (5, 4, 1))
        hidden = dice.one(WIDTHS) if dice.chance(0.8) else dice.extent(8, 4096, True)
        tokens = dice.one(BATCHES) * dice.one(LENGTHS)
        rows = dice.one(VOCABULARIES) if dice.chance(0.55) else dice.one((2, 4, 77, 169, 197, 512, 514, 1024, 2048, 4096)) if dice.chance(0.6) else dice.number(2, 200000)
        if tokens > 65536 or rows * hidden > 2 ** 28 or tokens * hidden > 2 ** 27:
            continue
        op = dice.one(("embedding", "index_put", "index_select", "index_add", "scatter_add", "gather"), (8, 3, 1, 1, 1, 1))
        if op == "embedding":
            yield Case("vocabulary", dtype, ("embedding", "embedding backward"), {"tokens": tokens, "vocabulary": rows, "hidden": hidden})
        else:
            yield Case("index", dtype, (op,), {"rows": rows, "columns": hidden, "picked": tokens})


ROWS = ("layer_norm", "layer_norm backward", "layer_norm backward", "layer_norm backward", "rms_norm", "rms_norm backward", "softmax", "softmax backward",
        "log_softmax", "log_softmax backward", "add bias", "sum over rows", "sum over columns", "mean over columns", "rotate half (neg + cat)")


def rows(dice: Dice) -> Iterator[Case]:
    """As many as tokens or pixels, as wide as models are; one in five tiny."""
    while True:
        dtype, op = dice.one(("fp32", "bf16", "fp16"), (5, 4, 1)), dice.one(ROWS)
        if dice.chance(0.2):
            count, columns = dice.number(1, 64), dice.number(1, 256)
        else:
            count = dice.one(BATCHES) * (dice.one(LENGTHS) if dice.chance(0.6) else dice.one(SIZES) ** 2)
            columns = dice.one(LENGTHS[1:]) if "softmax" in op and dice.chance(0.6) else dice.one(WIDTHS) if dice.chance(0.8) else dice.number(8, 8192)
            if "softmax" in op and dice.chance(0.4):
                count *= dice.one((1, 4, 8, 12, 16))
        columns += columns % 2
        if count * columns <= 2 ** 26:
            yield Case("rows", dtype, (op,), {"rows": count, "columns": columns})


def tiny(dice: Dice) -> Iterator[Case]:
    """What is left when there is nothing to do."""
    kinds = ("add", "mul", "copy_", "relu", "gelu", "gelu backward", "mul scalar", "cast to the other width", "native_dropout", "zero_", "add mixed")
    while True:
        yield Case("elementwise", dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), (dice.one(kinds),), {"n": dice.number(1, 2 ** 17)})


def image_norms(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, layout = dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), dice.one(("nchw", "nhwc"), (7, 3))
        groups, channels = dice.one((32, 16, 8, 1), (6, 1, 1, 1)), dice.one((32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 960, 1024, 1280, 1920, 2560))
        if channels % groups:
            continue
        batch, side = dice.one(BATCHES[:12]), dice.one(SIZES)
        while batch * channels * side * side > 2 ** 25 and batch > 1:
            batch //= 2
        if batch * channels * side * side <= 2 ** 25:
            yield Case("norm", dtype, ("group_norm", "group_norm backward"), {"shape": [batch, channels, side, side], "layout": layout, "groups": groups})


def row_batch_norms(dice: Dice) -> Iterator[Case]:
    """Of samples without pixels: recommenders, graphs, projection heads."""
    while True:
        shape = [dice.one((32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)) if dice.chance(0.7) else dice.number(8, 131072),
                 dice.one((16, 32, 64, 100, 128, 256, 300, 400, 512, 1024, 2048, 4096))]
        if shape[0] * shape[1] <= 2 ** 26:
            yield Case("norm", dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), ("batch_norm, weights alike", "batch_norm, weights alike backward"),
                       {"shape": shape, "layout": "nchw"})


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "cudnn": (78, cudnn), "fused": (26, fused), "products": (20, products), "bmm": (8, dense.bmm), "strided": (28, operands.strided),
    "reduce_strided": (18, operands.reduce_strided), "scan": (2, operands.scan), "resize": (8, resize), "recurrent": (14, recurrent),
    "tables": (8, tables), "rows": (8, rows), "tiny": (2, tiny), "image_norms": (4, image_norms),
    "joined": (5, operands.joined), "row_batch_norms": (2, row_batch_norms), "positions": (2, positions), "maps": (2, maps)}
