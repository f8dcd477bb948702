"""Several recordings of the same model, at different sizes and in two types, written as one precision-free document."""
from __future__ import annotations

import json
from typing import Any

import torch

from . import rules
from .extents import Extents, NotSymbolic
from .recording import BackCall, Call, Recording, Value


class Different(Exception):
    """Two recordings do not call the same operators."""


def same_gradient(a: Call, b: Call) -> bool:
    return len(a.back) == len(b.back) and all(x.name == y.name for x, y in zip(a.back, b.back)) and len(a.gives) == len(b.gives) \
        and len(a.outputs) == len(b.outputs)


def same_structure(base: Recording, other: Recording, same_type: bool = True) -> None:
    """Raises where the two cannot be the same code at other sizes or in another type. In another type the capturing machine's kernels
    may lay their results out differently, so that gradients are copied or not: not a difference of the code."""
    if len(base.calls) != len(other.calls):
        raise Different(f"{len(base.calls)} operators at one size, {len(other.calls)} at another")
    for a, b in zip(base.calls, other.calls):
        if a.name != b.name or len(a.inputs) != len(b.inputs) or _returned(a) != _returned(b) or a.attrs.keys() != b.attrs.keys():
            raise Different(f"module '{a.module}': {a.name} at one size, {b.name} at another")
        if same_type and not same_gradient(a, b):
            raise Different(f"module '{a.module}': the gradient of {a.name} differs")


def align(plain: Recording, typed: Recording) -> None:
    """Adds to `plain` the casts that the code makes only when types differ (`if x.dtype != w.dtype: x = x.to(w.dtype)`).

    In fp32 such a cast changes nothing, so adding it to the fp32 recording is right at every precision.
    """
    counterpart: dict[int, Value] = {}
    named = {(value.role, value.name): value for value in plain.leaves}
    added: set[int] = set()
    rewired: list[tuple[Call, int, Value]] = []  # done at the end, when nothing can fail any more
    out: list[Call] = []
    position = 0
    for call in typed.calls:
        other = plain.calls[position] if position < len(plain.calls) else None
        if call.name == "contiguous" and (other is None or other.name != "contiguous"):
            # Copied in one type only: attention kernels leave their results in another order there.
            source = counterpart.get(id(call.inputs[0]))
            if source is None:
                raise Different(f"module '{call.module}': a copy of something that is not there in {plain.dtype}")
            made = source.copy()
            call.attrs["only"] = "fp32" if typed.dtype == torch.float32 and not typed.autocast else "16-bit"
            out.append(Call("contiguous", [source], [made], dict(call.attrs), module=call.module, off=call.off, strided=True, kind="copy", derives=True))
            call.derives = True
            counterpart[id(call.outputs[0])] = made
            added.add(id(made))
            continue
        if call.name == "cast" and (other is None or other.name != "cast" or not _reads_same(other, call, counterpart)):
            source = counterpart.get(id(call.inputs[0])) or named.get((call.inputs[0].role, call.inputs[0].name))
            if source is None:
                raise Different(f"module '{call.module}': a cast of something that is not there in fp32")
            made = source.copy()
            like = call.attrs.get("like")
            like = counterpart.get(id(like)) or named.get((like.role, like.name)) if like is not None else None
            attrs = {"to": source.dtype if source.dtype.is_floating_point else call.attrs["to"]}
            if call.attrs["to"] != typed.dtype and call.attrs["to"].is_floating_point and call.inputs[0].dtype.is_floating_point:
                attrs["to"] = call.attrs["to"]
            if "like" in call.attrs:
                attrs["like"] = like
            out.append(Call("cast", [source], [made], attrs, module=call.module, off=call.off, derives=True))
            counterpart[id(call.outputs[0])] = made
            added.add(id(made))
            continue
        while other is not None and (other.name == "cast" != call.name or other.name == "contiguous" != call.name):
            if other.name == "contiguous" and not typed.autocast:
                other.attrs["only"] = "fp32" if plain.dtype == torch.float32 else "16-bit"
                other.derives = True
            out.append(other)  # only here
            position += 1
            other = plain.calls[position] if position < len(plain.calls) else None
        if other is not None and other.name == "autocast" != call.name and typed.autocast and other.module == call.module:
            # Written as its parts in fp32 (of an operand that a cast would have laid out anew): they are a module's, as the call is.
            parts = []
            while position < len(plain.calls) and plain.calls[position].module == call.module:
                parts.append(plain.calls[position])
                position += 1
            if not parts[-1].outputs or len(parts[-1].outputs[0].shape) != len(call.outputs[0].shape):
                raise Different(f"module '{call.module}': {call.name} under autocast, other parts in {plain.dtype}")
            counterpart[id(call.outputs[0])] = parts[-1].outputs[0]
            out.extend(parts)
            continue
        kept = 0  # a user's function: what its backward reads is known only where backward was followed
        if other is not None and typed.autocast and other.name == "autograd_function":
            kept = max(0, len(other.inputs) - len(call.inputs))
        if other is None or other.name != call.name or len(other.inputs) - kept != len(call.inputs) \
                or _returned(other) != _returned(call):
            raise Different(f"module '{call.module}': {call.name} in {typed.dtype}, {other.name if other else 'nothing'} in {plain.dtype}")
        for index, value in enumerate(call.inputs):
            mapped = counterpart.get(id(value)) if value is not None else None
            if mapped is not None and id(mapped) in added:
                rewired.append((other, index, mapped))
        for a, b in (*zip(other.inputs, call.inputs), *zip(other.outputs, call.outputs)):
            if a is not None and b is not None:
                counterpart.setdefault(id(b), a)
        out.append(other)
        position += 1
    for changed, index, value in rewired:
        changed.inputs[index] = value
    plain.calls = out + plain.calls[position:]


