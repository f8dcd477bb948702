"""Endless convolutions of kinds that looked-at steps showed to be mispredicted: signals through filters of a hundred taps in wide groups, mostly
strided; a few narrow groups in TF32; small images of few channels and 1x1 filters over odd planes in 16 bits; depthwise filters of 7 and more in
NHWC with fp32 operands; pictures cut by filters of 4 and 6. Plain data, no torch. `SHARES` is read as that of dense.py.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

from .case import Case
from .convolutions import FLOATS, Layer, _case
from .dense import Dice

USUAL = (2, 4, 6, 8, 12, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 192)
SMALL = (2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 24, 32, 48)
LARGE = (16, 32, 32, 64, 64, 96, 128, 128, 192, 256)


def _signal(dice: Dice) -> Layer:
    groups, each, kernel = dice.one((16, 16, 16, 12, 8, 20)), dice.one((48, 48, 48, 40, 56, 64, 80, 24)), dice.one((128, 128, 128, 100, 95, 160))
    more: dict[str, Any] = {"groups": groups, "stride": dice.one((1, 2), (2, 3)), "padding": kernel // 2}
    return "conv1d", 1, each * groups, each * groups, dice.number(60, 520), kernel, more


def _few_groups(dice: Dice) -> Layer:
    groups, each = dice.one((2, 3, 3, 4)), dice.one((8, 12, 16, 24, 32, 32, 32, 40, 48, 56, 64))
    out = each if dice.chance(0.75) else dice.one((8, 16, 24, 32, 48, 64, 96))
    size = dice.one((7, 10, 14, 14, 20, 24, 28, 28, 32, 40, 48, 56, 56, 64, 96, 112))
    return "grouped", 2, each * groups, out * groups, size, dice.one((3, 3, 3, 3, 5)), {"groups": groups, "stride": dice.one((1, 2), (5, 1))}


def _small(dice: Dice) -> Layer:
    cin = dice.one((16, 24, 32, 32, 40, 48, 48, 48, 56, 64))
    cout = cin if dice.chance(0.7) else dice.one((16, 24, 32, 40, 48, 56, 64, 96))
    return "conv", 2, cin, cout, dice.one((7, 10, 12, 14, 16, 18, 20, 24, 28, 28, 32, 36, 40, 48, 56)), dice.one((3, 3, 3, 5)), {"stride": dice.one((1, 2), (4, 1))}


def _odd_plane(dice: Dice) -> Layer:
    widths = (96, 128, 168, 192, 256, 304, 368, 384, 512, 640, 720, 736, 768, 1024, 1280, 1536, 2048)
    cin = dice.one(widths)
    return "conv", 2, cin, cin if dice.chance(0.5) else dice.one(widths), dice.one((7, 9, 11, 13, 15, 17, 19, 19, 21, 23, 25, 29, 31, 33, 37, 39, 75, 77)), 1, {}


def _wide(dice: Dice) -> Layer:
    channels = dice.one((48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 640, 768))
    return "depthwise", 2, channels, channels, dice.one((7, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)), dice.one((7, 7, 7, 7, 9, 11)), {"groups": channels}


def _cut(dice: Dice) -> Layer:
    kernel, stride = dice.one(((4, 4), (4, 2), (6, 3), (6, 2), (4, 3), (7, 4)), (6, 3, 2, 1, 1, 1))
    more: dict[str, Any] = {"stride": stride, "padding": 0 if kernel == stride or dice.chance(0.3) else kernel // 2}
    return "conv", 2, dice.one((3, 3, 3, 3, 1, 4)), dice.one((8, 16, 24, 32, 40, 44, 48, 52, 56, 60, 64, 72)), dice.one((96, 128, 160, 192, 224, 224, 256, 288, 384, 448)), kernel, more


def _cases(source: Callable[[Dice], Layer], types: tuple[int, ...], layouts: tuple[int, int], batches: tuple[int, ...]) -> Callable[[Dice], Iterator[Case]]:
    def cases(dice: Dice) -> Iterator[Case]:
        while True:
            family, axes, cin, cout, size, kernel, more = source(dice)
            layout = dice.one(("nchw", "nhwc"), layouts) if axes == 2 else "nchw"
            case = _case(dice, family, axes, dice.one(FLOATS, types), layout, dice.one(batches), cin, cout, size, kernel, **more, allowance=2)
            if case is not None:
                yield case
    return cases


# family -> (its share of the time, its cases); shares of the types are in the order of FLOATS
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "signals": (30, _cases(_signal, (14, 18, 32, 36), (1, 0), USUAL)), "few groups": (26, _cases(_few_groups, (20, 70, 5, 5), (9, 1), USUAL)),
    "small": (12, _cases(_small, (0, 6, 44, 50), (9, 1), SMALL)), "odd planes": (12, _cases(_odd_plane, (0, 10, 42, 48), (9, 1), SMALL)),
    "wide": (14, _cases(_wide, (25, 75, 0, 0), (1, 9), LARGE)), "cut": (6, _cases(_cut, (0, 10, 45, 45), (9, 1), (32, 48, 64, 64, 72, 96, 128, 160)))}
