"""Cases whose time is mostly arithmetic: products, convolutions, attention, recurrent layers."""

from __future__ import annotations

from typing import Any

from . import model_shapes as real
from .case import FLOATS, Case, Groups, cold_some, filling
from .sampling import interleave

# The most operations of one call, so that no case takes long: about 2 ms of the slowest type's time on a large GPU.
MOST_FLOPS = {"fp32": 1e11, "tf32": 4e11, "fp16": 1e12, "bf16": 1e12, "fp8": 1.5e12}
MOST_ELEMENTS = 2 ** 28
LAYOUTS = ("nt", "nn", "tn", "nt+bias", "nn+bias", "nt+bias+relu", "nt+bias+gelu")


def _within(dtype: str, *extents: int) -> list[int]:
    """Halves the largest extent until the product 2abc... is affordable."""
    sizes = list(extents)
    while 2 * _product(sizes) > MOST_FLOPS[dtype]:
        largest = sizes.index(max(sizes))
        sizes[largest] = max(1, sizes[largest] // 2)
    return sizes


def _product(sizes: Any) -> float:
    result = 1.0
    for size in sizes:
        result *= size
    return result


def gemm(small: bool) -> Groups:
    groups: Groups = []
    for dtype in FLOATS:
        models: list[Case] = []
        for index, (m, n, k) in enumerate(() if small else real.GEMMS):
            chosen = ("nt", "nn", "tn") if index % 3 == 0 else ("nt",)
            models += [Case("gemm", dtype, (layout,), {"m": m, "n": n, "k": k}) for layout in chosen]
        groups.append(models)
        for layout, count in zip(LAYOUTS, (110, 80, 80, 45, 10, 8, 8)):
            cases = []
            for index, draw in filling(f"gemm {layout} {dtype}", 6, small, count):
                least = 8 if index % 4 == 3 else 64  # most products of a model are not skinny
                m, n, k = _within(dtype, draw.size(least, 32768), draw.size(least, 16384), draw.size(least, 16384))
                cases.append(Case("gemm", dtype, (layout,), cold_some(index, {"m": m, "n": n, "k": k}, m * k + n * k + m * n, 3)))
            groups.append(cases)
    return groups


def bmm(small: bool) -> Groups:
    groups: Groups = []
    for dtype in FLOATS:
        groups.append([Case("gemm", dtype, ("bmm nt",), dict(zip("bmnk", shape))) for shape in ([] if small else real.BATCHED)])
        for layout in ("nt", "nn", "tn"):
            cases = []
            for index, draw in filling(f"bmm {layout} {dtype}", 7, small, 24):
                b, m, n, k = _within(dtype, draw.number(4, 1024), draw.size(16, 2048), draw.size(16, 2048), draw.size(16, 1024))
                while b * max(m * n, m * k, n * k) > MOST_ELEMENTS:
                    b = max(1, b // 2)
                cases.append(Case("gemm", dtype, (f"bmm {layout}",),
                                  cold_some(index, {"b": b, "m": m, "n": n, "k": k}, b * (m * k + n * k + m * n), 3)))
            groups.append(cases)
    return groups


def scaled_mm(small: bool) -> Groups:
    groups: Groups = []
    for op in ("tensor fast", "tensor", "row fast", "row", "block 1x128 128x128", "block 1x128 1x128"):
        unit, deep = (128, 512) if op.startswith("block") else (16, 16)
        cases = []
        for index, draw in filling(f"scaled_mm {op}", 3, small, 12 if op.startswith("block") else 36):
            m, n, k = _within("fp8", draw.multiple(128, 32768, unit), draw.multiple(128, 16384, unit),
                              draw.multiple(512, 16384, deep))
            m, n, k = max(unit, m // unit * unit), max(unit, n // unit * unit), max(deep, k // deep * deep)
            shape = {"m": m, "n": n, "k": k}
            cases.append(Case("scaled_mm", "fp8", (op,), cold_some(index, shape, (m * k + n * k) / 2 + m * n, 3)))
        groups.append(cases)
    return groups


def convolution(small: bool) -> Groups:
    """Two-dimensional, one group: real layers at three batch sizes in turn, and around them."""
    groups: Groups = []
    for dtype in FLOATS:
        for layout in ("nchw", "nhwc"):
            models, cases = [], []
            for index, (model, cin, cout, kernel, stride, size, count) in enumerate([] if small else real.CONVOLUTIONS):
                shape = {"batch": (32, 8, 128)[index % 3], "cin": cin, "cout": cout, "kernel": kernel, "stride": stride,
                         "size": size, "groups": count, "layout": layout, "model": model}
                models.append(Case("conv", dtype, _directions(cin), shape))
            for index, draw in filling(f"conv {dtype} {layout}", 9, small, 55):
                kernel = draw.one((1, 3, 5, 7), (4, 5, 1, 1))
                stride = draw.one((1, 2), (7, 3))
                shape = _fitted(dtype, 2, draw.number(2, 128), draw.size(16, 1024), draw.size(16, 1024), kernel, stride,
                                draw.number(7, 128), 1, layout=layout)
                cases.append(Case("conv", dtype, _directions(shape["cin"]), cold_some(index, shape, _moved(shape), 4, 2 ** 20)))
            groups += [interleave([models, cases]) if models else cases]
    return groups


def _directions(cin: int) -> tuple[str, ...]:
    return ("forward", "wgrad") if cin <= 3 else ("forward", "dgrad", "wgrad")  # a first layer's input needs no gradient


def _fitted(dtype: str, axes: int, batch: int, cin: int, cout: int, kernel: int, stride: int, size: int, groups: int,
            **more: Any) -> dict[str, Any]:
    """The keys of a convolution's line, with batch and then size reduced until it is affordable."""
    def too_large() -> bool:
        positions = batch * (size // stride) ** axes
        flops = 2 * positions * (cin // groups) * cout * kernel ** axes
        return flops > 0.15 * MOST_FLOPS[dtype] or batch * size ** axes * max(cin, cout) > MOST_ELEMENTS / 4
    while too_large() and (batch > 1 or size > 4 * kernel):
        if batch > 1:
            batch //= 2
        else:
            size //= 2
    return {"batch": batch, "cin": cin, "cout": cout, "kernel": kernel, "stride": stride, "size": max(size, kernel),
            "groups": groups, **more}


def _moved(shape: dict[str, Any]) -> float:
    return shape["batch"] * (shape["cin"] * shape["size"] ** 2 + shape["cout"] * (shape["size"] / shape["stride"]) ** 2)


def depthwise(small: bool) -> Groups:
    groups: Groups = []
    for dtype in ("fp32", "fp16", "bf16"):  # tf32 is as fp32: no tensor cores in it
        for layout in ("nchw", "nhwc"):
            cases = []
            for index, draw in filling(f"depthwise {dtype} {layout}", 6, small, 14):
                channels = draw.multiple(16, 1536, 8)
                shape = _fitted(dtype, 2, draw.number(4, 128), channels, channels, draw.one((3, 5, 7), (3, 2, 2)),
                                draw.one((1, 2), (3, 1)), draw.number(7, 112), channels)
                cases.append(Case("depthwise", dtype, _directions(9), {**shape, "layout": layout}))
            groups.append(cases)
    return groups


def grouped(small: bool) -> Groups:
    groups: Groups = []
    for dtype in FLOATS:
        for layout in ("nchw", "nhwc"):
            cases = []
            for index, draw in filling(f"grouped {dtype} {layout}", 6, small, 10):
                count, width = draw.one((2, 4, 8, 16, 32, 64)), draw.one((4, 8, 16, 24, 32, 64))
                channels = count * width
                shape = _fitted(dtype, 2, draw.number(4, 64), channels, channels, 3, draw.one((1, 2), (3, 1)),
                                draw.number(7, 56), count)
                cases.append(Case("grouped", dtype, _directions(9), {**shape, "layout": layout}))
            groups.append(cases)
    return groups


def other_convolutions(small: bool) -> Groups:
    """1-D and 3-D, dilated, and transposed; `padding` and `dilation` stand in their lines."""
    groups: Groups = []
    for dtype in FLOATS:
        cases = []
        for index, draw in filling(f"conv1d {dtype}", 9, small, 22):
            kernel, alone = draw.one((1, 3, 4, 7, 15, 31), (2, 4, 1, 1, 1, 1)), draw.one((False, True), (3, 1))
            cin = draw.size(8, 1024)
            cout = cin if alone else draw.size(8, 1024)
            shape = _fitted(dtype, 1, draw.number(2, 64), cin, cout, kernel, draw.one((1, 2), (3, 1)), draw.number(64, 16384),
                            cin if alone else 1, padding=kernel // 2, dilation=1, layout="nchw")
            cases.append(Case("conv1d", dtype, _directions(9), shape))
        groups.append(cases)
        for layout in ("nchw", "nhwc"):
            cases = []
            for index, draw in filling(f"conv3d {dtype} {layout}", 8, small, 9):
                kernel = draw.one((1, 3, 3))
                shape = _fitted(dtype, 3, draw.number(1, 16), draw.size(4, 256), draw.size(8, 256), kernel,
                                draw.one((1, 2), (3, 1)), draw.number(8, 96), 1, padding=kernel // 2, dilation=1, layout=layout)
                cases.append(Case("conv3d", dtype, _directions(9), shape))
            groups.append(cases)
            cases = []
            for index, draw in filling(f"conv_dilated {dtype} {layout}", 7, small, 4):
                dilation = draw.one((2, 4, 12))
                shape = _fitted(dtype, 2, draw.number(2, 32), draw.size(16, 1024), draw.size(16, 512), 3, 1,
                                draw.number(14, 64), 1, padding=dilation, dilation=dilation, layout=layout)
                cases.append(Case("conv_dilated", dtype, _directions(9), shape))
            groups.append(cases)
            cases = []
            for index, draw in filling(f"conv_transpose {dtype} {layout}", 8, small, 8):
                kernel, padding = draw.one(((2, 0), (4, 1), (3, 1)))
                dims = draw.one((2, 3, 1), (4, 1, 1)) if layout == "nchw" else 2
                shape = _fitted(dtype, dims, draw.number(2, 64), draw.size(16, 512), draw.size(16, 512), kernel, 1,
                                draw.number(4, 64), 1, padding=padding, dilation=1, layout=layout, dims=dims)
                cases.append(Case("conv_transpose", dtype, _directions(9), {**shape, "stride": 2}))
            groups.append(cases)
    return groups


def recurrent(small: bool) -> Groups:
    groups: Groups = []
    for dtype in FLOATS:
        for kind in ("lstm", "gru", "rnn"):
            for family in ("recurrent", "recurrent_bidirectional"):
                cases = []
                count = (10 if kind == "lstm" else 6) // (1 if family == "recurrent" else 3)
                for index, draw in filling(f"{family} {kind} {dtype}", 7, small, count):
                    hidden = draw.size(32, 1536)
                    shape = {"batch": draw.number(1, 192), "steps": draw.number(8, 160),
                             "width": hidden if draw.unit() < 0.6 else draw.size(16, 1024), "hidden": hidden,
                             "layers": 1 if index % 3 else 2}
                    cases.append(Case(family, dtype, (kind + " forward", kind + " backward"), shape))
                groups.append(cases)
    return groups
