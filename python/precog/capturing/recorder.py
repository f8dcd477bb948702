"""Runs a loss function once on tensors without memory and records every operator at the level at which autocast decides.

Three interceptors work together:
- a function mode sees what the model's Python asks a tensor: it presents tensors as CUDA ones, remembers whose dtype was read, and
  answers questions about values;
- a dispatch mode above autocast and autograd sees `linear`, `scaled_dot_product_attention`, `layer_norm` as single calls;
- a dispatch mode below autograd sees the kernels that each of them launches, and, while backward runs, those of its gradient.
Autograd's sequence numbers tell which kernels of the backward pass belong to which call.
"""
from __future__ import annotations

import bisect
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dispatch.python
from torch._subclasses.fake_tensor import (DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode,
                                           UnsupportedOperatorException)
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from . import rules
from .patches import ModuleTracker, patched_framework
from .recording import BackCall, Call, Made, Recording, Value

_CUDA = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_sequence_number = torch._C._autograd._get_sequence_nr


class CaptureError(RuntimeError):
    """The model's code could not be followed; says at which module and operator."""


class NeedsValues(Exception):
    """The code looks at a value: record once more, keeping track of how values come about."""


class _AboveAutocast(SchemaCheckMode):  # the framework admits only its own classes at this level; nothing of it is used
    def __init__(self, recorder: "Recorder") -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self.recorder = recorder

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return self.recorder.called(operator, args, kwargs or {})


class _BelowAutograd(TorchDispatchMode):
    def __init__(self, recorder: "Recorder") -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace in ("prim", "profiler") or not self.recorder.listening:
            return operator(*args, **kwargs)
        number = _sequence_number()
        result = operator(*args, **kwargs)
        self.recorder.log.append((operator, args, kwargs, result, number))
        return result


