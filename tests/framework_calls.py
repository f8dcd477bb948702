"""What PyTorch ran in a recorded step and what precog's passes derive for it, brought to the same words.

A call is (name, operand types and sizes, result types and sizes). Sizes are numbers of elements: a reshape is not a difference. Matrix
products are named by their extents, whichever of the two orders the library is asked for. What launches nothing is left out on both
sides: views, allocations, CPU scalars.
"""

import collections
import gzip
import json
import re

TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i64": "int64", "bool": "bool", "i32": "int32", "u8": "uint8", "f64": "fp64",
         "torch.float8_e4m3fn": "fp8", "torch.float8_e5m2": "fp8-e5m2", "torch.complex64": "complex64", "torch.int8": "int8", "torch.int16": "int16"}
BITS = {"fp8": 8, "fp8-e5m2": 8, "fp32": 32, "fp16": 16, "bf16": 16, "int64": 64, "bool": 8, "int32": 32, "uint8": 8, "fp64": 64, "complex64": 64, "int8": 8, "int16": 16}

VIEWS = set("""allocate view t transpose expand slice select unsqueeze squeeze permute detach alias as_strided split split_with_sizes unbind _unsafe_view
_reshape_alias lift_fresh view_as_complex view_as_real _conj diagonal unfold movedim chunk narrow reshape view_as empty empty_like new_empty
new_empty_strided empty_strided set_ set as_strided_ _use_cudnn_ctc_loss _use_miopen_ctc_loss real imag swapaxes numpy_T mT
_assert_async resolve_conj is_same_size squeeze_ unsqueeze_ t_ transpose_""".split())

# PyTorch's own word -> the one used here. Underscores of in-place forms are dropped first.
SAME = {"native_layer_norm": "layer_norm", "native_layer_norm_backward": "layer_norm_backward", "cudnn_batch_norm": "batch_norm",
        "native_batch_norm": "batch_norm", "miopen_batch_norm": "batch_norm", "cudnn_batch_norm_backward": "batch_norm_backward",
        "native_batch_norm_backward": "batch_norm_backward", "native_dropout": "dropout", "native_dropout_backward": "dropout_backward",
        "_softmax": "softmax", "_safe_softmax": "softmax", "_softmax_backward_data": "softmax_backward", "_log_softmax": "log_softmax",
        "_log_softmax_backward_data": "log_softmax_backward", "native_group_norm": "group_norm",
        "native_group_norm_backward": "group_norm_backward", "nll_loss_forward": "nll_loss", "nll_loss2d_forward": "nll_loss",
        "nll_loss2d_backward": "nll_loss_backward", "nll_loss2d": "nll_loss", "embedding_dense_backward": "embedding_backward",
        "max_pool2d_with_indices": "max_pool2d", "max_pool2d_with_indices_backward": "max_pool2d_backward",
        "_adaptive_avg_pool2d": "adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward",
        "_fused_rms_norm": "rms_norm", "_embedding_bag_backward": "embedding_backward", "_fused_rms_norm_backward": "rms_norm_backward", "rsub": "sub", "zeros": "fill", "ones": "fill",
        "full": "fill", "zeros_like": "fill", "ones_like": "fill", "full_like": "fill", "new_zeros": "fill", "new_ones": "fill", "new_full": "fill",
        "zero": "fill", "scalar_tensor": "fill", "fill": "fill", "clone": "copy", "contiguous": "copy", "copy": "copy", "_grouped_mm": "grouped_mm",
        "grouped_linear": "grouped_mm", "copy_into": "copy", "masked_fill": "where", "tril": "integer_pointwise", "ctc_loss": "_ctc_loss", "arange": "fill", "linspace": "fill", "stack": "cat", "conv2d": "convolution", "conv2d_backward": "convolution_backward", "_cudnn_rnn": "rnn", "lstm": "rnn",
        "gru": "rnn", "_cudnn_rnn_backward": "rnn_backward", "add_scalar": "add", "mul_scalar": "mul", "threshold_backward": "relu_backward",
        "slice_backward": "slice_backward", "select_backward": "slice_backward", "hardtanh": "hardtanh", "_index_put_impl": "index_put",
        "_unsafe_index": "index", "_unsafe_index_put": "index_put"}
