#!/usr/bin/env python3
"""Times PyTorch's own GPU kernels, operator by operator, and writes one CSV row each.

What this is: the source of the coefficients that no public data set holds (normalisations, reductions,
optimizers, convolution and attention backward). Needs a CUDA GPU and PyTorch.
What it is not: a training step. Each operator runs alone, replayed from a CUDA graph, so host dispatch is not in
the figure; operands rotate through enough copies to be cold in the L2, as they are in a real step.

usage: measure_families.py OUT.csv [PART...]
"""
import csv
import itertools
import sys

import torch
import torch.nn.functional as F

aten = torch.ops.aten
DEV = "cuda"
rows = []
L2 = torch.cuda.get_device_properties(0).L2_cache_size


def bench(make, call, touched):
    """Median seconds of call(*make()), over operands cold in L2."""
    copies = int(max(1, min(24, 2.5 * L2 / max(touched, 1) + 1)))
    args = [make() for _ in range(copies)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(*args[0])
        torch.cuda.synchronize()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); call(*args[0]); b.record(); torch.cuda.synchronize()
        reps = int(max(copies, min(60, 3.0 / max(a.elapsed_time(b), 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(reps):
                call(*args[i % copies])
        times = []
        for _ in range(4):
            a.record(); graph.replay(); b.record(); torch.cuda.synchronize()
            times.append(a.elapsed_time(b) / reps)
    del graph, args
    return sorted(times[1:])[1] * 1e-3


def bench_profiled(make, call, touched):
    """The same from the profiler's kernel times: for calls that a CUDA graph cannot hold (autograd, random numbers)."""
    copies = int(max(1, min(8, 2.5 * L2 / max(touched, 1) + 1)))
    args = [make() for _ in range(copies)]
    for _ in range(2):
        call(*args[0])
    torch.cuda.synchronize()
    reps = max(copies, 5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        for i in range(reps):
            call(*args[i % copies])
        torch.cuda.synchronize()
    return sum(e.device_time for e in prof.events()) / reps * 1e-6


def add(family, op, dtype, shape, nbytes, flops, make, call):
    try:
        how = bench_profiled if family in ("attention", "dropout", "batch_norm_backward") else bench
        seconds = how(make, call, nbytes)
    except Exception as problem:  # an operator this build lacks is a row we do not have
        print("skip", family, op, dtype, shape, str(problem).split("\n")[0][:120], flush=True)
        torch.cuda.synchronize()
        return
    rows.append(dict(family=family, op=op, dtype=dtype, shape=shape, bytes=int(nbytes), flops=int(flops),
                     us=round(seconds * 1e6, 3)))
    if len(rows) % 40 == 0:
        torch.cuda.empty_cache()


def rand(*shape, dtype):
    return torch.randn(*shape, device=DEV, dtype=dtype)


NAME = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def pointwise():
    for dt, n in itertools.product((torch.float32, torch.bfloat16), (2**14, 2**18, 2**20, 2**22, 2**24, 2**26, 2**28)):
        es = dt.itemsize
        one = lambda n=n, dt=dt: (rand(n, dtype=dt),)
        two = lambda n=n, dt=dt: (rand(n, dtype=dt), rand(n, dtype=dt))
        s = f"n={n}"
        add("pointwise", "add", NAME[dt], s, 3 * n * es, n, two, torch.add)
        add("pointwise", "add_", NAME[dt], s, 3 * n * es, n, two, lambda a, b: a.add_(b))
        add("pointwise", "relu", NAME[dt], s, 2 * n * es, n, one, torch.relu)
        add("pointwise", "copy", NAME[dt], s, 2 * n * es, 0, two, lambda a, b: a.copy_(b))
        add("activation", "gelu", NAME[dt], s, 2 * n * es, n, one, F.gelu)
        add("activation", "gelu_backward", NAME[dt], s, 3 * n * es, n, two, lambda a, b: aten.gelu_backward(a, b))
        add("activation", "silu", NAME[dt], s, 2 * n * es, n, one, F.silu)
        add("activation", "silu_backward", NAME[dt], s, 3 * n * es, n, two, lambda a, b: aten.silu_backward(a, b))
        add("pointwise", "threshold_backward", NAME[dt], s, 3 * n * es, n, two, lambda a, b: aten.threshold_backward(a, b, 0))
        add("dropout", "native_dropout", NAME[dt], s, n * (2 * es + 1), n, one, lambda a: aten.native_dropout(a, 0.1, True))
        other = torch.bfloat16 if dt == torch.float32 else torch.float32
        add("cast", "to", NAME[dt], s, 6 * n, 0, one, lambda a, o=other: a.to(o))
        if n >= 2**20:
            w = 1024
            add("transpose", "t_contiguous", NAME[dt], f"rows={n//w} cols={w}", 2 * n * es, 0,
                lambda n=n, dt=dt: (rand(n // w, w, dtype=dt),), lambda a: a.t().contiguous())
            add("pointwise", "broadcast_add", NAME[dt], f"rows={n//w} cols={w}", 2 * n * es, n,
                lambda n=n, dt=dt: (rand(n // w, w, dtype=dt), rand(w, dtype=dt)), torch.add)


def rowwise():
    for dt, r, h in itertools.product((torch.float32, torch.bfloat16), (512, 2048, 8192, 32768), (768, 1024, 4096, 8192)):
        n, es = r * h, dt.itemsize
        if n > 2**27:
            continue
        s = f"rows={r} cols={h}"
        x = lambda r=r, h=h, dt=dt: (rand(r, h, dtype=dt),)
        add("reduction", "sum_rows", NAME[dt], s, n * es, n, x, lambda a: a.sum(0))
        add("reduction", "sum_cols", NAME[dt], s, n * es, n, x, lambda a: a.sum(1))
        add("reduction", "sum_all", NAME[dt], s, n * es, n, x, lambda a: a.sum())
        add("norm_forward", "layer_norm", NAME[dt], s, 2 * n * es, n,
            lambda r=r, h=h, dt=dt: (rand(r, h, dtype=dt), rand(h, dtype=dt), rand(h, dtype=dt)),
            lambda a, w, b: aten.native_layer_norm(a, [a.shape[1]], w, b, 1e-5))
        add("norm_backward", "layer_norm_backward", NAME[dt], s, 3 * n * es, n,
            lambda r=r, h=h, dt=dt: (rand(r, h, dtype=dt), rand(r, h, dtype=dt), rand(r, 1, dtype=torch.float32),
                                     rand(r, 1, dtype=torch.float32), rand(h, dtype=dt), rand(h, dtype=dt)),
            lambda g, a, m, q, w, b: aten.native_layer_norm_backward(g, a, [a.shape[1]], m, q, w, b, [True, True, True]))
        add("norm_forward", "rms_norm", NAME[dt], s, 2 * n * es, n,
            lambda r=r, h=h, dt=dt: (rand(r, h, dtype=dt), rand(h, dtype=dt)), lambda a, w: F.rms_norm(a, [a.shape[1]], w, 1e-5))
        add("softmax", "softmax", NAME[dt], s, 2 * n * es, n, x, lambda a: F.softmax(a, -1))
        add("softmax", "softmax_backward", NAME[dt], s, 3 * n * es, n,
            lambda r=r, h=h, dt=dt: (rand(r, h, dtype=dt), rand(r, h, dtype=dt)),
            lambda g, o: aten._softmax_backward_data(g, o, -1, o.dtype))
    for dt, (r, v) in itertools.product((torch.float32, torch.bfloat16), ((512, 30522), (4096, 32000), (4096, 50257), (2048, 128256))):
        n, es, s = r * v, dt.itemsize, f"rows={r} cols={v}"
        add("softmax", "log_softmax", NAME[dt], s, 2 * n * es, n, lambda r=r, v=v, dt=dt: (rand(r, v, dtype=dt),), lambda a: F.log_softmax(a, -1))
        add("softmax", "log_softmax_backward", NAME[dt], s, 3 * n * es, n,
            lambda r=r, v=v, dt=dt: (rand(r, v, dtype=dt), rand(r, v, dtype=dt)),
            lambda g, o: aten._log_softmax_backward_data(g, o, -1, o.dtype))
        for h in (1024, 4096):
            ids = lambda r=r, v=v, h=h, dt=dt: (rand(v, h, dtype=dt), torch.randint(v, (r,), device=DEV))
            add("embedding", "embedding", NAME[dt], f"rows={r} cols={h} vocab={v}", 2 * r * h * es, 0, ids, lambda w, i: F.embedding(i, w))
            add("embedding_backward", "embedding_dense_backward", NAME[dt], f"rows={r} cols={h} vocab={v}", (2 * r * h + v * h) * es, 0,
                lambda r=r, v=v, h=h, dt=dt: (rand(r, h, dtype=dt), torch.randint(v, (r,), device=DEV)),
                lambda g, i, v=v: aten.embedding_dense_backward(g, i, v, -1, False))


def images():
    shapes = ((64, 64, 112, 112), (64, 64, 56, 56), (64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14), (64, 2048, 7, 7), (8, 256, 56, 56))
    for dt, fmt, shp in itertools.product((torch.float32, torch.bfloat16), (torch.contiguous_format, torch.channels_last), shapes):
        n, es, c = shp[0] * shp[1] * shp[2] * shp[3], dt.itemsize, shp[1]
        s = "nhwc " if fmt == torch.channels_last else "nchw "
        s += "x".join(map(str, shp))
        t = lambda shp=shp, dt=dt, fmt=fmt: rand(*shp, dtype=dt).contiguous(memory_format=fmt)
        f32 = lambda c=c: torch.ones(c, device=DEV)
        add("batch_norm_forward", "batch_norm", NAME[dt], s, 3 * n * es, n, lambda: (t(), f32(), f32(), f32(), f32()),
            lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True))

        def bwd_args():
            with torch.enable_grad():
                x, w, b = t().requires_grad_(), f32().requires_grad_(), f32().requires_grad_()
                return F.batch_norm(x, f32(), f32(), w, b, True), t(), x, w, b
        add("batch_norm_backward", "batch_norm_backward", NAME[dt], s, 5 * n * es, n, bwd_args,
            lambda y, g, x, w, b: torch.autograd.grad(y, (x, w, b), g, retain_graph=True))
        if shp[2] == 112:
            add("pooling", "max_pool2d", NAME[dt], s, n * es + n // 4 * (es + 8), n, lambda: (t(),),
                lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]))

            def pool_args():
                x = t()
                y, i = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
                return torch.randn_like(y), x, i
            add("pooling", "max_pool2d_backward", NAME[dt], s, n * es + n // 4 * (es + 8), n, pool_args,
                lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, i))


CONVS = (  # in channels, out channels, image, filter, stride, groups
    (3, 64, 224, 7, 2, 1), (64, 64, 56, 1, 1, 1), (64, 64, 56, 3, 1, 1), (64, 256, 56, 1, 1, 1), (256, 64, 56, 1, 1, 1),
    (256, 128, 56, 1, 1, 1), (128, 128, 56, 3, 2, 1), (128, 128, 28, 3, 1, 1), (128, 512, 28, 1, 1, 1), (512, 128, 28, 1, 1, 1),
    (256, 512, 56, 1, 2, 1), (256, 256, 14, 3, 1, 1), (1024, 256, 14, 1, 1, 1), (256, 1024, 14, 1, 1, 1), (512, 512, 7, 3, 1, 1),
    (2048, 512, 7, 1, 1, 1), (512, 2048, 7, 1, 1, 1), (64, 128, 112, 3, 1, 1), (256, 512, 28, 3, 1, 1),
    (96, 96, 112, 3, 2, 96), (144, 144, 56, 3, 1, 144), (192, 192, 28, 3, 1, 192), (384, 384, 14, 3, 1, 384), (960, 960, 7, 3, 1, 960),
)


def convolutions():
    for (ci, co, im, f, st, gr), batch, mode, fmt in itertools.product(
            CONVS, (64,), ("fp32", "tf32", "bf16", "fp16"), (torch.contiguous_format, torch.channels_last)):
        dt = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mode, torch.float32)
        torch.backends.cudnn.allow_tf32 = mode == "tf32"
        if fmt == torch.channels_last and mode == "fp32":
            continue
        es, pad = dt.itemsize, f // 2
        o = (im + 2 * pad - f) // st + 1
        x = lambda: rand(batch, ci, im, im, dtype=dt).contiguous(memory_format=fmt)
        w = lambda: rand(co, ci // gr, f, f, dtype=dt).contiguous(memory_format=fmt)
        g = lambda: rand(batch, co, o, o, dtype=dt).contiguous(memory_format=fmt)
        fl = 2 * batch * o * o * co * ci // gr * f * f
        by = es * (batch * ci * im * im + co * ci // gr * f * f + batch * co * o * o)
        s = f"{'nhwc' if fmt == torch.channels_last else 'nchw'} n={batch} c={ci} k={co} hw={im} f={f} s={st} g={gr}"
        add("convolution", "forward", mode, s, by, fl, lambda: (x(), w()),
            lambda a, b: aten.convolution(a, b, None, [st, st], [pad, pad], [1, 1], False, [0, 0], gr))
        for name, mask in (("backward_data", [True, False, False]), ("backward_weight", [False, True, False])):
            add("convolution", name, mode, s, by, fl, lambda: (g(), x(), w()),
                lambda c, a, b, mask=mask: aten.convolution_backward(c, a, b, None, [st, st], [pad, pad], [1, 1], False, [0, 0], gr, mask))
    torch.backends.cudnn.allow_tf32 = True


def matrices():
    shapes = [(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)]
    shapes += [(4096, 1024, 1024), (4096, 4096, 1024), (4096, 1024, 4096), (1024, 1024, 4096), (4096, 1024, 4096), (4096, 30522, 1024),
               (512, 3072, 768), (512, 768, 3072), (2048, 14336, 4096), (2048, 4096, 14336), (8192, 2304, 768), (512, 512, 8192), (64, 1000, 2048), (128, 1024, 1024)]
    for mode, (m, n, k), layout in itertools.product(("fp32", "tf32", "bf16", "fp16"), shapes, ("nt", "nn", "tn")):
        dt = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mode, torch.float32)
        if mode == "fp32" and m * n * k > 2**36:
            continue
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        es = dt.itemsize
        make = {"nt": lambda: (rand(m, k, dtype=dt), rand(n, k, dtype=dt).t()), "nn": lambda: (rand(m, k, dtype=dt), rand(k, n, dtype=dt)),
                "tn": lambda: (rand(k, m, dtype=dt).t(), rand(k, n, dtype=dt))}[layout]
        add("gemm", layout, mode, f"b=1 m={m} n={n} k={k}", es * (m * k + n * k + m * n), 2 * m * n * k, make, torch.mm)
    for mode, (b, m, n, k) in itertools.product(("fp32", "tf32", "bf16", "fp16"), ((128, 512, 512, 64), (128, 512, 64, 512), (32, 1024, 1024, 64), (32, 2048, 2048, 128), (32, 2048, 128, 2048), (512, 128, 128, 64), (768, 197, 197, 64), (768, 197, 64, 197))):
        dt = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mode, torch.float32)
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        add("gemm", "bmm", mode, f"b={b} m={m} n={n} k={k}", dt.itemsize * b * (m * k + n * k + m * n), 2 * b * m * n * k,
            lambda: (rand(b, m, k, dtype=dt), rand(b, k, n, dtype=dt)), torch.bmm)


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for mode, causal, (b, h, s, d) in itertools.product(("bf16", "fp32"), (False, True), (
            (8, 16, 512, 64), (32, 16, 512, 64), (32, 12, 128, 64), (64, 12, 197, 64), (8, 12, 1024, 64), (4, 16, 2048, 64), (2, 32, 2048, 128), (1, 32, 4096, 128), (1, 32, 8192, 128), (4, 40, 1024, 128), (1, 8, 2048, 128))):
        dt = torch.bfloat16 if mode == "bf16" else torch.float32
        n, es = b * h * s * d, dt.itemsize
        fl = 4 * b * h * s * s * d // (2 if causal else 1)
        for name, kind in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION), ("efficient", SDPBackend.EFFICIENT_ATTENTION)):
            if (mode == "fp32") != (name == "efficient"):
                continue
            torch.backends.cuda.matmul.allow_tf32 = False
            shape = f"b={b} h={h} s={s} d={d} causal={int(causal)}"

            def qkv(grad=False):
                return tuple(rand(b, h, s, d, dtype=dt).requires_grad_(grad) for _ in range(3))

            def fwd(q, k, v):
                with sdpa_kernel(kind):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            def make_bwd():
                q, k, v = qkv(True)
                o = fwd(q, k, v)
                return o, torch.randn_like(o), q, k, v

            add("attention", "forward_" + name, mode, shape, 4 * n * es, fl, qkv, fwd)
            add("attention", "backward_" + name, mode, shape, 8 * n * es, fl * 2.5, make_bwd,
                lambda o, g, q, k, v: torch.autograd.grad(o, (q, k, v), g, retain_graph=True))


def optimizers():
    for dt, count, size in itertools.product((torch.float32, torch.bfloat16), (16, 200), (2**16, 2**20, 2**22)):
        n = count * size
        params = [rand(size, dtype=dt).requires_grad_() for _ in range(count)]
        for p in params:
            p.grad = torch.randn_like(p)
        for label, make in (("adamw_foreach", lambda: torch.optim.AdamW(params, foreach=True)), ("adamw_fused", lambda: torch.optim.AdamW(params, fused=True)),
                            ("sgd_foreach", lambda: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True)), ("sgd_fused", lambda: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True))):
            opt = make()
            for _ in range(3):
                opt.step()
            torch.cuda.synchronize()
            prof = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            with prof:
                for _ in range(3):
                    opt.step()
                torch.cuda.synchronize()
            kernels = [e for e in prof.events() if e.device_time > 0]
            us = sum(e.device_time for e in kernels) / 3
            passes = 7 if "adamw" in label else 5
            rows.append(dict(family="optimizer", op=label, dtype=NAME[dt], shape=f"tensors={count} size={size} kernels={len(kernels)//3}",
                             bytes=passes * n * dt.itemsize, flops=0, us=round(us, 3)))
            del opt
        inv, found = torch.ones(1, device=DEV), torch.zeros(1, device=DEV)
        grads = [p.grad for p in params]
        if dt == torch.float32:
            add("optimizer", "unscale", NAME[dt], f"tensors={count} size={size}", 2 * n * dt.itemsize, 0, lambda: (),
                lambda: torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inv))
        add("optimizer", "norm_foreach", NAME[dt], f"tensors={count} size={size}", n * dt.itemsize, 0, lambda: (), lambda: torch._foreach_norm(grads, 2))
        add("optimizer", "zero_foreach", NAME[dt], f"tensors={count} size={size}", n * dt.itemsize, 0, lambda: (), lambda: torch._foreach_zero_(grads))


if __name__ == "__main__":
    out = sys.argv[1]
    parts = dict(pointwise=pointwise, rowwise=rowwise, matrices=matrices, images=images, convolutions=convolutions,
                 attention=attention, optimizers=optimizers)
    for part in [parts[name] for name in sys.argv[2:] or parts]:
        try:
            with torch.no_grad() if part is not attention else torch.enable_grad():
                part()
        except Exception as problem:
            print("part failed", part.__name__, repr(problem)[:300], flush=True)
        print(part.__name__, len(rows), flush=True)
        with open(out, "w", newline="") as f:
            w = csv.DictWriter(f, ["family", "op", "dtype", "shape", "bytes", "flops", "us"])
            w.writeheader()
            w.writerows(rows)
    print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))
