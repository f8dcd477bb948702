"""Real values, computed only when the model's code looks at one: on the CPU, from real inputs and, where the model has no
real weights, from made-up ones."""
from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from .recording import Value

_MOST_ELEMENTS = 600_000_000  # of weights: what a laptop computes with in seconds


def real_value(value: Value, recorder: Any, why: str) -> torch.Tensor:
    order: list[Value] = []
    seen: set[int] = set()
    waiting: list[tuple[Value, bool]] = [(value, False)]
    weights = 0
    while waiting:
        item, ready = waiting.pop()
        if item.real is not None:
            continue
        if ready:
            order.append(item)
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        if item.role in ("parameter", "buffer"):
            count = 1
            for extent in item.shape:
                count *= extent
            weights += count
        waiting.append((item, True))
        if item.producer is not None:
            for source in tree_flatten(item.producer[1:3])[0]:
                if isinstance(source, Value):
                    waiting.append((source, False))
    if weights > _MOST_ELEMENTS:
        from .recorder import CaptureError
        raise CaptureError(f"module '{recorder.modules.path or 'loss function'}': the code looks at a value ({why}) that depends on "
                           f"{weights / 1e9:.1f} billion weights without memory; capture a smaller model of the same kind, or make the code "
                           "independent of that value")
    for item in order:
        if item.real is None:
            _compute(item, recorder)
    return value.real


def _compute(item: Value, recorder: Any) -> None:
    if item.producer is None:
        item.real = _made_up(item, recorder)
        return
    operator, args, kwargs, _ = item.producer
    as_real = lambda source: source.real if isinstance(source, Value) else source
    args, kwargs = tree_map(as_real, args), tree_map(as_real, kwargs)
    if operator._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
        args = (args[0].clone(), *args[1:])
    with torch.no_grad():
        outputs = [tensor for tensor in tree_flatten(operator(*args, **kwargs))[0] if isinstance(tensor, torch.Tensor)]
    item.real = outputs[item.producer[3]]


def _made_up(item: Value, recorder: Any) -> torch.Tensor:
    sentence = "the code looks at values; they were computed from made-up weights or inputs"
    if sentence not in recorder.notes:
        recorder.notes.append(sentence)
    if item.dtype.is_floating_point:
        if item.role == "parameter" and len(item.shape) < 2 or item.name.endswith("running_var"):
            return torch.ones(item.shape, dtype=torch.float32)
        generator = torch.Generator().manual_seed(len(item.name))
        return torch.randn(item.shape, generator=generator) * (0.02 if item.role == "parameter" else 1.0)
    if item.dtype == torch.bool:
        return torch.ones(item.shape, dtype=torch.bool)
    return torch.zeros(item.shape, dtype=item.dtype)
