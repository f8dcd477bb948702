"""The three places from which a running model is watched: its Python, above autocast and autograd, and below autograd."""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .layouts import sequence_number

_CUDA = torch.device("cuda", 0)
_CPU = torch.device("cpu")


class AboveAutocast(SchemaCheckMode):  # the framework admits only its own classes at this level; nothing of it is used
    def __init__(self, recorder: Any) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self.recorder = recorder

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return self.recorder.called(operator, args, kwargs or {})


class BelowAutograd(TorchDispatchMode):
    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace in ("prim", "profiler") or not self.recorder.listening:
            return operator(*args, **kwargs)
        number = sequence_number()
        result = operator(*args, **kwargs)
        self.recorder.log.append((operator, args, kwargs, result, number))
        return result


class PythonSide(TorchFunctionMode):
    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder = recorder
        tensor = torch.Tensor
        self.answers: dict[Any, Callable] = {
            tensor.device.__get__: lambda t: _CPU if recorder.is_host(t) else _CUDA,
            tensor.is_cuda.__get__: lambda t: not recorder.is_host(t), tensor.is_cpu.__get__: lambda t: recorder.is_host(t),
            tensor.get_device: lambda t: 0, tensor.cuda: lambda t, *a, **k: recorder.uploaded(t, k.get("non_blocking", False)), tensor.cpu: lambda t, *a, **k: t,
            tensor.pin_memory: lambda t, *a, **k: t, tensor.record_stream: lambda t, *a, **k: None,
        }
        self.reads = {tensor.item, tensor.tolist, tensor.__bool__, tensor.__int__, tensor.__float__, tensor.__index__, tensor.numpy,
                      tensor.__contains__, tensor.__format__}
        self.dtype_read = tensor.dtype.__get__

    def __torch_function__(self, function, types, args=(), kwargs=None):
        recorder = self.recorder
        kwargs = kwargs or {}
        if recorder.busy:
            return function(*args, **kwargs)
        if function == self.dtype_read:
            recorder.note_dtype_read(args[0], sys._getframe(1))
            return function(*args)
        if args and isinstance(args[0], torch.Tensor) and function in self.answers:
            return self.answers[function](*args, **kwargs)
        if function in self.reads:
            return recorder.read_value(function, args, kwargs)
        recorder.frame = sys._getframe(1)
        on_host = None
        if function in _FACTORIES:  # without a device, new tensors are the host's
            on_host = recorder.default_device_is_host and (kwargs.get("device") is None or torch.device(kwargs["device"]).type == "cpu")
        if function is torch.Tensor.to:
            device = next((item for item in [kwargs.get("device"), *args[1:]] if _is_device(item)), None)
            if device is not None and torch.device(device).type != "cpu":
                args = (recorder.uploaded(args[0], kwargs.get("non_blocking", False)), *args[1:])
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": _CPU}
        if function is torch.Tensor.to and len(args) > 1:
            args = _without_devices(args)
            if len(args) == 1 and not any(key in kwargs for key in ("dtype", "other", "memory_format")):
                return args[0]
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        # Inside, the framework's own Python sees the truth about devices.
        following, recorder.following = recorder.following, False
        try:
            with recorder.on_host(on_host):
                made = function(*args, **kwargs)
        finally:
            recorder.following = following
        if function in _FROM_NUMBERS and on_host is False and args and not isinstance(args[0], torch.Tensor):
            recorder.waits_for_upload(made)
        return made


def _is_device(value) -> bool:
    return isinstance(value, torch.device) or isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu", "meta", "xpu", "mps")


_FACTORIES = {function for function in (
    torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.randperm, torch.arange, torch.linspace,
    torch.eye, torch.tensor, torch.as_tensor, torch.from_numpy, torch.scalar_tensor, torch.tril_indices, torch.triu_indices, torch.logspace,
    torch.empty_strided, torch.normal)}


# Made on the host and copied up, for which the host waits (memcpy_and_sync, aten/src/ATen/native/cuda/Copy.cu).
_FROM_NUMBERS = {torch.tensor, torch.as_tensor}


def _without_devices(args: tuple) -> tuple:
    kept = [args[0]]
    for value in args[1:]:
        if _is_device(value):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            continue
        kept.append(value)
    return tuple(kept)
