"""Endless cases of operators of which few were measured: sorting, scans, pooling and group norms of one to three axes, lists of
tensors, indexing with repeated places, tables, blocks of images, resizing along one and three axes, padding by the edge, rows of odd
widths, activations. Half of each as layers of models have them, half filling the space around those, from tiny to a hundred
megabytes or so. Plain data, no torch.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator

from .case import WIDE_AND_NARROW, Case
from .dense import BATCHES, LENGTHS, SIZES, VOCABULARIES, WIDTHS, Dice
from .layers import OPTIMIZERS
from .memory import LOSSES, POINTWISE
from .odd_ops import LISTS

MOST, MOST_OFTEN = 2 ** 25, 2 ** 23  # elements of an operand: of a few, of most
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def _type(dice: Dice) -> str:
    return dice.one(WIDE_AND_NARROW, (4, 4, 3))


def _most(dice: Dice) -> int:
    return MOST if dice.chance(0.15) else MOST_OFTEN if dice.chance(0.6) else 2 ** 20


def _smaller(dice: Dice, batch: int, elements_each: float) -> int:
    """A batch that is affordable; 0 where one sample is too much."""
    most = _most(dice)
    return min(batch, int(most // elements_each))


def _area(dice: Dice, rows: tuple[int, int], columns: tuple[int, int], most: int = 0) -> tuple[int, int]:
    most, count, wide = most or _most(dice), dice.number(*rows), dice.number(*columns)
    while count * wide > most:
        count, wide = (max(1, count // 2), wide) if count > 1 and dice.chance(0.7) else (count, max(1, wide // 2))
    return count, wide


def sorts(dice: Dice) -> Iterator[Case]:
    """Of a few experts, of anchors and places, of vocabularies, of one long row."""
    while True:
        op = dice.one(("sort", "argsort", "topk", "kthvalue"), (4, 4, 6, 1))
        kind = dice.one(("experts", "places", "words", "one", "any"), (2, 3, 2, 3, 10))
        if kind == "experts":
            count, columns, k = dice.one(BATCHES) * dice.one(LENGTHS), dice.one((4, 8, 16, 32, 60, 64, 128, 160, 256)), dice.one((1, 2, 4, 6, 8))
        elif kind == "places":
            count, columns, k = dice.one(BATCHES) * dice.one((1, 1, 3, 5, 8)), dice.one((49, 100, 196, 300, 576, 784, 900, 1000, 2000, 3136, 4000, 8400, 20000, 45000)), dice.one((10, 50, 100, 300, 900, 1000, 2000))
        elif kind == "words":
            count, columns, k = dice.number(1, 256), dice.one(VOCABULARIES), dice.one((1, 5, 10, 40, 50, 100))
        elif kind == "one":
            count, columns, k = dice.one((1, 1, 1, 2, 4)), dice.number(64, 2 ** 22), dice.number(1, 4096)
        else:
            (count, columns), k = _area(dice, (1, 2 ** 18), (2, 2 ** 18)), dice.number(1, 2048)
        if count * columns <= (2 ** 24 if dice.chance(0.1) else 2 ** 22):
            yield Case("sort", _type(dice), (op,), {"rows": count, "columns": columns, "k": min(k, columns)})


def scans(dice: Dice) -> Iterator[Case]:
    """Along the last axis, of one or many rows."""
    while True:
        op = dice.one(("cumsum", "cumprod", "logcumsumexp", "flip"), (5, 3, 3, 2))
        kind = dice.one(("tokens", "one", "any"), (3, 1, 4))
        if kind == "tokens":
            shape = [dice.one(BATCHES), *([dice.one(HEADS + (64, 768, 1536))] if dice.chance(0.5) else []), dice.one(LENGTHS[1:])]
        elif kind == "one":
            shape = [dice.number(2, 2 ** 23)]
        else:
            shape = list(_area(dice, (1, 2 ** 18), (2, 2 ** 16)))
        if math.prod(shape) <= 2 ** 24:
            strides = [math.prod(shape[axis + 1:]) for axis in range(len(shape))]
            yield Case("scan", _type(dice), (op,), {"shape": shape, "strides": strides, "over": [len(shape) - 1]})


WINDOWS = ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2), (4, 4, 0), (3, 2, 0), (7, 1, 3), (3, 3, 0), (2, 1, 0), (8, 8, 0), (13, 1, 6), (9, 1, 4), (4, 2, 1))


def _sides(dice: Dice, axes: int) -> list[int]:
    if axes == 1:
        return [dice.one((28, 50, 64, 100, 128, 187, 250, 256, 500, 512, 1000, 1024, 2048, 4000, 8000, 16000)) if dice.chance(0.5) else dice.number(8, 65536)]
    if axes == 3:
        side = dice.one((4, 7, 8, 14, 16, 24, 28, 32, 48, 56, 64, 80, 96, 112)) if dice.chance(0.7) else dice.number(3, 128)
        return [dice.one((1, 2, 4, 8, 16, 32, side)) if dice.chance(0.7) else dice.number(2, 64), side, side]
    side = dice.one(SIZES) if dice.chance(0.6) else dice.number(3, 512)
    return [side, side if dice.chance(0.75) else dice.number(3, 512)]


def _image(dice: Dice, axes: int, shrink: float = 1.0) -> list[int]:
    """Samples, channels, sides; `shrink`: how many times larger what is made of it."""
    while True:
        sides = _sides(dice, axes)
        channels = dice.one((1, 3, 8, 16, 24, 32, 48, 64, 64, 96, 128, 128, 192, 256, 256, 320, 384, 512, 512, 640, 768, 1024, 1280, 2048)) if dice.chance(0.75) else dice.number(1, 2048)
        if (batch := _smaller(dice, dice.one(BATCHES) if dice.chance(0.7) else dice.number(1, 512), channels * math.prod(sides) * max(shrink, 1.0))) > 0:
            return [batch, channels, *sides]


def pools(dice: Dice) -> Iterator[Case]:
    while True:
        op, axes = dice.one(("max", "average", "adaptive average"), (4, 4, 3)), dice.one((1, 2, 3), (3, 3, 4))
        shape = _image(dice, axes)
        layout = "nhwc" if axes > 1 and dice.chance(0.3 if axes == 2 else 0.1) else "nchw"
        if op.startswith("adaptive"):
            window = {"output": dice.one((1, 1, 1, 2, 3, 4, 6, 7, 8, 16, 32)) if axes > 1 else dice.one((1, 1, 2, 4, 8, 16, 32, 64, 128, 256))}
            if window["output"] > 2 * max(shape[2:]):
                continue
        else:
            window = dict(zip(("kernel", "stride", "padding"), dice.one(WINDOWS[:8] if axes == 3 else WINDOWS)))
            if min(shape[2:]) + (0 if axes == 3 else 2 * window["padding"]) < window["kernel"]:
                continue
        yield Case("pool", _type(dice), (op, op + " backward"), {"shape": shape, "layout": layout, **window})


def group_norms(dice: Dice) -> Iterator[Case]:
    """Of series, images and volumes; one group, as many as usual, one a channel."""
    while True:
        axes, groups = dice.one((1, 2, 3), (3, 5, 2)), dice.one((1, 2, 4, 8, 16, 32, 64), (4, 1, 2, 3, 3, 8, 1))
        each = dice.one((1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 30, 32, 40, 48, 60, 64, 80)) if groups > 1 else dice.one((16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768))
        sides = _sides(dice, axes)
        batch = _smaller(dice, dice.one(BATCHES), groups * each * math.prod(sides))
        if batch and groups * each <= 2560:
            yield Case("norm", _type(dice), ("group_norm", "group_norm backward"), {"shape": [batch, groups * each, *sides], "groups": groups,
                                                                                   "layout": "nhwc" if axes > 1 and dice.chance(0.3) else "nchw"})


def batch_norms(dice: Dice) -> Iterator[Case]:
    """Small ones: samples without pixels, short series, the last images of a network."""
    while True:
        axes = dice.one((0, 1, 2, 3), (2, 2, 3, 1))
        shape = [dice.number(2, 2048), dice.number(2, 2048), *[dice.number(1, 32) for _ in range(axes)]]
        if 4 <= math.prod(shape) <= 2 ** 21:
            layout = "nhwc" if axes == 2 and dice.chance(0.3) else "nchw"
            yield Case("norm", _type(dice), ("batch_norm, weights alike", "batch_norm, weights alike backward"), {"shape": shape, "layout": layout})


def lists(dice: Dice) -> Iterator[Case]:
    """Ends of steps, and the calls they are made of, over as many tensors as models have; sizes in fours."""
    while True:
        op = dice.one(LISTS) if dice.chance(0.3) else dice.one(OPTIMIZERS[:8]) if dice.chance(0.75) else dice.one(("unscale", "grad norm foreach", "grad scale foreach"), (4, 2, 1))
        tensors = dice.one((1, 2, 3, 4, 6, 8, 16, 20, 28, 32, 48, 64, 74, 100, 110, 148, 161, 200, 290, 400)) if dice.chance(0.6) else dice.number(1, 500)
        each = dice.one((16, 64, 256, 512, 768, 1024, 2304, 3072, 4096, 16384, 36864, 65536, 147456, 589824, 2359296, 4194304)) if dice.chance(0.6) else 4 * dice.number(1, 2 ** 22)
        if each * tensors <= (2 ** 27 if dice.chance(0.06) else 2 ** 25):
            yield Case("optimizer", "fp32" if op == "unscale" else _type(dice), (op,), {"elements": each * tensors, "tensors": tensors})


def indexed(dice: Dice) -> Iterator[Case]:
    """Rows picked and added to: hardly ever the same one, or the same few again and again."""
    while True:
        op = dice.one(("index_select", "gather", "scatter_add", "index_add", "index_put", "embedding", "embedding backward", "gather last", "index_select last", "index_add last"),
                      (2, 3, 4, 4, 5, 2, 4, 2, 2, 2))
        kind = dice.one(("bias", "graph", "few", "any"), (2, 3, 2, 5))
        if op.endswith(" last"):
            count, columns = _area(dice, (16, 2 ** 17), (4, 4096))
            yield Case("index", _type(dice), (op,), {"rows": count, "columns": columns, "picked": dice.number(max(1, columns // 8), columns)})
            continue
        if kind == "bias":
            side = dice.one((7, 8, 12, 14, 16))
            size, columns, picked = (2 * side - 1) ** 2, dice.one(HEADS), side ** 4
        elif kind == "graph":
            size, columns = dice.number(500, 2 ** 18), dice.one((1, 3, 8, 16, 32, 64, 128, 256, 512))
            picked = size * dice.one((1, 2, 4, 8, 16))
        elif kind == "few":
            size, columns, picked = dice.number(1, 64), dice.one(WIDTHS) if dice.chance(0.6) else dice.number(1, 4096), dice.number(64, 2 ** 16)
        else:
            size, columns, picked = dice.number(1, 2 ** 19), dice.number(1, 4096), dice.number(1, 2 ** 19)
        if max(size, picked) * columns <= _most(dice):
            yield Case("index", _type(dice), (op,), {"rows": size, "columns": columns, "picked": picked})


def tables(dice: Dice) -> Iterator[Case]:
    """Of tokens, places and kinds; many tokens of few words, few of many."""
    while True:
        kind = dice.one(("words", "places", "kinds", "any"), (4, 3, 2, 6))
        tokens = dice.one(BATCHES) * dice.one(LENGTHS) if dice.chance(0.6) else dice.number(1, 65536)
        size = dice.one(VOCABULARIES) if kind == "words" else dice.one((49, 77, 128, 197, 257, 512, 514, 1024, 1500, 2048, 4096)) if kind == "places" else \
            dice.number(2, 32) if kind == "kinds" else dice.number(2, 500000)
        hidden = dice.one(WIDTHS) if dice.chance(0.7) else dice.number(1, 4096)
        if tokens <= 2 ** 17 and tokens * hidden <= 2 ** 26 and size * hidden <= 2 ** (27 if dice.chance(0.3) else 24):
            yield Case("vocabulary", _type(dice), ("embedding", "embedding backward"), {"tokens": tokens, "vocabulary": size, "hidden": hidden})


def token_losses(dice: Dice) -> Iterator[Case]:
    while True:
        tokens, words = _area(dice, (1, 2 ** 17), (2, 2 ** 17), 2 ** 26 if dice.chance(0.1) else 2 ** 24)
        if dice.chance(0.5):
            words = dice.one((2, 3, 10, 21, 80, 91, 100, 365, 1000, 8142, 21841, 30522, 32000, 50257, 128256))
        if tokens * words <= 2 ** 26:
            op = dice.one(("log_softmax", "nll_loss"))
            yield Case("vocabulary", _type(dice), (op, op + " backward"), {"tokens": tokens, "vocabulary": words, "hidden": 16})


def folds(dice: Dice) -> Iterator[Case]:
    """Images taken apart into blocks, and put together again."""
    while True:
        kernel, stride, padding, dilation = dice.one(((3, 1, 1, 1), (3, 2, 1, 1), (2, 2, 0, 1), (4, 4, 0, 1), (7, 4, 2, 1), (7, 4, 3, 1), (5, 1, 2, 1), (8, 8, 0, 1), (16, 16, 0, 1), (3, 1, 2, 2), (3, 3, 0, 1), (7, 1, 3, 1), (4, 2, 1, 1)))
        channels = dice.one((1, 3, 3, 16, 32, 48, 64, 64, 96, 128, 192, 256, 384, 512)) if dice.chance(0.7) else dice.number(1, 512)
        sides = [max(side, dilation * (kernel - 1) + 1) for side in _sides(dice, 2)]
        blocks = math.prod((side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for side in sides)
        if batch := _smaller(dice, dice.one(BATCHES[:12]), channels * max(kernel * kernel * blocks, math.prod(sides))):
            yield Case("fold", _type(dice), ("im2col", "col2im"), {"shape": [batch, channels, *sides], "kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation})


def samples(dice: Dice) -> Iterator[Case]:
    """Images read at given places."""
    while True:
        batch, channels = dice.one((1, 2, 4, 8, 12, 16, 32, 64, 96)), dice.one((1, 2, 3, 8, 16, 32, 64, 96, 128, 256)) if dice.chance(0.8) else dice.number(1, 512)
        sides = _sides(dice, 2)
        to = list(sides) if dice.chance(0.4) else [dice.one((1, 4, 8, 16, 32, 64, 100, 128, 300, 900, 2000)), dice.one((1, 4, 8, 12, 16, 32, 64, 128))]
        if batch * channels * max(math.prod(sides), math.prod(to)) <= min(_most(dice), 2 ** 24):
            yield Case("sampled", _type(dice), ("grid_sampler_2d", "grid_sampler_2d_backward"), {"shape": [batch, channels, *sides], "to": to})


def resizes(dice: Dice) -> Iterator[Case]:
    """Of one to three axes. A gradient of many pixels into few adds to the same places again and again."""
    while True:
        axes = dice.one((1, 2, 3), (2, 7, 3))
        op = dice.one(("nearest", "linear")) if axes == 1 else dice.one(("nearest", "trilinear")) if axes == 3 else dice.one(("nearest", "bilinear", "bicubic"), (4, 3, 2))
        factor = dice.one((0.5, 1, 2, 2, 2, 4, 8)) if dice.chance(0.6) else 0.25 * 2 ** dice.number(1, 32) ** 0.5
        sides = _sides(dice, axes)
        if axes == 3:
            sides[0] = min(sides[0], 32)
        to = [max(1, round(side * factor)) for side in sides]
        grows = math.prod(to) / math.prod(sides)
        channels = dice.one((1, 2, 3, 16, 19, 21, 32, 64, 96, 128, 256, 512)) if dice.chance(0.8) else dice.number(1, 512)
        batch = dice.one(BATCHES[:10])
        most = 2 ** 19 if op == "bicubic" else 2 ** 24 if dice.chance(0.2) else 2 ** 21
        if grows > 300 or batch * channels * max(math.prod(to), math.prod(sides)) > most:
            continue
        shape: dict[str, Any] = {"shape": [batch, channels, *sides], "layout": "nhwc" if axes == 2 and dice.chance(0.3) else "nchw", "to": to}
        if op != "nearest" and dice.chance(0.3):
            shape["align"] = True
        yield Case("resize", _type(dice), (op, op + " backward"), shape)


def pads(dice: Dice) -> Iterator[Case]:
    """By what lies at the edge."""
    while True:
        axes = dice.one((1, 2, 3), (3, 3, 4))
        shape = _image(dice, axes, 1.5)
        by = min(dice.one((1, 1, 2, 3, 3, 4, 5, 7, 10)), min(shape[2:]) - 1)
        if by > 0 and math.prod(extent + 2 * by for extent in shape[2:]) * shape[0] * shape[1] <= MOST:
            op = "%s_pad%dd" % (dice.one(("reflection", "replication"), (2, 3)), axes)
            yield Case("edge", _type(dice), (op, op + "_backward"), {"shape": shape, "by": by})


def joins(dice: Dice) -> Iterator[Case]:
    """Parts of any width put together; rolled, repeated, padded rows."""
    while True:
        op, parts = dice.one(("cat inner", "cat outer", "stack", "roll", "repeat", "pad", "slice backward"), (8, 2, 2, 2, 1, 1, 2)), dice.one((2, 2, 3, 4, 5, 6, 8, 12, 16, 32))
        count, wide = _area(dice, (1, 2 ** 17), (1, 4096))
        if op == "cat inner" or wide < parts:
            wide *= parts
        if count * wide <= MOST:
            yield Case("copies", _type(dice), (op,), {"rows": count, "columns": wide, "parts": parts})


ROWS = ("softmax", "softmax", "softmax backward", "log_softmax", "var over columns", "norm over columns", "argmax over columns", "cumsum over columns", "tril", "triu", "glu", "glu backward")


def rows(dice: Dice) -> Iterator[Case]:
    """Of odd widths too: places of a picture, words."""
    while True:
        op = dice.one(ROWS)
        if dice.chance(0.5):
            columns = dice.one(LENGTHS[1:] + VOCABULARIES[:6] + (3136, 785, 3137, 2305, 81, 21, 10)) if "soft" in op else dice.one(WIDTHS)
            count = dice.one(BATCHES) * dice.one(HEADS) * (dice.one(LENGTHS) if dice.chance(0.7) else 1)
        else:
            count, columns = _area(dice, (1, 2 ** 20), (2, 65536))
        columns += columns % 2 if op.startswith("glu") else 0
        if 2 <= columns and count * columns <= _most(dice):
            yield Case("rows", _type(dice), (op,), {"rows": count, "columns": columns})


ELEMENTS = ("zero_", "zero_", "native_dropout", "dropout backward", "gelu", "gelu backward", "silu", "silu backward", "relu", "relu backward", "tanh", "pow 3")
# op -> how many operands each element is read of
ACTIVATIONS = {"mish": 1, "mish backward": 2, "softplus": 1, "softplus backward": 2, "relu6": 1, "hardtanh backward": 2, "hardsigmoid": 1, "hardsigmoid backward": 2, "hardswish backward": 2,
               "leaky_relu backward": 2, "elu": 1, "elu backward": 2, "log": 1, "cos": 1, "erf": 1, "abs": 1}
OFTEN = ("hardswish", "leaky_relu", "sigmoid", "sigmoid backward", "tanh backward", "gelu tanh", "where", "masked_fill", "fill_", "rsqrt", "clamp")


def elements(dice: Dice) -> Iterator[Case]:
    """Activations and fills."""
    while True:
        n = dice.number(1, 2 ** 26)
        if dice.chance(0.4):
            yield Case("elementwise", _type(dice), (dice.one(ELEMENTS),), {"n": n})
            continue
        op = dice.one(tuple(ACTIVATIONS) if dice.chance(0.6) else OFTEN)
        inputs, masked = POINTWISE.get(op) or (ACTIVATIONS[op], False)
        yield Case("pointwise", _type(dice), (op,), {"n": n, "inputs": inputs, "masked": masked})


def chosen(dice: Dice) -> Iterator[Case]:
    """Scores of an attention masked, by what is the same for all heads, or for all queries."""
    while True:
        op, batch, heads, queries = dice.one(("where", "masked_fill")), dice.one(BATCHES), dice.one(HEADS), dice.one(LENGTHS[1:])
        keys = queries if dice.chance(0.7) else dice.one(LENGTHS[1:])
        if batch * heads * queries * keys > _most(dice):
            continue
        mask = dice.one(([queries * keys, 0, keys, 1], [keys, 0, 0, 1], [0, 0, keys, 1], [heads * queries * keys, queries * keys, keys, 1], [queries, 0, 1, 0]))
        shape = [batch, heads, queries, keys]
        plain = [heads * queries * keys, queries * keys, keys, 1]
        strides = [[0 if extent == 1 else stride for extent, stride in zip(shape, one)] for one in ([mask, plain, [0, 0, 0, 0]] if op == "where" else [mask, plain])]
        yield Case("strided", _type(dice), (op,), {"shape": shape, "strides": strides})


def losses(dice: Dice) -> Iterator[Case]:
    while True:
        yield Case("loss", _type(dice), (dice.one(LOSSES),), {"n": dice.number(1, 2 ** 25)})


def maps(dice: Dice) -> Iterator[Case]:
    """Classes of every pixel."""
    while True:
        classes, sides = dice.one((2, 3, 4, 12, 19, 21, 40, 81, 91, 150)) if dice.chance(0.7) else dice.number(2, 256), _sides(dice, 2)
        if batch := _smaller(dice, dice.one(BATCHES[:10]), classes * math.prod(sides)):
            yield Case("maps", _type(dice), ("nll_loss", "nll_loss backward"), {"shape": [batch, classes, *sides]})


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "sorts": (12, sorts), "scans": (5, scans), "pools": (16, pools), "group_norms": (11, group_norms), "batch_norms": (2, batch_norms), "lists": (14, lists),
    "indexed": (9, indexed), "tables": (6, tables), "token_losses": (2, token_losses), "folds": (4, folds), "samples": (6, samples), "resizes": (8, resizes), "pads": (6, pads),
    "joins": (4, joins), "rows_of_any_width": (4, rows), "elements": (4, elements), "chosen": (1, chosen), "losses": (2, losses), "maps": (2, maps)}
# As recorded by name.
NAMED = {"sorts": 5.0, "scans": 2.0, "pools": 4.0, "group_norms": 4.0, "batch_norms": 1.0, "lists": 4.0, "indexed": 5.0, "tables": 3.0, "folds": 1.0, "samples": 1.0, "resizes": 2.0, "pads": 1.0,
         "joins": 2.0, "rows_of_any_width": 2.0, "elements": 2.0, "chosen": 1.0, "losses": 2.0, "maps": 1.0}
