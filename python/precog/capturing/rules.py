"""What the recorder has to know about single operators of the framework, in one place.

Most operators need no entry: they are recorded under their own name with the gradient that the framework ran.
"""
from __future__ import annotations

import functools

import torch

# Composite operators whose parts autocast decides one by one: the recorder looks inside.
LOOK_INSIDE = frozenset({
    "cross_entropy_loss", "nll_loss_nd", "multi_head_attention_forward", "instance_norm", "tensordot", "inner",
    "kron", "chain_matmul", "linalg_multi_dot", "norm", "nuclear_norm", "conv_tbc", "glu_jvp", "_batch_norm_impl_index", "_convolution_mode",
    "gather_with_keepdimed_indices", "adaptive_max_pool1d", "max_pool1d", "triplet_margin_loss",
})

# One operator for the reader, whatever kernels the capturing machine would run; their gradient is the reader's business
# because it depends on the type or the device.
CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
                          "convolution", "_convolution"})
PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv"})
LOW_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv"})
POOLS = frozenset({"avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d_backward",
                   "avg_pool3d_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"})
CASTS = frozenset({"to", "type_as", "_to_copy", "_autocast_to_full_precision", "_autocast_to_reduced_precision"})
DROPOUTS = frozenset({"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
COPIES = frozenset({"clone", "contiguous"})
READS = frozenset({"item", "_local_scalar_dense", "is_nonzero"})
# Results whose size depends on values.
VALUE_SIZED = frozenset({"nonzero", "nonzero_numpy", "masked_select", "unique", "_unique", "_unique2", "unique_consecutive",
                         "unique_dim", "argwhere", "repeat_interleave", "bincount"})
# Write into places of their first operand, or of a copy of it.
WRITES_PLACES = frozenset({"index_put", "index_add", "index_fill", "scatter", "scatter_add", "masked_scatter", "put"})
# Allocate and launch nothing.
ALLOCATIONS = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"})

SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "int64",
         torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8", torch.bool: "bool",
         torch.complex64: "complex64"}


def short(dtype: torch.dtype) -> str:
    if dtype in SHORT:
        return SHORT[dtype]
    text = str(dtype).removeprefix("torch.")
    return "int8" if text.startswith(("float8", "uint", "int", "quint", "qint")) else "fp64"


@functools.lru_cache(maxsize=None)
def name_of(operator) -> str:
    """The operator's name without namespace (`aten`), overload and in-place underscore."""
    namespace, _, name = operator._schema.name.partition("::")
    if name.endswith("_") and not name.endswith("__") and operator._schema.is_mutable:
        name = name[:-1]
    return name if namespace in ("aten", "prims") else namespace + "::" + name


@functools.lru_cache(maxsize=None)
def autocast_decides(operator) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "AutocastCUDA")
    except RuntimeError:
        return False


# PyTorch's CUDA autocast lists by name (ATen/autocast_mode.h); the reader has them by overload.
_AUTOCAST_LOWER = PRODUCTS | CONVOLUTIONS | {"conv_tbc", "prelu", "addr", "einsum", "linalg_vecdot", "addbmm", "chain_matmul", "linalg_multi_dot",
                                             "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell",
                                             "rnn_relu_cell", "scaled_dot_product_attention", "lstm", "gru"}
_AUTOCAST_FOLLOWS = {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "tensordot", "scatter_add",
                     "vdot", "cat", "stack"}


@functools.lru_cache(maxsize=None)
def autocast_type(operator) -> torch.dtype | None:
    """The type to which autocast (to bf16) converts the operands, roughly: enough to see which casts a model's code then makes."""
    if not autocast_decides(operator):
        return None
    name = name_of(operator)
    if name in _AUTOCAST_LOWER:
        return torch.bfloat16
    return None if name in _AUTOCAST_FOLLOWS else torch.float32


@functools.lru_cache(maxsize=None)
def is_mutable(operator) -> bool:
    return operator._schema.is_mutable


_GATHERS = ("index_select", "gather", "index", "take", "embedding", "take_along_dim")
_COPIES = ("cat", "stack", "clone", "copy", "constant_pad_nd", "repeat", "roll", "flip", "im2col", "col2im", "pixel_shuffle",
           "pixel_unshuffle", "tril", "triu", "reflection_pad1d", "reflection_pad2d", "replication_pad2d", "hstack", "vstack",
           "channel_shuffle", "native_channel_shuffle")
_FILLS = ("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "fill", "zero",
          "arange", "scalar_tensor", "eye", "linspace", "range")


@functools.lru_cache(maxsize=None)
def kind_of(operator) -> str | None:
    """What sort of kernel this is, for a reader that does not know the name."""
    name = name_of(operator)
    if name in ALLOCATIONS:
        return "view"
    if name in _FILLS:
        return "fill"
    if name in _GATHERS:
        return "gather"
    if name in _COPIES:
        return "copy"
    if name.startswith(("scatter", "index_put", "index_add", "index_copy", "_index_put", "masked_scatter")):
        return "scatter"
    if name.startswith(("sort", "topk", "argsort", "unique", "kthvalue")):
        return "sort"
    tags = getattr(operator, "tags", ())
    if torch.Tag.pointwise in tags:
        return "pointwise"
    if torch.Tag.nondeterministic_seeded in tags:
        return "random"
    if hasattr(torch.Tag, "reduction") and torch.Tag.reduction in tags:
        return "reduction"
    if name in ("sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "argmax", "argmin", "var", "std", "var_mean",
                "std_mean", "linalg_vector_norm", "norm", "logsumexp", "count_nonzero"):
        return "reduction"
    return None


def is_dense(tensor: torch.Tensor) -> bool:
    """Every element of one memory range exactly once, in whatever order of axes."""
    expected = 1
    for size, stride in sorted(((n, s) for n, s in zip(tensor.shape, tensor.stride()) if n != 1), key=lambda pair: pair[1]):
        if stride != expected:
            return False
        expected *= size
    return True
