"""Fused attention by backend and type: plain, with fewer key heads, masked, across sequences."""

from __future__ import annotations

from typing import Any

from . import model_shapes as real
from .case import Case, Groups, cold_some, filling
from .sampling import Draw

BACKENDS = (("flash", ("fp16", "bf16")), ("cudnn", ("fp16", "bf16")), ("efficient", ("fp32", "tf32", "fp16", "bf16")),
            ("math", ("fp32", "tf32", "fp16", "bf16")))
KEYS = ("b", "heads", "seq", "dim", "causal", "dropout")
MOST_SCORES = {"math": 2 ** 26, "efficient": 2 ** 29, "flash": 2 ** 32, "cudnn": 2 ** 32}  # b x heads x seq x seq


def _ops(backend: str) -> tuple[str, ...]:
    return backend + " forward", backend + " backward"


def _shape(draw: Draw, backend: str, dtype: str, dropouts: tuple[float, ...] = (0.0, 0.0, 0.1)) -> dict[str, Any]:
    seq, heads, b = draw.size(32, 8192), draw.number(4, 40), draw.number(1, 64)
    dim = draw.one((32, 64, 72, 80, 96, 128, 192, 256), (2, 8, 1, 2, 2, 6, 1, 1))
    most = MOST_SCORES[backend] // (4 if dtype in ("fp32", "tf32") and backend != "math" else 1) * 64 // max(dim, 64)
    while b * heads * seq * seq > most or b * heads * seq * dim > 2 ** 26:
        if b > 1:
            b //= 2
        elif heads > 4:
            heads //= 2
        else:
            seq = max(32, seq // 2)
    return {"b": b, "heads": heads, "seq": seq, "dim": dim, "causal": draw.unit() < 0.5, "dropout": draw.one(dropouts)}


def sdpa(small: bool) -> Groups:
    groups: Groups = []
    for backend, dtypes in BACKENDS:
        for dtype in dtypes:
            models = [Case("sdpa", dtype, _ops(backend), dict(zip(KEYS, shape))) for shape in ([] if small else real.ATTENTIONS)
                      if shape[0] * shape[1] * shape[2] ** 2 <= MOST_SCORES[backend]]
            cases = []
            for index, draw in filling(f"sdpa {backend} {dtype}", 7, small, 26 if backend != "math" else 16):
                shape = _shape(draw, backend, dtype)
                moved = 4 * shape["b"] * shape["heads"] * shape["seq"] * shape["dim"]
                cases.append(Case("sdpa", dtype, _ops(backend), cold_some(index, shape, moved, 4, 2 ** 20)))
            groups += [models, cases]
    return groups


def sdpa_variants(small: bool) -> Groups:
    """kv_heads (grouped queries), mask ("bool" or "float", of b x 1 x seq x kv_seq), kv_seq (keys of another sequence)."""
    groups: Groups = []
    for backend, dtypes in BACKENDS:
        for dtype in dtypes:
            fewer, masked, across = [], [], []
            for index, draw in filling(f"sdpa_gqa {backend} {dtype}", 8, small, 6 if backend != "efficient" else 0):
                shape = _shape(draw, backend, dtype, (0.0,))
                share = draw.one((2, 4, 8))
                shape["heads"] = max(1, shape["heads"] // share) * share
                fewer.append(Case("sdpa_gqa", dtype, _ops(backend), {**shape, "kv_heads": shape["heads"] // share}))
            for index, draw in filling(f"sdpa_mask {backend} {dtype}", 8, small, 6 if backend != "flash" else 0):
                shape = {**_shape(draw, backend, dtype), "causal": False}
                shape["seq"] = max(16, shape["seq"] // 8 * 8)
                masked.append(Case("sdpa_mask", dtype, _ops(backend), {**shape, "mask": draw.one(("bool", "float"))}))
            for index, draw in filling(f"sdpa_cross {backend} {dtype}", 9, small, 6):
                shape = {**_shape(draw, backend, dtype), "causal": False}
                across.append(Case("sdpa_cross", dtype, _ops(backend), {**shape, "kv_seq": draw.size(16, 1024)}))
            groups += [fewer, masked, across]
    return groups
