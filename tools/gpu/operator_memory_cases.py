"""The operators whose bytes operator_memory.py measures: families of cases, each a call on random operands.

A case's `make(device)` returns the call and the operands that gradients go to. `dry`: few cases, one sample each.
"""
from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Made = tuple[Callable[[], Any], list[torch.Tensor]]


@dataclasses.dataclass
class Case:
    family: str
    op: str
    precision: str
    shape: dict[str, Any]
    make: Callable[[str], Made]


def _few(cases: list[Any], dry: bool, most: int = 2) -> list[Any]:
    return cases[:most] if dry else cases


def _leaf(device: str, *shape: int, dtype: torch.dtype, layout: str = "nchw") -> torch.Tensor:
    x = torch.randn(*shape, device=device).to(dtype)
    if layout == "nhwc":
        x = x.contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    return x.requires_grad_()


# ---- recurrent layers --------------------------------------------------------------------------------------------------------
# (layers, directions, hidden, input, batch, time)
RNN_SHAPES = [(1, 1, 512, 512, 32, 100), (5, 2, 512, 640, 16, 200), (2, 1, 650, 650, 64, 35), (1, 1, 512, 512, 8, 100), (1, 1, 512, 512, 32, 200),
              (1, 1, 256, 512, 32, 100), (1, 1, 1024, 256, 32, 100), (1, 2, 512, 512, 32, 100), (2, 1, 512, 512, 32, 100), (2, 2, 512, 512, 32, 100),
              (3, 1, 512, 512, 32, 100), (3, 2, 256, 80, 24, 300), (1, 1, 128, 64, 16, 50), (4, 1, 1024, 1024, 64, 64), (1, 1, 200, 100, 10, 30),
              (5, 2, 1024, 1312, 16, 150), (2, 2, 512, 512, 64, 50)]


def _recurrent(cell: str, dtype: torch.dtype, autocast: bool, packed: bool, dropout: float, first: bool,
               layers: int, directions: int, hidden: int, inp: int, batch: int, time: int) -> Callable[[str], Made]:
    def make(device: str) -> Made:
        net = getattr(torch.nn, cell)(inp, hidden, layers, bidirectional=directions == 2, dropout=dropout, batch_first=first).to(device).to(dtype)
        shape = (batch, time, inp) if first else (time, batch, inp)
        x = _leaf(device, *shape, dtype=dtype)
        lengths = torch.linspace(time // 2, time, batch).long().flip(0) if packed else None
        region = torch.autocast(device, dtype=torch.bfloat16) if autocast else contextlib.nullcontext()

        def call() -> Any:
            with region:
                if lengths is None:
                    return net(x)
                return net(torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first))
        return call, [x, *net.parameters()]
    return make


def rnn(dry: bool) -> Iterator[Case]:
    plain = [(cell, p, False, False, 0.0, False, s) for s in _few(RNN_SHAPES, dry, 1) for p in ("fp32", "bf16", "fp16", "tf32") for cell in ("LSTM", "GRU", "RNN")]
    other = [(cell, p, autocast, packed, dropout, first, s) for s in _few(RNN_SHAPES, dry, 1)[::3] for cell in ("LSTM", "GRU")
             for p, autocast, packed, dropout, first in (("tf32", True, False, 0.0, False), ("tf32", False, True, 0.0, False), ("bf16", False, True, 0.0, False),
                                                         ("bf16", False, False, 0.3, False), ("bf16", False, False, 0.0, True))]
    for cell, precision, autocast, packed, dropout, first, shape in plain + other:
        layers, directions, hidden, inp, batch, time = shape
        if dry:
            batch, time, layers = 2, 4, min(layers, 2)
        label = dict(layers=layers, directions=directions, hidden=hidden, input=inp, batch=batch, time=time)
        label.update({k: True for k, on in (("autocast", autocast), ("packed", packed), ("batch_first", first)) if on})
        if dropout:
            label["dropout"] = dropout
        yield Case("rnn", cell, precision, label, _recurrent(cell, DTYPES[precision], autocast, packed, dropout, first, layers, directions, hidden, inp, batch, time))


