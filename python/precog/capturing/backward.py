"""Runs the backward pass on the stand-ins and writes, for every call, what its gradient launched.

Hooks on autograd's nodes mark where each node's work begins and ends; sums of several gradients for one tensor happen between nodes
and are not recorded: they follow from the graph.
"""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from . import rules
from .layouts import gemm_attrs, is_strided, window_attrs
from .recording import BackCall, Call, Made


class _Listener(TorchDispatchMode):
    def __init__(self, backward: "_Backward") -> None:
        super().__init__()
        self.backward = backward

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if self.backward.asks_for_zeros(operator):
            return self.backward.no_zeros(operator, args[0])
        result = operator(*args, **(kwargs or {}))
        if operator.namespace not in ("prim", "profiler"):
            if self.backward.call is not None:
                self.backward.kernel(operator, args, kwargs or {}, result)
            elif operator._schema.name in ("aten::clone", "aten::new_empty_strided"):
                self.backward.copied_by_accumulation()
        return result


def record_backward(recorder: Any, loss: torch.Tensor) -> None:
    backward = _Backward(recorder)
    backward.watch(loss.grad_fn)
    with torch.autograd.set_multithreading_enabled(False), _Listener(backward):
        loss.backward()


def _key(tensor: torch.Tensor) -> tuple:
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


