"""What is changed in the framework while a model is followed, and undone after: the module that is running, regions that
switch autocast off, and checkpointing (the request decides about recomputation, not the capture)."""
from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


class ModuleTracker:
    """Which module's code is running, by the names that the model gives them."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self.path = ""
        self._autocast: list[bool] = []
        self.autocast_off = False
        self._failed: tuple[BaseException, str] | None = None
        self.returned: Callable[[Any], None] = lambda result: None  # told what the outermost module returns

    def name(self, modules: dict[str, nn.Module]) -> None:
        for prefix, root in modules.items():
            for path, module in root.named_modules(prefix=prefix):
                self._names.setdefault(id(module), path)

    def enter(self, module: nn.Module, *_: Any) -> None:
        self._stack.append(self.path)
        self.path = self._names.get(id(module), self.path)

    def leave(self, module: nn.Module, arguments: Any = None, result: Any = None) -> None:
        error = sys.exc_info()[1]
        if error is not None and (self._failed is None or self._failed[0] is not error):
            self._failed = (error, self.path)  # the innermost module that an exception leaves
        if self._stack:
            self.path = self._stack.pop()
            if not self._stack and result is not None:
                self.returned(result)

    def place_of(self, error: BaseException) -> str:
        """The path of the module whose code raised it."""
        return self._failed[1] if self._failed is not None and self._failed[0] is error else self.path

    def enter_autocast(self, enabled: bool) -> None:
        self._autocast.append(self.autocast_off)
        self.autocast_off = not enabled

    def leave_autocast(self) -> None:
        if self._autocast:
            self.autocast_off = self._autocast.pop()


def _no_checkpoint_generator(function, *args, **kwargs):
    yield


def _watch_masks(recorder: Any) -> Callable[[], None]:
    """Notes which attention masks transformers leaves out because it may look at them: a compiler's trace will hold them."""
    masking = sys.modules.get("transformers.masking_utils")
    plain = {name: function for name in _LEFT_OUT if callable(function := getattr(masking, name, None))}

    def watched(function: Callable, causal: bool) -> Callable:
        parameters = inspect.signature(function)

        @functools.wraps(function)
        def ask(*args, **kwargs):
            left_out = function(*args, **kwargs)
            if left_out:
                given = parameters.bind(*args, **kwargs).arguments
                if isinstance(given.get("kv_length"), int):
                    recorder.left_out[causal, given["kv_length"]] = given.get("padding_mask") is not None
            return left_out
        return ask

    for name, function in plain.items():
        setattr(masking, name, watched(function, _LEFT_OUT[name]))

    def undo() -> None:
        for name, function in plain.items():
            setattr(masking, name, function)
    return undo


def _watch_logs(recorder: Any) -> Callable[[], None]:
    """Notes where the model's code logs: a trace of torch.compile's ends there (torch/_dynamo/variables/misc.py, LoggingLoggerVariable),
    also at what is said only once."""
    plain = {name: method for name, method in vars(logging.Logger).items()
             if callable(method) and (name in _LOGS or name.endswith(("_once", "_advice")))}

    def watched(method: Callable) -> Callable:
        @functools.wraps(method)
        def log(self, *args, **kwargs):
            if recorder.following and not recorder.busy and not self.name.startswith("torch"):
                recorder.ends.append(len(recorder.calls))
            return method(self, *args, **kwargs)
        return log
    for name, method in plain.items():
        setattr(logging.Logger, name, watched(method))

    def undo() -> None:
        for name, method in plain.items():
            setattr(logging.Logger, name, method)
    return undo


_LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log")
_LEFT_OUT = {"_ignore_causal_mask_sdpa": True, "_ignore_bidirectional_mask_sdpa": False}  # function: is the mask causal?


@contextlib.contextmanager
def patched_framework(recorder: Any) -> Iterator[None]:
    tracker: ModuleTracker = recorder.modules
    said: set[str] = set()

    def note(sentence: str) -> None:
        if sentence not in said and sentence not in recorder.notes:
            said.add(sentence)
            recorder.notes.append(sentence)

    region = torch.amp.autocast_mode.autocast
    plain_region = region.__init__
    checkpoint = torch.utils.checkpoint
    saved = (region.__enter__, region.__exit__, checkpoint.CheckpointFunction)
    # The form that is not reentrant; PyTorch 2.15 calls the second.
    generators = {name: getattr(checkpoint, name) for name in ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")
                  if hasattr(checkpoint, name)}

    def begin(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        # Where there is no GPU the framework switches such a region off and warns of it; what counts is what the code asked for.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain_region(self, device_type, dtype, enabled, cache_enabled)
        self._precog_asked = bool(enabled)

    def enter(self):
        asked = getattr(self, "_precog_asked", self._enabled)
        tracker.enter_autocast(asked)
        if asked:
            note("an autocast region inside the model was ignored: the request's precision decides")
        return self

    def leave(self, *_):
        tracker.leave_autocast()
        return False

    def generator(function, *args, **kwargs):
        note("activation checkpointing inside the model was ignored: the request's recompute decides")
        return _no_checkpoint_generator(function)

    # A library that does less while it is traced would be captured doing less than it does in training.
    tracing = [module for name, module in list(sys.modules.items())
               if name.startswith("transformers") and callable(getattr(module, "__dict__", {}).get("is_tracing"))]
    saved_tracing = [module.is_tracing for module in tracing]
    for module in tracing:
        module.is_tracing = lambda *_: False
    undo_masks, undo_logs = _watch_masks(recorder), _watch_logs(recorder)
    plain_device = FakeTensor.__dict__["device"]

    def device(tensor):
        """The model's code is told what it would be told in training; the framework's own code the truth."""
        if recorder.following and not recorder.busy:
            return torch.device("cpu") if recorder.is_host(tensor) else torch.device("cuda", 0)
        return plain_device.fget(tensor)
    FakeTensor.device = property(device, plain_device.fset)
    plain_capability = torch.cuda.get_device_capability
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)  # code that asks wants to know whether a fast path exists
    plain_apply = torch.autograd.Function.__dict__["apply"]

    def apply(cls, *args):
        return recorder.custom_function(plain_apply.__get__(None, cls), args)
    torch.autograd.Function.apply = classmethod(apply)
    hooks = [nn.modules.module.register_module_forward_pre_hook(tracker.enter),
             nn.modules.module.register_module_forward_hook(tracker.leave, always_call=True)]
    region.__init__, region.__enter__, region.__exit__ = begin, enter, leave

    class NoCheckpoint:  # the reentrant form
        @staticmethod
        def apply(function, preserve_rng_state, *args):
            note("activation checkpointing inside the model was ignored: the request's recompute decides")
            return function(*args)
    checkpoint.CheckpointFunction = NoCheckpoint
    for name in generators:
        setattr(checkpoint, name, generator)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        undo_masks()
        undo_logs()
        FakeTensor.device = plain_device
        torch.cuda.get_device_capability = plain_capability
        torch.autograd.Function.apply = plain_apply
        for module, function in zip(tracing, saved_tracing):
            module.is_tracing = function
        region.__init__ = plain_region
        region.__enter__, region.__exit__, checkpoint.CheckpointFunction = saved
        for name, plain in generators.items():
            setattr(checkpoint, name, plain)
