"""Endless convolutions of one to three axes, and pooling of one and three: for a sitting of their own. Plain data, no torch.

Half of the cases are layers as networks have them (stages of residual networks, detectors, U-Nets in two and three dimensions,
diffusion models, video and audio models, at the images, clips and batches they are trained with); the other half fills the space
around them. `kernel`, `stride`, `padding` and `size` are one number for all axes or a list of one for each.
`SHARES` is read as that of dense.py.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, Sequence

from .case import FLOATS, Case
from .dense import BATCHES, CHANNELS, DIRECTIONS, SIZES, Dice

MOST_FLOPS = {"fp32": 6e10, "tf32": 2.5e11, "fp16": 4e11, "bf16": 4e11}
MOST_ELEMENTS = 2 ** 26  # of an image
RARELY_LARGER = 4        # times the above, one case in twelve

Shape = dict[str, Any]


def _axes(value: Any, axes: int) -> list[int]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * axes


def _plain(values: Sequence[int]) -> Any:
    return values[0] if len(set(values)) == 1 else list(values)


def _result(size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: int) -> list[int]:
    return [(s + 2 * p - dilation * (k - 1) - 1) // t + 1 for s, k, t, p in zip(size, kernel, stride, padding)]


def _case(dice: Dice, family: str, axes: int, dtype: str, layout: str, batch: int, cin: int, cout: int, size: Any, kernel: Any, stride: Any = 1,
          groups: int = 1, dilation: int = 1, padding: Any = None, allowance: float = 0) -> Case | None:
    """With batch and then size reduced until it is affordable; None where nothing is left."""
    size, kernel, stride = _axes(size, axes), _axes(kernel, axes), _axes(stride, axes)
    padding = [dilation * (k // 2) for k in kernel] if padding is None else _axes(padding, axes)
    if dice.small:
        batch, size = min(batch, 2), [min(s, 6) for s in size]
        wide = groups == 1
        cin, cout = (min(cin, 16), min(cout, 16)) if wide else (cin, cout)
    size = [max(s, dilation * (k - 1) + 1 - 2 * p) for s, k, p in zip(size, kernel, padding)]
    transposed = family == "conv_transpose"
    allowance = allowance or (RARELY_LARGER if dice.chance(1 / 12) else 1)
    while True:
        result = [(s - 1) * t - 2 * p + k for s, k, t, p in zip(size, kernel, stride, padding)] if transposed else \
            _result(size, kernel, stride, padding, dilation)
        if min(result) < 1:
            return None
        pixels, into, out = batch, batch * cin, batch * cout
        for s, r, k in zip(size, result, kernel):
            pixels *= (s if transposed else r) * k
            into, out = into * s, out * r
        if 2 * pixels * (cin // groups) * cout <= MOST_FLOPS[dtype] * allowance and max(into, out) <= MOST_ELEMENTS * min(allowance, RARELY_LARGER):
            break
        if batch > 1:
            batch //= 2
        elif max(size) > 8:
            size = [s if s <= 8 else s // 2 for s in size]
        else:
            return None
    shape: Shape = {"batch": batch, "cin": cin, "cout": cout, "kernel": _plain(kernel), "stride": _plain(stride), "size": _plain(size),
                    "groups": groups, "layout": layout}
    if padding != [0 if k == 16 else k // 2 for k in kernel]:  # said where it is not the usual: one shape has one description
        shape["padding"] = _plain(padding)
    if dilation > 1:
        shape["dilation"] = dilation
    if transposed:
        shape["dims"] = axes
    return Case(family, dtype, DIRECTIONS if cin > 3 else ("forward", "wgrad"), shape)


# What a network's layer is: (family, axes, cin, cout, size, kernel, and what is not usual of stride, groups, dilation, padding)
Layer = tuple[str, int, int, int, Any, Any, Shape]


def _image(dice: Dice) -> Layer:
    """A layer of a network for pictures; `side` is that of its stage."""
    picture = dice.one((224, 224, 224, 256, 288, 320, 384, 512, 640, 192, 160, 128, 96, 64, 32))
    stage = dice.one((0, 1, 2, 3))
    side = max(2, picture // (4 << stage)) if picture > 64 else max(4, picture >> stage)
    style = dice.one(("basic", "bottleneck", "cardinal", "narrow groups", "inverted", "dense", "stem", "patches", "factored", "pyramid", "csp", "dilated", "plain"),
                     (10, 14, 5, 4, 10, 5, 4, 2, 3, 6, 6, 4, 5))
    wide = dice.one((1, 1, 1, 1.5, 2, 0.5))
    base = int(dice.one((64, 64, 96, 80, 48)) * wide) * (1 << stage)
    if style == "basic":
        strided = dice.chance(0.25)
        return "conv", 2, base // (2 if strided else 1), base, side * (2 if strided else 1), 3, {"stride": 2 if strided else 1}
    if style == "bottleneck":
        kind = dice.one((0, 1, 2, 3), (3, 3, 2, 1))
        if kind == 0:
            return "conv", 2, 4 * base, base, side, 1, {}
        if kind == 1:
            return "conv", 2, base, 4 * base, side, 1, {}
        if kind == 2:
            return "conv", 2, base, base, side, 3, {}
        return "conv", 2, 2 * base, 4 * base, 2 * side, 1, {"stride": 2}
    if style == "cardinal":
        channels = 128 * dice.one((1, 1, 2)) << stage
        return "grouped", 2, channels, channels, side, 3, {"groups": 32, "stride": dice.one((1, 2), (3, 1))}
    if style == "narrow groups":
        each = dice.one((8, 16, 24, 32, 40, 48, 56, 64, 112, 120))
        channels = each * max(2, round(base * 1.5 / each))
        return "grouped", 2, channels, channels, side, 3, {"groups": channels // each, "stride": dice.one((1, 2), (3, 1))}
    if style == "inverted":
        narrow = dice.one((16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 136, 160, 192, 232, 320, 384))
        kind = dice.one((0, 1, 2, 3, 4), (3, 3, 3, 2, 1))
        if kind < 2:
            return ("conv", 2, narrow, 6 * narrow, side, 1, {}) if kind else ("conv", 2, 6 * narrow, narrow, side, 1, {})
        if kind == 2:
            return "depthwise", 2, 6 * narrow, 6 * narrow, side, dice.one((3, 5, 7)), {"groups": 6 * narrow, "stride": dice.one((1, 2), (3, 1))}
        if kind == 3:  # of squeeze and excitation
            wide_and_narrow = (6 * narrow, max(4, narrow // 4))
            return "conv", 2, *(wide_and_narrow if dice.chance(0.5) else wide_and_narrow[::-1]), 1, 1, {}
        return "conv", 2, narrow, 4 * narrow, side, 3, {"stride": dice.one((1, 2))}
    if style == "dense":
        grown = dice.one((64, 128, 256, 512)) + 32 * dice.number(1, 40)
        return ("conv", 2, grown, 128, side, 1, {}) if dice.chance(0.5) else ("conv", 2, 128, 32, side, 3, {})
    if style == "stem":
        kernel, stride = dice.one(((7, 2), (3, 2), (3, 1), (4, 4), (4, 2), (5, 2), (7, 4)))
        return "conv", 2, dice.one((3, 3, 3, 1, 4)), dice.one((16, 24, 32, 40, 48, 64, 96, 128)), picture, kernel, {"stride": stride, "padding": 0 if kernel == stride else kernel // 2}
    if style == "patches":
        patch = dice.one((14, 16, 16, 32, 8))
        return "conv", 2, 3, dice.one((192, 384, 512, 768, 1024, 1280)), picture // patch * patch, patch, {"stride": patch, "padding": 0}
    if style == "factored":
        long = dice.one((3, 5, 7, 11, 21))
        kernel = [1, long] if dice.chance(0.5) else [long, 1]
        into = dice.one((64, 128, 160, 192, 384, 448))
        return "conv", 2, into, into if dice.chance(0.5) else dice.one((160, 192, 224, 256, 384)), dice.one((8, 17, 17, 28, 35)), kernel, {}
    if style == "pyramid":  # of detectors: wide pictures
        stage = dice.one((0, 1, 2, 3, 4))
        size = [extent // (4 << stage) for extent in dice.one(((800, 1088), (800, 1216), (800, 1344), (608, 800), (640, 640)))]
        into = 256 if dice.chance(0.7) else 256 << min(stage, 3)
        return "conv", 2, into, dice.one((256, 256, 256, 12, 36, 720, 819)) if into == 256 else 256, size, 3 if into == 256 else 1, {}
    if style == "csp":
        channels = dice.one((16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640))
        return "conv", 2, channels * dice.one((1, 1, 2, 3)), channels, dice.one((80, 40, 20, 160, 52, 26, 13)), dice.one((1, 3)), {}
    if style == "dilated":
        into = dice.one((256, 512, 2048, 320))
        return "conv_dilated", 2, into, dice.one((256, 512)), dice.one((28, 33, 64, 65, 48)), 3, {"dilation": dice.one((2, 4, 6, 12, 18, 24, 36))}
    side = dice.one((224, 112, 56, 28, 14))
    return "conv", 2, max(64, min(512, 64 * 224 // side) // dice.one((1, 2))), min(512, 64 * 224 // side), side, 3, {}


def _unet(dice: Dice) -> Layer:
    """Of segmentation and diffusion, with skips joined to what comes up."""
    if dice.chance(0.3):
        stage = dice.one((0, 1, 2, 3, 4))
        channels, side = dice.one((32, 48, 64)) << stage, dice.one((128, 192, 256, 320, 512)) >> stage
        if dice.chance(0.15):
            return "conv_transpose", 2, 2 * channels, channels, max(2, side // 2), 2, {"stride": 2, "padding": 0}
        return "conv", 2, channels * dice.one((1, 2)), channels, side, 3, {}
    if dice.chance(0.3):  # what turns pictures into latents
        stage = dice.one((0, 1, 2, 3))
        channels = (128, 256, 512, 512)[stage]
        return "conv", 2, dice.one((channels, channels, (128, 128, 256, 512)[stage])), channels, dice.one((256, 512)) >> stage, dice.one((3, 3, 3, 1)), {}
    base, times, latent = dice.one(((320, (1, 2, 4, 4), 64), (320, (1, 2, 4), 128), (128, (1, 2, 2, 2), 32), (128, (1, 1, 2, 2, 4, 4), 64), (192, (1, 2, 3, 4), 64), (224, (1, 2, 3, 4), 64)))
    stage = dice.random.randrange(len(times))
    channels, side = base * times[stage], latent * dice.one((1, 1, 1, 2)) >> stage
    kind = dice.random.random()
    if kind < 0.4:
        return "conv", 2, channels, channels, side, 3, {}
    if kind < 0.7:
        return "conv", 2, channels + base * dice.one(times), channels, side, dice.one((3, 3, 1)), {}
    if kind < 0.8:
        return "conv", 2, channels, channels, 2 * side, 3, {"stride": 2}
    return ("conv", 2, channels, 4, side, 3, {}) if kind < 0.83 else ("conv", 2, channels, channels, side, dice.one((1, 3)), {})


def _volume(dice: Dice) -> Layer:
    """Scans and clips."""
    style = dice.one(("scan", "clip", "separable", "slow", "expanded", "stem", "tubes", "up"), (10, 8, 8, 6, 3, 3, 1, 2))
    stage = dice.one((0, 1, 2, 3))
    if style in ("scan", "up"):
        channels, side = dice.one((16, 24, 32, 48, 64)) << stage, dice.one((64, 80, 96, 112, 128, 160)) >> stage
        if style == "up":
            return "conv_transpose", 3, 2 * channels, channels, max(2, side // 2), 2, {"stride": 2, "padding": 0}
        size = side if dice.chance(0.6) else [max(2, side // 2), side, side]
        into = channels if dice.chance(0.5) else dice.one((2 * channels, 3 * channels, channels // 2, 4 if stage == 0 else channels))
        return "conv3d", 3, max(1, into), channels, size, dice.one((3, 3, 3, 1, 2)), {"stride": dice.one((1, 1, 1, 2))}
    frames, side = max(1, dice.one((8, 16, 16, 32)) >> dice.one((0, stage))), dice.one((112, 56, 64, 80)) >> stage
    channels = 64 << stage
    size = [frames, side, side]
    if style == "clip":
        strided = dice.chance(0.2)
        return "conv3d", 3, channels // (2 if strided else 1), channels, size, 3, {"stride": 2 if strided else 1}
    if style == "separable":
        between = dice.one((45, 64, 83, 128, 144, 192, 230, 288, 460, 576, 921, 1152))
        spatial = dice.chance(0.5)
        return "conv3d", 3, *((channels, between) if spatial else (between, channels)), size, [1, 3, 3] if spatial else [3, 1, 1], \
            {"stride": 1 if dice.chance(0.75) else [1, 2, 2] if spatial else [2, 1, 1]}
    if style == "slow":
        narrow = dice.one((8, 16, 64)) << stage
        into, out, kernel = dice.one(((4 * narrow, narrow, [1, 1, 1]), (narrow, 4 * narrow, [1, 1, 1]), (4 * narrow, narrow, [3, 1, 1]), (narrow, narrow, [1, 3, 3])))
        return "conv3d", 3, into, out, size, kernel, {"stride": [1, 2, 2] if kernel[2] == 3 and dice.chance(0.25) else 1}
    if style == "expanded":
        narrow = (24, 48, 96, 192)[stage]
        if dice.chance(0.5):
            return "conv3d", 3, *((narrow, narrow * 9 // 4) if dice.chance(0.5) else (narrow * 9 // 4, narrow)), size, 1, {}
        return "conv3d", 3, narrow * 9 // 4, narrow * 9 // 4, size, 3, {"groups": narrow * 9 // 4}
    if style == "stem":
        kernel, stride = dice.one((((3, 7, 7), (1, 2, 2)), ((7, 7, 7), (2, 2, 2)), ((1, 7, 7), (1, 2, 2)), ((5, 7, 7), (1, 2, 2)), ((1, 3, 3), (1, 2, 2)), ((3, 3, 3), (1, 1, 1))))
        return "conv3d", 3, dice.one((3, 3, 1, 4)), dice.one((24, 32, 45, 64)), [dice.one((8, 16, 32)), *[dice.one((112, 128, 160, 224))] * 2], kernel, {"stride": stride}
    tube = dice.one(((2, 16, 16), (1, 16, 16), (2, 14, 14), (2, 8, 8), (16, 16, 16), (4, 4, 4)))
    return "conv3d", 3, dice.one((3, 3, 16, 4, 1)), dice.one((384, 768, 1024)), [tube[0] * 8, tube[1] * 14, tube[2] * 14], tube, {"stride": tube, "padding": 0}


def _signal(dice: Dice) -> Layer:
    """Speech, music, series."""
    style = dice.one(("features", "positions", "spectrum", "vocoder", "gated", "up", "series"), (6, 6, 3, 6, 3, 3, 4))
    seconds = dice.one((1, 2, 4, 5, 8, 10, 15, 20))
    if style == "features":
        layer = dice.random.randrange(7)
        kernel, stride = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))[layer]
        return "conv1d", 1, 1 if layer == 0 else 512, 512, 16000 * seconds // (1, 5, 10, 20, 40, 80, 160)[layer], kernel, {"stride": stride, "padding": 0}
    if style == "positions":
        width, kernel, groups = dice.one(((768, 128, 16), (1024, 128, 16), (768, 19, 16), (512, 128, 16), (1280, 128, 16), (768, 95, 16), (768, 64, 8), (512, 31, 8)))
        return "conv1d", 1, width, width, 50 * seconds - 1, kernel, {"groups": groups}
    if style == "spectrum":
        width = dice.one((384, 512, 768, 1024, 1280))
        return ("conv1d", 1, dice.one((80, 128)), width, 100 * seconds, 3, {}) if dice.chance(0.5) else ("conv1d", 1, width, width, 100 * seconds, 3, {"stride": 2})
    if style == "vocoder":
        stage = dice.one((0, 1, 2, 3))
        return "conv1d", 1, 256 >> stage, 256 >> stage, 86 * (8, 64, 128, 256)[stage], dice.one((3, 7, 11)), {"dilation": dice.one((1, 1, 3, 5))}
    if style == "gated":
        width = dice.one((144, 256, 384, 512, 1024))
        return ("conv1d", 1, width, width, 25 * seconds, dice.one((7, 15, 31)), {"groups": width}) if dice.chance(0.5) else ("conv1d", 1, width, 2 * width, 25 * seconds, 1, {})
    if style == "up":
        stage = dice.one((0, 1, 2, 3))
        stride = (8, 8, 2, 2)[stage]
        return "conv_transpose", 1, 512 >> stage, 256 >> stage, 86 * (1, 8, 64, 128)[stage], 2 * stride, {"stride": stride, "padding": stride // 2}
    width = dice.one((32, 64, 128, 256, 512))
    return "conv1d", 1, width, width, dice.one((96, 128, 256, 336, 512, 720, 1024, 4096)), dice.one((3, 5, 7, 9, 25, 64)), {"dilation": dice.one((1, 1, 2, 4, 16))}


def _around(axes: int) -> Callable[[Dice], Layer]:
    """Anything near: log-uniform, mostly in multiples of 8 or 64."""
    def layer(dice: Dice) -> Layer:
        ragged = dice.chance(0.1)
        cin = dice.one(CHANNELS) if dice.chance(0.4) else dice.extent(4, 2048 if axes == 2 else 1024, ragged)
        cout = cin if dice.chance(0.3) else dice.one(CHANNELS) if dice.chance(0.4) else dice.extent(8, 2048 if axes == 2 else 1024, ragged)
        more: Shape = {"stride": dice.one((1, 2), (4, 1))}
        if axes == 1:
            size, kernel = dice.number(32, 32768), dice.one((1, 2, 3, 4, 5, 7, 9, 11, 15, 31, 64, 128))
        elif axes == 2:
            size, kernel = dice.one(SIZES) if dice.chance(0.5) else dice.number(4, 320), dice.one((1, 3, 5, 7, 2, 4), (36, 46, 7, 4, 4, 3))
            size = size if dice.chance(0.6) else [size, max(1, round(size * dice.one((0.5, 0.75, 1.5, 2))))]
        else:
            size, kernel = dice.number(4, 112), dice.one((1, 3, 5, 2), (3, 8, 1, 1))
            size = size if dice.chance(0.5) else [max(2, dice.number(2, 32)), size, size]
            kernel = kernel if dice.chance(0.8) else dice.one(((1, 3, 3), (3, 1, 1), (1, 1, 1), (1, 5, 5)))
        family = "conv" if axes == 2 else f"conv{axes}d"
        kind = dice.random.random()
        if kind < (0.2 if axes == 1 else 0.06):
            groups = dice.one((2, 4, 8, 16, 32, 64))
            each = dice.one((4, 8, 16, 24, 32, 48, 64, 80))
            cin = cout = groups * each
            more["groups"], family = groups, "grouped" if axes == 2 else family
        elif kind < (0.27 if axes == 1 else 0.1):
            cout, more["groups"], family = cin, cin, "depthwise" if axes == 2 else family
        elif kind > 0.96:
            kernel, more["stride"] = dice.one(((2, 2), (4, 2), (3, 2), (4, 4), (3, 1)))
            more["padding"], family = 0 if kernel == more["stride"] else 1, "conv_transpose"
        elif kind > 0.92 and kernel != 1:
            more.update(dilation=dice.one((2, 3, 4, 8)), stride=1)
        if kernel in (2, 4) and family != "conv_transpose":
            more["padding"] = 0
        return family, axes, cin, cout, size, kernel, more
    return layer


def _cases(source: Callable[[Dice], Layer], batches: Sequence[int]) -> Callable[[Dice], Iterator[Case]]:
    def cases(dice: Dice) -> Iterator[Case]:
        while True:
            family, axes, cin, cout, size, kernel, more = source(dice)
            dtype = dice.one(FLOATS, (30, 22, 24, 24))
            layout = "nchw" if axes == 1 else dice.one(("nchw", "nhwc"), (6, 4) if axes == 2 else (8, 2))
            case = _case(dice, family, axes, dtype, layout, dice.one(batches), cin, cout, size, kernel, **more)
            if case is not None:
                yield case
    return cases


def pools(dice: Dice) -> Iterator[Case]:
    """Of one and of three axes; of two here and there."""
    while True:
        op, axes = dice.one(("max", "average", "adaptive average")), dice.one((1, 2, 3), (4, 1, 6))
        batch, channels, size = dice.number(1, 64), dice.extent(8, 1024, False), dice.number(5, {1: 8192, 2: 224, 3: 96}[axes])
        sizes = [size] * axes if axes < 3 or dice.chance(0.5) else [dice.number(5, 32), size, size]
        while batch * channels * max(1, *itertools.accumulate(sizes, int.__mul__)) > MOST_ELEMENTS:
            batch, channels = (batch // 2, channels) if batch > 1 else (batch, channels // 2)
            if channels < 8:
                break
        if channels < 8:
            continue
        window: Shape = dict(zip(("kernel", "stride", "padding"), dice.one(((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2), (3, 3, 0), (4, 4, 0)))))
        if op.startswith("adaptive"):
            window = {"output": dice.one((1, 1, 2, 4, 5))}
        layout = "nchw" if axes != 2 else dice.one(("nchw", "nhwc"))
        yield Case("pool", dice.one(("fp32", "fp16", "bf16"), (5, 3, 4)), (op, op + " backward"), {"shape": [batch, channels, *sizes], "layout": layout, **window})


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "pictures": (26, _cases(_image, (1, 2, 4, 8, 16, 32, 32, 48, 64, 64, 96, 128, 256))), "u-nets": (12, _cases(_unet, (1, 2, 2, 4, 4, 8, 12, 16, 24, 32, 64))),
    "volumes": (19, _cases(_volume, (1, 1, 2, 2, 4, 4, 8, 8, 16, 32))), "signals": (8, _cases(_signal, BATCHES)),
    "around 1": (5, _cases(_around(1), BATCHES)), "around 2": (15, _cases(_around(2), BATCHES)), "around 3": (10, _cases(_around(3), BATCHES)),
    "pools": (5, pools)}
