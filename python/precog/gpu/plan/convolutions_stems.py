"""Endless convolutions that scouted steps showed to be mispredicted: stems of few channels cut into patches, groups of thin channels that
are no multiple of 8, a few narrow groups in TF32, and signals through long filters of 16 groups. Plain data, no torch. `SHARES` is read as
that of dense.py.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

from .case import Case
from .convolutions import FLOATS, Layer, _case
from .convolutions_more import _side
from .dense import Dice

BATCHES = (2, 4, 8, 16, 16, 32, 32, 48, 64, 64, 96, 128, 192, 256)


def _stem(dice: Dice) -> Layer:
    kernel, stride = dice.one(((4, 4), (7, 4), (7, 2), (4, 2), (3, 2), (8, 8), (2, 2), (6, 3), (16, 16), (14, 14), (3, 1), (5, 2)), (8, 4, 4, 3, 4, 2, 1, 1, 4, 2, 3, 1))
    size = dice.one((224, 224, 224, 256, 192, 288, 240, 384, 336, 160, 128))
    cin = dice.one((3, 3, 3, 3, 1, 4, 6, 8, 12))
    cout = dice.one((8, 12, 16, 20, 24, 32, 36, 40, 48, 54, 64, 72, 80, 96, 112, 128, 192, 256, 384, 768))
    padding = 0 if kernel == stride or dice.chance(0.2) else kernel // 2
    return "conv", 2, cin, cout, size, kernel, {"stride": stride, "padding": padding}


def _thin(dice: Dice) -> Layer:
    cin, cout = dice.number(9, 31) | 1, dice.one((9, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 32, 48, 64, 96, 128))
    cin, cout = (cin, cout) if dice.chance(0.6) else (cout, cin)
    return "conv", 2, cin, cout, _side(dice), dice.one((3, 3, 1, 5)), {"stride": dice.one((1, 2), (3, 1))}


def _few_groups(dice: Dice) -> Layer:
    groups, each = dice.one((2, 2, 4, 4, 3, 8)), dice.one((8, 16, 24, 32, 40, 48, 64, 96))
    out = each * dice.one((1, 1, 2, 3, 4, 6))
    each, out = (each, out) if dice.chance(0.5) else (out, each)
    return "grouped", 2, each * groups, out * groups, dice.one((7, 12, 14, 14, 24, 28, 28, 56, 56, 112)), dice.one((3, 3, 3, 1, 5)), {"groups": groups, "stride": dice.one((1, 2), (3, 1))}


def _signal(dice: Dice) -> Layer:
    groups, each, kernel = dice.one((16, 16, 8, 32)), dice.one((24, 32, 48, 64)), dice.one((128, 128, 31, 95, 19, 15, 64))
    more: dict[str, Any] = {"groups": groups, "stride": dice.one((1, 2)), "padding": kernel // 2}
    return "conv1d", 1, each * groups, each * groups, dice.number(50, 600), kernel, more


def _cases(source: Callable[[Dice], Layer], types: tuple[int, ...]) -> Callable[[Dice], Iterator[Case]]:
    def cases(dice: Dice) -> Iterator[Case]:
        while True:
            family, axes, cin, cout, size, kernel, more = source(dice)
            layout = dice.one(("nchw", "nhwc"), (7, 3)) if axes == 2 else "nchw"
            case = _case(dice, family, axes, dice.one(FLOATS, types), layout, dice.one(BATCHES), cin, cout, size, kernel, **more, allowance=2)
            if case is not None:
                yield case
    return cases


# family -> (its share of the time, its cases); shares of the types are in the order of FLOATS
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "stems": (48, _cases(_stem, (20, 12, 34, 34))), "thin": (18, _cases(_thin, (10, 10, 40, 40))), "few groups": (22, _cases(_few_groups, (15, 40, 22, 23))),
    "signals": (12, _cases(_signal, (10, 20, 35, 35)))}