def _returned(call: Call) -> int:
    return len(call.outputs) - call.hidden


def _reads_same(plain: Call, typed: Call, counterpart: dict[int, Value]) -> bool:
    known = counterpart.get(id(typed.inputs[0]))
    return plain.module == typed.module and (known is None or known is plain.inputs[0])


class StreamWriter:
    def __init__(self, recordings: list[Recording], symbols: list[str], blocks: dict[str, int], typed: Recording | None) -> None:
        self.recordings = recordings          # the first is the one whose structure is written
        self.typed = typed                    # the one in a 16-bit type: what differs from the first is symbolic
        self.extents = Extents([recording.sizes for recording in recordings], symbols)
        plain = [recording.sizes for recording in recordings if recording is not typed]
        self.plain_extents = Extents(plain, symbols)
        self.blocks = blocks                  # module path -> block number
        self.numbers: dict[int, int] = {}     # Value -> its number in the stream
        self.entries: list[dict[str, Any]] = []
        self.refs: list[list[int]] = []       # absolute references of each entry, in the order of its texts
        self.defined_before: list[int] = []
        self.defined = 0
        self._counterparts: dict[int, tuple[Value, ...]] = {}
        self._index_counterparts()

    def _index_counterparts(self) -> None:
        calls = zip(*(recording.calls for recording in self.recordings))
        for together in calls:
            for values in zip(*(call.outputs for call in together)):
                self._counterparts[id(values[0])] = values
            if len({len(call.outputs) for call in together}) > 1:  # results kept for backward, seen in one type only
                plain = [call for call, recording in zip(together, self.recordings) if recording is not self.typed]
                for values in zip(*(call.outputs for call in plain)):
                    self._counterparts.setdefault(id(values[0]), values)
            for values in zip(*(call.inputs for call in together)):
                if values[0] is not None:
                    self._counterparts.setdefault(id(values[0]), values)
            like = [call.attrs.get("like") for call in together]
            if like[0] is not None and all(item is not None for item in like):
                self._counterparts.setdefault(id(like[0]), tuple(like))
        for values in zip(*(recording.leaves for recording in self.recordings)):
            self._counterparts.setdefault(id(values[0]), values)

    # ---- pieces -------------------------------------------------------------------------------------------------------
    def _shape(self, shapes: list[tuple[int, ...]]) -> list[int | str]:
        if len({len(shape) for shape in shapes}) != 1:
            raise Different("a tensor has another number of dimensions at another size")
        return [self._extent(extents) for extents in zip(*shapes)]

    def _extent(self, seen: tuple[int, ...]) -> int | str:
        if len(seen) != len(self.recordings):
            return self.plain_extents.of(tuple(seen))
        try:
            return self.extents.of(tuple(seen))
        except NotSymbolic:
            if self.typed is None:
                raise
            # Side results of some operators have another size in another type on the capturing machine.
            return self.plain_extents.of(tuple(size for size, recording in zip(seen, self.recordings) if recording is not self.typed))

    def _type(self, dtype: torch.dtype, other: torch.dtype | None, parameter: bool = False) -> str:
        if not dtype.is_floating_point:
            return rules.short(dtype)
        if dtype == torch.float64 or (other is not None and dtype == other and not parameter):
            return rules.short(dtype)
        return "float"

    def _value_type(self, value: Value) -> str:
        values = self._counterparts.get(id(value), (value,))
        typed = self.recordings.index(self.typed) if self.typed is not None else None
        other = values[typed].dtype if typed is not None and len(values) == len(self.recordings) else None
        return self._type(value.dtype, other, value.role in ("parameter", "buffer", "input"))

    def _value_shape(self, value: Value) -> list[int | str]:
        values = self._counterparts.get(id(value), (value,) * len(self.recordings))
        return self._shape([item.shape for item in values])

    def _define(self, value: Value) -> None:
        self.numbers[id(value)] = self.defined
        self.defined += 1

    def _leaf(self, value: Value) -> None:
        entry: dict[str, Any] = {"tensor": value.role, "name": value.name, "shape": self._value_shape(value)}
        if (kind := self._value_type(value)) != "float":
            entry["type"] = kind
        if value.role == "parameter" and value.frozen:
            entry["frozen"] = True
        if value.channels_last:
            entry["layout"] = "channels_last"
        self._put(entry, [])
        self._define(value)

    def _put(self, entry: dict[str, Any], refs: list[int]) -> None:
        self.entries.append(entry)
        self.refs.append(refs)
        self.defined_before.append(self.defined)

    # ---- calls --------------------------------------------------------------------------------------------------------
    def write(self) -> list[dict[str, Any]]:
        base = self.recordings[0]
        for together in zip(*(recording.calls for recording in self.recordings)):
            self._call(list(together))
        for value in base.leaves:
            if id(value) not in self.numbers and value.role == "parameter":
                self._leaf(value)
        from .repeats import folded
        return folded(self.entries, self.refs, self.defined_before)

    def _call(self, together: list[Call]) -> None:
        call = together[0]
        for value in [*call.inputs, call.attrs.get("like")]:
            if isinstance(value, Value) and id(value) not in self.numbers:
                if value.role == "activation":
                    raise Different(f"module '{call.module}': {call.name} reads a tensor {list(value.shape)} that no recorded operator made")
                self._leaf(value)
        refs: list[int] = []
        entry: dict[str, Any] = {"op": call.name, "in": [self._ref(value, refs) for value in call.inputs]}
        outputs = []
        needs = any(value is not None and value.requires_grad for value in call.inputs)
        for index, value in enumerate(call.outputs):
            kind, flags = self._value_type(value), {}
            if value.requires_grad != (needs and value.dtype.is_floating_point) and index < len(call.outputs) - call.hidden:
                flags["grad"] = value.requires_grad
            if index in call.of:
                flags["of"] = call.of[index]
            if index >= len(call.outputs) - call.hidden:
                flags["hidden"] = True
            outputs.append([self._value_shape(value), kind, flags] if flags else
                           [self._value_shape(value), kind] if kind != "float" else [self._value_shape(value)])
        entry["out"] = outputs
        attrs = self._attrs([one.attrs for one in together], refs, call.outputs)
        if attrs:
            entry["attrs"] = attrs
        if call.module:
            entry["module"] = call.module
        block = self._block(call.module)
        if block is not None:
            entry["block"] = block
        if call.off:
            entry["autocast"] = "off"
        if call.strided:
            entry["strided"] = True
        if call.kind is not None:
            entry["kind"] = call.kind
        if call.gives and not call.derives:
            alike = [one for one in together if one is call or same_gradient(call, one)]
            if len(alike) < len(together):
                alike = [one for one, recording in zip(together, self.recordings) if recording is not self.typed]
            entry["back"] = {"ops": [self._back([one.back[index] for one in alike]) for index in range(len(call.back))],
                             "give": [[operand, reference] for operand, reference in call.gives]}
            if call.name == "view" and self.typed is not None:
                other = together[self.recordings.index(self.typed)]
                if not same_gradient(call, other) and all(back.name == "contiguous" for back in [*call.back, *other.back]):
                    # Only whether the gradient is copied to another layout differs: attention kernels leave it so in one type, not in others.
                    copies = [{"op": "contiguous", "in": ["g0"], "out": [[self._value_shape(call.outputs[0])]], "strided": True}]
                    entry["back16"] = {"ops": copies if other.back else [], "give": [[0, "t0" if other.back else "g0"]]}
        self._put(entry, refs)
        for value in call.outputs:
            self._define(value)

    def _ref(self, value: Value | None, refs: list[int]) -> int | None:
        if value is None:
            return None
        refs.append(self.numbers[id(value)])
        return len(refs) - 1  # a place in `refs`, until repeats are folded

    def _block(self, module: str) -> int | None:
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if path in self.blocks:
                return self.blocks[path]
        return None

    def _attrs(self, together: list[dict[str, Any]], refs: list[int], call_outputs: list[Value] = []) -> dict[str, Any]:
        out: dict[str, Any] = {}
        typed = self.recordings.index(self.typed) if self.typed is not None and len(together) == len(self.recordings) else 0
        for key, value in together[0].items():
            others = [attrs.get(key, value) for attrs in together]  # how an operand lies in memory may follow the size: the first says
            if key == "like":
                if "to" not in together[0] and value is not None and self._value_type(call_outputs[0]) == "float":
                    out["like"] = self._ref(value, refs)
                continue
            if key == "to":
                same = not value.is_floating_point or others[typed] == value and self.typed is not None
                like = together[0].get("like")
                if same or (self.typed is None and like is None):
                    out["to"] = rules.short(value)
                else:
                    out["like"] = self._ref(like, refs) if like is not None else "float"
            elif isinstance(value, torch.dtype):
                out[key] = self._type(value, others[typed] if self.typed is not None else None)
            elif isinstance(value, bool) or isinstance(value, (str, float)):
                out[key] = value
            elif isinstance(value, int):
                out[key] = self._extent(tuple(others))
            elif isinstance(value, list) and all(isinstance(item, bool) for item in value):
                out[key] = value
            elif isinstance(value, list):
                out[key] = [self._extent(items) for items in zip(*others)]
        return out

    def _back(self, together: list[BackCall]) -> dict[str, Any]:
        back = together[0]
        entry: dict[str, Any] = {"op": back.name, "in": back.inputs}
        typed = self.recordings.index(self.typed) if self.typed is not None and len(together) == len(self.recordings) else None
        outputs = []
        for index, made in enumerate(back.outputs):
            shape = self._shape([one.outputs[index].shape for one in together])
            kind = self._type(made.dtype, together[typed].outputs[index].dtype if typed is not None else None)
            flags = {"of": made.of} if made.of is not None else {}
            outputs.append([shape, kind, flags] if flags else [shape, kind] if kind != "float" else [shape])
        entry["out"] = outputs
        attrs = self._attrs([one.attrs for one in together], [])
        if attrs:
            entry["attrs"] = attrs
        if back.strided:
            entry["strided"] = True
        if back.kind is not None:
            entry["kind"] = back.kind
        return entry


def to_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