# ---- convolutions ------------------------------------------------------------------------------------------------------------
# (batch, in, out, kernel, stride, image, groups, dilation, transposed); kernel and image by axis
_2D = [(32, 64, 64, 3, 1, 224, 1), (32, 3, 64, 3, 1, 224, 1), (32, 64, 128, 3, 1, 112, 1), (32, 128, 128, 3, 1, 112, 1), (32, 128, 256, 3, 1, 56, 1), (32, 256, 256, 3, 1, 56, 1),
       (32, 256, 512, 3, 1, 28, 1), (32, 512, 512, 3, 1, 28, 1), (32, 512, 512, 3, 1, 14, 1), (32, 3, 64, 7, 2, 224, 1), (32, 64, 64, 3, 1, 56, 1), (32, 128, 128, 3, 1, 28, 1),
       (32, 256, 256, 3, 1, 14, 1), (32, 512, 512, 3, 1, 7, 1), (32, 64, 128, 3, 2, 56, 1), (32, 256, 512, 3, 2, 14, 1), (32, 64, 256, 1, 1, 56, 1), (32, 256, 64, 1, 1, 56, 1),
       (32, 256, 512, 1, 2, 56, 1), (32, 1024, 256, 1, 1, 14, 1), (32, 2048, 512, 1, 1, 7, 1), (8, 256, 256, 3, 1, 56, 1), (8, 64, 64, 3, 1, 56, 1), (128, 64, 64, 3, 1, 56, 1),
       (128, 256, 256, 3, 1, 14, 1), (32, 3, 768, 16, 16, 224, 1), (32, 3, 96, 4, 4, 224, 1), (32, 96, 96, 7, 1, 56, 96), (32, 384, 384, 7, 1, 14, 384), (32, 144, 144, 3, 2, 56, 144),
       (32, 240, 240, 5, 1, 28, 240), (32, 128, 128, 3, 1, 56, 32), (32, 512, 512, 3, 1, 14, 32), (16, 64, 64, 5, 1, 28, 1), (32, 192, 64, 5, 1, 27, 1), (32, 3, 64, 11, 4, 224, 1),
       (4, 64, 64, 3, 1, 512, 1), (2, 128, 128, 3, 1, 256, 1), (32, 32, 32, 3, 1, 32, 1), (64, 16, 16, 3, 1, 32, 1), (32, 192, 224, 1, 1, 35, 1), (16, 24, 58, 3, 1, 96, 1),
       (32, 96, 192, 2, 2, 56, 1), (16, 320, 320, 3, 1, 64, 1), (16, 640, 640, 3, 1, 32, 1)]
_DILATED = [(8, 512, 512, 3, 1, 64, 1, 2), (8, 2048, 256, 3, 1, 33, 1, 12)]
_TURNED = [(8, 1024, 512, 2, 2, 32, 1), (16, 128, 64, 2, 2, 128, 1), (32, 512, 256, 4, 2, 8, 1), (32, 256, 128, 4, 2, 16, 1)]
_1D = [(8, 512, 512, 3, 2, 16000, 1), (8, 1, 512, 10, 5, 80000, 1), (8, 80, 512, 3, 1, 3000, 1), (8, 512, 512, 3, 2, 3000, 1), (8, 768, 768, 128, 1, 249, 16), (16, 256, 512, 1, 1, 1000, 1),
       (16, 1536, 1536, 4, 1, 1024, 1536), (16, 512, 512, 3, 1, 2000, 512)]
_3D = [(2, 32, 32, 3, 1, 64, 1), (2, 64, 64, 3, 1, 32, 1), (2, 1, 32, 3, 1, 64, 1), (2, 256, 256, 3, 1, 8, 1), (4, 64, 64, 3, 1, 28, 1), (2, 32, 64, 3, 2, 64, 1), (4, 3, 64, 3, 1, 56, 1)]


