"""Cases whose time is mostly memory traffic on plain tensors: pointwise, broadcast, reductions, copies, indexing, sorting."""

from __future__ import annotations

import itertools
from typing import Any

from .case import WIDE_AND_NARROW, Case, Groups, cold_some, filling

ELEMENTWISE = ("copy_", "add", "add_", "add mixed", "mul", "mul scalar", "relu", "relu backward", "gelu", "gelu backward", "silu",
               "silu backward", "tanh", "pow 3", "cast to the other width", "native_dropout", "dropout backward", "zero_")
# op -> how many operands of the case's type it reads, and whether a mask beside them
POINTWISE = {"sub": (2, False), "div": (2, False), "maximum": (2, False), "lerp": (2, False), "sigmoid backward": (2, False),
             "tanh backward": (2, False), "addcmul": (3, False), "where": (2, True), "masked_fill": (1, True), "mul mask": (1, True),
             "add scalar": (1, False), "neg": (1, False), "exp": (1, False), "sqrt": (1, False), "rsqrt": (1, False),
             "sigmoid": (1, False), "clamp": (1, False), "greater": (1, False), "leaky_relu": (1, False), "hardswish": (1, False),
             "sin": (1, False), "gelu tanh": (1, False), "is finite": (1, False), "fill_": (0, False)}
ROWS = ("layer_norm", "layer_norm backward", "rms_norm", "rms_norm backward", "softmax", "softmax backward", "log_softmax",
        "log_softmax backward", "sum over rows", "sum over columns", "mean over columns", "add bias", "rotate half (neg + cat)",
        "var over columns", "norm over columns", "argmax over columns", "cumsum over columns")
BROADCAST = ("inner", "middle", "outer", "outer+middle", "one")
REDUCE_OVER = ("inner", "middle", "outer", "outer+inner", "all")
PERMUTES = {"heads (0,2,1,3)": (0, 2, 1, 3), "heads to front (2,0,1,3)": (2, 0, 1, 3), "inner moved (0,1,3,2)": (0, 1, 3, 2),
            "inner moved (0,2,3,1)": (0, 2, 3, 1), "inner moved (0,3,1,2)": (0, 3, 1, 2), "channels (0,3,2,1)": (0, 3, 2, 1)}
COPIES = ("slice inner", "slice outer", "cat inner", "cat outer", "stack", "pad", "roll", "repeat", "slice backward", "split copy")
INDEX = ("index_select", "gather", "scatter_add", "index_add", "index_put", "embedding", "embedding backward", "embedding_bag")
SORT = ("sort", "topk", "argsort", "cumsum over rows")
LOSSES = ("mse", "l1", "smooth_l1", "bce_with_logits", "kl_div")
QUANTISE = ("abs", "max of abs", "aminmax", "amax rows", "amax blocks", "mul scale", "mul rows", "clamp", "cast",
            "mul clamp cast", "transpose 8")
MOST = 2 ** 27  # elements


def elementwise(small: bool) -> Groups:
    groups: Groups = []
    for op in ELEMENTWISE:
        for dtype, count in zip(WIDE_AND_NARROW, (11, 11, 3)):
            cases = []
            for index, draw in filling(f"elementwise {op} {dtype}", 2, small, count):
                n = draw.size(2048, 2 ** 28)
                cases.append(Case("elementwise", dtype, (op,), cold_some(index, {"n": n}, n)))
            groups.append(cases)
    return groups


def pointwise(small: bool) -> Groups:
    """Operators beyond those of `elementwise`; `inputs` and `masked` say what each element reads."""
    groups: Groups = []
    for op, (inputs, masked) in POINTWISE.items():
        for dtype, count in zip(WIDE_AND_NARROW, (8, 8, 3)):
            cases = []
            for index, draw in filling(f"pointwise {op} {dtype}", 2, small, count):
                shape = {"n": draw.size(2048, 2 ** 28), "inputs": inputs, "masked": masked}
                cases.append(Case("pointwise", dtype, (op,), cold_some(index, shape, shape["n"])))
            groups.append(cases)
    return groups


def rows(small: bool) -> Groups:
    groups: Groups = []
    for op in ROWS:
        for dtype, count in zip(WIDE_AND_NARROW, (13, 13, 3)):
            cases = []
            for index, draw in filling(f"rows {op} {dtype}", 4, small, count):
                shape = _area(draw.size(8, 2 ** 17), draw.size(16, 32768))
                cases.append(Case("rows", dtype, (op,), cold_some(index, shape, shape["rows"] * shape["columns"])))
            groups.append(cases)
    return groups


