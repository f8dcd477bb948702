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
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dispatch.python
from torch._subclasses.fake_tensor import (DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode,
                                           UnsupportedOperatorException)
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from . import rules
from .interceptors import AboveAutocast, BelowAutograd, PythonSide
from .layouts import gemm_attrs, has_memory, is_composite, is_strided, is_view, no_modes, sequence_number, takes_device, view_kind, window_attrs, with_gaps
from .particular import LOWER, PARTICULAR
from .patches import ModuleTracker, patched_framework
from .recording import Call, Recording, Value

_CPU = torch.device("cpu")


class CaptureError(RuntimeError):
    """The model's code could not be followed; says at which module and operator."""


class NeedsValues(Exception):
    """The code looks at a value: record once more, keeping track of how values come about."""


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
        self.modules.returned = self._note_returned
        self.failed: tuple[BaseException, str] | None = None   # the operator in which an exception arose
        self.inside_off = 0
        self.left_out: dict[tuple[bool, int], bool] = {}  # masks: causal, keys -> whether padding would have been part of it
        self.ends: list[int] = []        # before which calls a compiler's trace of the code ends
        self._returned: tuple[int, set[int]] = (0, set())  # when the model was done: calls so far; memory of what it returned
        self._host: bool | None = None   # what is called now happens on the host; None: nobody said
        self.default_device_is_host = True
        self._above = AboveAutocast(self)

    # ---- tensors and values -------------------------------------------------------------------------------------------
    def stand_in(self, tensor: torch.Tensor, role: str, name: str, shape=None, real: torch.Tensor | None = None) -> torch.Tensor:
        """A tensor without memory in the place of `tensor`; known to the recorder under its name."""
        dtype = self.dtype if tensor.dtype.is_floating_point and tensor.dtype != torch.float64 else tensor.dtype
        shape = tuple(tensor.shape) if shape is None else tuple(shape)
        with self.fake, torch.no_grad():
            if shape == tuple(tensor.shape) and rules.is_dense(tensor):
                made = torch.empty_strided(shape, tensor.stride(), dtype=dtype, device="cpu")
            else:
                made = with_gaps(tensor, shape, dtype)
                if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
                    made = torch.empty(shape, dtype=dtype, device="cpu", memory_format=torch.channels_last)
        if role == "parameter" or (role == "buffer" and isinstance(tensor, torch.nn.Parameter)):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad and tensor.is_leaf:
            made.requires_grad_(True)
        value = self._new_value(made, role, name)
        value.frozen = role == "parameter" and not tensor.requires_grad
        value.real = real if real is not None else (tensor if has_memory(tensor) and shape == tuple(tensor.shape) else None)
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
            self._add(Call("view", [base], [found], {"kind": view_kind(base.shape, tensor)}, of={0: 0}), (0, 0))
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

    def uploaded(self, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
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
            if not non_blocking:
                self._add(Call("read_back", [value], [], derives=True), (0, 0))
            return made
        finally:
            self.busy -= 1

    def waits_for_upload(self, tensor: torch.Tensor) -> None:
        """Numbers that the model's code sends up: a copy from memory that is not pinned waits for all that the stream was given before."""
        if isinstance(tensor, torch.Tensor) and self.following and not self.is_host(tensor):
            self._add(Call("read_back", [self.value(self._as_fake(tensor))], [], derives=True), (0, 0))

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
        first = sequence_number()
        self.listening = True
        try:
            result = self._plain(operator, args, kwargs)
        finally:
            self.listening = False
            log, self.log = self.log, kept
        return result, log, (first, sequence_number())

    def _record(self, operator, args, kwargs, tensors: list[torch.Tensor]):
        name = rules.name_of(operator)
        if name in rules.LOOK_INSIDE and is_composite(operator):
            return self._look_inside(operator, args, kwargs)
        if name in rules.VALUE_SIZED or name == "where" and len(tensors) == 1:
            return self._value_sized(operator, name, args, kwargs)
        if name in ("index", "index_put", "_index_put_impl", "_unsafe_index"):
            args = self._integer_indices(args)
        if not self._host and (all(self.is_host(tensor) for tensor in tensors) if tensors else
                               self._host is None and takes_device(operator) and kwargs.get("device") is None):
            with self.on_host(True):
                return self._record(operator, args, kwargs, tensors)
        special = PARTICULAR.get(name)
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
        launched = [entry for entry in log if not is_view(entry)]
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
            log = [entry for entry in log if not is_view(entry)]  # autograd looks at the view anew: not a call
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
        wanted = "lower" if rules.name_of(operator) in LOWER or rules.name_of(operator) in rules.PRODUCTS else "fp32"
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
        if is_view(entry):
            made, of = [], {}
            for index, tensor in enumerate(outputs):
                made.append(self._new_value_of_view(tensor))
                of[index] = storages.get(made[-1].storage, 0)
            self._add(Call("view", operands[:1] if operands else [], made, {"kind": view_kind(operands[0].shape, outputs[0])}, of=of), nodes)
            return
        attrs: dict[str, Any] = {}
        if name in rules.LOW_PRODUCTS:
            attrs = gemm_attrs(name, inputs)
        elif name in rules.POOLS:
            attrs = window_attrs(operator, args, kwargs)
        elif name == "mean" or name == "sum":
            if kwargs.get("dtype") is not None:
                attrs["type"] = kwargs["dtype"]
        if not inputs and rules.kind_of(operator) not in ("fill", "random", "view"):
            name = "scalar_tensor"  # arithmetic of numbers alone
        if outputs[0].dtype.is_floating_point and rules.kind_of(operator) in ("fill", "random", "view") and (
                not inputs or isinstance(kwargs.get("dtype"), torch.dtype) and not any(item.dtype.is_floating_point for item in inputs)):
            attrs["like"] = self._like()   # a new tensor of a type that the code took from another
        strided = is_strided(inputs, outputs)
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
            self._add(Call("view", [changed], [again], {"kind": view_kind(changed.shape, part)}, of={0: 0}, replays_view=True), (boundary, nodes[1]))

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
        if not isinstance(tensor, FakeTensor) and has_memory(tensor):
            return function(*args, **kwargs)
        real = self.real(fake, f"{getattr(function, '__name__', 'a read')}")
        if not self.is_host(fake):
            self._add(Call("read_back", [self.value(fake)], [], derives=True), (0, 0))
        with no_modes():
            return function(real, *args[1:], **kwargs)

    def real(self, tensor: torch.Tensor, why: str) -> torch.Tensor:
        from .values import real_value
        if not self.keep_producers:
            raise NeedsValues
        with no_modes():
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
        with no_modes(), torch.no_grad():
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
        first = sequence_number()
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
            stack.enter_context(BelowAutograd(self))
            stack.enter_context(PythonSide(self))
            stack.enter_context(torch._dispatch.python.enable_python_dispatcher())
            stack.enter_context(self._above)
            yield

    def run(self, loss_fn: Callable, arguments: tuple, sizes: dict[str, int]) -> Recording:
        with torch.random.fork_rng(devices=[]), self.active(), torch.enable_grad():
            with no_modes():
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
            scores = self._scores(final)
        if not self.autocast:  # that recording is about the forward pass's casts alone
            from .backward import record_backward
            with patched_framework(self), self.fake:
                record_backward(self, loss)
        self.leaves.extend(value for value in self._waiting_leaves.values() if value.role == "parameter")
        contiguous, channels_last = self._layouts
        return Recording(self.calls, self.leaves, final, self.notes, channels_last > contiguous, sizes, self.dtype, self.reads_types, self.autocast, scores)

    def _note_returned(self, result: Any) -> None:
        if not self.following:
            return
        parts = dict(result) if isinstance(result, dict) else vars(result) if dataclasses.is_dataclass(result) else result
        leaves = tree_flatten(parts)[0]
        self._returned = len(self.calls), {item.untyped_storage()._cdata for item in leaves if isinstance(item, FakeTensor) and item.requires_grad}

    def _scores(self, loss: Value) -> str:
        """Whether a compiler's graph that returns the loss returns scores beside it (docs/graph_format.md). The scores: what follows the
        last call that reads a parameter."""
        made = max((index for index, call in enumerate(self.calls) if loss in call.outputs), default=len(self.calls))
        head = max((index for index, call in enumerate(self.calls[:made]) if any(value is not None and value.role == "parameter" for value in call.inputs)), default=-1)
        between = self.calls[max(head, 0):made + 1]
        done, returned = self._returned
        if done <= made or any(head < end <= made for end in self.ends) or any(call.name == "read_back" for call in between):
            return "apart"
        known = {value.storage for call in between for value in call.outputs} - {loss.storage}
        return "returned" if known & returned else "inside"

    def call_at(self) -> Callable[[int], Call | None]:
        """Finds the call that made the autograd node with a given sequence number."""
        calls = [call for call in self.calls if call.nodes[1] > call.nodes[0]]
        starts = [call.nodes[0] for call in calls]

        def find(number: int) -> Call | None:
            index = bisect.bisect_right(starts, number) - 1
            return calls[index] if index >= 0 and number < calls[index].nodes[1] else None
        return find