def _convolution(axes: int, dtype: torch.dtype, layout: str, turned: bool, bias: bool, batch: int, cin: int, cout: int, kernel: int, stride: int, image: int,
                 groups: int, dilation: int) -> dict[str, Callable[[str], Made]]:
    padding = 0 if stride == kernel or turned and kernel == 2 else (kernel - 1) // 2 * dilation
    one = lambda value: [value] * axes

    def operands(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        x = _leaf(device, batch, cin, *one(image), dtype=dtype, layout=layout).detach()
        w = (cin, cout // groups) if turned else (cout, cin // groups)
        weight = _leaf(device, *w, *one(kernel), dtype=dtype, layout=layout).detach()
        return x, weight, _leaf(device, cout, dtype=dtype).detach() if bias else None

    def forward(device: str) -> Made:
        x, w, b = operands(device)
        return lambda: torch.convolution(x, w, b, one(stride), one(padding), one(dilation), turned, one(0), groups), []

    def gradient(of_input: bool, of_weight: bool) -> Callable[[str], Made]:
        def make(device: str) -> Made:
            x, w, _ = operands(device)
            with torch.no_grad():
                g = torch.randn_like(torch.convolution(x, w, None, one(stride), one(padding), one(dilation), turned, one(0), groups))
            return lambda: torch.ops.aten.convolution_backward(g, x, w, None, one(stride), one(padding), one(dilation), turned, one(0), groups,
                                                               [of_input, of_weight, False])[0 if of_input else 1], []
        return make
    return {"conv forward": forward, "conv input": gradient(True, False), "conv weight": gradient(False, True)}


def conv(dry: bool) -> Iterator[Case]:
    shapes = [(2, False, (*s, 1)) for s in _2D] + [(2, False, s) for s in _DILATED] + [(2, True, (*s, 1)) for s in _TURNED] + \
             [(1, False, (*s, 1)) for s in _1D] + [(3, False, (*s, 1)) for s in _3D]
    if dry:
        shapes = [(axes, turned, (1, *s[1:5], min(s[5], 64), *s[6:])) for axes, turned, s in (shapes[10], shapes[-13], shapes[-16], shapes[-4])]
    runs = (("fp32", "nchw"), ("bf16", "nchw"), ("tf32", "nchw"), ("bf16", "nhwc"), ("fp16", "nchw"), ("fp32", "nhwc"))
    for precision, layout in _few(list(runs), dry):
        for axes, turned, shape in shapes:
            if layout == "nhwc" and axes == 1:
                continue
            batch, cin, cout, kernel, stride, image, groups, dilation = shape
            label = dict(axes=axes, batch=batch, cin=cin, cout=cout, kernel=kernel, stride=stride, size=image, groups=groups, layout=layout)
            label.update({k: v for k, v in (("dilation", dilation), ("transposed", turned)) if v and v != 1 or v is True})
            for op, make in _convolution(axes, DTYPES[precision], layout, turned, False, *shape).items():
                yield Case("conv", op, precision, label, make)


# ---- attention ---------------------------------------------------------------------------------------------------------------
# (batch, heads, heads of keys, queries, keys, width, causal, masked)
ATTENTION = [(8, 12, 12, 1024, 1024, 64, True, False), (8, 16, 16, 512, 512, 64, False, False), (2, 32, 8, 2048, 2048, 128, True, False), (32, 12, 12, 197, 197, 64, False, False),
             (8, 12, 12, 128, 512, 64, False, False), (8, 12, 12, 512, 512, 64, False, True), (512, 3, 3, 49, 49, 32, False, True), (2, 8, 8, 1024, 1024, 96, True, False),
             (2, 8, 8, 4096, 4096, 40, False, False), (2, 4, 4, 1000, 1000, 80, True, False), (4, 8, 8, 300, 300, 256, False, False)]


def _attention(dtype: torch.dtype, backend: str, causal: bool, masked: bool, dropout: float, *shape: int) -> Callable[[str], Made]:
    batch, heads, kv, queries, keys, width = shape

    def make(device: str) -> Made:
        q = _leaf(device, batch, queries, heads, width, dtype=dtype)
        k, v = (_leaf(device, batch, keys, kv, width, dtype=dtype) for _ in range(2))
        mask = torch.zeros(batch, 1, queries, keys, device=device, dtype=dtype) if masked else None
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def call() -> Any:
            region = contextlib.nullcontext() if backend == "default" else sdpa_kernel(getattr(SDPBackend, backend))
            with region:
                return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, dropout, causal, enable_gqa=kv != heads)
        return call, [q, k, v]
    return make


def attention(dry: bool) -> Iterator[Case]:
    for shape in _few(ATTENTION, dry, 1):
        *sizes, causal, masked = shape
        for precision in ("fp32", "bf16", "fp16"):
            for backend in ("default", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION"):
                for dropout in (0.0, 0.1) if backend in ("default", "MATH") else (0.0,):
                    if (precision == "fp32" and backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION")) or (precision == "fp16" and backend != "default"):
                        continue
                    if masked and backend == "FLASH_ATTENTION" or dry and backend not in ("default", "MATH"):
                        continue
                    if dry:
                        sizes = [1, *sizes[1:3], 64, 64, sizes[-1]]
                    label = dict(zip(("batch", "heads", "kv", "queries", "keys", "width"), sizes), causal=causal, masked=masked, dropout=dropout)
                    yield Case("attention", backend.lower(), precision, label, _attention(DTYPES[precision], backend, causal, masked, dropout, *sizes))


# ---- everything else: a name, operands by shape, and a call ------------------------------------------------------------------
def _call(function: Callable[..., Any], shapes: list[tuple[int, ...]], extra: Callable[[str], list[Any]] = lambda device: [], layout: str = "nchw") -> Callable[[torch.dtype], Callable[[str], Made]]:
    def of(dtype: torch.dtype) -> Callable[[str], Made]:
        def make(device: str) -> Made:
            leaves = [_leaf(device, *shape, dtype=dtype, layout=layout if len(shape) in (4, 5) else "nchw") for shape in shapes]
            more = extra(device)
            return lambda: function(*leaves, *more), leaves
        return make
    return of


def _ints(high: int, *shape: int) -> Callable[[str], list[Any]]:
    return lambda device: [torch.randint(0, high, shape, device=device)]


def _yield(family: str, table: list[tuple[str, dict[str, Any], Callable[[torch.dtype], Callable[[str], Made]]]], dry: bool, precisions: tuple[str, ...]) -> Iterator[Case]:
    seen: dict[str, int] = {}
    for op, label, of in table:
        seen[op] = seen.get(op, 0) + 1
        if dry and seen[op] > 1:
            continue
        for precision in precisions[:1] if dry else precisions:
            yield Case(family, op, precision, label, of(DTYPES[precision]))


def product(dry: bool) -> Iterator[Case]:
    table: list[Any] = []
    for m, n, k in [(4096, 4096, 4096), (8192, 768, 3072), (512, 30522, 768), (64, 1000, 2048), (16384, 1024, 1024), (1001, 999, 997), (8, 4096, 65536)]:
        if dry:
            m, n, k = 8, 16, 32
        table += [("linear", dict(m=m, n=n, k=k, bias=True), _call(F.linear, [(m, k), (n, k), (n,)])), ("linear", dict(m=m, n=n, k=k, bias=False), _call(F.linear, [(m, k), (n, k)])),
                  ("linear gelu", dict(m=m, n=n, k=k), _call(lambda x, w, b: F.gelu(F.linear(x, w, b)), [(m, k), (n, k), (n,)]))]
    for b, m, n, k in [(96, 128, 128, 64), (96, 512, 64, 512), (8, 1000, 1000, 33)]:
        table += [("bmm", dict(batch=b, m=m, n=n, k=k), _call(torch.bmm, [(b, m, k), (b, k, n)])),
                  ("matmul broadcast", dict(batch=b, m=m, n=n, k=k), _call(torch.matmul, [(b, m, k), (k, n)])),
                  ("matmul broadcast left", dict(batch=b, m=m, n=n, k=k), _call(torch.matmul, [(m, k), (b, k, n)])),
                  ("einsum bij,bkj->bik", dict(batch=b, m=m, n=n, k=k), _call(lambda x, y: torch.einsum("bij,bkj->bik", x, y), [(b, m, k), (b, n, k)])),
                  ("bmm transposed", dict(batch=b, m=m, n=n, k=k), _call(lambda x, y: torch.bmm(x, y.transpose(1, 2)), [(b, m, k), (b, n, k)]))]
    table += [("bilinear", dict(m=256, n=64, k=128), _call(F.bilinear, [(256, 128), (256, 128), (64, 128, 128)])), ("cdist", dict(b=8, m=512, k=64), _call(torch.cdist, [(8, 512, 64), (8, 512, 64)]))]
    yield from _yield("product", table, dry, ("fp32", "bf16"))


def losses(dry: bool) -> Iterator[Case]:
    table: list[Any] = []
    for rows, classes in [(8192, 50257), (512, 1000), (4096, 32000)]:
        if dry:
            rows, classes = 8, 10
        target = _ints(classes, rows)
        label = dict(rows=rows, columns=classes)
        table += [("cross_entropy", label, _call(F.cross_entropy, [(rows, classes)], target)),
                  ("cross_entropy smoothed", label, _call(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), [(rows, classes)], target)),
                  ("cross_entropy float", label, _call(lambda x, t: F.cross_entropy(x.float(), t), [(rows, classes)], target)),
                  ("log_softmax", label, _call(lambda x: F.log_softmax(x, -1), [(rows, classes)])), ("softmax", label, _call(lambda x: F.softmax(x, -1), [(rows, classes)])),
                  ("softmax fp32", label, _call(lambda x: F.softmax(x, -1, dtype=torch.float32), [(rows, classes)])),
                  ("logsumexp", label, _call(lambda x: x.logsumexp(-1), [(rows, classes)])),
                  ("kl_div", label, _call(lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"), [(rows, classes), (rows, classes)]))]
    n = 8 if dry else 4_000_000
    for op, function in (("mse_loss", F.mse_loss), ("l1_loss", F.l1_loss), ("smooth_l1_loss", F.smooth_l1_loss), ("huber_loss", F.huber_loss),
                         ("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach().sigmoid())), ("cosine_similarity", lambda x, y: F.cosine_similarity(x.view(-1, 8), y.view(-1, 8)))):
        table.append((op, dict(n=n), _call(function, [(n,), (n,)])))
    for batch, classes, image in [(8, 21, 256), (2, 150, 512)]:
        batch, image = (1, 8) if dry else (batch, image)
        table.append(("cross_entropy image", dict(batch=batch, classes=classes, size=image), _call(F.cross_entropy, [(batch, classes, image, image)], _ints(classes, batch, image, image))))
    yield from _yield("loss", table, dry, ("fp32", "bf16"))
    ctc: list[Any] = []
    for time, batch, classes, length in [(200, 16, 29, 40), (400, 32, 1000, 100), (1000, 8, 29, 200), (150, 64, 29, 30)]:
        if dry:
            time, batch, length = 10, 2, 3
        for where in ("cpu", "device"):
            def extra(device: str, t: int = time, b: int = batch, c: int = classes, n: int = length, on: str = where) -> list[Any]:
                place = "cpu" if on == "cpu" else device
                kind = torch.int32 if on == "cpu" else torch.long
                return [torch.randint(1, c, (b * n,) if on == "cpu" else (b, n), device=place, dtype=kind), torch.full((b,), t, dtype=kind), torch.full((b,), n, dtype=kind)]
            ctc.append(("ctc_loss " + where, dict(time=time, batch=batch, classes=classes, length=length),
                        _call(lambda x, t, a, b: F.ctc_loss(x.log_softmax(-1), t, a, b), [(time, batch, classes)], extra)))
    yield from _yield("loss", ctc, dry, ("fp32",))


def indexing(dry: bool) -> Iterator[Case]:
    table: list[Any] = []
    for words, width, rows in [(50257, 768, 8192), (30522, 1024, 4096), (250000, 512, 2048), (1000, 64, 100000), (2, 768, 8192)]:
        if dry:
            words, width, rows = 20, 8, 16
        label = dict(words=words, width=width, rows=rows)
        pick = _ints(words, rows)
        table += [("embedding", label, _call(lambda w, i: F.embedding(i, w), [(words, width)], pick)), ("embedding padded", label, _call(lambda w, i: F.embedding(i, w, padding_idx=0), [(words, width)], pick)),
                  ("index", label, _call(lambda w, i: w[i], [(words, width)], pick)), ("index_select", label, _call(lambda w, i: w.index_select(0, i), [(words, width)], pick)),
                  ("index_add", label, _call(lambda w, x, i: w.index_add(0, i, x), [(words, width), (rows, width)], pick)),
                  ("index_put", label, _call(lambda w, x, i: w.index_put((i,), x), [(words, width), (rows, width)], pick)),
                  ("index_put accumulate", label, _call(lambda w, x, i: w.index_put((i,), x, accumulate=True), [(words, width), (rows, width)], pick)),
                  ("scatter_add", label, _call(lambda w, x, i: w.scatter_add(0, i[:, None].expand(-1, x.shape[1]), x), [(words, width), (rows, width)], pick)),
                  ("gather", label, _call(lambda w, i: w.gather(0, i[:, None].expand(-1, w.shape[1])), [(words, width)], pick)),
                  ("scatter_reduce amax", label, _call(lambda w, x, i: w.scatter_reduce(0, i[:, None].expand(-1, x.shape[1]), x, "amax"), [(words, width), (rows, width)], pick))]
    table.append(("embedding_bag", dict(words=100000, width=64, rows=65536), _call(lambda w, i: F.embedding_bag(i.view(-1, 4), w, mode="sum"), [(100000, 64)], _ints(100000, 65536))))
    n = 64 if dry else 4096
    table += [("roll", dict(n=n), _call(lambda x: torch.roll(x, (3, 3), (0, 1)), [(n, n)])), ("flip", dict(n=n), _call(lambda x: x.flip(0), [(n, n)])),
              ("repeat_interleave", dict(n=n), _call(lambda x: x.repeat_interleave(2, 0), [(n, n)])), ("repeat", dict(n=n), _call(lambda x: x.repeat(2, 1), [(n, n)])),
              ("masked_fill", dict(n=n), _call(lambda x, m: x.masked_fill(m > 0, 0.0), [(n, n)], _ints(2, n, n))), ("where", dict(n=n), _call(lambda x, y, m: torch.where(m > 0, x, y), [(n, n), (n, n)], _ints(2, n, n))),
              ("boolean mask", dict(n=n), _call(lambda x, m: x[m > 0], [(n, n)], _ints(2, n, n))), ("tril", dict(n=n), _call(torch.tril, [(n, n)])), ("one_hot", dict(n=n), _call(lambda i: F.one_hot(i, 64), [], _ints(64, n))),
              ("cat", dict(n=n), _call(lambda x, y: torch.cat((x, y), 1), [(n, n), (n, n)])), ("stack", dict(n=n), _call(lambda x, y: torch.stack((x, y)), [(n, n), (n, n)])),
              ("slice", dict(n=n), _call(lambda x: x[:, : n // 2].contiguous(), [(n, n)])), ("chunk", dict(n=n), _call(lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], [(n, n)]))]
    yield from _yield("indexing", table, dry, ("fp32", "bf16"))


def ordering(dry: bool) -> Iterator[Case]:
    table: list[Any] = []
    for rows, columns in [(64, 65536), (4096, 1024), (8192, 64), (1, 4_000_000), (65536, 8)]:
        if dry:
            rows, columns = 4, 8
        label, k = dict(rows=rows, columns=columns), min(columns, 8)
        for op, function in (("sort", lambda x: x.sort(-1)[0]), ("argsort", lambda x: x.argsort(-1)), ("topk", lambda x, k=k: x.topk(k, -1)[0]), ("cumsum", lambda x: x.cumsum(-1)), ("cumsum rows", lambda x: x.cumsum(0)),
                             ("cumprod", lambda x: x.cumprod(-1)), ("max", lambda x: x.max(-1)[0]), ("amax", lambda x: x.amax(-1)), ("median", lambda x: x.median(-1)[0]), ("argmax", lambda x: x.argmax(-1)), ("sum", lambda x: x.sum(-1)),
                             ("sum rows", lambda x: x.sum(0)), ("sum all", lambda x: x.sum()), ("mean", lambda x: x.mean(-1)), ("var", lambda x: x.var(-1)), ("std", lambda x: x.std(-1)), ("norm", lambda x: x.norm(dim=-1)),
                             ("prod", lambda x: x.prod(-1)), ("normalize", lambda x: F.normalize(x, dim=-1)), ("nonzero", lambda x: x.gt(0).nonzero()), ("logcumsumexp", lambda x: x.logcumsumexp(-1))):
            if op == "prod" and columns > 4096:
                continue
            table.append((op, label, _call(function, [(rows, columns)])))
    yield from _yield("ordering", table, dry, ("fp32", "bf16"))


def norms(dry: bool) -> Iterator[Case]:
    table: list[Any] = []
    for rows, columns in [(8192, 768), (65536, 96), (2048, 4096), (16384, 320)]:
        if dry:
            rows = 4
        label = dict(rows=rows, columns=columns)
        table += [("layer_norm", label, _call(lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), [(rows, columns), (columns,), (columns,)])),
                  ("rms_norm", label, _call(lambda x, w: F.rms_norm(x, (x.shape[-1],), w), [(rows, columns), (columns,)]))]
    images = [(32, 64, 112, 112), (32, 256, 56, 56), (32, 1024, 14, 14), (4, 32, 512, 512), (2, 32, 64, 64, 64), (8, 512, 4000)]
    for image in images:
        if dry:
            image = (1, *image[1:])
        c = image[1]
        for layout in ("nchw", "nhwc") if len(image) > 3 else ("nchw",):
            label = dict(shape=image, layout=layout)
            table += [("batch_norm", label, _call(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [image, (c,), (c,)], layout=layout)),
                      ("group_norm", label, _call(lambda x, w, b: F.group_norm(x, 32, w, b), [image, (c,), (c,)], layout=layout)),
                      ("instance_norm", label, _call(lambda x, w, b: F.instance_norm(x, None, None, w, b), [image, (c,), (c,)], layout=layout))]
    yield from _yield("norm", table, dry, ("fp32", "bf16"))
    # autocast hands 16-bit images to fp32 weights
    for image in images[:3]:
        def make(device: str, shape: tuple[int, ...] = (1, *image[1:]) if dry else image) -> Made:
            x, w, b = _leaf(device, *shape, dtype=torch.bfloat16), _leaf(device, shape[1], dtype=torch.float32), _leaf(device, shape[1], dtype=torch.float32)
            return lambda: F.batch_norm(x, None, None, w, b, True), [x, w, b]
        yield Case("norm", "batch_norm fp32 weights", "bf16", dict(shape=image, layout="nchw"), make)


def spatial(dry: bool) -> Iterator[Case]:
    table: list[Any] = []
    for image in [(8, 64, 56, 56), (2, 256, 128, 128), (16, 3, 224, 224)]:
        if dry:
            image = (1, 4, 16, 16)
        b, c, h, w = image
        for layout in ("nchw", "nhwc"):
            label = dict(shape=image, layout=layout)
            grid = lambda device, b=b, h=h, w=w: [torch.rand(b, h, w, 2, device=device) * 2 - 1]
            for op, function, extra in (
                    ("nearest", lambda x: F.interpolate(x, scale_factor=2), None), ("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), None),
                    ("bicubic", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), None), ("bilinear antialias", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True), None),
                    ("area", lambda x: F.interpolate(x, scale_factor=0.5, mode="area"), None), ("grid_sample", lambda x, g: F.grid_sample(x, g.to(x.dtype), align_corners=False), grid),
                    ("unfold", lambda x: F.unfold(x, 3, padding=1), None), ("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), None), ("avg_pool2d", lambda x: F.avg_pool2d(x, 2), None),
                    ("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), None), ("adaptive_avg_pool2d 7", lambda x: F.adaptive_avg_pool2d(x, 7), None), ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 7), None),
                    ("pad constant", lambda x: F.pad(x, (1, 1, 1, 1)), None), ("pad reflect", lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), None), ("pad replicate", lambda x: F.pad(x, (1, 1, 1, 1), "replicate"), None),
                    ("pad circular", lambda x: F.pad(x, (1, 1, 1, 1), "circular"), None), ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2) if x.shape[1] % 4 == 0 else x * 1, None),
                    ("contiguous", lambda x: x.permute(0, 2, 3, 1).contiguous(), None)):
                table.append((op, label, _call(function, [image], extra or (lambda device: []), layout)))
    cube = (1, 4, 8, 8, 8) if dry else (2, 32, 32, 32, 32)
    table += [("trilinear", dict(shape=cube), _call(lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), [cube])), ("max_pool3d", dict(shape=cube), _call(lambda x: F.max_pool3d(x, 2), [cube])),
              ("avg_pool3d", dict(shape=cube), _call(lambda x: F.avg_pool3d(x, 2), [cube])), ("fold", dict(shape=(8, 576, 3136)), _call(lambda x: F.fold(x, (56, 56), 3, padding=1), [(1 if dry else 8, 576, 3136)]))]
    yield from _yield("spatial", table, dry, ("fp32", "bf16"))


def fourier(dry: bool) -> Iterator[Case]:
    table: list[Any] = []
    for image in [(8, 64, 64, 64), (4, 32, 256, 256), (2, 32, 85, 85), (8, 64, 14, 8)]:
        if dry:
            image = (1, 2, 8, 8)
        label = dict(shape=image)
        table += [("rfft2", label, _call(torch.fft.rfft2, [image])), ("rfft2 irfft2", label, _call(lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:]), [image])), ("fft2 real", label, _call(lambda x: torch.fft.fft2(x).real, [image])),
                  ("rfft", label, _call(torch.fft.rfft, [image])), ("fft over rows", label, _call(lambda x: torch.fft.fft(x, dim=-2).real, [image])), ("rfft2 axes 1 2", label, _call(lambda x: torch.fft.rfft2(x, dim=(1, 2), norm="ortho"), [image]))]
    n = 4000 if dry else 160000
    table.append(("stft", dict(batch=8, n=n), _call(lambda x: torch.stft(x, 400, 160, window=torch.ones(400, device=x.device), return_complex=True), [(8, n)])))
    yield from _yield("fft", table, dry, ("fp32",))


def pointwise(dry: bool) -> Iterator[Case]:
    n = 64 if dry else 4096
    one, two = [(n, n)], [(n, n), (n, n)]
    unary = {name: getattr(F, name) for name in ("gelu", "silu", "relu", "leaky_relu", "elu", "selu", "softplus", "mish", "hardswish", "hardsigmoid", "logsigmoid", "tanhshrink", "relu6", "celu", "softsign")}
    unary |= {name: getattr(torch, name) for name in ("tanh", "sigmoid", "exp", "log1p", "sqrt", "sin", "cos", "abs", "erf", "square", "rsqrt", "reciprocal", "neg", "clone")}
    unary |= {"gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "dropout": lambda x: F.dropout(x, 0.1), "dropout2d": lambda x: F.dropout2d(x.view(n, n // 16, 4, 4)), "pow 3": lambda x: x ** 3, "pow 0.5": lambda x: x.abs() ** 0.5,
              "clamp": lambda x: x.clamp(-1, 1), "to float": lambda x: x.float(), "to half": lambda x: x.half(), "glu": F.glu, "softmax": lambda x: F.softmax(x, -1), "softmax rows": lambda x: F.softmax(x, 0),
              "softmax columns 49": lambda x: F.softmax(x.view(-1)[: n * n // 49 * 49].view(-1, 49), -1), "log_softmax rows": lambda x: F.log_softmax(x, 0), "gumbel_softmax": lambda x: F.gumbel_softmax(x)}
    table: list[Any] = [(op, dict(n=n), _call(function, one)) for op, function in unary.items()]
    binary = {"add": torch.add, "mul": torch.mul, "div": torch.div, "sub": torch.sub, "maximum": torch.maximum, "pow": lambda x, y: x.abs() ** y, "lerp": lambda x, y: torch.lerp(x, y, 0.3), "atan2": torch.atan2, "addcmul": lambda x, y: torch.addcmul(x, x, y),
              "outer gate": lambda x, y: x * y.sigmoid(), "silu mul": lambda x, y: F.silu(x) * y}
    table += [(op, dict(n=n), _call(function, two)) for op, function in binary.items()]
    for op, other in (("row", (n,)), ("column", (n, 1)), ("scalar", (1,))):
        table += [("add " + op, dict(n=n), _call(torch.add, [(n, n), other])), ("mul " + op, dict(n=n), _call(torch.mul, [(n, n), other])), ("div " + op, dict(n=n), _call(torch.div, [(n, n), other]))]
    table += [("mul channel", dict(n=n), _call(torch.mul, [(8, n // 8, 8, n), (1, n // 8, 1, 1)])), ("mul gate", dict(n=n), _call(torch.mul, [(8, n // 8, 8, n), (8, n // 8, 1, 1)])), ("prelu", dict(n=n), _call(F.prelu, [(8, n // 8, 8, n), (n // 8,)])),
              ("add outer", dict(n=n), _call(torch.add, [(n, 1), (1, n)])), ("weight_norm", dict(n=n), _call(lambda v, g: torch._weight_norm(v, g, 0), [(n, n), (n, 1)]))]
    yield from _yield("pointwise", table, dry, ("fp32", "bf16"))


OPTIMIZERS = {"sgd": dict(lr=0.1), "sgd momentum": dict(lr=0.1, momentum=0.9, weight_decay=1e-4), "sgd nesterov": dict(lr=0.1, momentum=0.9, nesterov=True), "adam": dict(lr=1e-3), "adam decay": dict(lr=1e-3, weight_decay=1e-2), "adamw": dict(lr=1e-3, weight_decay=1e-2),
              "adamw amsgrad": dict(lr=1e-3, amsgrad=True), "adagrad": dict(lr=1e-3), "rmsprop": dict(lr=1e-3), "rmsprop momentum": dict(lr=1e-3, momentum=0.9), "adamax": dict(lr=1e-3), "nadam": dict(lr=1e-3), "radam": dict(lr=1e-3), "adadelta": dict(lr=1.0), "rprop": dict(lr=1e-3), "adafactor": dict(lr=1e-3)}
CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "adadelta": "Adadelta", "rprop": "Rprop", "adafactor": "Adafactor"}


def optimizer(dry: bool) -> Iterator[Case]:
    """Forward is a whole `step()` after the one that makes the states."""
    shapes = [(64,), (64, 64)] if dry else [(768,), (2048, 768), (3072, 768), (4096, 4096), (1000, 1000), (30522, 768), (768,)]
    for op, options in OPTIMIZERS.items():
        for precision in ("fp32", "bf16"):
            for form in ("foreach", "fused", "loop"):
                if form == "fused" and op.split()[0] not in ("sgd", "adam", "adamw", "adagrad") or form == "fused" and dry:
                    continue

                def make(device: str, op: str = op, options: dict[str, Any] = options, form: str = form, dtype: torch.dtype = DTYPES[precision]) -> Made:
                    parameters = [torch.nn.Parameter(torch.randn(*s, device=device).to(dtype)) for s in shapes]
                    gradients = [torch.randn_like(p) for p in parameters]
                    chosen = {"foreach": form == "foreach"} if form != "fused" else {"fused": True}
                    made = getattr(torch.optim, CLASSES[op.split()[0]])(parameters, **options, **chosen)

                    def call() -> None:
                        for p, g in zip(parameters, gradients):
                            p.grad = g
                        made.step()
                    return call, []
                yield Case("optimizer", op + " " + form, precision, dict(sizes=[list(s) for s in shapes]), make)
    for precision in ("fp32", "bf16"):
        for form in ("foreach", "loop"):
            def clip(device: str, foreach: bool = form == "foreach", dtype: torch.dtype = DTYPES[precision]) -> Made:
                parameters = [torch.nn.Parameter(torch.randn(*s, device=device).to(dtype)) for s in shapes]
                gradients = [torch.randn_like(p) for p in parameters]

                def call() -> None:
                    for p, g in zip(parameters, gradients):
                        p.grad = g
                    torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
                return call, []
            yield Case("optimizer", "clip_grad_norm_ " + form, precision, dict(sizes=[list(s) for s in shapes]), clip)


FAMILIES: dict[str, Callable[[bool], Iterator[Case]]] = {
    "rnn": rnn, "attention": attention, "optimizer": optimizer, "product": product, "norm": norms, "loss": losses, "indexing": indexing, "ordering": ordering, "spatial": spatial, "fft": fourier,
    "pointwise": pointwise, "conv": conv}
