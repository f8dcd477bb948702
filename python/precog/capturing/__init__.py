"""Following any PyTorch training step without a GPU and without memory for its weights: `capture(loss_fn, model)`."""
from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from . import substitute
from .document import CapturedGraph, block_numbers, document_of
from .extents import NotSymbolic
from .recorder import CaptureError, NeedsValues, Recorder
from .recording import Recording
from .sizes import Axes, find_axes, resized, sample_points
from .stream import Different, align, same_structure

__all__ = ["CaptureError", "CapturedGraph", "capture"]


def capture(loss_fn: Callable[..., torch.Tensor] | None, model: nn.Module | None, *, batch: int | None = None, seq: int | None = None,
            src_seq: int | None = None, name: str | None = None, progress: Callable[[str], None] | None = None,
            build: Callable[..., tuple] | None = None) -> CapturedGraph:
    """The forward graph of the step that `loss_fn(model)` computes, free of any precision.

    loss_fn: takes the model and returns the loss, a tensor with one element. The input tensors that it holds (in its closure,
        its defaults, in globals) may be real, fake or meta ones, on any device; so may the model's parameters. If it takes arguments
        named `batch`, `seq` or `src_seq` as well, it is called with several sizes, and these stay symbolic.
    batch, seq, src_seq: sizes to capture at, where the loss function or `build` takes them.
    build: instead of the two above, a function that takes `batch`, `seq` and `src_seq` (those it wants) and returns (loss_fn, model).

    Otherwise the sizes are found from the inputs: the first axis that they share is the batch, the second axis of integer inputs the
    sequence. A size that the code does not let vary stays fixed, and the graph says why.
    """
    given = {key: value for key, value in (("batch", batch), ("seq", seq), ("src_seq", src_seq)) if value is not None}
    if build is not None:
        source: _Source = _BuiltSource(build, given)
    else:
        if not isinstance(model, nn.Module):
            raise TypeError(f"capture(loss_fn, model): the model must be a torch.nn.Module, not {type(model).__name__}")
        if not callable(loss_fn):
            raise TypeError(f"capture(loss_fn, model): loss_fn must be callable, not {type(loss_fn).__name__}")
        source = _GivenSource(loss_fn, model, given)
    say = progress or (lambda text: None)
    recordings, symbols, typed, reasons = _record_all(source, say)
    blocks = block_numbers(source.model)
    while True:
        try:
            document = document_of(recordings, symbols, typed, blocks, name or source.name, source.sizes, reasons)
            break
        except (NotSymbolic, Different) as error:
            if not symbols:
                raise CaptureError(f"the model does different things in different types: {error}") from error
            gone = symbols.pop()  # the last found: seq before batch
            reasons[gone] = f"sizes do not follow it simply ({error})"
            say(f"{gone} stays fixed: {reasons[gone]}")
            recordings, typed = _record_points(source, symbols, 0, say)
    say(f"{len(recordings[0].calls)} operators")
    return CapturedGraph(document)


class _Source:
    """Where loss function and model come from, and how their sizes are changed."""
    model: nn.Module
    name: str
    sizes: dict[str, int]
    reasons: dict[str, str]
    looks_at_values = False

    def record(self, sizes: dict[str, int], dtype: torch.dtype, keep_producers: bool, autocast: bool = False) -> Recording:
        raise NotImplementedError


class _GivenSource(_Source):
    def __init__(self, loss_fn: Callable[..., torch.Tensor], model: nn.Module, given: dict[str, int]) -> None:
        self.loss_fn, self.model, self.name = loss_fn, model, type(model).__name__
        self.arguments = _size_arguments(loss_fn, skip=1)
        inputs: list[tuple[str, torch.Tensor]] = []
        undo = substitute.Undo()
        try:
            substitute.replace_tensors(loss_fn, lambda name, tensor: inputs.append((name, tensor)) or tensor, undo)
        finally:
            undo.run()
        self.axes = find_axes(inputs, model)
        if self.arguments:
            self.axes = Axes({}, {key: given.get(key, default) for key, default in self.arguments.items()}, {})
        elif given:
            wrong = {key: value for key, value in given.items() if self.axes.sizes.get(key) not in (None, value)}
            self.axes.sizes.update({key: value for key, value in wrong.items()})
        self.sizes, self.reasons = dict(self.axes.sizes), dict(self.axes.reasons)

    def record(self, sizes: dict[str, int], dtype: torch.dtype, keep_producers: bool, autocast: bool = False) -> Recording:
        return _record(self.loss_fn, self.model, {**self.sizes, **sizes}, self.axes, dtype, keep_producers, autocast,
                       {key: {**self.sizes, **sizes}[key] for key in self.arguments})


class _BuiltSource(_Source):
    def __init__(self, build: Callable[..., tuple], given: dict[str, int]) -> None:
        self.build, self.name = build, "model"
        self.arguments = _size_arguments(build, skip=0)
        self.sizes = {key: given.get(key, default) for key, default in self.arguments.items()}
        self.reasons = {}
        self.model = self._built(self.sizes)[1]
        self.name = type(self.model).__name__

    def _built(self, sizes: dict[str, int]) -> tuple[Callable, nn.Module]:
        made = self.build(**{key: sizes[key] for key in self.arguments})
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(f"build() must return (loss_fn, model), not {type(made).__name__}")
        first, second = made
        return (second, first) if isinstance(first, nn.Module) and not isinstance(second, nn.Module) else (first, second)

    def record(self, sizes: dict[str, int], dtype: torch.dtype, keep_producers: bool, autocast: bool = False) -> Recording:
        loss_fn, model = self._built({**self.sizes, **sizes})
        inside = {key: {**self.sizes, **sizes}[key] for key in _size_arguments(loss_fn, skip=1)}
        return _record(loss_fn, model, {**self.sizes, **sizes}, Axes({}, {}, {}), dtype, keep_producers, autocast, inside)


