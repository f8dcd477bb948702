"""More endless convolutions, beside those of convolutions.py: what those have few of. Groups and depthwise filters, channels that are
no multiple of 8, small layers, signals, patches; and images unfolded, folded, padded and sampled. Plain data, no torch.
`SHARES` is read as that of dense.py.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator

from .case import Case
from .convolutions import SHARES as USUAL
from .convolutions import Layer, Shape, _cases, _image
from .dense import BATCHES, CHANNELS, SIZES, Dice

TRAINED = (1, 2, 4, 8, 16, 32, 32, 64, 64, 128, 128, 256)
SMALL = (1, 1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16)


def _side(dice: Dice) -> Any:
    """Of a stage's image: mostly square."""
    side = max(3, dice.one((224, 224, 256, 288, 320, 384, 448, 512, 600, 160, 128, 96, 64, 32)) // dice.one((2, 4, 8, 8, 16, 16, 32, 32)))
    return side if dice.chance(0.75) else [side, max(2, round(side * dice.one((0.5, 0.75, 1.25, 4 / 3, 1.5, 2))))]


def _grouped(dice: Dice) -> Layer:
    """Of networks whose filters see a part of the channels."""
    style = dice.one(("each", "cardinal", "pointwise", "widening", "signal", "volume", "any"), (10, 5, 4, 4, 4, 2, 5))
    if style == "each":  # so many channels to a group, whatever the width
        each = dice.one((4, 8, 8, 16, 16, 24, 24, 32, 40, 48, 56, 64, 64, 80, 88, 112, 120, 128, 168, 232, 264))
        groups = max(2, round(dice.number(48, 2048) / each))
        return "grouped", 2, each * groups, each * groups, _side(dice), dice.one((3, 3, 3, 3, 5, 7)), {"groups": groups, "stride": dice.one((1, 2), (3, 1))}
    if style == "cardinal":
        groups, each = dice.one((2, 4, 8, 16, 32, 32, 64)), dice.one((4, 4, 8, 8, 16, 32, 6, 12, 26, 48))
        return "grouped", 2, each * groups, each * groups, _side(dice), 3, {"groups": groups, "stride": dice.one((1, 2), (3, 1))}
    if style == "pointwise":
        groups, each = dice.one((2, 3, 4, 8)), dice.one((8, 10, 17, 20, 24, 30, 34, 40, 48, 60, 68, 80, 120))
        out = each * dice.one((1, 2, 4))
        return "grouped", 2, each * groups, out * groups, _side(dice), 1, {"groups": groups}
    if style == "widening":  # more results than channels in each group, or fewer
        groups, each = dice.one((2, 4, 8, 16, 32, 64, 128, 256)), dice.one((1, 1, 2, 4, 8, 16))
        out = max(1, each * dice.one((2, 2, 3, 4, 6)))
        each, out = (each, out) if dice.chance(0.7) else (out, each)
        return "grouped", 2, each * groups, out * groups, _side(dice), dice.one((1, 3, 3, 5)), {"groups": groups, "stride": dice.one((1, 2), (4, 1))}
    if style == "signal":
        groups, each = dice.one((2, 4, 8, 16, 16, 32)), dice.one((4, 8, 16, 32, 48, 64, 80))
        return "conv1d", 1, each * groups, each * groups, dice.number(32, 8192), dice.one((1, 3, 5, 7, 9, 15, 31, 64, 128)), {"groups": groups, "dilation": dice.one((1, 1, 1, 2, 4))}
    if style == "volume":
        groups, each = dice.one((2, 4, 8, 16, 32)), dice.one((4, 8, 16, 32))
        return "conv3d", 3, each * groups, each * groups, [dice.one((4, 8, 16)), *[dice.one((7, 14, 28, 56))] * 2], dice.one((3, (1, 3, 3), (3, 1, 1))), {"groups": groups}
    groups = dice.one((2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64))
    into, out = dice.number(1, 160), dice.number(1, 160)
    return "grouped", 2, into * groups, (into if dice.chance(0.5) else out) * groups, dice.number(4, 128), dice.one((1, 3, 3, 5, 7)), \
        {"groups": groups, "stride": dice.one((1, 2), (4, 1)), "dilation": dice.one((1, 1, 1, 1, 2))}


def _depthwise(dice: Dice) -> Layer:
    style = dice.one(("mobile", "large", "signal", "volume", "tokens", "any"), (10, 6, 5, 2, 3, 5))
    channels = dice.one(CHANNELS) if dice.chance(0.6) else dice.number(8, 2048)
    if style == "mobile":
        return "depthwise", 2, channels, channels, _side(dice), dice.one((3, 3, 3, 5, 5, 7)), {"groups": channels, "stride": dice.one((1, 2), (3, 1))}
    if style == "large":
        return "depthwise", 2, channels, channels, _side(dice), dice.one((7, 7, 7, 9, 11, 13, 21, 31, (1, 11), (11, 1), (1, 21), (21, 1))), {"groups": channels}
    if style == "signal":
        kernel, dilation = dice.one((3, 3, 4, 5, 7, 9, 15, 17, 31, 31, 65)), dice.one((1, 1, 1, 2, 4, 8))
        more: Shape = {"groups": channels, "dilation": dilation}
        if dice.chance(0.4):  # causal: all of the padding, cut off afterwards
            more["padding"] = dilation * (kernel - 1)
        return "conv1d", 1, channels, channels, dice.number(32, 8192), kernel, more
    if style == "volume":
        return "conv3d", 3, channels, channels, [dice.one((4, 8, 16)), *[dice.one((7, 14, 28, 56))] * 2], dice.one((3, 3, 5, (1, 3, 3), (3, 1, 1))), \
            {"groups": channels, "stride": 1 if dice.chance(0.7) else [1, 2, 2]}
    if style == "tokens":  # images of patches
        channels = 64 * dice.number(1, 24)
        return "depthwise", 2, channels, channels, dice.one((7, 14, 16, 24, 28, 32, 56)), dice.one((3, 3, 3, 5, 7)), {"groups": channels}
    return "depthwise", 2, channels, channels, dice.number(4, 160), dice.one((2, 3, 3, 3, 4, 5, 6, 7, 9)), \
        {"groups": channels, "stride": dice.one((1, 2, 4), (6, 2, 1)), "dilation": dice.one((1, 1, 1, 2, 3))}


def _odd(dice: Dice) -> Layer:
    """Channels that are no multiple of 8, at one end or both."""
    def odd() -> int:
        return dice.one((3, 6, 10, 12, 14, 15, 18, 20, 21, 22, 26, 28, 30, 34, 36, 44, 50, 52, 54, 58, 60, 66, 68, 70, 76, 78, 84, 90, 92, 100, 108, 116, 124, 132, 140, 150, 156,
                         162, 172, 180, 196, 210, 220, 228, 244, 255, 270, 276, 300, 324, 348, 372, 420, 460, 500, 540, 588, 690, 819, 1000)) if dice.chance(0.7) else dice.number(3, 800)
    into, out = odd(), odd()
    if dice.chance(0.4):
        into, out = (dice.one(CHANNELS), out) if dice.chance(0.5) else (into, dice.one(CHANNELS))
    elif dice.chance(0.4):
        out = into
    if dice.chance(0.12):
        return "conv1d", 1, into, out, dice.number(32, 8192), dice.one((1, 3, 5, 7)), {"stride": dice.one((1, 2), (4, 1))}
    if dice.chance(0.08):
        return "conv3d", 3, into, out, [dice.one((4, 8, 16)), *[dice.one((7, 14, 28, 56))] * 2], dice.one((1, 3, (1, 3, 3), (3, 1, 1))), {}
    return "conv", 2, into, out, _side(dice), dice.one((1, 3, 5, 7), (10, 12, 2, 1)), {"stride": dice.one((1, 2), (4, 1))}


def _branches(dice: Dice) -> Layer:
    """Of networks that keep several resolutions, one twice as wide as the one before; and of what joins them."""
    base, picture = dice.one((18, 30, 32, 40, 44, 48, 64, 16, 24)), dice.one((224, 256, 288, 384, 512))
    at, to = dice.one((0, 1, 2, 3)), dice.one((0, 1, 2, 3))
    side = picture // (4 << at)
    kind = dice.random.random()
    if kind < 0.55:
        return "conv", 2, base << at, base << at, side, 3, {}
    if kind < 0.75 and at > to:
        return "conv", 2, base << at, base << to, side, 1, {}
    if kind < 0.9:
        return "conv", 2, base << min(at, 2), base << min(at, 2) + 1, side, 3, {"stride": 2}
    return "conv", 2, dice.one((64, 256, 15 * base, 256)), dice.one((32, 64, 128, 256, 512, 1024, 15 * base)), side, dice.one((1, 3)), {}


def _little(dice: Dice) -> Layer:
    """Few pixels, or few channels: what a launch costs as much as."""
    kind = dice.random.random()
    if kind < 0.3:
        wide, narrow = dice.one(CHANNELS), dice.number(4, 128)
        return "conv", 2, *((wide, narrow) if dice.chance(0.5) else (narrow, wide)), 1, 1, {}
    if kind < 0.6:
        return "conv", 2, dice.one(CHANNELS), dice.one(CHANNELS), dice.number(2, 16), dice.one((1, 1, 3, 3, 5)), {"stride": dice.one((1, 2), (4, 1))}
    if kind < 0.85:
        return "conv", 2, dice.number(1, 48), dice.number(1, 48), dice.number(8, 256), dice.one((1, 3, 3, 5, 7)), {"stride": dice.one((1, 2), (4, 1))}
    return "conv1d", 1, dice.number(1, 256), dice.number(1, 256), dice.number(16, 2048), dice.one((1, 3, 5, 7, 2)), {}


def _series(dice: Dice) -> Layer:
    """Causal and dilated filters of signals, and layers of audio networks."""
    kind = dice.random.random()
    if kind < 0.55:
        width, kernel, dilation = dice.one((16, 24, 25, 30, 32, 50, 64, 64, 100, 128, 128, 150, 200, 256, 256, 384, 450, 512, 600, 768)), dice.one((2, 3, 3, 5, 7, 8)), 1 << dice.one((0, 0, 1, 2, 3, 4, 5, 6, 7, 8))
        into = width if dice.chance(0.8) else dice.one((1, 2, 12, 40, 80, 88))
        length = dice.one((64, 96, 100, 128, 192, 256, 336, 400, 512, 600, 784, 1000, 1024, 2048, 4096, 8192))
        more: Shape = {"dilation": dilation}
        if dice.chance(0.6):
            more["padding"] = dilation * (kernel - 1)
        elif dice.chance(0.3):
            more["padding"] = 0
            length += dilation * (kernel - 1)
        return "conv1d", 1, into, width, length, kernel, more
    if kind < 0.8:
        width = dice.one((64, 80, 128, 192, 256, 384, 512, 768, 1024, 1536))
        return "conv1d", 1, width, dice.one((width, width, 2 * width, width // 2, 4 * width)), dice.number(50, 4000), dice.one((1, 1, 1, 3, 5, 7, 9)), {"stride": dice.one((1, 2), (5, 1))}
    into, out = dice.one((1, 1, 8, 16, 32, 64, 128, 256, 512)), dice.one((8, 16, 32, 64, 128, 256, 512, 1024))
    return "conv1d", 1, into, out, dice.number(500, 60000), dice.one((3, 5, 7, 10, 15, 16, 25, 80)), {"stride": dice.one((1, 2, 3, 4, 5, 8))}


def _patches(dice: Dice) -> Layer:
    """How transformers begin, and go from one stage to the next."""
    picture = dice.one((224, 224, 224, 256, 288, 384, 448, 512, 96, 64, 32))
    width = dice.one((24, 32, 40, 48, 64, 64, 80, 96, 96, 112, 128, 144, 192, 256, 320, 384, 512, 768, 1024))
    kind = dice.random.random()
    if kind < 0.35:
        kernel, stride, padding = dice.one(((7, 4, 3), (7, 2, 3), (3, 2, 1), (4, 4, 0), (2, 2, 0), (8, 8, 0), (16, 16, 0), (14, 14, 0), (32, 32, 0), (16, 8, 4), (5, 4, 2), (7, 4, 2)))
        return "conv", 2, 3, width, picture // stride * stride, kernel, {"stride": stride, "padding": padding}
    side = picture // dice.one((2, 4, 8, 16))
    kernel, stride, padding = dice.one(((3, 2, 1), (2, 2, 0), (3, 1, 1), (8, 8, 0), (4, 4, 0), (2, 2, 0)))
    return "conv", 2, width, width * dice.one((1, 2, 2)), max(kernel, side), kernel, {"stride": stride, "padding": padding}


def _upward(dice: Dice) -> Layer:
    """Transposed."""
    axes = dice.one((1, 2, 3), (3, 7, 2))
    kernel, stride, padding = dice.one(((2, 2, 0), (4, 2, 1), (3, 2, 1), (4, 4, 0), (5, 2, 2), (4, 1, 0), (16, 8, 4), (8, 4, 2)), (8, 10, 3, 2, 2, 1, 1, 1))
    into = dice.one((16, 32, 48, 64, 96, 100, 128, 192, 256, 320, 384, 512, 768, 1024))
    out = dice.one((into, into // 2, into // 2, into // 4, 3, 1))
    size = dice.number(64, 8192) if axes == 1 else dice.one((1, 4, 7, 8, 14, 16, 28, 32, 56, 64, 128)) if axes == 2 else dice.one((4, 6, 8, 12, 16, 24, 32))
    return "conv_transpose", axes, into, max(1, out), size, kernel, {"stride": stride, "padding": padding}


def folds(dice: Dice) -> Iterator[Case]:
    """Images taken apart into overlapping blocks, and put together again."""
    while True:
        kernel, stride, padding, dilation = dice.one(((3, 1, 1, 1), (3, 2, 1, 1), (2, 2, 0, 1), (4, 4, 0, 1), (7, 4, 2, 1), (5, 1, 2, 1), (8, 8, 0, 1), (16, 16, 0, 1), (3, 1, 2, 2), (3, 3, 0, 1), (7, 1, 3, 1), (4, 2, 1, 1)))
        batch, channels, side = dice.one((1, 2, 4, 8, 16, 32, 64)), dice.one((1, 3, 16, 32, 48, 64, 64, 96, 128, 192, 256, 384, 512, 768)), dice.one((8, 14, 16, 28, 32, 56, 64, 112, 128, 224))
        sides = [max(side, dilation * (kernel - 1) + 1)] * 2
        blocks = math.prod((s + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for s in sides)
        if batch * channels * max(kernel * kernel * blocks, side * side) <= 2 ** 27:
            yield Case("fold", dice.one(("fp32", "bf16", "fp16"), (4, 3, 3)), ("im2col", "col2im"),
                       {"shape": [batch, channels, *sides], "kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation})


def pads(dice: Dice) -> Iterator[Case]:
    """By what lies at the edge."""
    while True:
        axes, batch, channels = dice.one((1, 2, 3), (3, 8, 1)), dice.one(BATCHES), dice.one((1, 3, 16, 32, 64, 80, 128, 256, 512))
        sides = [dice.number(32, 65536)] if axes == 1 else [dice.one(SIZES)] * 2 if axes == 2 else [dice.one((4, 8, 16))] + [dice.one((8, 14, 28, 56))] * 2
        by = min(dice.one((1, 1, 2, 3, 3, 5, 10)), min(sides) - 1)
        if batch * channels * math.prod(sides) <= 2 ** 25:
            op = "%s_pad%dd" % (dice.one(("reflection", "replication"), (3, 1)), axes)
            yield Case("edge", dice.one(("fp32", "bf16", "fp16"), (4, 3, 3)), (op, op + "_backward"), {"shape": [batch, channels, *sides], "by": by})


def samples(dice: Dice) -> Iterator[Case]:
    """Images read at given places: between the pixels, or at the nearest."""
    while True:
        batch, channels, side = dice.one((1, 2, 4, 8, 16, 32)), dice.one((1, 2, 3, 16, 32, 64, 128, 256)), dice.one((8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256))
        to = [side, side] if dice.chance(0.5) else [dice.one((4, 8, 16, 32, 64, 100, 128, 300, 900)), dice.one((1, 4, 8, 16, 32, 64, 128))]
        if batch * channels * max(side * side, to[0] * to[1]) <= 2 ** 25:
            yield Case("sampled", dice.one(("fp32", "bf16", "fp16"), (5, 2, 2)), ("grid_sampler_2d", "grid_sampler_2d_backward"),
                       {"shape": [batch, channels, side, side], "to": to})


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    **{name: (share, USUAL[name][1]) for name, share in (("pictures", 22.0), ("u-nets", 7.0), ("volumes", 8.0), ("signals", 3.0), ("around 1", 3.0), ("around 2", 12.0), ("around 3", 4.0))},
    "grouped": (9, _cases(_grouped, TRAINED)), "depthwise": (7, _cases(_depthwise, TRAINED)), "odd": (9, _cases(_odd, TRAINED)), "branches": (4, _cases(_branches, TRAINED)),
    "little": (5, _cases(_little, SMALL)), "small batches": (7, _cases(_image, SMALL)), "series": (7, _cases(_series, BATCHES)), "patches": (4, _cases(_patches, TRAINED)),
    "upward": (4, _cases(_upward, BATCHES)), "folds": (1, folds), "pads": (1, pads), "samples": (0.7, samples)}
