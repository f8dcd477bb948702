"""Which axes of the inputs are the batch and the sequence, and the sizes at which to look."""
from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import torch


@dataclasses.dataclass
class Axes:
    """For each input tensor (by identity) the symbol of each of its axes; and the sizes that the inputs have."""
    symbols: dict[int, dict[int, str]]
    sizes: dict[str, int]
    reasons: dict[str, str]       # why a size is not symbolic

    def shape(self, tensor: torch.Tensor, sizes: dict[str, int]) -> tuple[int, ...]:
        axes = self.symbols.get(id(tensor), {})
        return tuple(sizes[axes[axis]] if axis in axes else extent for axis, extent in enumerate(tensor.shape))


def find_axes(inputs: list[tuple[str, torch.Tensor]], model: Any) -> Axes:
    """The first axis that the inputs share is the batch; the second axis of integer inputs is the sequence."""
    found = Axes({}, {}, {})
    shaped = [(name, tensor) for name, tensor in inputs if tensor.dim() >= 1]
    if not shaped:
        found.reasons["batch"] = "the loss function holds no input tensors: its sizes are written into its code"
        return found
    leading = Counter(tensor.shape[0] for _, tensor in shaped)
    size, count = leading.most_common(1)[0]
    if count != len(shaped):
        found.reasons["batch"] = f"the inputs do not share their first axis: {', '.join(f'{n} {list(t.shape)}' for n, t in shaped[:6])}"
        return found
    found.sizes["batch"] = size
    for _, tensor in shaped:
        found.symbols[id(tensor)] = {0: "batch"}
    tokens = [(name, tensor) for name, tensor in shaped if tensor.dim() == 2 and not tensor.dtype.is_floating_point]
    if not tokens:
        found.reasons["seq"] = "no input is a batch of token sequences"
        return found
    two_sided = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False)) or \
        len({tensor.shape[1] for _, tensor in tokens}) == 2
    target = lambda name: "decoder" in name or "label" in name or "target" in name or "tgt" in name
    if two_sided and any(target(name) for name, _ in tokens):
        sides = {"seq": [pair for pair in tokens if target(pair[0])], "src_seq": [pair for pair in tokens if not target(pair[0])]}
    else:
        sides = {"seq": tokens}
    for symbol, members in sides.items():
        lengths = {tensor.shape[1] for _, tensor in members}
        if len(lengths) > 1:
            found.reasons[symbol] = f"token inputs of several lengths: {sorted(lengths)}"
        elif lengths:
            found.sizes[symbol] = lengths.pop()
            for _, tensor in members:
                found.symbols[id(tensor)][1] = symbol
    # Masks and positions of the same length move with it.
    length = found.sizes.get("seq")
    if length is not None and "src_seq" not in found.sizes:
        for _, tensor in shaped:
            for axis in range(1, tensor.dim()):
                if tensor.shape[axis] == length and (tensor.dim() <= 3 and axis == 1 or tensor.dim() == 4 and axis >= 2 and
                                                     tensor.shape[2] == tensor.shape[3] == length):
                    found.symbols[id(tensor)][axis] = "seq"
    return found


def sample_points(sizes: dict[str, int], attempt: int, small: bool = False) -> list[dict[str, int]]:
    """Sizes at which to record: the base, each symbol changed alone, and all of them at once (that one in a 16-bit type). Small batches
    where real values have to be computed: the expressions found there hold at any."""
    base, once, twice = {}, {}, {}
    for symbol, size in sizes.items():
        if symbol == "batch":
            start = 2 if small else max(2, size)
            base[symbol], once[symbol], twice[symbol] = start, 2 * start, 3 * start
        elif attempt == 0 and size >= 16 and size % 4 == 0:
            base[symbol], once[symbol], twice[symbol] = size, size // 2, size * 3 // 4
        elif attempt <= 1:
            base[symbol], once[symbol], twice[symbol] = max(2, size), 2 * max(2, size), 3 * max(2, size)
    points = [base]
    for symbol in base:
        points.append({**base, symbol: once[symbol]})
    points.append(twice)
    return points


def resized(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Real integers, repeated or cut to another shape: values stay possible ones."""
    out = tensor
    for axis, extent in enumerate(shape):
        if out.shape[axis] < extent:
            times = [1] * out.dim()
            times[axis] = -(-extent // out.shape[axis])
            out = out.repeat(times)
        out = out.narrow(axis, 0, extent)
    return out
