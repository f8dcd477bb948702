"""Operators with something particular to say: settings that the graph keeps, stand-ins, questions about values.

Each takes (recorder, operator, name, args, kwargs) and returns the result in a tuple, or NotImplemented to be recorded like any other.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from . import rules
from .layouts import gemm_attrs, is_view
from .recording import BackCall, Call, Made
from .stand_ins import CumulativeProduct, FusedAttention, GroupedProduct, Product, RecurrentLayers, scalar_of


def _product(rec: Any, operator, name, args, kwargs):
    tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
    operands = [rec.value(tensor) for tensor in tensors]
    result, log, nodes = rec._run(operator, args, kwargs)
    launched = [entry for entry in log if not is_view(entry)]
    products = [entry for entry in launched if rules.name_of(entry[0]) in rules.LOW_PRODUCTS]
    batched = name == "linear" and len(products) == 1 and rules.name_of(products[0][0]) == "bmm"  # rows with gaps between them: the weights are repeated for each batch
    if len(launched) != 1 or len(products) != 1 or batched:
        # Operands copied to another layout first, or a bias added on its own: autocast's door, then the parts.
        rec._doors(operator, tensors, operands, result)
        rec.inside_off += 1
        try:
            return _as_parts(rec, result, log, nodes)
        finally:
            rec.inside_off -= 1
    attrs = gemm_attrs(rules.name_of(products[0][0]), [item for item in products[0][1] if isinstance(item, torch.Tensor)])
    call = Call(name, operands, [rec._new_value(result)], attrs)
    if rules.is_mutable(operator):
        call.of[0] = 0
    rec._add(call, nodes)
    return (result,)


def _as_parts(rec: Any, result, log, nodes):
    rec._parts(log, nodes)
    return (result,)


def _listed(value, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(item) for item in (values * count if len(values) == 1 else values)]


def _convolution(rec: Any, operator, name, args, kwargs):
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


def _scattered(item: torch.Tensor) -> bool:
    """Whether the axes before the last two do not form one: more than one item along both of two neighbours, and a gap between."""
    axes = [axis for axis in range(item.dim() - 2) if item.shape[axis] > 1]
    return any(item.stride(outer) != item.shape[inner] * item.stride(inner) for outer, inner in zip(axes, axes[1:]))


def _attention(rec: Any, operator, name, args, kwargs):
    q, k, v = args[:3]
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
    operands = [rec.value(item) for item in (q, k, v)] + ([rec.value(mask)] if mask is not None else [])
    result, _, nodes = rec._run(FusedAttention.apply, (q, k, v, mask), {})
    attrs = {"causal": bool(causal), "dropout": float(dropout)}
    if kwargs.get("enable_gqa"):
        attrs["gqa"] = True
    # Where no fused kernel runs, operands whose batch and heads (and windows) do not form one axis are copied for the batched product.
    scattered = [_scattered(item) for item in (q, k, v)]
    if any(scattered):
        attrs["scattered"] = scattered
    if mask is not None and mask.dim() and mask.shape[-1] > 1 and mask.stride(-1) != 1:
        attrs["mask_scattered"] = True
    padded = rec.left_out.get((bool(causal), int(k.shape[-2]))) if mask is None else None
    if padded is not None:
        attrs["traced_mask"] = "dense" if causal or padded else "expanded"
    rec._add(Call(name, operands, [rec._new_value(result)], attrs, derives=True), nodes)
    return (result,)


def _normalization(rec: Any, operator, name, args, kwargs):
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


def _softmax(rec: Any, operator, name, args, kwargs):
    x = args[0]
    operand = rec.value(x)
    result, _, nodes = rec._run(operator, args, kwargs)
    attrs: dict[str, Any] = {"dim": int(args[1]) % max(1, x.dim())}
    dtype = args[2] if len(args) > 2 else kwargs.get("dtype")
    if isinstance(dtype, torch.dtype):
        attrs["type"] = dtype
    rec._add(Call(name.lstrip("_"), [operand], [rec._new_value(result)], attrs, derives=True), nodes)
    return (result,)


def _dropout(rec: Any, operator, name, args, kwargs):
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


def _cast(rec: Any, operator, name, args, kwargs):
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


def _recurrent(rec: Any, operator, name, args, kwargs):
    given = {**dict(zip([argument.name for argument in operator._schema.arguments], args)), **kwargs}
    if "input" not in given or "params" not in given or given.get("batch_sizes") is not None:
        return NotImplemented
    x, states = given["input"], given["hx"]
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    operands = [rec.value(item) for item in [x, *states, *given["params"]]]
    settings = (int(given["num_layers"]), 2 if given["bidirectional"] else 1, bool(given["batch_first"]), len(states))
    result, _, nodes = rec._run(RecurrentLayers.apply, (settings, x, *states, *given["params"]), {})
    outputs = list(result)
    attrs = {"layers": int(given["num_layers"]), "hidden": int(states[0].shape[-1]), "directions": 2 if given["bidirectional"] else 1,
             "batch_first": bool(given["batch_first"])}
    rec._add(Call("rnn" if name.startswith("rnn") else name, operands, [rec._new_value(item) for item in outputs], attrs, derives=True), nodes)
    return (result,)


def _grouped(rec: Any, operator, name, args, kwargs):
    x, weight = args[0], args[1]
    operands = [rec.value(item) for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
    with torch._C._DisablePythonDispatcher():
        result, _, nodes = rec._run(GroupedProduct.apply, (x, weight), {})
    groups = weight.shape[0] if weight.dim() == 3 else (x.shape[0] if x.dim() == 3 else 1)
    attrs = {"gemm": [groups, x.shape[-2], result.shape[-1], x.shape[-1]]}
    rec._add(Call("grouped_mm", operands, [rec._new_value(result)], attrs, derives=True), nodes)
    return (result,)


def _read(rec: Any, operator, name, args, kwargs):
    real = rec.real(args[0], name)
    if not rec.is_host(args[0]):
        rec._add(Call("read_back", [rec.value(args[0])], [], derives=True), (0, 0))
    value = real.item()
    return (bool(value) if name == "is_nonzero" else value,)


def _ctc_loss(rec: Any, operator, name, args, kwargs):
    """Lengths in tensors are read by the host; the operator proper takes numbers."""
    for item in args[2:4]:
        if isinstance(item, torch.Tensor):
            rec._add(Call("read_back", [rec.value(item)], [], derives=True), (0, 0))
    scores, targets = args[0], args[1]
    operands = [rec.value(scores), rec.value(targets)]
    result, _, _ = rec._run(scalar_of, (scores,), {})
    call = Call("ctc_loss", operands, [rec._new_value(result)])
    call.back = [BackCall("_ctc_loss_backward", ["g0", "i0", "i1"], [Made(tuple(scores.shape), scores.dtype)], {})]
    call.gives = [(0, "t0")]
    rec._add(call, (0, 0))
    return (result,)


def _histogram(rec: Any, operator, name, args, kwargs):
    """CUDA counts integers too; the CPU's kernel does not know them."""
    bins = int(args[1] if len(args) > 1 else kwargs.get("bins", 100))
    result, _, nodes = rec._run(torch.ops.aten.new_empty.default, (args[0], [bins]), {})
    rec._add(Call(name, [rec.value(args[0])], [rec._new_value(result)], kind="reduction"), nodes)
    return (result,)