def _size_arguments(function: Callable, skip: int) -> dict[str, int]:
    """Arguments named batch, seq, src_seq, with their defaults."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (TypeError, ValueError):
        return {}
    usual = {"batch": 2, "seq": 128, "src_seq": 128}
    return {p.name: p.default if isinstance(p.default, int) else usual[p.name] for p in parameters if p.name in usual}


def _record(loss_fn: Callable, model: nn.Module, sizes: dict[str, int], axes: Axes, dtype: torch.dtype, keep_producers: bool,
            autocast: bool, arguments: dict[str, int]) -> Recording:
    recorder = Recorder(dtype, keep_producers, autocast)
    undo = substitute.Undo()
    modules = substitute.modules_of(model, loss_fn)
    recorder.modules.name(modules)

    def input_stand_in(name: str, tensor: torch.Tensor) -> torch.Tensor:
        shape = axes.shape(tensor, sizes)
        real = None
        if not tensor.dtype.is_floating_point and tensor.device.type != "meta" and tensor.numel() and type(tensor) is torch.Tensor:
            real = resized(tensor.detach().cpu(), shape)
        return recorder.stand_in(tensor, "input", name, shape, real)
    try:
        substitute.replace_parameters(modules, lambda role, name, tensor: recorder.stand_in(tensor, role, name), undo)
        substitute.replace_tensors(loss_fn, input_stand_in, undo)
        call = (lambda one: loss_fn(one, **arguments)) if arguments else loss_fn
        return recorder.run(call, (model,), sizes)
    except (CaptureError, NeedsValues):
        raise
    except Exception as error:
        path = recorder.modules.place_of(error)
        where = f"module '{path}'" if path else "the loss function"
        operator = f", operator {recorder.failed[1]}" if recorder.failed is not None and recorder.failed[0] is error else ""
        raise CaptureError(f"{where}{operator}: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}") from error
    finally:
        undo.run()


def _record_one(source: _Source, sizes: dict[str, int], dtype: torch.dtype, autocast: bool = False) -> Recording:
    return source.record(sizes, dtype, source.looks_at_values, autocast)


def _record_points(source: _Source, symbols: list[str], attempt: int, say: Callable[[str], None]) -> tuple[list[Recording], Recording | None]:
    """Recordings at the sample points in fp32, the last one in bf16 as well as at sizes of its own."""
    try:
        return _record_at(source, symbols, sample_points({symbol: source.sizes[symbol] for symbol in symbols}, attempt, source.looks_at_values), say)
    except NeedsValues:
        source.looks_at_values = True
        say("the code looks at values: computing them on the CPU" + (", at a small batch" if "batch" in symbols else ""))
        return _record_at(source, symbols, sample_points({symbol: source.sizes[symbol] for symbol in symbols}, attempt, True), say)


def _record_at(source: _Source, symbols: list[str], points: list[dict[str, int]], say: Callable[[str], None]) -> tuple[list[Recording], Recording | None]:
    recordings: list[Recording] = []
    for point in points[:-1]:
        say(f"following the model at {_text(point)}")
        recordings.append(_record_one(source, point, torch.float32))
        same_structure(recordings[0], recordings[-1])
    typed: Recording | None = None
    try:
        say(f"following the model at {_text(points[-1])} in bf16")
        typed = _record_one(source, points[-1], torch.bfloat16)
        for recording in recordings:
            align(recording, typed)
        align(typed, recordings[0])
        same_structure(recordings[0], typed, same_type=False)
        recordings.append(typed)
    except (CaptureError, Different) as error:
        say(f"in bf16: {error}; types are taken from the code's reads of .dtype")
        recordings[0].notes.append(f"the model could not be followed in bf16 ({error}): types follow the code's reads of .dtype")
        typed = None
        if symbols:
            recordings.append(_record_one(source, points[-1], torch.float32))
            same_structure(recordings[0], recordings[-1])
    if recordings[0].reads_types:
        try:
            say("following the model under autocast")
            mixed = _record_one(source, points[0], torch.float32, autocast=True)
            for recording in recordings:
                align(recording, mixed)
        except (CaptureError, Different) as error:
            say(f"under autocast: {error}")
            recordings[0].notes.append(f"the model could not be followed under autocast ({error}): casts that its code makes only there are missing")
    return recordings, typed


def _text(point: dict[str, int]) -> str:
    return ", ".join(f"{key} {value}" for key, value in point.items()) or "the given sizes"


def _record_all(source: _Source, say: Callable[[str], None]):
    """Records at several sizes; a size whose change the code does not survive stays fixed."""
    symbols, reasons = list(source.sizes), dict(source.reasons)
    while True:
        failure: Exception | None = None
        for attempt in range(2 if any(symbol != "batch" for symbol in symbols) else 1):
            try:
                recordings, typed = _record_points(source, symbols, attempt, say)
                return recordings, symbols, typed, reasons
            except (CaptureError, Different) as error:
                failure = error
        if not symbols:
            raise failure
        gone = symbols.pop()
        reasons[gone] = f"the code does not work, or works differently, at another size ({failure})"
        say(f"{gone} stays fixed: {failure}")
