"""Operators that are measured, by the names their lines carry. Each maker returns a closure over random data on the device
(random, because zeros draw less power and run faster), with the least bytes or the flops of one call where that is the
measure. Those of later families are in make/.
"""
import torch
import torch.nn.functional as F

from .random_data import random as _random



def _unary(function):
    def make(device, n, dtype):
        x = _random(device, n, dtype=dtype)
        return lambda: function(x)
    return make


def _binary(function):
    def make(device, n, dtype):
        x, y = _random(device, n, dtype=dtype), _random(device, n, dtype=dtype)
        return lambda: function(x, y)
    return make


def _into(device, n, dtype):
    x, y = _random(device, n, dtype=dtype), torch.empty(n, device=device, dtype=dtype)
    return lambda: y.copy_(x)


def _other(dtype):
    return torch.bfloat16 if dtype == torch.float32 else torch.float32


def _cast(device, n, dtype):
    x = _random(device, n, dtype=dtype)
    return lambda: x.to(_other(dtype))


def _mixed_add(device, n, dtype):
    x, y = _random(device, n, dtype=dtype), _random(device, n, dtype=_other(dtype))
    return lambda: x + y


def _dropout_backward(device, n, dtype):
    x, mask = _random(device, n, dtype=dtype), torch.ones(n, device=device, dtype=torch.bool)
    return lambda: torch.ops.aten.native_dropout_backward(x, mask, 1.1)


def _transpose(device, n, dtype):
    side = max(1, n // 1024)
    x = _random(device, side, 1024, dtype=dtype)
    return lambda: x.t().contiguous()


# op -> (make, bytes per element as a function of the element's size)
ELEMENTWISE = {
    "copy_": (_into, lambda e: 2 * e),
    "add": (_binary(torch.add), lambda e: 3 * e),
    "add_": (_binary(lambda x, y: x.add_(y, alpha=1e-3)), lambda e: 3 * e),
    "add mixed": (_mixed_add, lambda e: 2 + 4 + 4),
    "mul": (_binary(torch.mul), lambda e: 3 * e),
    "mul scalar": (_unary(lambda x: x * 1.5), lambda e: 2 * e),
    "relu": (_unary(torch.relu), lambda e: 2 * e),
    "relu backward": (_binary(lambda x, y: torch.ops.aten.threshold_backward(x, y, 0)), lambda e: 3 * e),
    "gelu": (_unary(F.gelu), lambda e: 2 * e),
    "gelu backward": (_binary(lambda x, y: torch.ops.aten.gelu_backward(x, y)), lambda e: 3 * e),
    "silu": (_unary(F.silu), lambda e: 2 * e),
    "silu backward": (_binary(lambda x, y: torch.ops.aten.silu_backward(x, y)), lambda e: 3 * e),
    "tanh": (_unary(torch.tanh), lambda e: 2 * e),
    "pow 3": (_unary(lambda x: torch.pow(x, 3.0)), lambda e: 2 * e),
    "cast to the other width": (_cast, lambda e: 6),
    "native_dropout": (_unary(lambda x: torch.ops.aten.native_dropout(x, 0.1, True)), lambda e: 2 * e + 1),
    "dropout backward": (_dropout_backward, lambda e: 2 * e + 1),
    "sum all": (_unary(torch.sum), lambda e: e),
    "zero_": (_unary(lambda x: x.zero_()), lambda e: e),
    "transpose copy (n/1024 x 1024)": (_transpose, lambda e: 2 * e),
}


def _layer_norm(device, rows, columns, dtype):
    x, w = _random(device, rows, columns, dtype=dtype), torch.ones(columns, device=device, dtype=dtype)
    return lambda: torch.ops.aten.native_layer_norm(x, [columns], w, w, 1e-5), 2 * x.nbytes, 1


def _layer_norm_backward(device, rows, columns, dtype):
    x, w = _random(device, rows, columns, dtype=dtype), torch.ones(columns, device=device, dtype=dtype)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [columns], w, w, 1e-5)
    grad = torch.randn_like(x)
    call = lambda: torch.ops.aten.native_layer_norm_backward(grad, x, [columns], mean, rstd, w, w, [True, True, True])
    return call, 3 * x.nbytes, 3