class _PythonSide(TorchFunctionMode):
    def __init__(self, recorder: "Recorder") -> None:
        super().__init__()
        self.recorder = recorder
        tensor = torch.Tensor
        self.answers: dict[Any, Callable] = {
            tensor.device.__get__: lambda t: _CPU if recorder.is_host(t) else _CUDA,
            tensor.is_cuda.__get__: lambda t: not recorder.is_host(t), tensor.is_cpu.__get__: lambda t: recorder.is_host(t),
            tensor.get_device: lambda t: 0, tensor.cuda: lambda t, *a, **k: recorder.uploaded(t), tensor.cpu: lambda t, *a, **k: t,
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
                args = (recorder.uploaded(args[0]), *args[1:])
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
                return function(*args, **kwargs)
        finally:
            recorder.following = following


def _is_device(value) -> bool:
    return isinstance(value, torch.device) or isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu", "meta", "xpu", "mps")


_FACTORIES = {function for function in (
    torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.randperm, torch.arange, torch.linspace,
    torch.eye, torch.tensor, torch.as_tensor, torch.from_numpy, torch.scalar_tensor, torch.tril_indices, torch.triu_indices, torch.logspace,
    torch.empty_strided, torch.normal)}


def _without_devices(args: tuple) -> tuple:
    kept = [args[0]]
    for value in args[1:]:
        if _is_device(value):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            continue
        kept.append(value)
    return tuple(kept)


class Recorder:
    def __init__(self, dtype: torch.dtype, keep_producers: bool = False, autocast: bool = False) -> None:
        self.dtype = dtype
        self.autocast = autocast    # convert operands as autocast would: shows the casts that code makes only then
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.keep_producers = keep_producers
        self.calls: list[Call] = []
        self.leaves: list[Value] = []
        self.notes: list[str] = []
        self.log: list[tuple] = []
        self.listening = False
        self.busy = 0
        self.following = False           # the model's code is running
        self.frame: Any = None
        self._objects: dict[int, tuple[torch.Tensor, Value]] = {}  # by the Python object's identity, kept alive
        self._values: dict[tuple, Value] = {}        # memory and shape -> the newest value there
        self._by_storage: dict[int, Value] = {}
        self._owners: list[Any] = []                 # keeps memory addresses from being given out twice
        self.reads_types = False
        self._dtype_reads: list[tuple[int, Any, Value]] = []
        self._layouts = [0, 0]                       # images met by convolutions: contiguous, channels_last
        self._waiting_leaves: dict[int, Value] = {}  # by storage: parameters and inputs not used yet
        self.modules = ModuleTracker()
        self.failed: tuple[BaseException, str] | None = None   # the operator in which an exception arose
        self.inside_off = 0
        self._host: bool | None = None   # what is called now happens on the host; None: nobody said
        self.default_device_is_host = True
        self._above = _AboveAutocast(self)

    # ---- tensors and values -------------------------------------------------------------------------------------------
    def stand_in(self, tensor: torch.Tensor, role: str, name: str, shape=None, real: torch.Tensor | None = None) -> torch.Tensor:
        """A tensor without memory in the place of `tensor`; known to the recorder under its name."""
        dtype = self.dtype if tensor.dtype.is_floating_point and tensor.dtype != torch.float64 else tensor.dtype
        shape = tuple(tensor.shape) if shape is None else tuple(shape)
        with self.fake, torch.no_grad():
            if shape == tuple(tensor.shape) and rules.is_dense(tensor):
                made = torch.empty_strided(shape, tensor.stride(), dtype=dtype, device="cpu")
            else:
                made = _with_gaps(tensor, shape, dtype)
                if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
                    made = torch.empty(shape, dtype=dtype, device="cpu", memory_format=torch.channels_last)
        if role == "parameter" or (role == "buffer" and isinstance(tensor, torch.nn.Parameter)):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad and tensor.is_leaf:
            made.requires_grad_(True)
        value = self._new_value(made, role, name)
        value.frozen = role == "parameter" and not tensor.requires_grad
        value.real = real if real is not None else (tensor if _has_memory(tensor) and shape == tuple(tensor.shape) else None)
        self._waiting_leaves[value.storage] = value
        return made

    def _new_value(self, tensor: torch.Tensor, role: str = "activation", name: str = "") -> Value:
        storage = tensor.untyped_storage()
        value = Value(tensor, storage._cdata, role, name)
        self._owners.append(storage)
        self._objects[id(tensor)] = (tensor, value)
        self._values[self._key(tensor)] = value
        self._by_storage[value.storage] = value
        if tensor.grad_fn is not None:
            value.edge = (tensor.grad_fn._sequence_nr(), tensor.output_nr)
        if tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
            value.channels_last = True
        return value

    @staticmethod
    def _key(tensor: torch.Tensor) -> tuple:
        return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))

    def value(self, tensor: torch.Tensor) -> Value:
        known = self._objects.get(id(tensor))
        found = known[1] if known is not None else self._values.get(self._key(tensor))
        if found is None:
            base = self._by_storage.get(tensor.untyped_storage()._cdata)
            if base is None:
                found = self._new_value(tensor, "constant", "constant")
                self.leaves.append(found)
                return found
            if base.storage in self._waiting_leaves:
                self._use_leaf(base)
            # A view that was made where nobody looked (inside an operator, or before the step).
            found = self._new_value(tensor)
            self._by_storage[base.storage] = base
            self._add(Call("view", [base], [found], {"kind": _view_kind(base.shape, tensor)}, of={0: 0}), (0, 0))
        if found.storage in self._waiting_leaves:
            self._use_leaf(self._waiting_leaves[found.storage])
        return found

    def _use_leaf(self, value: Value) -> None:
        del self._waiting_leaves[value.storage]
        self.leaves.append(value)

    def _as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self.fake:
            return tensor
        key = id(tensor)
        known = self._converted.get(key)
        if known is None:
            name = tensor.name if isinstance(getattr(tensor, "name", None), str) else "constant"
            made = self.stand_in(tensor, "parameter" if isinstance(tensor, torch.nn.Parameter) else "constant", name or "constant")
            known = self._converted[key] = (made, tensor)
        return known[0]

    # ---- the host's own tensors -----------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def on_host(self, host: bool | None) -> Iterator[None]:
        self._host, before = host, self._host
        try:
            yield
        finally:
            self._host = before

    def is_host(self, tensor: torch.Tensor) -> bool:
        known = self._objects.get(id(tensor))
        value = known[1] if known is not None else self._values.get(self._key(tensor)) if isinstance(tensor, FakeTensor) else None
        return value is not None and value.host

    def uploaded(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host tensor's copy on the device; others as they are."""
        if not self.is_host(tensor):
            return tensor
        self.busy += 1
        try:
            source = self.value(tensor)
            made = self._plain(torch.ops.aten.clone.default, (tensor,), {})
            value = self._new_value(made)
            value.real, value.producer = source.real, (torch.ops.aten.clone.default, (source,), {}, 0) if self.keep_producers else None
            self._add(Call("copy", [source], [value], kind="copy", derives=True), (0, 0))
            return made
        finally:
            self.busy -= 1

    # ---- the calls ----------------------------------------------------------------------------------------------------
    def _add(self, call: Call, nodes: tuple[int, int]) -> None:
        if self._host:
            for value in call.outputs:
                value.host = True
            return
        for value in [*call.inputs, call.attrs.get("like")]:
            if isinstance(value, Value) and value.host and value.role == "activation":
                value.role, value.name = "constant", "host"  # read by the device: comes from outside
                self.leaves.append(value)
        call.module = self.modules.path
        call.off = call.off or self.modules.autocast_off or self.inside_off > 0
        call.nodes = nodes
        self.calls.append(call)

    def called(self, operator, args, kwargs):
        """Every operator that the model's code calls arrives here, above autocast and autograd."""
        if self.busy:
            return self._plain(operator, args, kwargs)
        self.busy += 1
        try:
            flat, spec = tree_flatten((args, kwargs))
            if any(isinstance(item, torch.Tensor) and not (isinstance(item, FakeTensor) and item.fake_mode is self.fake) for item in flat) \
                    or any(isinstance(item, torch.device) for item in flat):
                flat = [self._as_fake(item) if isinstance(item, torch.Tensor) else _CPU if isinstance(item, torch.device) else item
                        for item in flat]
                args, kwargs = tree_unflatten(flat, spec)
            if self.autocast and not self.modules.autocast_off:
                wanted = rules.autocast_type(operator)
                if wanted is not None:
                    flat = [self._converted_silently(item, wanted) if isinstance(item, torch.Tensor) else item for item in flat]
                    args, kwargs = tree_unflatten(flat, spec)
            producer = self._producer(operator, args, kwargs)
            try:
                result = self._record(operator, args, kwargs, [item for item in flat if isinstance(item, torch.Tensor)])
            except (DataDependentOutputException, DynamicOutputShapeException):
                if not self.keep_producers or any(isinstance(item, torch.Tensor) and item.requires_grad for item in flat):
                    raise
                result = self._value_sized(operator, rules.name_of(operator), args, kwargs)
            self._remember(producer, result)
            return result
        except (CaptureError, NeedsValues):
            raise
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            if not self.keep_producers:
                raise NeedsValues from error
            raise CaptureError(f"{self._where(operator)}: its result depends on values that are not known here") from error
        except UnsupportedOperatorException as error:
            raise CaptureError(f"{self._where(operator)}: the operator has no shape rule (register a fake implementation, "
                               "torch.library.register_fake)") from error
        except Exception as error:
            if self.failed is None or self.failed[0] is not error:
                self.failed = (error, rules.name_of(operator))
            raise
        finally:
            self.busy -= 1

    def _converted_silently(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What autocast does in front of an operator; the same value to the recording."""
        if not tensor.dtype.is_floating_point or tensor.dtype == dtype or tensor.dtype == torch.float64:
            return tensor
        value = self.value(tensor)
        converted = self._plain(torch.ops.aten._to_copy.default, (tensor,), {"dtype": dtype})
        self._owners.append(converted.untyped_storage())
        self._objects[id(converted)] = (converted, value)
        return converted

    def _where(self, operator) -> str:
        return f"module '{self.modules.path or 'loss function'}', operator {operator}"

    @staticmethod
    def _plain(operator, args, kwargs):
        with torch._C._DisablePythonDispatcher():
            return operator(*args, **kwargs)

    def _run(self, operator, args, kwargs) -> tuple[Any, list[tuple], tuple[int, int]]:
        """Runs the operator; returns its result, the kernels below autograd, and the autograd nodes it made."""
        self.log, kept = [], self.log
        first = _sequence_number()
        self.listening = True
        try:
            result = self._plain(operator, args, kwargs)
        finally:
            self.listening = False
            log, self.log = self.log, kept
        return result, log, (first, _sequence_number())

    def _record(self, operator, args, kwargs, tensors: list[torch.Tensor]):
        name = rules.name_of(operator)
        if name in rules.LOOK_INSIDE and _is_composite(operator):
            return self._look_inside(operator, args, kwargs)
        if name in rules.VALUE_SIZED or name == "where" and len(tensors) == 1:
            return self._value_sized(operator, name, args, kwargs)
        if name in ("index", "index_put", "_index_put_impl", "_unsafe_index"):
            args = self._integer_indices(args)
        if not self._host and (all(self.is_host(tensor) for tensor in tensors) if tensors else
                               self._host is None and _takes_device(operator) and kwargs.get("device") is None):
            with self.on_host(True):
                return self._record(operator, args, kwargs, tensors)
        special = _SPECIAL.get(name)
        if special is not None:
            done = special(self, operator, name, args, kwargs)
            if done is not NotImplemented:
                return done[0]
        before = [self.value(tensor) for tensor in tensors]
        whole = args[0]._base if rules.is_mutable(operator) and args and isinstance(args[0], torch.Tensor) else None
        whole_before = self.value(whole) if whole is not None else None
        result, log, nodes = self._run(operator, args, kwargs)
        if whole is not None and whole.grad_fn is not None and nodes[0] <= whole.grad_fn._sequence_nr() < nodes[1]:
            self._write_into_view(operator, args, kwargs, log, nodes, whole, whole_before)
            return result
        outside = rules.autocast_decides(operator)
        launched = [entry for entry in log if not _is_view(entry)]
        if outside and len(launched) != 1:
            self._doors(operator, tensors, before, result)
            self.inside_off += 1
        renamed = name if outside and len(launched) == 1 and rules.name_of(launched[0][0]) not in rules.LOW_PRODUCTS else None
        try:
            self._parts(log, nodes, name, renamed)
        finally:
            if outside and len(launched) != 1:
                self.inside_off -= 1
        return result

    def _parts(self, log: list[tuple], nodes: tuple[int, int], name: str = "", renamed: str | None = None) -> None:
        """The kernels of one operator as calls of their own, each with the autograd nodes that were made for it."""
        if name not in ("detach", "alias"):  # autograd keeps an operator's own result under a new name: not a call
            log = [entry for entry in log if rules.name_of(entry[0]) not in ("detach", "alias")]
        if any(rules.is_mutable(entry[0]) and rules.name_of(entry[0]) == name for entry in log):
            log = [entry for entry in log if not _is_view(entry)]  # autograd looks at the view anew: not a call
        if len(log) == 2 and rules.name_of(log[0][0]) == "clone" and rules.is_mutable(log[1][0]) and log[1][1][0] is log[0][1][0]:
            return self._in_place_after_copy(log, nodes)
        boundary = nodes[0]
        for index, entry in enumerate(log):
            last = nodes[1] if index == len(log) - 1 else max(boundary, entry[4])
            self._low(entry, (boundary, last), renamed)
            boundary = last

    def _in_place_after_copy(self, log: list[tuple], nodes: tuple[int, int]) -> None:
        """Autograd keeps a copy of an operand that is overwritten: written as reading the copy and leaving it alone, which moves and
        holds as many bytes."""
        operand = self.value(log[0][1][0])
        kept = self._new_value(log[0][3])
        kept.origin, kept.edge, kept.requires_grad = operand, operand.edge, operand.requires_grad
        self._add(Call("contiguous", [operand], [kept], kind="copy", derives=True), (0, 0))
        operator, args, kwargs, result, _ = log[1]
        others = [self.value(item) for item in tree_flatten((args[1:], kwargs))[0] if isinstance(item, torch.Tensor)]
        self._add(Call(rules.name_of(operator), [kept, *others], [self._new_value(result)], kind=rules.kind_of(operator)), nodes)

    def _doors(self, operator, tensors, before, result) -> None:
        """Autocast converts the operands of an operator that is written down as its parts."""
        if not rules.autocast_decides(operator) or self.modules.autocast_off or self.inside_off:
            return
        wanted = "lower" if rules.name_of(operator) in _LOWER or rules.name_of(operator) in rules.PRODUCTS else "fp32"
        for tensor, value in zip(tensors, before):
            if not tensor.dtype.is_floating_point:
                continue
            inside = self._new_value(tensor)
            inside.storage = value.storage
            inside.edge, inside.origin = value.edge, value
            self._add(Call("autocast", [value], [inside], {"class": wanted}, of={0: 0}), (0, 0))

    def _look_inside(self, operator, args, kwargs):
        self.busy -= 1
        torch._ops._set_mode_pre_dispatch(self._above)
        try:
            return operator.decompose(*args, **kwargs)
        finally:
            torch._ops._pop_mode_from_pre_dispatch()
            self.busy += 1

    def _low(self, entry: tuple, nodes: tuple[int, int], renamed: str | None = None) -> None:
        """One kernel-level operator as a call of its own."""
        operator, args, kwargs, result, _ = entry
        inputs = [tensor for tensor in tree_flatten((args, kwargs))[0] if isinstance(tensor, torch.Tensor)]
        outputs = [tensor for tensor in tree_flatten(result)[0] if isinstance(tensor, torch.Tensor)]
        operands = [self.value(tensor) for tensor in inputs]
        name = rules.name_of(operator)
        if name == "_to_copy":
            self.cast(operands[0], outputs[0], nodes)
            return
        if not outputs:
            self._add(Call(name, operands, [], kind=rules.kind_of(operator)), nodes)
            return
        mutable = rules.is_mutable(operator)
        storages = {value.storage: index for index, value in reversed(list(enumerate(operands)))}
        if _is_view(entry):
            made, of = [], {}
            for index, tensor in enumerate(outputs):
                made.append(self._new_value_of_view(tensor))
                of[index] = storages.get(made[-1].storage, 0)
            self._add(Call("view", operands[:1] if operands else [], made, {"kind": _view_kind(operands[0].shape, outputs[0])}, of=of), nodes)
            return
        attrs: dict[str, Any] = {}
        if name in rules.LOW_PRODUCTS:
            attrs = _gemm_attrs(name, inputs)
        elif name == "mean" or name == "sum":
            if kwargs.get("dtype") is not None:
                attrs["type"] = kwargs["dtype"]
        if not inputs and rules.kind_of(operator) not in ("fill", "random", "view"):
            name = "scalar_tensor"  # arithmetic of numbers alone
        if outputs[0].dtype.is_floating_point and rules.kind_of(operator) in ("fill", "random", "view") and (
                not inputs or isinstance(kwargs.get("dtype"), torch.dtype) and not any(item.dtype.is_floating_point for item in inputs)):
            attrs["like"] = self._like()   # a new tensor of a type that the code took from another
        strided = _strided(inputs, outputs)
        values, of = [], {}
        for index, tensor in enumerate(outputs):
            value = self._new_value(tensor)
            if value.storage in storages:
                of[index] = storages[value.storage]
            if value.edge is not None and nodes[0] < nodes[1] and not nodes[0] <= value.edge[0] < nodes[1]:
                value.edge = (nodes[1] - 1, index)  # changed in place since, by a later part of the same operator
            values.append(value)
        if mutable and not of and operands:
            of[0] = 0
        if name == "clone":
            name = "contiguous"
        kind = "fill" if name == "scalar_tensor" else rules.kind_of(operator)
        self._add(Call(renamed if renamed and not mutable else name, operands, values, attrs, strided=strided, kind=kind, of=of), nodes)

    def _write_into_view(self, operator, args, kwargs, log, nodes, whole: torch.Tensor, whole_before: Value) -> None:
        """In place on a view that autograd follows (`x[:, :4] = y`): what changes is the tensor that the view is a part of, and the
        view is looked at anew if it is read again."""
        part = args[0]
        others = [self.value(item) for item in tree_flatten((args[1:], kwargs))[0] if isinstance(item, torch.Tensor)]
        changed = self._new_value(whole)
        boundary = whole.grad_fn._sequence_nr() + 1
        name = rules.name_of(operator)
        self._add(Call(name, [whole_before, *others], [changed], kind=rules.kind_of(operator), of={0: 0}), (nodes[0], boundary))
        if part is not whole:
            again = self._new_value(part)
            again.view_of = changed
            self._by_storage[again.storage] = changed
            self._add(Call("view", [changed], [again], {"kind": _view_kind(changed.shape, part)}, of={0: 0}, replays_view=True), (boundary, nodes[1]))

    def _new_value_of_view(self, tensor: torch.Tensor) -> Value:
        base = self._by_storage.get(tensor.untyped_storage()._cdata)
        value = self._new_value(tensor)
        if base is not None:
            self._by_storage[value.storage] = base
            value.view_of = base
        return value

    # ---- casts --------------------------------------------------------------------------------------------------------
    def note_dtype_read(self, tensor: torch.Tensor, frame) -> None:
        if tensor.dtype.is_floating_point and isinstance(tensor, FakeTensor):
            self.reads_types = True
            self._dtype_reads.append((id(frame), frame.f_code, self.value(tensor)))
            if len(self._dtype_reads) > 4096:
                del self._dtype_reads[:2048]

    def _like(self) -> Value | None:
        """The tensor whose dtype the code probably took: the last one read in this frame, or in its callers'."""
        frame, depth = self.frame, 0
        while frame is not None and depth < 12:
            for number, code, value in reversed(self._dtype_reads):
                if number == id(frame) and code is frame.f_code:
                    return value
            frame, depth = frame.f_back, depth + 1
        return None

    def cast(self, operand: Value, result: torch.Tensor, nodes: tuple[int, int], like: Value | None = None) -> None:
        made = self._new_value(result)
        attrs: dict[str, Any] = {"to": result.dtype}
        if result.dtype.is_floating_point:
            attrs["like"] = like if like is not None else self._like()
        self._add(Call("cast", [operand], [made], attrs, derives=True), nodes)

    # ---- values that the code looks at --------------------------------------------------------------------------------
    def _producer(self, operator, args, kwargs) -> tuple | None:
        """How a result comes about, said before the operator runs: an in-place one changes what its operand is."""
        if not self.keep_producers:
            return None
        as_value = lambda item: self.value(item) if isinstance(item, torch.Tensor) else item
        return (operator, tree_map(as_value, args), tree_map(as_value, kwargs))

    def _remember(self, producer: tuple | None, result) -> None:
        if producer is None:
            return
        for index, tensor in enumerate(item for item in tree_flatten(result)[0] if isinstance(item, torch.Tensor)):
            value = self.value(tensor)
            if value.real is None and value.producer is None and value.role == "activation":
                value.producer = (*producer, index)

    def read_value(self, function, args, kwargs):
        tensor = args[0]
        if not isinstance(tensor, torch.Tensor):
            return function(*args, **kwargs)
        fake = self._as_fake(tensor)
        if not isinstance(tensor, FakeTensor) and _has_memory(tensor):
            return function(*args, **kwargs)
        real = self.real(fake, f"{getattr(function, '__name__', 'a read')}")
        if not self.is_host(fake):
            self._add(Call("read_back", [self.value(fake)], [], derives=True), (0, 0))
        with _no_modes():
            return function(real, *args[1:], **kwargs)

    def real(self, tensor: torch.Tensor, why: str) -> torch.Tensor:
        from .values import real_value
        if not self.keep_producers:
            raise NeedsValues
        with _no_modes():
            return real_value(self.value(tensor), self, why)

    def _value_sized(self, operator, name, args, kwargs):
        """nonzero and its kin: computed for real, because the sizes of all that follows depend on it."""
        if name == "masked_select":
            picked = self._integer_indices((args[0], [args[1]]))
            result = self._record(torch.ops.aten.index.Tensor, picked, {}, [])
            return result
        if name == "repeat_interleave" and (len(args) > 1 and not isinstance(args[1], torch.Tensor) or kwargs.get("output_size")):
            result, log, nodes = self._run(operator, args, kwargs)
            self._parts(log, nodes)
            return result
        flat = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
        reals = {id(item): self.real(item, name) for item in flat}
        as_real = lambda item: reals[id(item)] if isinstance(item, torch.Tensor) else item
        with _no_modes(), torch.no_grad():
            computed = operator(*tree_map(as_real, args), **tree_map(as_real, kwargs))
        outputs = []
        operands = [self.value(item) for item in flat]

        def wrapped(item):
            if not isinstance(item, torch.Tensor):
                return item
            with self.fake:
                made = torch.empty(item.shape, dtype=item.dtype if not item.dtype.is_floating_point else self.dtype, device="cpu")
            value = self._new_value(made)
            value.real = item
            outputs.append(value)
            return made
        result = tree_map(wrapped, computed)
        self._add(Call(name, operands, outputs, kind="sort"), (0, 0))
        self._add(Call("read_back", outputs[:1], [], derives=True), (0, 0))
        return result

    def _integer_indices(self, args):
        """A boolean index becomes the integer ones that the framework would find for it."""
        if len(args) < 2 or not isinstance(args[1], (list, tuple)):
            return args
        indices, changed = [], False
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                found = self._value_sized(torch.ops.aten.nonzero.default, "nonzero", (index,), {})
                for column in range(index.dim()):
                    with self.fake:
                        part = torch.empty((found.shape[0],), dtype=torch.int64, device="cpu")
                    value = self._new_value(part)
                    real = self.value(found).real
                    value.real = real[:, column] if real is not None else None
                    self._add(Call("view", [self.value(found)], [value], {"kind": "slice"}, of={0: 0}), (0, 0))
                    indices.append(part)
                changed = True
            else:
                indices.append(index)
        return (args[0], indices, *args[2:]) if changed else args

    def custom_function(self, apply: Callable, args: tuple):
        """A torch.autograd.Function of the user's: its forward was recorded operator by operator; its backward belongs to this call."""
        if self.busy:
            return apply(*args)
        first = _sequence_number()
        result = apply(*args)
        outputs = [item for item in tree_flatten(result)[0] if isinstance(item, torch.Tensor) and item.grad_fn is not None]
        if not outputs:
            return result
        operands = [self.value(item) for item in tree_flatten(args)[0] if isinstance(item, torch.Tensor)]
        inner = [self.value(item) for item in outputs]
        made = [self._new_value(item) for item in outputs]
        self._add(Call("autograd_function", [*inner, *operands], made, {"kind": "reshape"}, kind="view",
                       of={index: index for index in range(len(made))}), (first, first + 1))
        return result

    # ---- one run ------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        self._converted: dict[int, tuple] = {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(patched_framework(self))
            stack.enter_context(self.fake)
            stack.enter_context(_BelowAutograd(self))
            stack.enter_context(_PythonSide(self))
            stack.enter_context(torch._dispatch.python.enable_python_dispatcher())
            stack.enter_context(self._above)
            yield

    def run(self, loss_fn: Callable, arguments: tuple, sizes: dict[str, int]) -> Recording:
        with torch.random.fork_rng(devices=[]), self.active(), torch.enable_grad():
            with _no_modes():
                torch.manual_seed(0)  # where real values are computed, every recording draws the same random numbers
            self.following = True
            try:
                loss = loss_fn(*arguments)
            finally:
                self.following = False
            if not isinstance(loss, torch.Tensor):
                loss = getattr(loss, "loss", loss)
            if not isinstance(loss, torch.Tensor):
                raise CaptureError(f"the loss function returned {type(loss).__name__}; it must return the loss, a tensor with one element")
            if loss.numel() != 1:
                raise CaptureError(f"the loss has shape {list(loss.shape)}; it must have one element (take its mean or sum)")
            if not loss.requires_grad:
                raise CaptureError("the loss does not depend on any parameter that takes a gradient (all frozen, or inside no_grad)")
            final = self.value(loss)
        if not self.autocast:  # that recording is about the forward pass's casts alone
            from .backward import record_backward
            with patched_framework(self), self.fake:
                record_backward(self, loss)
        self.leaves.extend(value for value in self._waiting_leaves.values() if value.role == "parameter")
        contiguous, channels_last = self._layouts
        return Recording(self.calls, self.leaves, final, self.notes, channels_last > contiguous, sizes, self.dtype, self.reads_types, self.autocast)

    def call_at(self) -> Callable[[int], Call | None]:
        """Finds the call that made the autograd node with a given sequence number."""
        calls = [call for call in self.calls if call.nodes[1] > call.nodes[0]]
        starts = [call.nodes[0] for call in calls]

        def find(number: int) -> Call | None:
            index = bisect.bisect_right(starts, number) - 1
            return calls[index] if index >= 0 and number < calls[index].nodes[1] else None
        return find


def _takes_device(operator) -> bool:
    return any(argument.name == "device" for argument in operator._schema.arguments)


@contextlib.contextmanager
def _no_modes() -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch._C._DisablePythonDispatcher():
        yield


def _with_gaps(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Of this shape, with the gaps between rows that a part of a larger tensor has (`tokens[:, 1:]`)."""
    strides, padded = tensor.stride(), list(shape)
    if tensor.numel() == 0 or not strides or strides[-1] != 1 or any(s <= 0 for s in strides):
        return torch.empty(shape, dtype=dtype, device="cpu")
    for axis in range(1, len(shape)):
        if strides[axis - 1] % strides[axis] or strides[axis - 1] < strides[axis] * tensor.shape[axis]:
            return torch.empty(shape, dtype=dtype, device="cpu")
        padded[axis] += strides[axis - 1] // strides[axis] - tensor.shape[axis]
    made = torch.empty(padded, dtype=dtype, device="cpu")
    for axis, extent in enumerate(shape):
        made = made.narrow(axis, 0, extent)
    return made


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


def _is_composite(operator) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


def _is_view(entry: tuple) -> bool:
    operator, args, kwargs, result, _ = entry
    if rules.is_mutable(operator):
        return False
    first = result[0] if isinstance(result, (list, tuple)) and result else result
    if not isinstance(first, torch.Tensor) or not args or not isinstance(args[0], torch.Tensor):
        return False
    return first.untyped_storage()._cdata == args[0].untyped_storage()._cdata


def _view_kind(shape: tuple[int, ...], tensor: torch.Tensor) -> str:
    before = 1
    for extent in shape:
        before *= extent
    after = tensor.numel()
    if after != before:
        return "slice" if after < before else "expand"
    return "reshape" if tensor.is_contiguous() else "transpose"


def _strided(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Whether large operands are laid out differently from each other, or with gaps."""
    largest = max((tensor.numel() for tensor in inputs + outputs), default=0)
    layouts = set()
    for tensor in inputs + outputs:
        if tensor.numel() != largest or largest <= 1:
            continue
        if tensor.is_contiguous():
            layouts.add("contiguous")
        elif rules.is_dense(tensor):
            layouts.add(tuple(stride for stride, size in zip(tensor.stride(), tensor.shape) if size != 1))
        else:
            return True
    return len(layouts) > 1


def _gemm_attrs(name: str, inputs: list[torch.Tensor]) -> dict[str, Any]:
    a, b = inputs[-2], inputs[-1]
    if name == "dot":
        return {"gemm": [1, 1, 1, a.shape[0]]}
    if name in ("mv", "addmv"):
        return {"gemm": [1, a.shape[0], 1, a.shape[1]]}
    attrs: dict[str, Any] = {"gemm": [a.shape[0] if a.dim() == 3 else 1, a.shape[-2], b.shape[-1], a.shape[-1]]}
    if a.stride(-2) == 1 and a.shape[-1] > 1 and a.stride(-1) != 1:
        attrs["transposed_a"] = True
    return attrs


# ---- operators with something particular to say --------------------------------------------------------------------------
def _product(rec: Recorder, operator, name, args, kwargs):
    tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
    operands = [rec.value(tensor) for tensor in tensors]
    result, log, nodes = rec._run(operator, args, kwargs)
    launched = [entry for entry in log if not _is_view(entry)]
    products = [entry for entry in launched if rules.name_of(entry[0]) in rules.LOW_PRODUCTS]
    if len(launched) != 1 or len(products) != 1:
        # Operands copied to another layout first, or a bias added on its own: autocast's door, then the parts.
        rec._doors(operator, tensors, operands, result)
        rec.inside_off += 1
        try:
            return _as_parts(rec, result, log, nodes)
        finally:
            rec.inside_off -= 1
    attrs = _gemm_attrs(rules.name_of(products[0][0]), [item for item in products[0][1] if isinstance(item, torch.Tensor)])
    call = Call(name, operands, [rec._new_value(result)], attrs)
    if rules.is_mutable(operator):
        call.of[0] = 0
    rec._add(call, nodes)
    return (result,)


def _as_parts(rec: Recorder, result, log, nodes):
    rec._parts(log, nodes)
    return (result,)


def _listed(value, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(item) for item in (values * count if len(values) == 1 else values)]


def _convolution(rec: Recorder, operator, name, args, kwargs):
    names = [argument.name for argument in operator._schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    defaults = {argument.name: argument.default_value for argument in operator._schema.arguments if argument.has_default_value()}
    given = {**defaults, **given}
    if isinstance(given.get("padding"), str):
        return (rec._look_inside(operator, args, kwargs),)
    x, weight = given["input"], given["weight"]
    operands = [rec.value(x), rec.value(weight), rec.value(given["bias"]) if given.get("bias") is not None else None]
    result, _, nodes = rec._run(operator, args, kwargs)
    axes = weight.dim() - 2
    transposed = bool(given.get("transposed", "transpose" in name))
    attrs = {"kernel": list(weight.shape[2:]), "stride": _listed(given["stride"], axes), "padding": _listed(given["padding"], axes),
             "dilation": _listed(given["dilation"], axes), "groups": int(given["groups"])}
    if transposed:
        attrs["transposed"] = True
    channels_last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    rec._layouts[1 if channels_last else 0] += 1
    rec._add(Call("convolution", operands, [rec._new_value(result)], attrs, derives=True), nodes)
    return (result,)


def _attention(rec: Recorder, operator, name, args, kwargs):
    q, k, v = args[:3]
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
    operands = [rec.value(item) for item in (q, k, v)] + ([rec.value(mask)] if mask is not None else [])
    result, _, nodes = rec._run(_FusedAttention.apply, (q, k, v, mask), {})
    attrs = {"causal": bool(causal), "dropout": float(dropout)}
    if kwargs.get("enable_gqa"):
        attrs["gqa"] = True
    # Where no fused kernel runs, operands whose batch and heads do not form one axis are copied for the batched product.
    scattered = [item.dim() == 4 and item.shape[0] > 1 and item.shape[1] > 1 and item.stride(0) != item.shape[1] * item.stride(1) for item in (q, k, v)]
    if any(scattered):
        attrs["scattered"] = scattered
    if mask is not None and mask.dim() and mask.shape[-1] > 1 and mask.stride(-1) != 1:
        attrs["mask_scattered"] = True
    rec._add(Call(name, operands, [rec._new_value(result)], attrs, derives=True), nodes)
    return (result,)


class _FusedAttention(torch.autograd.Function):
    """Results and gradients laid out as CUDA's fused kernels do: [batch, sequence, heads, width] in memory in fp32 (the memory-efficient
    kernel), like the operands in 16 bits (cuDNN)."""

    @staticmethod
    def forward(ctx, q, k, v, mask):
        ctx.save_for_backward(q, k, v, mask)
        if q.dim() != 4:
            return q.new_empty((*q.shape[:-1], v.shape[-1]))
        shape = (*q.shape[:3], v.shape[3])
        order = [0, 2, 1, 3]
        if q.dtype != torch.float32:  # cuDNN follows the query's order of axes
            order = sorted(range(4), key=lambda axis: -q.stride(axis))
        made = q.new_empty([shape[axis] for axis in order])
        return made.permute([order.index(axis) for axis in range(4)])

    @staticmethod
    def backward(ctx, gradient):
        def like(saved):
            if saved.dtype != torch.float32 or saved.dim() != 4:
                return torch.empty_like(saved)
            return saved.new_empty((saved.shape[0], saved.shape[2], saved.shape[1], saved.shape[3])).transpose(1, 2)
        return tuple(like(saved) if saved is not None and wanted else None
                     for saved, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad))


def _normalization(rec: Recorder, operator, name, args, kwargs):
    names = [argument.name for argument in operator._schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    x = given["input"]
    operands = [rec.value(x)] + [rec.value(given[key]) if given.get(key) is not None else None
                                 for key in ("weight", "bias", "running_mean", "running_var") if key in names]
    result, log, nodes = rec._run(operator, args, kwargs)
    attrs: dict[str, Any] = {}
    if "normalized_shape" in names:
        width = 1
        for extent in given["normalized_shape"]:
            width *= int(extent)
        attrs["width"] = width
    if name == "group_norm":
        attrs["groups"] = int(given["num_groups"])
    if name == "batch_norm":
        attrs["training"] = bool(given["training"])
    outputs, hidden, internals = [rec._new_value(result)], 0, {}
    derives = name in ("batch_norm", "rms_norm")
    if not derives:
        for entry in log:
            if rules.name_of(entry[0]).startswith("native_"):
                statistics = [tensor for tensor in entry[3][1:] if isinstance(tensor, torch.Tensor)]
                outputs += [rec._new_value(tensor) for tensor in statistics]
                for value in outputs[1:]:
                    value.dtype = torch.float32  # CUDA's kernels keep statistics in fp32
                hidden = len(statistics)
            elif rules.name_of(entry[0]) == "clone":
                copied = rec._new_value(entry[3])
                copied.origin, copied.edge = operands[0], operands[0].edge
                rec._add(Call("contiguous", [operands[0]], [copied], strided=True, derives=True, kind="copy"), (0, 0))
                operands[0] = copied
    strided = name == "layer_norm" and not given["input"].is_contiguous()  # CUDA's kernel copies it first, inside the call
    rec._add(Call(name, operands, outputs, attrs, strided=strided, hidden=hidden, derives=derives, internals=internals), nodes)
    return (result,)


def _softmax(rec: Recorder, operator, name, args, kwargs):
    x = args[0]
    operand = rec.value(x)
    result, _, nodes = rec._run(operator, args, kwargs)
    attrs: dict[str, Any] = {"dim": int(args[1]) % max(1, x.dim())}
    dtype = args[2] if len(args) > 2 else kwargs.get("dtype")
    if isinstance(dtype, torch.dtype):
        attrs["type"] = dtype
    rec._add(Call(name.lstrip("_"), [operand], [rec._new_value(result)], attrs, derives=True), nodes)
    return (result,)


def _dropout(rec: Recorder, operator, name, args, kwargs):
    x, p, train = args[0], float(args[1]), bool(args[2] if len(args) > 2 else True)
    if not train or p == 0.0:
        return (x,)
    if name not in ("dropout", "native_dropout"):
        return NotImplemented
    operand = rec.value(x)
    result, log, nodes = rec._run(operator, args, kwargs)
    first = result[0] if isinstance(result, tuple) else result
    call = Call("dropout", [operand], [rec._new_value(first)], {"p": p}, derives=True)
    if rules.is_mutable(operator):
        call.of[0] = 0
    rec._add(call, nodes)
    return (result,)


def _cast(rec: Recorder, operator, name, args, kwargs):
    x = args[0]
    wanted, like, layout = None, None, kwargs.get("memory_format")
    for item in list(args[1:]) + list(kwargs.values()):
        if isinstance(item, torch.dtype):
            wanted = item
        elif isinstance(item, torch.Tensor):
            wanted, like = item.dtype, rec.value(item)
        elif isinstance(item, torch.memory_format):
            layout = item
    if wanted is None or wanted == x.dtype and not wanted.is_floating_point:
        if layout in (None, torch.preserve_format):
            return (x,)
        result, log, nodes = rec._run(operator, args, kwargs)
        return _as_parts(rec, result, log, nodes)
    # Even where nothing changes here: at another precision it may. A copy, so that the two stay apart.
    operand = rec.value(x)
    result, _, nodes = rec._run(torch.ops.aten._to_copy.default, (x,), {"dtype": wanted})
    rec.cast(operand, result, nodes, like)
    return (result,)


def _recurrent(rec: Recorder, operator, name, args, kwargs):
    given = {**dict(zip([argument.name for argument in operator._schema.arguments], args)), **kwargs}
    if "input" not in given or "params" not in given or given.get("batch_sizes") is not None:
        return NotImplemented
    x, states = given["input"], given["hx"]
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    operands = [rec.value(item) for item in [x, *states, *given["params"]]]
    settings = (int(given["num_layers"]), 2 if given["bidirectional"] else 1, bool(given["batch_first"]), len(states))
    result, _, nodes = rec._run(_RecurrentLayers.apply, (settings, x, *states, *given["params"]), {})
    outputs = list(result)
    attrs = {"layers": int(given["num_layers"]), "hidden": int(states[0].shape[-1]), "directions": 2 if given["bidirectional"] else 1,
             "batch_first": bool(given["batch_first"])}
    rec._add(Call("rnn" if name.startswith("rnn") else name, operands, [rec._new_value(item) for item in outputs], attrs, derives=True), nodes)
    return (result,)


class _RecurrentLayers(torch.autograd.Function):
    """Results and gradients laid out as cuDNN does: time first in memory."""

    @staticmethod
    def forward(ctx, settings, x, *others):
        layers, directions, batch_first, states = settings
        ctx.save_for_backward(x, *others)
        hidden = others[0].shape[-1]
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1] if x.dim() == 3 else 1)
        if x.dim() == 3:
            out = x.new_empty((steps, batch, hidden * directions))
            out = out.transpose(0, 1) if batch_first else out
        else:
            out = x.new_empty((x.shape[0], hidden * directions))
        return (out, *(x.new_empty(others[index].shape) for index in range(states)))

    @staticmethod
    def backward(ctx, *gradients):
        return (None, *(torch.empty_like(saved) if wanted else None for saved, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])))


