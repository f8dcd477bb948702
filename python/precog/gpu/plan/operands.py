"""Calls whose operands lie in memory in any way: permuted, sliced, expanded, broadcast along any axis. Plain data, no torch.

A case of family `strided` has `shape`, the result's, and `strides`, one list per operand over the result's axes (0: the
operand is the same along that axis); `types` where operands are of other types than the case. One of `reduce_strided` and of
`scan` has `shape` and `strides` of its one operand, and `over`, the axes; one of `joined` `shape` and `strides` of each of its
`parts`, and `over`, the axis along which they are put together. Half of them are calls that traced models make
(`recorded`), with their first axis made longer; the others are drawn around those.
"""

from __future__ import annotations

import gzip
import json
import math
from typing import Any, Iterator

from .case import Case
from .dense import Dice

MOST = 2 ** 26
# op -> how many operands of the case's type it reads, and whether a mask comes before them
STRIDED: dict[str, tuple[int, bool]] = {
    "add": (2, False), "mul": (2, False), "sub": (2, False), "div": (2, False), "clone": (1, False), "copy": (1, False), "cast": (1, False),
    "add_": (2, False), "mul scalar": (1, False), "neg": (1, False), "silu": (1, False), "gelu": (1, False), "exp": (1, False),
    "relu backward": (2, False), "silu backward": (2, False), "gelu backward": (2, False), "where": (2, True), "masked_fill": (1, True),
    "dropout backward": (1, True), "add mixed": (2, False), "addcmul": (3, False), "pow 2": (1, False), "rsqrt": (1, False)}
REDUCTIONS = ("sum", "mean", "amax", "var", "norm", "argmax")
_CALLS = {"add.Tensor": "add", "mul.Tensor": "mul", "sub.Tensor": "sub", "div.Tensor": "div", "clone.default": "copy", "_to_copy.default": "cast",
          "add_.Tensor": "add_", "mul.Scalar": "mul scalar", "neg.default": "neg", "silu.default": "silu", "gelu.default": "gelu",
          "exp.default": "exp", "threshold_backward.default": "relu backward", "silu_backward.default": "silu backward",
          "gelu_backward.default": "gelu backward", "where.self": "where", "masked_fill.Scalar": "masked_fill",
          "native_dropout_backward.default": "dropout backward", "div.Scalar": "mul scalar", "addcmul.default": "addcmul",
          "pow.Tensor_Scalar": "pow 2", "rsqrt.default": "rsqrt"}
_SUMS = {"sum.dim_IntList": "sum", "mean.dim": "mean", "amax.default": "amax", "var.correction": "var"}
_TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "bool": "bool"}