def _rms_norm(device, rows, columns, dtype):
    x, w = _random(device, rows, columns, dtype=dtype), torch.ones(columns, device=device, dtype=dtype)
    return lambda: F.rms_norm(x, (columns,), w, 1e-6), 2 * x.nbytes, 6


def _softmax(device, rows, columns, dtype):
    x = _random(device, rows, columns, dtype=dtype)
    return lambda: torch.ops.aten._softmax(x, -1, False), 2 * x.nbytes, 1


def _softmax_backward(device, rows, columns, dtype):
    y = torch.softmax(_random(device, rows, columns, dtype=dtype), -1)
    grad = torch.randn_like(y)
    return lambda: torch.ops.aten._softmax_backward_data(grad, y, -1, dtype), 3 * y.nbytes, 1


def _sum_rows(dim):
    def make(device, rows, columns, dtype):
        x = _random(device, rows, columns, dtype=dtype)
        return lambda: x.sum(dim), x.nbytes, 2
    return make


def _mean_last(device, rows, columns, dtype):
    x = _random(device, rows, columns, dtype=dtype)
    return lambda: x.mean(-1, keepdim=True), x.nbytes, 1


def _bias_add(device, rows, columns, dtype):
    x, b = _random(device, rows, columns, dtype=dtype), _random(device, columns, dtype=dtype)
    return lambda: x + b, 2 * x.nbytes, 1


def _strided_copy(device, rows, columns, dtype):
    """(rows/128, 128, heads, 64-ish) with the middle axes swapped: what attention's head split and merge cost."""
    heads = max(1, columns // 64)
    length = min(rows, 128)
    x = _random(device, rows // length, length, heads, columns // heads, dtype=dtype)
    return lambda: x.transpose(1, 2).contiguous(), 2 * x.nbytes, 1


def _cat_halves(device, rows, columns, dtype):
    x = _random(device, rows, columns, dtype=dtype)
    half = columns // 2
    return lambda: torch.cat((-x[:, half:], x[:, :half]), -1), 3 * x.nbytes, 2


# op -> make(device, rows, columns, dtype) -> (call, least bytes, launches)
ROWS = {"layer_norm": _layer_norm, "layer_norm backward": _layer_norm_backward, "rms_norm": _rms_norm,
        "softmax": _softmax, "softmax backward": _softmax_backward, "sum over rows": _sum_rows(0),
        "sum over columns": _sum_rows(1), "mean over columns": _mean_last, "add bias": _bias_add,
        "head transpose copy": _strided_copy, "rotate half (neg + cat)": _cat_halves}


def _image(device, shape, dtype, layout):
    x = _random(device, *shape, dtype=dtype)
    return x.to(memory_format=torch.channels_last) if layout == "nhwc" else x


def _norm_arguments(device, channels):
    # fp32 parameters and statistics whatever the input's type: what autocast and PyTorch's CUDA kernels use.
    return [torch.ones(channels, device=device), torch.zeros(channels, device=device),
            torch.zeros(channels, device=device), torch.ones(channels, device=device)]


def _batch_norm(device, shape, dtype, layout):
    x, (w, b, mean, var) = _image(device, shape, dtype, layout), _norm_arguments(device, shape[1])
    return lambda: torch.batch_norm(x, w, b, mean, var, True, 0.1, 1e-5, torch.backends.cudnn.enabled), 3 * x.nbytes


def _batch_norm_backward(device, shape, dtype, layout):
    x, (w, b, mean, var) = _image(device, shape, dtype, layout), _norm_arguments(device, shape[1])
    x.requires_grad_()
    w.requires_grad_()
    y = torch.batch_norm(x, w, b, mean, var, True, 0.1, 1e-5, torch.backends.cudnn.enabled)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (x, w), grad, retain_graph=True), 5 * x.nbytes


def _max_pool(device, shape, dtype, layout):
    x = _image(device, shape, dtype, layout)
    return lambda: F.max_pool2d(x, 3, 2, 1), x.nbytes * 5 // 4


def _max_pool_backward(device, shape, dtype, layout):
    x = _image(device, shape, dtype, layout).requires_grad_()
    y = F.max_pool2d(x, 3, 2, 1)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, x, grad, retain_graph=True), x.nbytes * 5 // 4