class _Backward:
    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.find = recorder.call_at()
        self.call: Call | None = None
        self._last_gift: dict[int, tuple[Call, int]] = {}  # parameter -> who handed it a gradient last, and which of its gifts
        self._owners: list[Any] = []

    def watch(self, root) -> None:
        """Hooks on every node that the loss depends on."""
        seen, waiting = {root}, [root]
        while waiting:
            node = waiting.pop()
            call = None
            if not hasattr(node, "variable"):  # a leaf's accumulator
                call = self.find(node._sequence_nr())
                node.register_prehook(functools.partial(self.begin, node, call))
                node.register_hook(functools.partial(self.end, node, call))
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        self._owners.append(seen)

    def copied_by_accumulation(self) -> None:
        """A gradient whose layout is not its parameter's is copied when it arrives: counted to the operator that made it."""
        node = torch._C._current_autograd_node()
        if node is None or not hasattr(node, "variable"):
            return
        found = self._last_gift.pop(node.variable.untyped_storage()._cdata, None)
        if found is None:
            return
        call, index = found
        operand, reference = call.gives[index]
        call.back.append(BackCall("contiguous", [reference], [Made(tuple(node.variable.shape), node.variable.dtype)], {}, True, "copy"))
        call.gives[index] = (operand, f"t{call.made}")
        call.made += 1

    def begin(self, node, call: Call | None, gradients) -> None:
        self.call = None
        if call is None or call.derives:
            return
        self.call = None if call.replays_view else call
        number = node._sequence_nr()
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            for position, value in enumerate(call.outputs):
                if value.edge == (number, index):
                    self._owners.append(gradient.untyped_storage())
                    call.refs[_key(gradient)] = f"g{position}"
                    call.refs[gradient.untyped_storage()._cdata] = f"g{position}"
                    break
            else:
                # Came in by a side door: the result was written in place, and autograd went on from a part of the call.
                storage = gradient.untyped_storage()._cdata
                if storage not in call.refs and call.outputs and gradient.numel() == _count(call.outputs[0].shape):
                    self._owners.append(gradient.untyped_storage())
                    call.refs[storage] = "g0"
        if call.replays_view and not call.back and gradients[0] is not None:
            # On the device this is as_strided's gradient: zeros of the whole, then a copy into them.
            shape = call.inputs[0].shape
            call.back += [BackCall("new_zeros", ["g0"], [Made(shape, gradients[0].dtype)], {}, False, "fill"),
                          BackCall("copy", ["t0", "g0"], [Made(shape, gradients[0].dtype, 0)], {}, False, "copy")]
            call.made += 2

    def end(self, node, call: Call | None, gradients, _incoming) -> None:
        self.call = None
        if call is None or call.derives:
            return
        if call.replays_view:
            call.gives = [(0, "t1")]
            return
        given: list[int] = []
        for gradient, (following, index) in zip(gradients, node.next_functions):
            if gradient is None or following is None:
                continue
            operand = self._operand(call, following, index, given)
            if operand is None:
                continue  # goes on inside the same call
            given.append(operand)
            call.gives.append((operand, self._reference(call, gradient)))
            if hasattr(following, "variable"):
                self._last_gift[following.variable.untyped_storage()._cdata] = (call, len(call.gives) - 1)

    def _operand(self, call: Call, following, index: int, taken: list[int]) -> int | None:
        found = None
        if hasattr(following, "variable"):
            storage = following.variable.untyped_storage()._cdata
            matches = lambda value: value.storage == storage or (value.origin is not None and value.origin.storage == storage)
        else:
            edge = (following._sequence_nr(), index)
            if call.nodes[0] <= edge[0] < call.nodes[1]:
                return None
            matches = lambda value: value.edge == edge or (value.view_of is not None and value.view_of.edge == edge)
        for position, value in enumerate(call.inputs):
            if value is not None and value.requires_grad and matches(value):
                found = position
                if position not in taken:
                    return position
        return found

    def _reference(self, call: Call, tensor: torch.Tensor) -> str:
        """Where a tensor that the gradient reads comes from."""
        key = _key(tensor)
        if key in call.refs:
            return call.refs[key]
        storage = key[0]
        known = call.refs.get(storage)
        if known is None:
            known = self._forward_reference(call, tensor, storage)
        elements = self._elements(call, known)
        if elements is not None and elements != tensor.numel():
            return self._emit(call, BackCall("view", [known], [Made(tuple(tensor.shape), tensor.dtype, 0)],
                                             {"kind": "slice" if tensor.numel() < elements else "expand"}), [tensor])[0]
        return known

    def _forward_reference(self, call: Call, tensor: torch.Tensor, storage: int) -> str:
        same_size = lambda value: _count(value.shape) == tensor.numel()
        for prefix, values in (("o", call.outputs), ("i", call.inputs)):
            matching = [index for index, value in enumerate(values) if value is not None and value.storage == storage]
            exact = [index for index in matching if same_size(values[index])]
            if matching:
                return f"{prefix}{(exact or matching)[0]}"
        for index, value in enumerate(call.inputs):
            if value is not None and value.origin is not None and value.origin.storage == storage:
                return f"i{index}"
        earlier = self.recorder._by_storage.get(storage)
        if earlier is not None and call.name == "autograd_function":
            call.inputs.append(earlier)
            return f"i{len(call.inputs) - 1}"
        # Made inside the call and kept: a result that the code never sees.
        value = self.recorder._new_value(tensor)
        value.requires_grad, value.edge = False, None
        call.outputs.append(value)
        call.hidden += 1
        return f"o{len(call.outputs) - 1}"

    def _elements(self, call: Call, reference: str) -> int | None:
        kind, index = reference[0], int(reference[1:])
        if kind == "o" or kind == "g":
            return _count(call.outputs[index].shape)
        if kind == "i":
            return _count(call.inputs[index].shape)
        made = [item for back in call.back for item in back.outputs]
        return _count(made[index].shape)

    def _emit(self, call: Call, back: BackCall, tensors: list[torch.Tensor]) -> list[str]:
        call.back.append(back)
        names = []
        for tensor in tensors:
            name = f"t{call.made}"
            call.made += 1
            self._owners.append(tensor.untyped_storage())
            call.refs[_key(tensor)] = name
            if back.name != "view":
                call.refs[tensor.untyped_storage()._cdata] = name
            names.append(name)
        return names

    @staticmethod
    def _made_as_zeros(call: Call, reference: str) -> bool:
        makers = [back.name for back in call.back for _ in back.outputs]
        return reference[0] == "t" and makers[int(reference[1:])] in ("zeros", "new_zeros", "zeros_like")

    def asks_for_zeros(self, operator) -> bool:
        return self.call is not None and self.call.name in ("prod", "cumprod") and rules.name_of(operator) in ("_local_scalar_dense", "nonzero")

    def no_zeros(self, operator, asked: torch.Tensor):
        """The answer to a gradient that looks for zeros in its operand: the host waits, and there are none."""
        if rules.name_of(operator) == "nonzero":
            found = asked.new_empty((0, asked.dim()), dtype=torch.int64)
            self.kernel(operator, (asked,), {}, found)
            return found
        self.call.back.append(BackCall("read_back", [self._reference(self.call, asked)], [], {}))
        return 0

    def kernel(self, operator, args, kwargs, result) -> None:
        call = self.call
        inputs = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
        outputs = [item for item in tree_flatten(result)[0] if isinstance(item, torch.Tensor)]
        name = rules.name_of(operator)
        if not outputs:
            return
        mutable = rules.is_mutable(operator)
        storages = {tensor.untyped_storage()._cdata: index for index, tensor in reversed(list(enumerate(inputs)))}
        if not mutable and inputs and all(tensor.untyped_storage()._cdata in storages for tensor in outputs):
            for tensor in outputs:  # views: named when something reads them
                source = inputs[storages[tensor.untyped_storage()._cdata]]
                reference = self._reference(call, source)
                if source.numel() == tensor.numel():
                    call.refs[_key(tensor)] = reference
                else:
                    kind = "slice" if tensor.numel() < source.numel() else "expand"
                    self._emit(call, BackCall("view", [reference], [Made(tuple(tensor.shape), tensor.dtype, 0)], {"kind": kind}), [tensor])
            return
        if name == "_to_copy" and inputs[0].dtype.is_floating_point and outputs[0].dtype.is_floating_point:
            # Between floating types: follows from the types of the operands at each precision.
            reference = self._reference(call, inputs[0])
            self._owners.append(outputs[0].untyped_storage())
            call.refs[_key(outputs[0])] = call.refs[outputs[0].untyped_storage()._cdata] = reference
            return
        attrs: dict[str, Any] = {}
        if name in rules.LOW_PRODUCTS:
            attrs = gemm_attrs(name, inputs)
        elif name in rules.POOLS:
            attrs = window_attrs(operator, args, kwargs)
        references = [self._reference(call, tensor) for tensor in inputs]
        made = [Made(tuple(tensor.shape), tensor.dtype, storages.get(tensor.untyped_storage()._cdata)) for tensor in outputs]
        if name in rules.WRITES_PLACES and call.name != "autograd_function" and self._made_as_zeros(call, references[0]):
            made[0].of = 0  # autograd writes into its zeros; only around tensor subclasses, such as the stand-ins here, does it copy them
        self._emit(call, BackCall("contiguous" if name == "clone" else name, references, made, attrs, is_strided(inputs, outputs),
                                  rules.kind_of(operator)), outputs)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