PRODUCTS = {"_scaled_mm", "mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "mv", "addmv", "dot"}


def recorded_steps(path):
    """The steps of a file of traces; its first line, and steps that failed, have no phases."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            trace = json.loads(line)
            if "phases" in trace:
                yield trace


class Call:
    __slots__ = ("name", "inputs", "outputs", "extents")

    def __init__(self, name, inputs, outputs, extents=None):
        self.name, self.inputs, self.outputs, self.extents = name, inputs, outputs, extents

    @property
    def bytes(self):
        return sum(BITS.get(dtype, 32) * size // 8 for dtype, size in self.inputs + self.outputs)

    @property
    def key(self):
        if self.extents:
            batch, m, n, k = self.extents
            return ("product", (batch, *sorted((m, n)), k), self.outputs[0][0] if self.outputs else "")
        # Operands far smaller than the largest (a norm's statistics, a scale) are settings in a tensor's clothes.
        least = max((size for _, size in self.inputs + self.outputs), default=0) / 32
        large = lambda tensors: tuple(sorted((dtype, size) for dtype, size in tensors if size > least and size > 1))
        if self.name in ("rnn", "rnn_backward"):  # weights one by one or as one buffer
            return (self.name, self.inputs[0][0], self.outputs[0])
        if self.name in ("nll_loss_backward", "nll_loss"):  # given the log-probabilities for their shape alone
            return (self.name, (), large(self.outputs))
        return (self.name, () if self.name == "fill" else large(self.inputs), large(self.outputs))


def _word(name, operands):
    name = SAME.get(name, name)
    if name in ("div", "sub") and sum(size > 1 for _, size in operands) <= 1:  # by a number: multiplying, adding one
        name = {"div": "mul", "sub": "add"}[name]
    return name


def product(shape):
    out = 1
    for extent in shape:
        out *= extent
    return out


def real_calls(calls):
    """The kernel-launching calls of a recorded phase."""
    for call in calls:
        name = call[0].split(".")[1]
        inputs = [(TYPES.get(t[0], t[0]), t[1]) for t in call[1] if isinstance(t, list)]
        outputs = [(TYPES.get(t[0], t[0]), t[1]) for t in call[2] if isinstance(t, list)]
        lists = [t for t in call[1] if isinstance(t, dict)]
        if name in VIEWS or (not inputs and not outputs and not lists):
            continue
        if outputs and outputs[0][0].endswith("@cpu") or (not outputs and inputs and inputs[0][0].endswith("@cpu")):
            continue  # the host's own arithmetic
        if lists or name.startswith("_foreach") or name.startswith("_amp") or name.startswith("_fused_adam"):
            elements = max((t["elements"] for t in lists), default=0)
            if lists and all(set(t["dtypes"]) and t["n"] == t["elements"] for t in lists):
                continue  # the optimizer's step counters, on the CPU
            yield Call(name.rstrip("_"), [(TYPES.get(t["dtypes"][0], t["dtypes"][0]), t["elements"]) for t in lists] or [("fp32", elements)], [])
            continue
        inputs = [pair for pair in inputs if not pair[0].endswith("@cpu")]
        sizes = [(dtype, product(shape)) for dtype, shape in inputs]
        results = [(dtype, product(shape)) for dtype, shape in outputs]
        if name == "_local_scalar_dense":
            yield Call("read_back", [], [])
            continue
        if name in PRODUCTS:
            if name == "_scaled_mm":  # its operands come first, their scales after
                inputs, sizes = inputs[:2], sizes[:2]
            a, b = inputs[-2][1], inputs[-1][1]
            extents = ((a[0], a[1], b[2], a[2]) if len(a) == 3 else (1, a[0], b[1] if len(b) > 1 else 1, a[1]) if len(a) == 2 else (1, 1, 1, a[0]))
            yield Call("product", sizes, results, extents)
            continue
        if name == "_to_copy":
            if inputs and results[0][0] == inputs[0][0]:
                yield Call("copy", sizes, results)
            else:
                yield Call("cast", sizes, results)
            continue
        name = name.rstrip("_") if not name.endswith("__") else name
        if name.startswith("_scaled_dot_product"):
            name = "attention_backward" if "backward" in name else "attention"
            yield Call(name, sizes[:3], results[:1])
            continue
        name = _word(name, sizes)
        if name == "copy" and len(sizes) == 2:
            sizes = sizes[1:]
            name = "copy" if sizes[0][0] == results[0][0] else "cast"
        yield Call(name, sizes, results)
        if call[0].split(".")[1] == "_safe_softmax":  # recorded as one call, of which the rest is: isneginf, all, where (aten/src/ATen/native/SoftMax.cpp)
            scores = [("bool", results[0][1])]
            yield Call("integer_pointwise", results, scores)
            yield Call("all", scores, [("bool", product(outputs[0][1][:-1]))])
            yield Call("where", results, results)


_TENSOR = re.compile(r"(%\d+|@[^:,()=]+):([\w-]+)\[([\d,]*)\]")
_LINE = re.compile(r"^(?:(?P<left>.*?) = )?(?P<what>[\w.:]+?)(?P<inplace>_?)\((?P<operands>[^()]*)\)(?P<rest>.*)$")


def our_calls(dump, parameters):
    """The same from `--dump-after training`: phase -> calls. `parameters` names each leaf's (type, elements)."""
    found = collections.defaultdict(list)
    known, phase = dict(parameters), ""
    for line in dump.splitlines():
        if line.startswith("== "):
            phase = line[3:].strip()
            continue
        matched = _LINE.match(line.split("  # ")[0])
        if not matched or line.startswith("--"):
            continue
        outputs = []
        for name, dtype, shape in _TENSOR.findall(matched["left"] or ""):
            size = product(int(x) for x in shape.split(",") if x)
            known[name] = (dtype, size)
            outputs.append((dtype, size))
        operands = [known[name.strip()] for name in matched["operands"].split(", ") if name.strip() in known]
        found[phase].extend(_ours(matched["what"], operands, outputs, matched["rest"]))
    return found


def _ours(what, operands, outputs, rest):
    kind, _, label = what.partition(".")
    name = label if label and kind != "cast" else kind
    if kind == "view" or name in VIEWS:
        return
    sizes = re.search(r"b=(\d+) m=(\d+) n=(\d+) k=(\d+)", rest)
    if sizes and kind not in ("grouped_linear", "grouped_mm"):
        yield Call("product", operands[:2] if kind == "scaled_mm" else operands, outputs, tuple(int(x) for x in sizes.groups()))
        return
    if kind == "pointwise_backward":
        name = (label or "pointwise") + ("" if label.endswith("_backward") else "_backward")
    if kind == "scaled_dot_product_attention":
        yield Call("attention", operands[:3], outputs[:1])
        return
    if kind == "attention_backward":
        yield Call("attention_backward", operands[:3], outputs[:1])
        return
    name = _word(name, operands)
    if name == "copy" and len(operands) > 1:
        operands = operands[-1:]
    if name == "copy" and operands and outputs and operands[0][0] != outputs[0][0]:
        name = "cast"
    yield Call(name, operands, outputs)


def compare(real, ours):
    """(share of bytes that agree, only in PyTorch, only in precog) of two lists of calls."""
    sides = [collections.Counter(call.key for call in side) for side in (real, ours)]
    weight = {}
    for call in [*ours, *real]:
        weight[call.key] = call.bytes
    total = max(sum(weight[key] * count for key, count in side.items()) for side in sides)
    shared = sum(weight[key] * count for key, count in (sides[0] & sides[1]).items())
    largest = lambda counter: sorted(counter.items(), key=lambda item: -weight[item[0]] * item[1])
    return (shared / total if total else 1.0), largest(sides[0] - sides[1]), largest(sides[1] - sides[0])


def leaves(document, parameter_type):
    """Types and sizes of what exists before the step, from a captured document at its captured sizes: '@name' -> (type, elements)."""
    sizes = {"batch": 1, "seq": 1, "src_seq": 1, **document.get("captured", {}), **document["symbols"]}
    found = {}

    def value(extent):
        if isinstance(extent, int):
            return extent
        total = 0
        for sign, term in re.findall(r"([+-]?)([^+-]+)", extent):
            factor = -1 if sign == "-" else 1
            for part in term.split("*"):
                factor *= sizes[part] if part in sizes else int(part)
            total += factor
        return total

    def note(entry, number=None):
        name = entry["name"] if number is None else entry["name"].replace("{}", str(number))
        kind = entry.get("type", "float")
        found["@" + name] = (parameter_type if kind == "float" else kind, product(value(extent) for extent in entry["shape"]))
    for entry in document["stream"]:
        if "tensor" in entry:
            note(entry)
        for number in range(entry.get("first", 0), entry.get("first", 0) + entry.get("repeat", 0)):
            for inner in entry["stream"]:
                if "tensor" in inner:
                    note(inner, number)
    return found