def _one_hot(rec: Any, operator, name, args, kwargs):
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


def _running_product(rec: Any, operator, name, args, kwargs):
    """prod and cumprod, with the gradient of operands that have no zeros."""
    given = {**dict(zip([argument.name for argument in operator._schema.arguments], args)), **kwargs}
    x, dim = given["self"], given.get("dim")
    if rules.is_mutable(operator) or not isinstance(dim, (int, type(None))) or given.get("dtype") not in (None, x.dtype) \
            or x.dim() == 0 or not x.is_floating_point():
        return NotImplemented
    stand_in, settings = (CumulativeProduct, (dim,)) if name == "cumprod" else (Product, (dim, given.get("keepdim", False)))
    result, log, nodes = rec._run(stand_in.apply, (x, *settings), {})
    rec._parts(log, nodes, name, name)
    return (result,)


def _same(rec: Any, operator, name, args, kwargs):
    """Requests that change nothing on the device."""
    return (args[0],)


PARTICULAR: dict[str, Callable] = {
    **{name: _product for name in rules.PRODUCTS}, **{name: _convolution for name in rules.CONVOLUTIONS},
    **{name: _cast for name in rules.CASTS}, **{name: _dropout for name in rules.DROPOUTS},
    **{name: _recurrent for name in rules.RECURRENT}, **{name: _read for name in rules.READS},
    "scaled_dot_product_attention": _attention, "layer_norm": _normalization, "rms_norm": _normalization,
    "group_norm": _normalization, "batch_norm": _normalization, "softmax": _softmax, "log_softmax": _softmax,
    "special_softmax": _softmax, "special_log_softmax": _softmax, "_grouped_mm": _grouped, "ctc_loss": _ctc_loss, "histc": _histogram, "one_hot": _one_hot, "pin_memory": _same,
    "cumprod": _running_product, "prod": _running_product,
}
LOWER = frozenset({"prelu", "einsum", "addr", "linalg_vecdot", "addbmm", "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell",
                    "rnn_tanh_cell", "rnn_relu_cell", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"})
