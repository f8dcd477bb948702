"""Endless cases of operators that few models have and that were predicted worst: thousands of short sequences, images enlarged many
times, recurrent layers over rows and columns of images, norms over transposed rows, lists of small tensors, indexing along the last
axis, filters as large as their stride, depthwise filters of volumes. Plain data, no torch.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

from .case import FLOATS, Case
from .dense import BATCHES, SIZES, Dice

NARROW = ("fp32", "bf16", "fp16")
LISTS = ("foreach mul", "foreach add", "foreach lerp", "foreach addcmul", "foreach sqrt", "foreach div list", "foreach addcdiv list")


def _short(dice: Dice, backend: str, dtype: str) -> Case | None:
    """Sequences of a few places, thousands of them: patches of series, windows of images, rows of tables."""
    heads, seq = dice.one((1, 2, 3, 4, 6, 8, 12, 16)), dice.one((8, 10, 12, 16, 17, 21, 24, 32, 36, 42, 49, 50, 63, 64)) if dice.chance(0.7) else dice.number(4, 128)
    # Flash kernels are given heads of any even width: PyTorch fills them up to multiples of eight.
    dim = dice.one((8, 16, 24, 32, 48, 64)) if backend != "flash" or dice.chance(0.5) else dice.one((20, 26, 28, 36, 44, 52, 60, 68, 84, 100))
    keys = seq if dice.chance(0.85) else dice.number(8, 256)
    b = dice.number(64, 8192)
    most = 2 ** 26 if dice.chance(0.2) else 2 ** 24
    while b > 1 and b * heads * max(seq, keys) * dim > most:
        b //= 2
    shape: dict[str, Any] = {"b": b, "heads": heads, "seq": seq, "dim": dim, "causal": keys == seq and dice.chance(0.15), "dropout": 0.1 if dice.chance(0.2) else 0.0}
    if dice.chance(0.8):
        shape["lies"] = "bshd"
    if keys != seq:
        shape["kv_seq"] = keys
    return Case("sdpa_cross" if keys != seq else "sdpa", dtype, (backend + " forward", backend + " backward"), shape)


def short_cudnn(dice: Dice) -> Iterator[Case]:
    while True:
        if case := _short(dice, "cudnn", dice.one(("bf16", "fp16"))):
            yield case


def short_fused(dice: Dice) -> Iterator[Case]:
    while True:
        backend, dtypes = dice.one((("efficient", ("fp32", "tf32")), ("flash", ("fp16", "bf16")), ("efficient", ("fp16", "bf16"))), (3, 4, 1))
        if case := _short(dice, backend, dice.one(dtypes)):
            yield case


def enlarged(dice: Dice) -> Iterator[Case]:
    """Two to 32 times each way, in every layout."""
    while True:
        op, dtype, layout = dice.one(("bilinear", "nearest", "bicubic"), (6, 2, 1)), dice.one(NARROW, (3, 4, 2)), dice.one(("nchw", "nhwc"))
        batch, channels = dice.one(BATCHES[:12]), dice.one((1, 2, 3, 16, 19, 21, 32, 64, 96, 128, 150, 256, 384, 512, 768))
        factor = dice.one((2, 4, 8, 16, 32), (3, 3, 3, 3, 2)) if dice.chance(0.7) else dice.number(2, 48)
        sides = [dice.one((1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 64, 96, 128)) for _ in range(2)] if dice.chance(0.3) else \
            [dice.one((1, 2, 3, 6, 7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 56, 64, 96, 128))] * 2
        to = [side * factor for side in sides]
        most = 2 ** 19 if op == "bicubic" else 2 ** 24 if dice.chance(0.3) else 2 ** 22
        while batch > 1 and batch * channels * to[0] * to[1] > most:
            batch //= 2
        if batch * channels * to[0] * to[1] > most or max(to) > 1024:
            continue
        shape: dict[str, Any] = {"shape": [batch, channels, *sides], "layout": layout, "to": to}
        if op != "nearest" and dice.chance(0.3):
            shape["align"] = True
        yield Case("resize", dtype, (op, op + " backward"), shape)


def recurrent(dice: Dice) -> Iterator[Case]:
    """Few steps of many samples; half in both directions; samples first or not."""
    while True:
        dtype, kind, both = dice.one(FLOATS), dice.one(("lstm", "gru", "rnn"), (6, 3, 1)), dice.chance(0.5)
        hidden = dice.one((16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 512))
        width = hidden if dice.chance(0.3) else dice.one((16, 32, 64, 96, 128, 192, 256, 384, 512))
        shape: dict[str, Any] = {"batch": dice.number(32, 8192), "steps": dice.one((4, 7, 8, 10, 14, 16, 20, 24, 28, 32, 48, 64)), "width": width, "hidden": hidden,
                                 "layers": dice.one((1, 2), (4, 1))}
        if dice.chance(0.4):
            shape["batch_first"] = True
        if (4 * hidden * (hidden + width)) * shape["batch"] * shape["steps"] * shape["layers"] > (2e10 if dtype == "fp32" else 6e10):
            continue
        yield Case("recurrent_bidirectional" if both else "recurrent", dtype, (kind + " forward", kind + " backward"), shape)


def turned_norms(dice: Dice) -> Iterator[Case]:
    """Batch norm of [samples, channels, length] whose channels lie innermost, as a transposed sequence has them; and of those that do not."""
    while True:
        shape = [dice.number(16, 8192), dice.one((8, 16, 32, 64, 96, 128, 256, 512)), dice.one((1, 7, 12, 16, 32, 42, 63, 64, 100, 128, 512))]
        keys: dict[str, Any] = {"shape": shape, "layout": "nchw"}
        if dice.chance(0.75):
            keys["lies"] = "rows"
        if shape[0] * shape[1] * shape[2] <= (2 ** 26 if dice.chance(0.2) else 2 ** 24):
            yield Case("norm", dice.one(NARROW, (3, 4, 2)), ("batch_norm, weights alike", "batch_norm, weights alike backward"), keys)


def lists(dice: Dice) -> Iterator[Case]:
    """Calls of an optimizer one by one, over tensors of one size."""
    while True:
        each = dice.one((1024, 4096, 16384, 65536, 65536, 147456, 589824)) if dice.chance(0.6) else dice.number(64, 2 ** 20) // 4 * 4 + 4
        tensors = dice.one((1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 110, 200, 400))
        if each * tensors <= 2 ** 26:
            yield Case("optimizer", dice.one(NARROW, (3, 3, 2)), (dice.one(LISTS),), {"elements": each * tensors, "tensors": tensors})


def last_axis(dice: Dice) -> Iterator[Case]:
    """Positions of every row picked by one list, or added to: relative places of attention, channels."""
    while True:
        rows, columns = dice.number(64, 2 ** 18), dice.number(8, 4096)
        picked = dice.number(max(1, columns // 4), columns)
        if rows * columns <= 2 ** 27:
            yield Case("index", dice.one(NARROW, (3, 4, 2)), (dice.one(("index_select last", "index_add last", "gather last")),),
                       {"rows": rows, "columns": columns, "picked": picked})


def patches(dice: Dice) -> Iterator[Case]:
    """Images cut into patches by a filter as large as its stride."""
    while True:
        kernel = dice.one((2, 4, 8, 14, 16, 32), (1, 2, 1, 3, 4, 4))
        size = kernel * dice.one((4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 56)) if dice.chance(0.8) else dice.number(kernel, 1024)
        batch, cin = dice.one((1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)), dice.one((1, 3, 3, 3, 4, 8))
        cout = dice.one((32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1152, 1280))
        if size <= 1024 and batch * cin * size * size <= 2 ** 26:
            yield Case("conv", dice.one(FLOATS, (1, 1, 2, 4)), ("forward", "wgrad"), {"batch": batch, "cin": cin, "cout": cout, "size": size, "kernel": kernel, "stride": kernel,
                                                                                       "groups": 1, "layout": dice.one(("nchw", "nhwc"), (4, 1)), "padding": 0})


def volumes(dice: Dice) -> Iterator[Case]:
    """Depthwise filters of videos."""
    while True:
        channels, frames, side = dice.one((24, 32, 48, 54, 64, 96, 108, 128, 192, 216, 384, 432)), dice.one((1, 2, 4, 8, 16)), dice.one(SIZES[:20])
        stride = dice.one((1, 2, 4, 8), (5, 4, 1, 1))
        batch = dice.one((1, 2, 4, 8, 16, 32, 64, 128))
        kernel = [dice.one((1, 3, 5), (1, 6, 1)), 3, 3] if dice.chance(0.9) else [5, 5, 5]
        while batch > 1 and batch * channels * frames * side * side > 2 ** 23:
            batch //= 2
        if batch * channels * frames * side * side > 2 ** 23 or side < stride:
            continue
        yield Case("depthwise", dice.one(FLOATS, (2, 2, 3, 3)), ("forward", "dgrad", "wgrad"),
                   {"batch": batch, "cin": channels, "cout": channels, "groups": channels, "kernel": kernel, "stride": [1, stride, stride], "size": [frames, side, side],
                    "layout": "nchw", "dims": 3, "padding": [extent // 2 for extent in kernel]})


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "short_cudnn": (44, short_cudnn), "short_fused": (18, short_fused), "enlarged": (20, enlarged), "recurrent": (18, recurrent), "turned_norms": (8, turned_norms),
    "lists": (8, lists), "last_axis": (6, last_axis), "patches": (12, patches), "volumes": (12, volumes)}
# As recorded by name.
NAMED = {"recurrent": 22.0, "short_fused": 8.0, "turned_norms": 8.0, "enlarged": 4.0, "last_axis": 3.0, "lists": 4.0, "patches": 5.0, "volumes": 3.0}
