"""Puts weightless stand-ins in the place of a model's parameters and of the tensors that a loss function holds, and puts
everything back afterwards.

Parameters and buffers are swapped inside their modules (shared ones stay shared). Tensors are found in the loss function's
closure, defaults, the globals it names, and in dictionaries, lists, tuples and plain objects there.
"""
from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

_MAX_DEPTH = 5


class Undo:
    """Remembers how to restore what was replaced, last first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def add(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def run(self) -> None:
        while self._steps:
            self._steps.pop()()


def modules_of(model: nn.Module, loss_fn: Callable) -> dict[str, nn.Module]:
    """The model under the empty name, and other modules that the loss function holds (a criterion, a teacher) under theirs."""
    found = {"": model}
    inside = {id(module) for module in model.modules()}
    for name, value in slots_of(loss_fn):
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, nn.Module) and id(item) not in inside and not any(model is m for m in item.modules()):
                found.setdefault(name, item)
                inside.update(id(module) for module in item.modules())
    return found


def replace_parameters(modules: dict[str, nn.Module], make: Callable[[str, str, torch.Tensor], torch.Tensor], undo: Undo) -> None:
    """Calls make("parameter" | "buffer", qualified name, tensor) once per distinct tensor."""
    made: dict[int, torch.Tensor] = {}
    for prefix, root in modules.items():
        for path, module in root.named_modules(prefix=prefix):
            if hasattr(module, "_flat_weights"):  # recurrent layers keep their weights in a list as well
                undo.add(functools.partial(setattr, module, "_flat_weights", list(module._flat_weights)))
            for role, table in (("parameter", module._parameters), ("buffer", module._buffers)):
                for name, tensor in list(table.items()):
                    if tensor is None:
                        continue
                    if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                        raise TypeError(f"{path or 'the model'}.{name} is lazy and has no shape yet: run the model once first")
                    if id(tensor) not in made:
                        made[id(tensor)] = make(role, f"{path}.{name}" if path else name, tensor)
                    table[name] = made[id(tensor)]
                    undo.add(functools.partial(table.__setitem__, name, tensor))
            if hasattr(module, "_flat_weights"):
                module._flat_weights = [made.get(id(weight), weight) for weight in module._flat_weights]
            before = dict(module.__dict__)
            undo.add(functools.partial(_forget_stand_ins, module, before))


def _forget_stand_ins(module: nn.Module, before: dict[str, Any]) -> None:
    """Caches that the forward pass left in the module hold stand-ins: drop them."""
    from torch._subclasses.fake_tensor import FakeTensor
    for name, value in list(module.__dict__.items()):
        if isinstance(value, FakeTensor) or (isinstance(value, (list, tuple)) and any(isinstance(v, FakeTensor) for v in value)):
            if name in before and not isinstance(before[name], FakeTensor):
                module.__dict__[name] = before[name]
            else:
                del module.__dict__[name]


def slots_of(function: Callable) -> list[tuple[str, Any]]:
    """(name, value) of everything that a function holds besides its arguments."""
    return [(name, read()) for name, read, _ in _slots(function)]


def replace_tensors(function: Callable, make: Callable[[str, torch.Tensor], torch.Tensor], undo: Undo) -> None:
    """Calls make(name, tensor) once per distinct tensor that the function holds."""
    memo: dict[int, Any] = {}
    for name, read, write in _slots(function):
        old = read()
        new = _replaced(old, name, make, memo, 0)
        if new is not old:
            write(new)
            undo.add(functools.partial(write, old))


def _slots(function: Callable) -> list[tuple[str, Callable[[], Any], Callable[[Any], None]]]:
    slots: list[tuple[str, Callable[[], Any], Callable[[Any], None]]] = []
    if isinstance(function, functools.partial):
        for name in function.keywords:
            slots.append((name, functools.partial(function.keywords.__getitem__, name),
                          functools.partial(function.keywords.__setitem__, name)))
        return slots + _slots(function.func)
    if isinstance(function, types.MethodType):
        owner = function.__self__
        if not isinstance(owner, nn.Module) and hasattr(owner, "__dict__"):
            for name in owner.__dict__:
                slots.append((name, functools.partial(getattr, owner, name), functools.partial(setattr, owner, name)))
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        call = getattr(type(function), "__call__", None)
        if isinstance(call, types.FunctionType) and not isinstance(function, nn.Module):
            return _slots(types.MethodType(call, function))
        return slots
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            cell.cell_contents
        except ValueError:
            continue
        slots.append((name, functools.partial(getattr, cell, "cell_contents"), functools.partial(setattr, cell, "cell_contents")))
        if isinstance(cell.cell_contents, types.FunctionType) and cell.cell_contents is not function:
            slots += _slots(cell.cell_contents)
    for name in function.__code__.co_names:
        if name in function.__globals__ and not isinstance(function.__globals__[name], (types.ModuleType, type)):
            slots.append((name, functools.partial(function.__globals__.__getitem__, name),
                          functools.partial(function.__globals__.__setitem__, name)))
    if function.__defaults__:
        slots.append(("default", functools.partial(getattr, function, "__defaults__"), functools.partial(setattr, function, "__defaults__")))
    return slots


def _replaced(value: Any, name: str, make: Callable[[str, torch.Tensor], torch.Tensor], memo: dict[int, Any], depth: int) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    new = value
    if isinstance(value, nn.Parameter) or isinstance(value, (nn.Module, types.ModuleType, type)):
        return value
    if isinstance(value, torch.Tensor):
        new = make(name, value)
    elif depth < _MAX_DEPTH:
        again = lambda item, key: _replaced(item, str(key) if isinstance(key, str) else f"{name}.{key}", make, memo, depth + 1)
        if isinstance(value, (list, tuple)) and len(value) < 10_000:
            items = [again(item, index) for index, item in enumerate(value)]
            if any(a is not b for a, b in zip(items, value)):
                new = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        elif isinstance(value, Mapping) and len(value) < 10_000:
            changed = {key: after for key, before in value.items() if (after := again(before, key)) is not before}
            if changed:
                new = copy.copy(value)
                if isinstance(getattr(value, "data", None), dict):  # Hugging Face's BatchEncoding, UserDict
                    new.data = dict(value.data)
                for key, after in changed.items():
                    new[key] = after
        elif hasattr(value, "__dict__") and not callable(value):
            changed = {key: after for key, before in vars(value).items() if (after := again(before, key)) is not before}
            if changed:
                new = copy.copy(value)
                vars(new).update(changed)
    memo[id(value)] = new
    return new