def _area(row_count: int, columns: int, even: bool = True) -> dict[str, Any]:
    columns += columns % 2 if even else 0
    while row_count * columns > MOST:
        row_count = max(1, row_count // 2)
    return {"rows": row_count, "columns": columns}


def _volume(outer: int, middle: int, inner: int) -> dict[str, Any]:
    while outer * middle * inner > MOST:
        outer, middle, inner = (max(1, size // 2) if size == max(outer, middle, inner) else size for size in (outer, middle, inner))
    return {"outer": outer, "middle": middle, "inner": inner}


def broadcast(small: bool) -> Groups:
    """x[outer, middle, inner] with an operand that has only the axes of `operand`."""
    groups: Groups = []
    for op, operand in itertools.product(("add", "mul"), BROADCAST):
        for dtype, count in zip(WIDE_AND_NARROW, (7, 7, 2)):
            cases = []
            for index, draw in filling(f"broadcast {op} {operand} {dtype}", 6, small, count):
                shape = _volume(draw.size(4, 2048), draw.size(4, 4096), draw.size(4, 8192))
                elements = shape["outer"] * shape["middle"] * shape["inner"]
                cases.append(Case("broadcast", dtype, (op,), cold_some(index, {**shape, "operand": operand}, elements)))
            groups.append(cases)
    return groups


def reduce(small: bool) -> Groups:
    """x[outer, middle, inner] reduced over the axes of `over`."""
    groups: Groups = []
    for op, over in itertools.product(("sum", "mean", "amax", "var"), REDUCE_OVER):
        for dtype, count in zip(WIDE_AND_NARROW, (7, 7, 2)):
            cases = []
            for index, draw in filling(f"reduce {op} {over} {dtype}", 6, small, count):
                shape = _volume(draw.size(4, 4096), draw.size(4, 4096), draw.size(4, 8192))
                elements = shape["outer"] * shape["middle"] * shape["inner"]
                cases.append(Case("reduce", dtype, (op,), cold_some(index, {**shape, "over": over}, elements)))
            groups.append(cases)
    return groups


def permute(small: bool) -> Groups:
    groups: Groups = []
    for op in PERMUTES:
        for dtype, count in zip(WIDE_AND_NARROW, (14, 14, 3)):
            cases = []
            for index, draw in filling(f"permute {op} {dtype}", 6, small, count):
                shape = [draw.number(1, 256), draw.number(8, 2048), draw.size(2, 64), draw.size(8, 256)]
                while shape[0] * shape[1] * shape[2] * shape[3] > MOST:
                    shape[shape.index(max(shape))] //= 2
                elements = shape[0] * shape[1] * shape[2] * shape[3]
                cases.append(Case("permute", dtype, (op,), cold_some(index, {"shape": shape}, elements)))
            groups.append(cases)
    return groups


def copies(small: bool) -> Groups:
    """Of x[rows, columns]; `parts` is how many pieces are cut out, joined or repeated."""
    groups: Groups = []
    for op in COPIES:
        for dtype, count in zip(WIDE_AND_NARROW, (9, 9, 2)):
            cases = []
            for index, draw in filling(f"copies {op} {dtype}", 5, small, count):
                parts = draw.one((2, 3, 4, 8))
                shape = _area(draw.size(8, 2 ** 16), draw.size(16, 16384))
                elements = shape["rows"] * shape["columns"]
                cases.append(Case("copies", dtype, (op,), cold_some(index, {**shape, "parts": parts}, elements)))
            groups.append(cases)
    return groups


def index(small: bool) -> Groups:
    """`picked` rows chosen at random of a table[rows, columns]."""
    groups: Groups = []
    for op in INDEX:
        for dtype, count in zip(WIDE_AND_NARROW, (10, 10, 2)):
            cases = []
            for _, draw in filling(f"index {op} {dtype}", 5, small, count):
                shape = _area(draw.number(64, 2 ** 18), draw.size(4, 4096))
                picked = min(draw.number(64, 2 ** 17), MOST // shape["columns"])
                cases.append(Case("index", dtype, (op,), {**shape, "picked": picked}))
            groups.append(cases)
    return groups


def sort(small: bool) -> Groups:
    groups: Groups = []
    for op in SORT:
        for dtype, count in zip(WIDE_AND_NARROW, (10, 10, 2)):
            cases = []
            for _, draw in filling(f"sort {op} {dtype}", 4, small, count):
                shape = _area(draw.number(1, 8192), draw.size(16, 2 ** 17))
                while shape["rows"] * shape["columns"] > 2 ** 24:
                    shape["rows"] = max(1, shape["rows"] // 2)
                cases.append(Case("sort", dtype, (op,), {**shape, "k": min(draw.one((1, 2, 8, 50, 256)), shape["columns"])}))
            groups.append(cases)
    return groups


def loss(small: bool) -> Groups:
    groups: Groups = []
    for op in LOSSES:
        for dtype, count in zip(WIDE_AND_NARROW, (6, 6, 2)):
            groups.append([Case("loss", dtype, (op, op + " backward"), {"n": draw.size(1024, 2 ** 26)})
                           for _, draw in filling(f"loss {op} {dtype}", 2, small, count)])
    return groups


def quantise(small: bool) -> Groups:
    groups: Groups = []
    for op in QUANTISE:
        for dtype in ("bf16", "fp32"):
            cases = []
            for number, draw in filling(f"quantise {op} {dtype}", 2, small, 6):
                shape = _area(draw.multiple(16, 32768, 16), draw.multiple(128, 16384, 128))
                cases.append(Case("quantise", dtype, (op,), cold_some(number, shape, shape["rows"] * shape["columns"])))
            groups.append(cases)
    return groups


def transfers(small: bool) -> Groups:
    """Copies between host and GPU, and on the GPU, of `n` bytes."""
    groups: Groups = []
    for op in ("h2d pinned", "h2d pageable", "d2h pinned", "d2h pageable", "d2d", "memset"):
        groups.append([Case("transfer", "u8", (op,), {"n": draw.number(64, 2 ** 28)})
                       for _, draw in filling(f"transfer {op}", 1, small, 14)])
    return groups