def contiguous(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return strides[::-1]


def span(shape: list[int], strides: list[int]) -> int:
    """Elements from the first to the last, both counted."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))


def _over(result: list[int], operand: list[Any]) -> list[int]:
    """A recorded operand's strides over the result's axes."""
    shape = operand[1]
    strides = list(operand[2]) if len(operand) > 2 else contiguous(shape)
    strides = [0 if extent == 1 else stride for extent, stride in zip(shape, strides)]
    return [0] * (len(result) - len(shape)) + strides


def recorded(path: str) -> tuple[list[Case], list[Case]]:
    """The pointwise calls and the reductions of traced steps (tools/gpu/trace_garden.py), each once."""
    calls: dict[str, Case] = {}
    sums: dict[str, Case] = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            for phase in json.loads(line).get("phases", {}).values():
                for name, inputs, outputs, *rest in phase:
                    name = name.removeprefix("aten.")
                    if name not in _CALLS and name not in _SUMS or not outputs or not isinstance(inputs[0], list):
                        continue
                    types = [_TYPES.get(one[0]) for one in inputs]
                    if None in types or math.prod(outputs[0][1]) < 256 and math.prod(inputs[0][1]) < 256:
                        continue
                    case = _reduction(_SUMS[name], inputs[0], rest) if name in _SUMS else _pointwise(_CALLS[name], inputs, outputs, types, rest)
                    if case:
                        (sums if name in _SUMS else calls)[repr(case)] = case
    return list(calls.values()), list(sums.values())


def _reduction(op: str, operand: list[Any], rest: list[Any]) -> Case | None:
    shape = operand[1]
    if not rest or not rest[0] or not isinstance(rest[0][0], list) or operand[0] == "bool":
        return None
    over = sorted(axis % len(shape) for axis in rest[0][0])
    return Case("reduce_strided", _TYPES[operand[0]], (op,), {"shape": shape, "strides": _over(shape, operand), "over": over}) if over else None


def _pointwise(op: str, inputs: list[Any], outputs: list[Any], types: list[Any], rest: list[Any]) -> Case | None:
    result = outputs[0][1]
    count = STRIDED[op][0] + STRIDED[op][1]
    if op in ("add", "mul", "sub", "div") and len(inputs) == 1:
        op, count = "mul scalar", 1
    if op == "copy" and not (rest and rest[0] and "contiguous" in str(rest[0][0])):
        op = "clone"
    if op == "dropout backward" or op == "masked_fill":
        inputs, types = [inputs[1], inputs[0]], [types[1], types[0]]
    if len(inputs) != count or 0 in result:
        return None
    dtype = types[-1]
    shape: dict[str, Any] = {"shape": result, "strides": [_over(result, one) for one in inputs]}
    if dtype == "bool" or op == "cast" and outputs[0][0] not in ("f32", "f16", "bf16") or op == "add_" and 0 in _over(result, inputs[0]):
        return None
    if STRIDED[op][1] != (types[0] == "bool") or len(set(types[STRIDED[op][1]:])) > (2 if op == "add" else 1):
        return None
    if op == "add" and len(set(types)) == 2:
        op, dtype = "add mixed", types[0]
    return Case("strided", dtype, (op,), shape)


def _longer(dice: Dice, case: Case) -> Case:
    """The same call of a larger batch: its first axis is the outermost in every operand, or is not touched."""
    shape, strides = case.shape["shape"], case.shape["strides"]
    each = strides if case.family == "strided" else [strides]
    outer = shape and all(one[0] == 0 or one[0] >= max(one) for one in each)
    factor = dice.one((1, 2, 3, 4, 8, 16), (3, 3, 1, 3, 2, 1))
    if not outer or math.prod(shape) * factor > MOST or dice.small:
        return case
    return Case(case.family, case.dtype, case.ops, {**case.shape, "shape": [shape[0] * factor, *shape[1:]]})


def _extents(dice: Dice, least: int = 2, most: int = 6) -> list[int]:
    rank = dice.one([n for n in range(least, most + 1)], [(0, 1, 4, 8, 9, 4, 2)[n] for n in range(least, most + 1)])
    elements = dice.number(256, MOST)
    common = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 48, 49, 56, 64, 80, 96, 112, 128, 144, 192, 196, 197, 256, 384, 512, 768, 1024, 2048, 3072)
    shape = [dice.one(common[1:] if dice.chance(0.9) else common) if dice.chance(0.7) else dice.number(2, 2048) for _ in range(rank)]
    while math.prod(shape) > elements and max(shape) > 1:
        at = shape.index(max(shape)) if dice.chance(0.5) else dice.random.randrange(rank)
        shape[at] = max(1, shape[at] // 2)
    return shape


def _permuted(dice: Dice, shape: list[int]) -> list[int]:
    order = list(range(len(shape)))
    if dice.chance(0.6) and len(order) > 2:  # two axes exchanged, or one moved to an end
        a, b = dice.random.sample(order, 2)
        order[a], order[b] = order[b], order[a]
    elif dice.chance(0.7):
        order.insert(dice.random.choice((0, 1, len(order) - 1)), order.pop(dice.random.randrange(len(order))))
    else:
        dice.random.shuffle(order)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return strides


def _sliced(dice: Dice, shape: list[int]) -> list[int]:
    """Part of a tensor that is longer along one axis, or every second along it."""
    axis = dice.random.randrange(len(shape)) if dice.chance(0.4) else len(shape) - 1
    longer = list(shape)
    longer[axis] *= dice.one((2, 3, 4)) if dice.chance(0.8) else 1
    longer[axis] += 0 if dice.chance(0.8) else 1
    strides = contiguous(longer)
    if dice.chance(0.12) and longer[axis] >= 2 * shape[axis]:
        strides[axis] *= 2
    return strides


def _broadcast(dice: Dice, shape: list[int]) -> list[int]:
    kept = [dice.chance(0.5) for _ in shape]
    if dice.chance(0.5):  # one end of the axes, as weights and masks have it
        cut, head = dice.random.randrange(len(shape) + 1), dice.chance(0.5)
        kept = [(axis < cut) == head for axis in range(len(shape))]
    own = contiguous([extent if keep else 1 for extent, keep in zip(shape, kept)])
    return [stride if keep else 0 for stride, keep in zip(own, kept)]


def _layout(dice: Dice, shape: list[int], weights: tuple[int, int, int, int]) -> list[int]:
    """As it should be, permuted, sliced or broadcast."""
    kind = dice.one(("plain", "permuted", "sliced", "broadcast"), weights)
    made = contiguous(shape) if kind == "plain" else _permuted(dice, shape) if kind == "permuted" else _sliced(dice, shape) if kind == "sliced" \
        else _broadcast(dice, shape)
    return [0 if extent == 1 else stride for extent, stride in zip(shape, made)]


def _affordable(shape: list[int], strides: list[list[int]]) -> bool:
    return math.prod(shape) <= MOST and all(span(shape, one) <= 2 * MOST for one in strides)


class Recorded:
    """Recorded calls, read once; none where the file is not there."""

    def __init__(self) -> None:
        self.calls: list[Case] = []
        self.sums: list[Case] = []

    def read(self, path: str) -> None:
        calls, self.sums = recorded(path)
        # Those on plain operands are like those of other families: one in eight of them.
        plain = [case for case in calls if all(one == contiguous(case.shape["shape"]) for one in case.shape["strides"])]
        seen = set(map(id, plain))
        self.calls = [case for case in calls if id(case) not in seen] + plain[::8]


RECORDED = Recorded()


def strided(dice: Dice) -> Iterator[Case]:
    usual = ("add", "mul", "copy", "cast", "mul", "add", "copy")
    while True:
        if RECORDED.calls and dice.chance(0.45):
            case = _longer(dice, dice.random.choice(RECORDED.calls))
            if _affordable(case.shape["shape"], case.shape["strides"]):
                yield case
            continue
        dtype = dice.one(("fp32", "bf16", "fp16"), (4, 4, 1))
        op = dice.one(usual) if dice.chance(0.6) else dice.one(list(STRIDED))
        inputs, masked = STRIDED[op]
        shape = _extents(dice)
        first = _layout(dice, shape, (4, 4, 2, 1) if inputs > 1 else (0, 6, 3, 1))
        if op == "add_" and 0 in [stride for extent, stride in zip(shape, first) if extent > 1]:
            continue
        strides = [_layout(dice, shape, (3, 0, 0, 4))] if masked else []
        strides.append(first)
        while len(strides) < inputs + masked:
            strides.append(first if dice.chance(0.15) else _layout(dice, shape, (2, 3, 1, 5)))
        if masked and op == "dropout backward":
            strides[0] = first
        if _affordable(shape, strides):
            yield Case("strided", dtype, (op,), {"shape": shape, "strides": strides})


def reduce_strided(dice: Dice) -> Iterator[Case]:
    while True:
        if RECORDED.sums and dice.chance(0.4):
            case = _longer(dice, dice.random.choice(RECORDED.sums))
            if math.prod(case.shape["shape"]) <= MOST:
                yield case
            continue
        dtype, op = dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), dice.one(REDUCTIONS, (10, 4, 2, 2, 1, 1))
        shape = _extents(dice, 2, 5)
        strides = _layout(dice, shape, (14, 4, 1, 1))
        over = sorted(dice.random.sample(range(len(shape)), 1 if op == "argmax" else dice.one((1, 2, 3), (6, 3, 1)) if len(shape) > 3 else
                                         dice.one((1, 2), (4, 1)) if len(shape) > 2 else 1))
        if _affordable(shape, [strides]) and math.prod(shape[axis] for axis in over) > 1:
            yield Case("reduce_strided", dtype, (op,), {"shape": shape, "strides": strides, "over": over})


def scan(dice: Dice) -> Iterator[Case]:
    while True:
        dtype, shape = dice.one(("fp32", "bf16", "fp16"), (4, 3, 1)), _extents(dice, 1, 4)
        over = [dice.random.randrange(len(shape)) if dice.chance(0.5) else len(shape) - 1]
        if math.prod(shape) <= MOST // 2:
            yield Case("scan", dtype, (dice.one(("cumsum", "cumprod", "logcumsumexp", "flip"), (8, 1, 1, 2)),),
                       {"shape": shape, "strides": contiguous(shape), "over": over})


def joined(dice: Dice) -> Iterator[Case]:
    """Parts that do not lie side by side, put together: heads that were moved before their tokens, slices, gradients of both."""
    while True:
        dtype, op, parts = dice.one(("fp32", "bf16", "fp16"), (4, 4, 1)), dice.one(("cat", "stack")), dice.one((2, 3, 4, 6), (5, 5, 1, 1))
        if dice.chance(0.6):  # of an attention
            shape = [dice.one((1, 2, 4, 8, 16, 32, 64, 128)), dice.one((1, 3, 6, 8, 12, 16, 20)), dice.one((16, 49, 64, 77, 128, 196, 197, 256, 512, 577, 1024)),
                     dice.one((32, 64, 80, 96, 128))]
            strides = contiguous(shape)
            if dice.chance(0.75):
                batch, heads, tokens, width = shape
                strides = [tokens * heads * width, width, heads * width, 1]
        else:
            shape = _extents(dice, 2, 4)
            strides = _layout(dice, shape, (1, 4, 4, 0))
        if math.prod(shape) * parts <= MOST and span(shape, strides) <= MOST:
            yield Case("joined", dtype, (op,), {"shape": shape, "strides": strides, "parts": parts,
                                               "over": [0 if op == "stack" else dice.random.randrange(len(shape))]})
