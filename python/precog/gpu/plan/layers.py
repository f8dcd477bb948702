"""Cases on images, vocabularies and lists of parameters: norms, pooling, resizing, token losses, optimizers; and long runs."""

from __future__ import annotations

from typing import Any

from . import model_shapes as real
from .case import WIDE_AND_NARROW, Case, Groups, cold_some, filling
from .sampling import Draw, interleave

IMAGE = ("batch_norm", "max_pool2d 3x3", "adaptive_avg_pool2d", "copy to the other layout")
ALONE = ("adaptive_avg_pool2d", "copy to the other layout")
NORMS = ("batch_norm, weights alike", "group_norm", "instance_norm", "channel layer_norm")
POOLS = ("max", "average", "adaptive average")
RESIZES = ("nearest", "bilinear", "bicubic")
VOCABULARY = ("log_softmax", "nll_loss", "embedding")
OPTIMIZERS = ("adamw foreach", "adamw fused", "adam foreach", "adam fused", "sgd foreach", "sgd fused", "sgd-momentum foreach",
              "sgd-momentum fused", "grad norm foreach", "grad scale foreach", "cast foreach", "zero foreach", "unscale", "scaler update")
MOST = 2 ** 26


def _image(draw: Draw, dims: int = 2, channel_multiple: int = 8) -> list[int]:
    """6 coordinates: [batch, channels, side...]."""
    batch, channels, side = draw.number(1, 128), draw.multiple(channel_multiple, 2048, channel_multiple), draw.number(4, 224)
    ragged = max(2, side + (0 if draw.unit() < 0.6 else round(side * (draw.unit() - 0.5))))
    sides = [side, ragged, side][:dims]

    def count() -> float:
        elements = float(batch * channels)
        for extent in sides:
            elements *= extent
        return elements
    while count() > MOST:
        if batch > 1:
            batch //= 2
        else:
            sides = [max(2, extent // 2) for extent in sides]
    return [batch, channels, *sides]


def _size(shape: list[int]) -> float:
    result = 1.0
    for extent in shape:
        result *= extent
    return result


def _both(op: str) -> tuple[str, ...]:
    return (op,) if op in ALONE else (op, op + " backward")


def image(small: bool) -> Groups:
    groups: Groups = []
    for op in IMAGE:
        for layout in ("nchw", "nhwc"):
            for dtype, count in zip(WIDE_AND_NARROW, (6, 6, 4)):
                models = [Case("image", dtype, _both(op), {"shape": list(shape), "layout": layout})
                          for shape in ([] if small else real.IMAGES[::2])]
                cases = []
                for index, draw in filling(f"image {op} {layout} {dtype}", 5, small, count):
                    shape = _image(draw)
                    keys = {"shape": shape, "layout": layout}
                    cases.append(Case("image", dtype, _both(op), cold_some(index, keys, _size(shape), 3, 2 ** 20)))
                groups.append(interleave([models, cases]) if models else cases)
    return groups


def norm(small: bool) -> Groups:
    """Weights of the input's type. `shape` has 3, 4 or 5 extents; group norm has 32 groups or `groups`."""
    groups: Groups = []
    for op in NORMS:
        for layout in ("nchw", "nhwc"):
            for dtype, count in zip(WIDE_AND_NARROW, (6, 6, 4)):
                cases = []
                for index, draw in filling(f"norm {op} {layout} {dtype}", 6, small, count):
                    dims = draw.one((2, 3, 1), (4, 1, 1)) if layout == "nchw" else 2
                    shape = _image(draw, dims, 32)
                    keys = {"shape": shape, "layout": layout}
                    cases.append(Case("norm", dtype, _both(op), cold_some(index, keys, _size(shape), 3, 2 ** 20)))
                groups.append(cases)
    return groups


def pool(small: bool) -> Groups:
    groups: Groups = []
    for op in POOLS:
        for layout in ("nchw", "nhwc"):
            for dtype, count in zip(WIDE_AND_NARROW, (6, 6, 2)):
                cases = []
                for _, draw in filling(f"pool {op} {layout} {dtype}", 7, small, count):
                    windows = ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2))
                    window: dict[str, Any] = dict(zip(("kernel", "stride", "padding"), draw.one(windows)))
                    dims = draw.one((2, 3, 1), (4, 1, 1)) if layout == "nchw" else 2
                    shape = [max(extent, 5) if at > 1 else extent for at, extent in enumerate(_image(draw, dims))]
                    if op.startswith("adaptive"):
                        window = {"output": 1 if window["kernel"] == 2 else 7 if window["kernel"] == 3 else 4}
                    cases.append(Case("pool", dtype, _both(op), {"shape": shape, "layout": layout, **window}))
                groups.append(cases)
    return groups