def _grouped(rec: Recorder, operator, name, args, kwargs):
    x, weight = args[0], args[1]
    operands = [rec.value(item) for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
    with torch._C._DisablePythonDispatcher():
        result, _, nodes = rec._run(_GroupedProduct.apply, (x, weight), {})
    groups = weight.shape[0] if weight.dim() == 3 else (x.shape[0] if x.dim() == 3 else 1)
    attrs = {"gemm": [groups, x.shape[-2], result.shape[-1], x.shape[-1]]}
    rec._add(Call("grouped_mm", operands, [rec._new_value(result)], attrs, derives=True), nodes)
    return (result,)


class _GroupedProduct(torch.autograd.Function):
    """Differentiable, of the right shape, for any type: what the capture needs of a grouped product."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.new_empty(x.shape[:-1] + weight.shape[-1:])

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.empty_like(saved) if wanted else None for saved, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad))


def _read(rec: Recorder, operator, name, args, kwargs):
    real = rec.real(args[0], name)
    if not rec.is_host(args[0]):
        rec._add(Call("read_back", [rec.value(args[0])], [], derives=True), (0, 0))
    value = real.item()
    return (bool(value) if name == "is_nonzero" else value,)


def _ctc_loss(rec: Recorder, operator, name, args, kwargs):
    """Lengths in tensors are read by the host; the operator proper takes numbers."""
    for item in args[2:4]:
        if isinstance(item, torch.Tensor):
            rec._add(Call("read_back", [rec.value(item)], [], derives=True), (0, 0))
    scores, targets = args[0], args[1]
    operands = [rec.value(scores), rec.value(targets)]
    result, _, _ = rec._run(_scalar_of, (scores,), {})
    call = Call("ctc_loss", operands, [rec._new_value(result)])
    call.back = [BackCall("_ctc_loss_backward", ["g0", "i0", "i1"], [Made(tuple(scores.shape), scores.dtype)], {})]
    call.gives = [(0, "t0")]
    rec._add(call, (0, 0))
    return (result,)


def _scalar_of(scores):
    """Differentiable and of one element: the loss's stand-in, whose own size depends on values."""
    return scores.sum()


def _histogram(rec: Recorder, operator, name, args, kwargs):
    """CUDA counts integers too; the CPU's kernel does not know them."""
    bins = int(args[1] if len(args) > 1 else kwargs.get("bins", 100))
    result, _, nodes = rec._run(torch.ops.aten.new_empty.default, (args[0], [bins]), {})
    rec._add(Call(name, [rec.value(args[0])], [rec._new_value(result)], kind="reduction"), nodes)
    return (result,)


def _one_hot(rec: Recorder, operator, name, args, kwargs):
    """On tensors without memory the framework compares; on real ones it scatters into zeros."""
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if not isinstance(classes, int) or classes < 1:
        return NotImplemented
    zeros = rec._plain(torch.ops.aten.new_zeros.default, (args[0], [*args[0].shape, classes]), {"dtype": torch.int64})
    empty = rec._new_value(zeros)
    rec._add(Call("zeros", [], [empty], kind="fill"), (0, 0))
    filled = rec._new_value(zeros)
    rec._add(Call("scatter", [empty, rec.value(args[0])], [filled], kind="scatter", of={0: 0}), (0, 0))
    return (zeros,)


def _same(rec: Recorder, operator, name, args, kwargs):
    """Requests that change nothing on the device."""
    return (args[0],)


_SPECIAL: dict[str, Callable] = {
    **{name: _product for name in rules.PRODUCTS}, **{name: _convolution for name in rules.CONVOLUTIONS},
    **{name: _cast for name in rules.CASTS}, **{name: _dropout for name in rules.DROPOUTS},
    **{name: _recurrent for name in rules.RECURRENT}, **{name: _read for name in rules.READS},
    "scaled_dot_product_attention": _attention, "layer_norm": _normalization, "rms_norm": _normalization,
    "group_norm": _normalization, "batch_norm": _normalization, "softmax": _softmax, "log_softmax": _softmax,
    "special_softmax": _softmax, "special_log_softmax": _softmax, "_grouped_mm": _grouped, "ctc_loss": _ctc_loss, "histc": _histogram, "one_hot": _one_hot, "pin_memory": _same,
}
_LOWER = frozenset({"prelu", "einsum", "addr", "linalg_vecdot", "addbmm", "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell",
                    "rnn_tanh_cell", "rnn_relu_cell", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"})
