"""Endless cases of each family, for measuring as many shapes as time allows. Plain data, no torch.

Products, convolutions and attention have draws of their own: a third as layers of models have them (widths, sequence
lengths, image sizes that occur, in any combination), the others log-uniform around those, mostly in multiples of 8, 64 or
128, one case in eight ragged. The memory-bound families go on where the usual plan (see memory.py and layers.py) stops.
`SHARES` says which part of the time each family is given; the cases of a family are in a random order.
"""

from __future__ import annotations

import itertools
import random
from typing import Any, Callable, Iterator

from . import layers, memory
from .case import FLOATS, Case, Groups, denser
from .sampling import interleave

MOST_FLOPS = {"fp32": 1e11, "tf32": 4e11, "fp16": 1e12, "bf16": 1e12, "fp8": 1.5e12}
MOST_ELEMENTS = 2 ** 28
DENSER = 40  # of the usual plan: more than ten minutes hold

WIDTHS = (64, 96, 128, 192, 256, 288, 320, 384, 512, 576, 640, 768, 896, 1024, 1152, 1280, 1536, 1600, 1792, 2048, 2304, 2560, 3072,
          3584, 4096, 4608, 5120, 6144, 8192)
LENGTHS = (1, 16, 32, 49, 50, 64, 77, 100, 128, 196, 197, 256, 257, 384, 512, 577, 768, 1024, 1500, 2048, 4096, 8192)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
VOCABULARIES = (1000, 21841, 30522, 32000, 32128, 49408, 50257, 50265, 50304, 64000, 128256, 151936)
CHANNELS = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 176, 192, 224, 240, 256, 288, 320, 384, 432, 448, 480,
            512, 576, 640, 672, 768, 896, 960, 1024, 1152, 1280, 1536, 2048)
SIZES = (4, 7, 8, 10, 12, 13, 14, 16, 17, 19, 20, 24, 26, 28, 32, 35, 38, 40, 48, 52, 56, 64, 75, 80, 96, 112, 128, 150, 160, 192, 224, 256)
DIRECTIONS = ("forward", "dgrad", "wgrad")


class Dice:
    """Random sizes; `small` keeps them near their lower ends, for rehearsals on a CPU."""

    def __init__(self, seed: str, small: bool) -> None:
        self.random, self.small = random.Random(seed), small

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one(self, choices: Any, weights: Any = None) -> Any:
        choices = choices[:2] if self.small and weights is None and isinstance(choices[0], int) else choices
        return self.random.choices(choices, weights)[0]

    def number(self, low: float, high: float) -> int:
        high = min(high, low * 3) if self.small else high
        return max(1, round(low * (high / low) ** self.random.random()))

    def extent(self, low: int, high: int, ragged: bool) -> int:
        value = self.number(low, high)
        kind = self.random.random()
        multiple = 1 if ragged and kind < 0.6 else 128 if kind < 0.3 and value >= 192 else 64 if kind < 0.6 and value >= 96 else \
            16 if kind < 0.8 and value >= 24 else 8
        return max(low, round(value / multiple) * multiple, 1)


def _product(sizes: Any) -> float:
    result = 1.0
    for size in sizes:
        result *= size
    return result