def resize(small: bool) -> Groups:
    groups: Groups = []
    for op in RESIZES:
        for layout in ("nchw", "nhwc"):
            for dtype, count in zip(WIDE_AND_NARROW, (5, 5, 2)):
                cases = []
                for _, draw in filling(f"resize {op} {layout} {dtype}", 6, small, count):
                    scale = draw.one((2, 4, 0.5))
                    batch, channels, *sides = _image(draw)
                    while batch * channels * _size(sides) * max(scale, 1) ** 2 > MOST:
                        batch, channels = (batch // 2, channels) if batch > 1 else (1, max(8, channels // 2))
                        if batch == 1 and channels == 8:
                            break
                    shape = [batch, channels, *sides]
                    cases.append(Case("resize", dtype, _both(op), {"shape": shape, "layout": layout, "scale": scale}))
                groups.append(cases)
    return groups


def vocabulary(small: bool) -> Groups:
    groups: Groups = []
    keys = ("tokens", "vocabulary", "hidden")
    for op in VOCABULARY:
        for dtype, count in zip(WIDE_AND_NARROW, (10, 10, 2)):
            models = [Case("vocabulary", dtype, _both(op), dict(zip(keys, shape))) for shape in ([] if small else real.VOCABULARIES)
                      if shape[0] * shape[1] <= 2 ** 29]
            cases = []
            for _, draw in filling(f"vocabulary {op} {dtype}", 5, small, count):
                shape = {"vocabulary": draw.size(100, 160000), "hidden": draw.size(16, 4096), "tokens": draw.number(64, 32768)}
                while shape["tokens"] * shape["vocabulary"] > 2 ** 28 or shape["vocabulary"] * shape["hidden"] > 2 ** 28:
                    larger = "hidden" if shape["vocabulary"] * shape["hidden"] > 2 ** 28 else "tokens"
                    shape[larger] //= 2
                cases.append(Case("vocabulary", dtype, _both(op), {key: shape[key] for key in keys}))
            groups += [models, cases]
    return groups


def optimizer(small: bool) -> Groups:
    """`elements` parameters in `tensors` tensors of the same size."""
    groups: Groups = []
    for op in OPTIMIZERS:
        for dtype, count in zip(WIDE_AND_NARROW, (9, 6, 2)):
            if op in ("unscale", "scaler update") and dtype != "fp32":
                continue  # loss scaling works on fp32 gradients
            models = [Case("optimizer", dtype, (op,), {"elements": total, "tensors": tensors})
                      for total in (1 << 20, 1 << 23, 1 << 26) for tensors in (20, 160) if op.startswith(("adamw", "unscale")) and dtype != "fp16" and not small]
            cases = []
            for _, draw in filling(f"optimizer {op} {dtype}", 2, small, count):
                tensors = draw.number(1, 600)
                elements = max(1, draw.number(1024, 2 ** 28) // tensors) * tensors
                cases.append(Case("optimizer", dtype, (op,), {"elements": elements, "tensors": tensors}))
            if op == "scaler update":
                cases = [Case("optimizer", dtype, (op,), {"elements": 1, "tensors": 1})]
            groups += [models, cases]
    return groups


def sustained(small: bool) -> Groups:
    """Seconds of the same work: what the clock does when the power limit is met. A line holds samples over time."""
    if small:
        return [[Case("sustained", "bf16", ("gemm",), {"m": 64, "n": 64, "k": 64, "seconds": 0.1})]]
    products = [Case("sustained", dtype, ("gemm",), {"m": 8192, "n": 8192, "k": 8192, "seconds": 7.0})
                for dtype in ("bf16", "tf32", "fp16", "fp8")]
    chain = Case("sustained", "bf16", ("chain",), {"n": 2 ** 27, "seconds": 7.0})
    return [[products[0], chain, *products[1:]]]
