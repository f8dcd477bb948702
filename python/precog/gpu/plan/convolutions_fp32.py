"""Endless convolutions in true fp32, for which the library has the most ways: products, Winograd's transform, Fourier transforms of
tiles and of whole images (16, 32, 64 ... a side, whatever the image's shape). Half of them are layers of networks for pictures and for
lines of text or sound, with more images and larger ones than convolutions.py has; the other half fills the space, closer where an image
and its filter's reach fill a power of two. Plain data, no torch. `SHARES` is read as that of dense.py.
"""

from __future__ import annotations

from typing import Callable, Iterator

from .case import Case
from .convolutions import Layer, Shape, _case, _image, _unet
from .convolutions_more import _grouped
from .dense import CHANNELS, Dice

MOST_TRANSFORMED = 256  # pixels a side
LARGER = (0.25, 1, 1, 1, 4, 8)  # times what convolutions.py allows
IMAGES = (1, 1, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 128, 256, 512, 1024)
FILTERS = (3, 5, 7, 2, 1, 4, 9, (1, 3), (3, 1), (1, 5), (5, 1), (1, 7), (7, 1), (1, 9), (5, 3))
OFTEN = (54, 9, 6, 5, 5, 3, 2, 3, 3, 2, 2, 2, 2, 1, 1)


def space(case: Case) -> float:
    """The most that transforms of whole images may take, in bytes."""
    s = case.shape
    longest, reach = (max(value) if isinstance(value, list) else value for value in (s["size"], s["kernel"]))
    side = 1 << (longest + reach - 2).bit_length()
    cin, cout = s["cin"] // s["groups"], s["cout"] // s["groups"]
    return 16.0 * side * (side // 2 + 1) * (s["batch"] * (cin + cout) + cin * cout) if side <= MOST_TRANSFORMED else 0


def _side(dice: Dice) -> int:
    if dice.chance(0.35):
        return max(1, dice.one((8, 16, 32, 64, 128, 256)) - dice.one((0, 1, 2, 3, 4, 6)) + dice.one((0, 0, 1, 2)))
    return dice.number(1, 512)


def _channels(dice: Dice) -> int:
    if dice.chance(0.5):
        return dice.one((16, 32, 48, 64, 64, 96, 128, 128, 192, 256, 256, 320, 384, 512, 512, 640, 768, 1024))
    return dice.one(CHANNELS) if dice.chance(0.5) else dice.extent(4, 1280, dice.chance(0.3))


def _anything(dice: Dice) -> Layer:
    cin = _channels(dice)
    cout = cin if dice.chance(0.45) else _channels(dice)
    side = _side(dice)
    size = side if dice.chance(0.5) else [side, _side(dice)] if dice.chance(0.5) else [max(1, side // dice.one((2, 3, 4, 8, 16))), side]
    kernel = dice.one(FILTERS, OFTEN)
    more: Shape = {"stride": dice.one((1, 2), (9, 1))}
    kind = dice.random.random()
    if kind < 0.15:
        more["padding"] = 0
    elif kind < 0.2:
        more["padding"] = [k - 1 for k in kernel] if isinstance(kernel, tuple) else kernel - 1
    elif kind < 0.23:
        more.update(dilation=2, stride=1)
    return "conv", 2, cin, cout, size, kernel, more


def _line(dice: Dice) -> Layer:
    """Of networks that read lines of text, or spectra: images much longer than high."""
    high, wide = dice.one((32, 32, 48, 64, 80, 128)), dice.one((100, 128, 160, 256, 320, 512, 640))
    stage = dice.one((0, 1, 2, 3, 4))
    high, wide = max(1, high >> stage), max(4, wide >> min(stage, dice.one((2, 2, 3, 4)))) + dice.one((0, 0, 1))
    width = dice.one((32, 48, 64, 64, 64)) << stage
    kernel = dice.one((3, 2, 5, (3, 1), (1, 3), (1, 7), (2, 1)), (12, 2, 2, 1, 1, 1, 1)) if high > 1 else dice.one((3, 1, (1, 3), (1, 5)))
    more: Shape = {"padding": 0} if kernel == 2 or dice.chance(0.1) else {}
    return "conv", 2, dice.one((width, width, width // 2)), width, [high, wide] if dice.chance(0.85) else [wide, high], kernel, more


def _cases(source: Callable[[Dice], Layer]) -> Callable[[Dice], Iterator[Case]]:
    def cases(dice: Dice) -> Iterator[Case]:
        while True:
            family, axes, cin, cout, size, kernel, more = source(dice)
            layout = "nchw" if axes != 2 else dice.one(("nchw", "nhwc"), (8, 2))
            case = _case(dice, family, axes, "fp32", layout, dice.one(IMAGES), cin, cout, size, kernel, **more, allowance=dice.one(LARGER))
            if case is not None:
                yield case
    return cases


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "anything": (45, _cases(_anything)), "lines": (15, _cases(_line)), "pictures": (18, _cases(_image)), "u-nets": (16, _cases(_unet)), "groups": (6, _cases(_grouped))}