def _within(dice: Dice, dtype: str, sizes: list[int]) -> list[int]:
    """Halves the largest extent until the product is affordable; one case in thirty may be four times as large."""
    most = MOST_FLOPS[dtype] * (4 if dice.chance(0.03) else 1)
    while 2 * _product(sizes) > most:
        largest = sizes.index(max(sizes))
        sizes[largest] = max(8, sizes[largest] // 16 * 8)
    return sizes


def _linear(dice: Dice, layout: str) -> list[int]:
    """m, n, k of a linear layer: forward (nt), its input's gradient (nn), its weight's (tn)."""
    tokens = dice.one(BATCHES) * dice.one(LENGTHS)
    into = dice.one(WIDTHS)
    out = into if dice.chance(0.3) else dice.one(WIDTHS) if dice.chance(0.5) else dice.one(VOCABULARIES) if dice.chance(0.12) else \
        int(into * dice.one((0.25, 0.5, 1.5, 2, 3, 4, 6, 8), (2, 1, 1, 2, 3, 4, 1, 1)))
    if dice.chance(0.3):
        into, out = out, into
    return {"nt": [tokens, out, into], "nn": [tokens, into, out], "tn": [out, into, tokens]}[layout]


def gemm(dice: Dice) -> Iterator[Case]:
    while True:
        dtype = dice.one(FLOATS)
        op = dice.one(("nt", "nn", "tn", "nt+bias"), (28, 25, 25, 22))
        if dice.chance(0.35):
            sizes = _linear(dice, op[:2])
        else:
            ragged, least = dice.chance(0.12), 8 if dice.chance(0.25) else 64
            sizes = [dice.extent(least, 65536, ragged), dice.extent(least, 16384, ragged), dice.extent(least, 16384, ragged)]
        m, n, k = _within(dice, dtype, sizes)
        if max(m * n, m * k, n * k) <= MOST_ELEMENTS:
            yield Case("gemm", dtype, (op,), {"m": m, "n": n, "k": k})


def bmm(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, op = dice.one(FLOATS), dice.one(("nt", "nn", "tn"))
        if dice.chance(0.4):
            b, length, dim = dice.one(BATCHES) * dice.one((1, 3, 4, 6, 8, 12, 16, 24, 32)), dice.one(LENGTHS), dice.one((32, 64, 64, 80, 96, 128))
            sizes = [b, *{"nt": (length, length, dim), "nn": (length, dim, length), "tn": (length, dim, length)}[op]]
        else:
            ragged = dice.chance(0.12)
            sizes = [dice.number(2, 1024), dice.extent(8, 4096, ragged), dice.extent(8, 4096, ragged), dice.extent(8, 2048, ragged)]
        b, m, n, k = _within(dice, dtype, sizes)
        if b > 1 and b * max(m * n, m * k, n * k) <= MOST_ELEMENTS:
            yield Case("gemm", dtype, ("bmm " + op,), {"b": b, "m": m, "n": n, "k": k})


def scaled_mm(dice: Dice) -> Iterator[Case]:
    while True:
        op = dice.one(("tensor fast", "tensor", "row fast", "row", "block 1x128 128x128", "block 1x128 1x128"), (5, 5, 4, 4, 1, 1))
        unit, deep = (128, 512) if op.startswith("block") else (16, 16)
        sizes = _linear(dice, dice.one(("nt", "nn", "tn"))) if dice.chance(0.35) else \
            [dice.extent(64, 65536, False), dice.extent(64, 16384, False), dice.extent(64, 16384, False)]
        m, n, k = _within(dice, "fp8", sizes)
        m, n, k = (max(1, round(size / of)) * of for size, of in ((m, unit), (n, unit), (k, deep)))
        if max(m * n, m * k, n * k) <= MOST_ELEMENTS:
            yield Case("scaled_mm", "fp8", (op,), {"m": m, "n": n, "k": k})


def _affordable(dice: Dice, dtype: str, axes: int, shape: dict[str, Any]) -> dict[str, Any]:
    def too_large() -> bool:
        positions = shape["batch"] * (shape["size"] / shape["stride"]) ** axes
        flops = 2 * positions * (shape["cin"] // shape["groups"]) * shape["cout"] * shape["kernel"] ** axes
        return flops > 0.2 * MOST_FLOPS[dtype] or shape["batch"] * shape["size"] ** axes * max(shape["cin"], shape["cout"]) > MOST_ELEMENTS / 4
    while too_large() and (shape["batch"] > 1 or shape["size"] > 4 * shape["kernel"]):
        shape["batch" if shape["batch"] > 1 else "size"] //= 2
    shape["size"] = max(shape["size"], shape["kernel"])
    return shape


def conv(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, layout = dice.one(FLOATS), dice.one(("nchw", "nhwc"), (6, 4))
        if dice.chance(0.05):  # a first layer
            kernel, stride, padding = dice.one(((3, 2, 1), (3, 1, 1), (7, 2, 3), (4, 4, 0), (16, 16, 0), (14, 14, 0), (32, 32, 0)), (2, 1, 2, 1, 2, 1, 1))
            shape = {"batch": dice.one(BATCHES), "cin": 3, "cout": dice.one((32, 64, 96, 192, 384, 768, 1024)), "kernel": kernel, "stride": stride,
                     "size": dice.one((224, 224, 256, 288, 384)), "groups": 1, "layout": layout, "padding": padding}
            yield Case("conv", dtype, ("forward", "wgrad"), _affordable(dice, dtype, 2, shape))
            continue
        kernel, stride = dice.one((1, 3, 5, 7, 2), (40, 46, 5, 3, 2)), dice.one((1, 2), (8, 2))
        padding = kernel // 2
        if kernel == 2:
            stride, padding = 2, 0
        if dice.chance(0.55):
            batch, cin, size = dice.one(BATCHES), dice.one(CHANNELS), dice.one(SIZES)
            cout = cin if dice.chance(0.35) else dice.one(CHANNELS)
        else:
            ragged = dice.chance(0.1)
            batch, cin, cout, size = dice.number(1, 256), dice.extent(8, 2048, ragged), dice.extent(8, 2048, ragged), dice.number(4, 256)
        shape = {"batch": batch, "cin": cin, "cout": cout, "kernel": kernel, "stride": stride, "size": size, "groups": 1, "layout": layout}
        if padding != kernel // 2:
            shape["padding"] = padding
        yield Case("conv", dtype, DIRECTIONS, _affordable(dice, dtype, 2, shape))


def depthwise(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, layout = dice.one(("fp32", "fp16", "bf16")), dice.one(("nchw", "nhwc"), (6, 4))
        channels = dice.one(CHANNELS) if dice.chance(0.6) else dice.extent(8, 2048, False)
        shape = {"batch": dice.one(BATCHES), "cin": channels, "cout": channels, "kernel": dice.one((3, 5, 7), (5, 3, 3)),
                 "stride": dice.one((1, 2), (3, 1)), "size": dice.one(SIZES), "groups": channels, "layout": layout}
        yield Case("depthwise", dtype, DIRECTIONS, _affordable(dice, dtype, 2, shape))


def grouped(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, layout = dice.one(FLOATS), dice.one(("nchw", "nhwc"), (6, 4))
        count, width = dice.one((2, 4, 8, 16, 32, 64)), dice.one((4, 8, 16, 24, 32, 48, 64))
        channels = count * width
        shape = {"batch": dice.one(BATCHES), "cin": channels, "cout": channels, "kernel": dice.one((1, 3, 5), (2, 6, 1)),
                 "stride": dice.one((1, 2), (3, 1)), "size": dice.one(SIZES), "groups": count, "layout": layout}
        yield Case("grouped", dtype, DIRECTIONS, _affordable(dice, dtype, 2, shape))


def other_convolutions(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, family = dice.one(FLOATS), dice.one(("conv1d", "conv3d", "conv_dilated", "conv_transpose"), (4, 3, 2, 3))
        layout = "nchw" if family == "conv1d" else dice.one(("nchw", "nhwc"), (7, 3))
        shape: dict[str, Any] = {"batch": dice.one(BATCHES), "cin": dice.one(CHANNELS), "cout": dice.one(CHANNELS)}
        axes, dilation = 2, 1
        if family == "conv1d":
            kernel, stride, size, axes = dice.one((1, 3, 5, 7, 15, 31)), dice.one((1, 2), (3, 1)), dice.number(64, 16384), 1
        elif family == "conv3d":
            kernel, stride, size, axes = dice.one((1, 3, 3)), dice.one((1, 2), (3, 1)), dice.number(6, 96), 3
        elif family == "conv_dilated":
            kernel, stride, size, dilation = 3, 1, dice.number(14, 96), dice.one((2, 4, 12))
        else:
            kernel, stride, size = dice.one((2, 4, 3)), 1, dice.number(4, 96)
        padding = (0 if kernel == 2 else 1) if family == "conv_transpose" else dilation * (kernel // 2)
        shape.update(kernel=kernel, stride=stride, size=size, groups=1, padding=padding, dilation=dilation, layout=layout)
        shape = _affordable(dice, dtype, axes, shape)
        if family == "conv_transpose":
            shape.update(stride=2, dims=2)
        yield Case(family, dtype, DIRECTIONS, shape)


BACKENDS = (("cudnn", ("fp16", "bf16")), ("efficient", ("fp32", "tf32")), ("flash", ("fp16", "bf16")), ("efficient", ("fp16", "bf16")))
MOST_SCORES = {"efficient": 2 ** 30, "flash": 2 ** 32, "cudnn": 2 ** 32}  # b x heads x seq x seq


def sdpa(dice: Dice) -> Iterator[Case]:
    """Plain; with fewer key heads; masked; across sequences."""
    while True:
        backend, dtypes = dice.one(BACKENDS, (50, 27, 15, 8))
        dtype = dice.one(dtypes)
        seq = dice.one(LENGTHS[2:]) if dice.chance(0.5) else dice.extent(16, 8192, dice.chance(0.3))
        heads = dice.one((1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40))
        dim = dice.one((16, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256), (1, 3, 1, 9, 1, 2, 2, 6, 1, 1, 1))
        b = dice.one(BATCHES)
        most = MOST_SCORES[backend] / (4 if dtype in ("fp32", "tf32") else 1) * 64 / max(dim, 64)
        while b * heads * seq * seq > most or b * heads * seq * dim > 2 ** 26:
            if b > 1:
                b //= 2
            elif heads > 4:
                heads //= 2
            else:
                seq = max(32, seq // 2)
        shape: dict[str, Any] = {"b": b, "heads": heads, "seq": seq, "dim": dim, "causal": dice.chance(0.5), "dropout": dice.one((0.0, 0.1), (4, 1))}
        family = dice.one(("sdpa", "sdpa_gqa", "sdpa_mask", "sdpa_cross"), (62, 14, 12, 12))
        if family == "sdpa_gqa":
            share = dice.one((2, 4, 8))
            shape.update(heads=max(1, heads // share) * share, kv_heads=max(1, heads // share), dropout=0.0)
        elif family == "sdpa_mask":
            shape.update(causal=False, seq=max(16, seq // 8 * 8), mask=dice.one(("bool", "float")))
        elif family == "sdpa_cross":
            shape.update(causal=False, kv_seq=dice.one(LENGTHS[2:]) if dice.chance(0.6) else dice.extent(16, 2048, False))
        if (backend, family) in (("efficient", "sdpa_gqa"), ("flash", "sdpa_mask")) or (backend != "efficient" and dim % 8):
            continue
        yield Case(family, dtype, (backend + " forward", backend + " backward"), shape)


# Of several kernels of different kinds, which a fit has no use for; and a resize whose gradient takes seconds.
MIXED = ("is finite", "max of abs", "mul clamp cast", "cumsum over rows", "embedding_bag", "instance_norm", "channel layer_norm",
         "bicubic", "grad norm foreach", "grad scale foreach", "cast foreach", "zero foreach", "scaler update")


def _useful(case: Case) -> bool:
    whole = case.family != "optimizer" or case.shape["elements"] // case.shape["tensors"] % 4 == 0
    return case.ops[0] not in MIXED and whole


def _usual(plan: Callable[[bool], Groups]) -> Callable[[Dice], Iterator[Case]]:
    """The usual plan's cases and those after them; around again when all were given out."""
    def cases(dice: Dice) -> Iterator[Case]:
        with denser(1 if dice.small else DENSER):
            found = interleave([group for group in plan(dice.small) if group and group[0].ops[0] not in MIXED])
            found = [case for case in found if _useful(case)]
        # In blocks, so that any beginning is balanced and two sittings do not begin alike.
        blocks = [found[at:at + 500] for at in range(0, len(found), 500)]
        dice.random.shuffle(blocks)
        for block in blocks:
            dice.random.shuffle(block)
        return itertools.cycle(itertools.chain.from_iterable(blocks))
    return cases


# family -> (its share of the time, its cases)
SHARES: dict[str, tuple[float, Callable[[Dice], Iterator[Case]]]] = {
    "gemm": (22, gemm), "bmm": (6, bmm), "scaled_mm": (7, scaled_mm),
    "conv": (17, conv), "depthwise": (4, depthwise), "grouped": (2, grouped), "other convolutions": (2.5, other_convolutions),
    "sdpa": (15, sdpa),
    "elementwise": (2, _usual(memory.elementwise)), "pointwise": (1.5, _usual(memory.pointwise)), "rows": (4, _usual(memory.rows)),
    "broadcast": (1.5, _usual(memory.broadcast)), "reduce": (3, _usual(memory.reduce)), "permute": (1.5, _usual(memory.permute)),
    "copies": (1.3, _usual(memory.copies)), "index": (1.3, _usual(memory.index)), "sort": (0.5, _usual(memory.sort)),
    "loss": (0.5, _usual(memory.loss)), "quantise": (1, _usual(memory.quantise)), "image": (2, _usual(layers.image)),
    "norm": (1.5, _usual(layers.norm)), "pool": (0.8, _usual(layers.pool)), "resize": (0.4, _usual(layers.resize)),
    "vocabulary": (1, _usual(layers.vocabulary)), "optimizer": (1.2, _usual(layers.optimizer))}