def _average_pool(device, shape, dtype, layout):
    x = _image(device, shape, dtype, layout)
    return lambda: F.adaptive_avg_pool2d(x, 1), x.nbytes


def _other_layout(device, shape, dtype, layout):
    x = _image(device, shape, dtype, layout)
    wanted = torch.contiguous_format if layout == "nhwc" else torch.channels_last
    return lambda: x.contiguous(memory_format=wanted), 2 * x.nbytes


IMAGE_OPS = {"batch_norm": _batch_norm, "batch_norm backward": _batch_norm_backward, "max_pool2d 3x3": _max_pool,
             "max_pool2d 3x3 backward": _max_pool_backward, "adaptive_avg_pool2d": _average_pool,
             "copy to the other layout": _other_layout}


def _log_softmax(device, tokens, vocabulary, hidden, dtype):
    x = _random(device, tokens, vocabulary, dtype=dtype)
    return lambda: torch.log_softmax(x, -1), 2 * x.nbytes


def _log_softmax_backward(device, tokens, vocabulary, hidden, dtype):
    y = torch.log_softmax(_random(device, tokens, vocabulary, dtype=dtype), -1)
    grad = torch.randn_like(y)
    return lambda: torch.ops.aten._log_softmax_backward_data(grad, y, -1, dtype), 3 * y.nbytes


def _nll(device, tokens, vocabulary, hidden, dtype):
    y = _random(device, tokens, vocabulary, dtype=dtype)
    target = torch.randint(0, vocabulary, (tokens,), device=device)
    return lambda: F.nll_loss(y, target), tokens * 12


def _nll_backward(device, tokens, vocabulary, hidden, dtype):
    y = _random(device, tokens, vocabulary, dtype=dtype).requires_grad_()
    loss = F.nll_loss(y, torch.randint(0, vocabulary, (tokens,), device=device))
    return lambda: torch.autograd.grad(loss, y, retain_graph=True), y.nbytes


def _embedding(device, tokens, vocabulary, hidden, dtype):
    weight, ids = _random(device, vocabulary, hidden, dtype=dtype), torch.randint(0, vocabulary, (tokens,), device=device)
    return lambda: F.embedding(ids, weight), 2 * tokens * hidden * dtype.itemsize


def _embedding_backward(device, tokens, vocabulary, hidden, dtype):
    grad, ids = _random(device, tokens, hidden, dtype=dtype), torch.randint(0, vocabulary, (tokens,), device=device)
    call = lambda: torch.ops.aten.embedding_dense_backward(grad, ids, vocabulary, -1, False)
    return call, (vocabulary + 2 * tokens) * hidden * dtype.itemsize


VOCABULARY_OPS = {"log_softmax": _log_softmax, "log_softmax backward": _log_softmax_backward, "nll_loss": _nll,
                  "nll_loss backward": _nll_backward, "embedding": _embedding,
                  "embedding backward": _embedding_backward}


def gemm(device, m, n, k, dtype, layout, bias):
    x = _random(device, *((k, m) if layout == "tn" else (m, k)), dtype=dtype)
    w = _random(device, *((n, k) if layout == "nt" else (k, n)), dtype=dtype)
    b = _random(device, n, dtype=dtype) if bias else None
    if layout == "nt":
        return lambda: F.linear(x, w, b)
    return (lambda: torch.mm(x.t(), w)) if layout == "tn" else (lambda: torch.mm(x, w))


def convolution(device, batch, cin, cout, kernel, stride, size, groups, dtype, layout):
    padding = 0 if kernel == 16 else kernel // 2
    x = _image(device, (batch, cin, size, size), dtype, layout)
    w = _image(device, (cout, cin // groups, kernel, kernel), dtype, layout)
    run = lambda: F.conv2d(x, w, None, stride, padding, 1, groups)
    y = run()
    grad = torch.randn_like(y)

    def backward(mask):
        return lambda: torch.ops.aten.convolution_backward(
            grad, x, w, None, [stride, stride], [padding, padding], [1, 1], False, [0, 0], groups, mask)
    calls = {"forward": run, "wgrad": backward([False, True, False])}
    if cin > 3:  # the first layer's input needs no gradient
        calls["dgrad"] = backward([True, False, False])
    return calls, 2 * y.numel() * (cin // groups) * kernel * kernel
