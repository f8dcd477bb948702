"""What the host pays per operator, with tensors so small that the GPU never is the bottleneck.

`run(session)` writes one line per measurement: {"group", "name", ..., "host_us", "total_us"}; host_us is the time to
issue one call, total_us also waits for the GPU at the end of a run of calls: where the two agree, the host is the
bottleneck and host_us can be trusted. gpu_* rows are the GPU's own floor: the shortest kernel and the gap between two.
"""
from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

from . import kernels
from .session import Session


class Bench:
    def __init__(self, campaign: Session) -> None:
        self.campaign, self.device = campaign, campaign.device
        self.lines = campaign.lines("host.jsonl")
        self.rows: list[dict[str, Any]] = []
        self.calls = 20 if campaign.dry_run else 300
        self.repeats = 2 if campaign.dry_run else 5

    def has(self, group: str, name: str) -> bool:
        return self.campaign.has({"group": group, "name": name})

    def time(self, group: str, name: str, call: Callable[[], Any], per_call: int = 1, calls: int | None = None, **extra: Any) -> None:
        """Median over repeats of the time per call (divided by per_call things done in one call)."""
        if self.has(group, name):
            return
        self.campaign.progress("host: %s, %s" % (group, name))
        with self.campaign.survive("host %s %s" % (group, name), self.lines, {"group": group, "name": name}):
            calls = calls or self.calls
            if self.campaign.dry_run:
                calls = min(calls, 10)
            for _ in range(min(calls, 20)):
                call()
            hosts, totals = [], []
            for _ in range(self.repeats):
                self.device.sync()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                issued = time.perf_counter()
                self.device.sync()
                hosts.append((issued - start) / calls / per_call)
                totals.append((time.perf_counter() - start) / calls / per_call)
            self.write(group, name, hosts, totals, **extra)

    def write(self, group: str, name: str, hosts: list[float], totals: list[float], **extra: Any) -> None:
        row = {"group": group, "name": name, "host_us": round(statistics.median(hosts) * 1e6, 3),
               "host_us_min": round(min(hosts) * 1e6, 3), "host_us_max": round(max(hosts) * 1e6, 3),
               "total_us": round(statistics.median(totals) * 1e6, 3), **extra}
        self.lines.write(row)
        self.rows.append(row)


def run(campaign: Session) -> None:
    bench = Bench(campaign)
    for part in (_baseline, _forward, _backward, _optimizer, _scaler, _gpu_floor, _launch_calls):
        if campaign.clock.left() < 10:
            campaign.note("budget: host part stopped before " + part.__name__)
            break
        with campaign.survive("host" + part.__name__):
            part(bench)
        campaign.device.free()
    bench.lines.close()
    if not campaign.verbose:
        return
    groups: dict[str, list[str]] = {}
    for row in bench.rows:  # compact: the file has everything
        if "16in" not in row["group"]:
            groups.setdefault(row["group"], []).append("%s %.1f" % (row["name"], row["host_us"]))
    for group, entries in groups.items():
        print("%s (host us): %s" % (group, "; ".join(entries)))


def _baseline(bench: Bench) -> None:
    device = bench.device.type
    x = torch.ones(8, device=device)
    identity = nn.Identity()
    ten = nn.Sequential(*[nn.Identity() for _ in range(10)])
    bench.time("python", "empty function", lambda: None)
    bench.time("python", "nn.Identity call", lambda: identity(x))
    bench.time("python", "Sequential of 10 Identity", lambda: ten(x), per_call=10)
    out = torch.empty(8, device=device)
    bench.time("launch", "torch.add out=, no grad", lambda: torch.add(x, x, out=out))
    bench.time("launch", "zero_", x.zero_)
    bench.time("launch", "empty (no kernel)", lambda: torch.empty(8, device=device))
    bench.time("launch", "sleep(0) kernel", lambda: bench.device.sleep(0))
    bench.time("launch", "event record", bench.device.event().record)
    one = torch.ones((), device=device)
    bench.time("sync", "item() on an idle stream", one.item, calls=100)
    bench.time("sync", "synchronize on an idle stream", bench.device.sync, calls=100)

    def after_kernel():
        one.add_(1)
        one.item()
    bench.time("sync", "add_ then item()", after_kernel, calls=100)
    pinned_free = torch.ones(8)
    bench.time("sync", "cpu tensor to device", lambda: pinned_free.to(device), calls=100)
    bench.time("autocast", "enter and exit", lambda: _enter(device))


def _enter(device):
    with torch.autocast(device, dtype=torch.bfloat16):
        pass


def _modules(device):
    """name -> (module or function, input); all with gradients, sizes that finish in a few microseconds."""
    x = torch.randn(4, 16, 32, device=device, requires_grad=True)
    image = torch.randn(2, 8, 8, 8, device=device, requires_grad=True)
    heads = torch.randn(1, 2, 16, 16, device=device, requires_grad=True)
    ids = torch.zeros(4, 16, dtype=torch.int64, device=device)
    logits = torch.randn(16, 32, device=device, requires_grad=True)
    target = torch.zeros(16, dtype=torch.int64, device=device)
    make = lambda module: module.to(device)
    return {
        "add": (lambda t: t + t, x), "add residual (no broadcast)": (lambda t: torch.add(t, x), x),
        "mul": (lambda t: t * t, x), "mul scalar": (lambda t: t * 1.5, x),
        "linear functional": (lambda t, w=torch.randn(32, 32, device=device, requires_grad=True): F.linear(t, w), x),
        "nn.Linear bias": (make(nn.Linear(32, 32)), x), "nn.Linear no bias": (make(nn.Linear(32, 32, bias=False)), x),
        "matmul 4d": (lambda t: torch.matmul(t, t.transpose(-1, -2)), heads),
        "nn.LayerNorm": (make(nn.LayerNorm(32)), x), "nn.RMSNorm": (make(nn.RMSNorm(32)), x),
        "rms norm by hand": (lambda t: t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6), x),
        "view": (lambda t: t.view(4, 16, 4, 8), x), "transpose": (lambda t: t.transpose(1, 2), x),
        "reshape copy": (lambda t: t.transpose(1, 2).reshape(4, -1), x), "slice": (lambda t: t[:, 1:], x),
        "split 3": (lambda t: t.split(8, -1), x), "cat 2": (lambda t: torch.cat((t, t), -1), x),
        "softmax": (lambda t: F.softmax(t, -1), x), "nn.GELU": (nn.GELU(), x), "nn.SiLU": (nn.SiLU(), x),
        "nn.ReLU": (nn.ReLU(), x), "nn.ReLU inplace": (lambda t, r=nn.ReLU(inplace=True): r(t * 1.0), x),
        "nn.Dropout": (nn.Dropout(0.1), x),
        "nn.Conv2d 1x1": (make(nn.Conv2d(8, 8, 1, bias=False)), image),
        "nn.Conv2d 3x3": (make(nn.Conv2d(8, 8, 3, padding=1, bias=False)), image),
        "nn.Conv2d depthwise": (make(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)), image),
        "nn.BatchNorm2d": (make(nn.BatchNorm2d(8)), image), "nn.MaxPool2d": (nn.MaxPool2d(2), image),
        "nn.AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(1), image),
        "sdpa": (lambda t: F.scaled_dot_product_attention(t, t, t), heads),
        "sdpa causal dropout": (lambda t: F.scaled_dot_product_attention(t, t, t, is_causal=True, dropout_p=0.1), heads),
        "nn.Embedding": (make(nn.Embedding(64, 32)), ids),
        "cross_entropy": (lambda t: F.cross_entropy(t, target), logits),
        "cast to bf16": (lambda t: t.to(torch.bfloat16), x), "cast no-op": (lambda t: t.to(torch.float32), x),
        "sum": (lambda t: t.sum(), x), "mean": (lambda t: t.mean(-1, keepdim=True), x),
    }


def _forward(bench: Bench) -> None:
    device = bench.device.type
    for name, (call, value) in _modules(device).items():
        bench.time("forward", name, lambda: call(value))
    with torch.no_grad():
        for name, (call, value) in _modules(device).items():
            if name in ("add", "mul", "nn.Linear bias", "nn.LayerNorm", "view", "sdpa", "nn.Conv2d 3x3"):
                bench.time("forward no_grad", name, lambda: call(value))
    half = {name: pair for name, pair in _modules(device).items()}
    for dtype, label in ((torch.bfloat16, "amp-bf16"), (torch.float16, "amp-fp16")):
        with torch.autocast(device, dtype=dtype):
            for name, (call, value) in half.items():
                if label == "amp-fp16" and name not in ("nn.Linear bias", "softmax", "nn.LayerNorm", "cross_entropy"):
                    continue
                # Weight casts are cached inside the region, so this is the steady cost; activations stay fp32 here,
                # so each lower-precision call also pays the cast of its input.
                bench.time("forward " + label, name, lambda: call(value))
                if value.is_floating_point() and label == "amp-bf16":
                    narrow = value.detach().to(dtype).requires_grad_()
                    bench.time("forward " + label + " 16in", name, lambda: call(narrow))


def _backward(bench: Bench) -> None:
    """Host time of backward() over a chain of n equal operators, and of building it, per operator."""
    device, length = bench.device.type, 20 if bench.campaign.dry_run else 200
    weight = torch.randn(16, 16, device=device, requires_grad=True)
    gain = torch.ones(16, device=device, requires_grad=True)
    many = [torch.ones(16, device=device, requires_grad=True) for _ in range(length)]
    image_norm = nn.BatchNorm2d(4).to(device)
    conv = nn.Conv2d(4, 4, 3, padding=1, bias=False).to(device)
    chains = {
        "mul scalar": (lambda y, i: y * 1.0001, (4, 16)), "add self": (lambda y, i: y + y, (4, 16)),
        "view": (lambda y, i: y.view(2, 32) if y.shape[0] == 4 else y.view(4, 16), (4, 16)),
        "transpose": (lambda y, i: y.transpose(0, 1), (4, 16)),
        "add own parameter": (lambda y, i: y + many[i], (4, 16)),
        "mul own parameter": (lambda y, i: y * many[i], (4, 16)),
        "relu": (lambda y, i: F.relu(y), (4, 16)), "gelu": (lambda y, i: F.gelu(y), (4, 16)),
        "linear shared weight": (lambda y, i: F.linear(y, weight), (4, 16)),
        "layer_norm": (lambda y, i: F.layer_norm(y, (16,), gain, gain), (4, 16)),
        "softmax": (lambda y, i: F.softmax(y, -1), (4, 16)), "dropout": (lambda y, i: F.dropout(y, 0.1), (4, 16)),
        "cast and back": (lambda y, i: y.to(torch.bfloat16 if y.dtype == torch.float32 else torch.float32), (4, 16)),
        "conv2d": (lambda y, i: conv(y), (1, 4, 8, 8)), "batch_norm": (lambda y, i: image_norm(y), (2, 4, 8, 8)),
        "sdpa": (lambda y, i: F.scaled_dot_product_attention(y, y, y), (1, 2, 16, 16)),
    }
    for name, (link, shape) in chains.items():
        if bench.has("chain backward", name):
            continue
        bench.campaign.progress("host: chain of %s" % name)
        with bench.campaign.survive("host backward " + name):
            forwards, forward_totals, backs, back_totals = [], [], [], []
            for repeat in range(bench.repeats + 1):
                y = torch.randn(shape, device=device, requires_grad=True)
                bench.device.sync()
                start = time.perf_counter()
                for i in range(length):
                    y = link(y, i)
                issued = time.perf_counter()
                bench.device.sync()
                done = time.perf_counter()
                y = y.float().sum()
                bench.device.sync()
                begin = time.perf_counter()
                y.backward()
                end = time.perf_counter()
                bench.device.sync()
                finished = time.perf_counter()
                if repeat:
                    forwards.append((issued - start) / length)
                    forward_totals.append((done - start) / length)
                    backs.append((end - begin) / length)
                    back_totals.append((finished - begin) / length)
                for parameter in [weight, gain, *many, *image_norm.parameters(), *conv.parameters()]:
                    parameter.grad = None
            bench.write("chain forward", name, forwards, forward_totals, length=length)
            bench.write("chain backward", name, backs, back_totals, length=length)


def _parameters(device, count, dtype=torch.float32):
    parameters = [torch.nn.Parameter(torch.randn(32, device=device, dtype=dtype)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def _optimizer(bench: Bench) -> None:
    device = bench.device.type
    for count in (10, 100, 400):
        for dtype in (torch.float32, torch.bfloat16):
            for form in ("foreach", "fused", "for-loop"):
                if form == "for-loop" and (dtype != torch.float32 or count == 400):
                    continue
                chosen = {"foreach": False} if form == "for-loop" else {form: True}
                optimizer = torch.optim.AdamW(_parameters(device, count, dtype), lr=1e-4, **chosen)
                bench.time("optimizer " + form, "step, %d tensors, %s" % (count, str(dtype)[6:]), optimizer.step,
                           calls=20, tensors=count)
        parameters = _parameters(device, count)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        kept = [parameter.grad for parameter in parameters]

        def zero():
            for parameter, grad in zip(parameters, kept):
                parameter.grad = grad
            optimizer.zero_grad(set_to_none=True)
        bench.time("optimizer", "assign grads + zero_grad, %d" % count, zero, calls=20, tensors=count)
        for parameter, grad in zip(parameters, kept):
            parameter.grad = grad
        bench.time("optimizer", "clip_grad_norm_, %d" % count,
                   lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0), calls=20, tensors=count)


def _scaler(bench: Bench) -> None:
    device = bench.device.type
    for count in (10, 100, 400):
        for form in ("foreach", "fused"):
            parameters = _parameters(device, count)
            optimizer = torch.optim.AdamW(parameters, lr=1e-4, **{form: True})
            scaler = torch.amp.GradScaler(device, init_scale=1.0, growth_interval=10**6)
            scaler.scale(torch.ones((), device=device))

            def both():
                scaler.step(optimizer)
                scaler.update()
            bench.time("scaler " + form, "step + update, %d tensors" % count, both, calls=20, tensors=count)
        loss = torch.ones((), device=device)
        bench.time("scaler", "scale(loss)", lambda: scaler.scale(loss), calls=100)


def _gpu_floor(bench: Bench) -> None:
    """The shortest kernel, and start-to-start distance of kernels queued behind a sleeping GPU."""
    device, count = bench.device, 10 if bench.campaign.dry_run else 400
    small = torch.ones(8, device=device.type)
    large = torch.ones(1 << 20, device=device.type)
    for name, call in (("add_ 8 elements", lambda: small.add_(1)), ("add_ 1M elements", lambda: large.add_(1)),
                       ("zero_ (memset) 8 elements", small.zero_), ("sum 8 elements", small.sum)):
        def queue():
            device.sleep(2e7)
            for _ in range(count):
                call()
        if bench.has("gpu floor", name):
            continue
        with bench.campaign.survive("gpu floor " + name):
            queue()
            seen = [event for event in kernels.record(device, queue) if "spin" not in event[2].lower()]
            seen = seen[-count:]
            gaps = [b[0] - a[0] - a[1] for a, b in zip(seen, seen[1:])] or [0]
            durations = [event[1] for event in seen]
            begin, end = device.event(), device.event()
            device.sleep(2e7)
            begin.record()
            for _ in range(count):
                call()
            end.record()
            device.sync()
            row = {"group": "gpu floor", "name": name, "kernel_us": statistics.median(durations) * 1e-3,
                   "kernel_us_min": min(durations) * 1e-3, "gap_us": statistics.median(gaps) * 1e-3,
                   "gap_us_min": min(gaps) * 1e-3, "start_to_start_us": begin.elapsed_time(end) * 1e3 / count,
                   "count": count}
            bench.lines.write(row)
            bench.campaign.say("gpu floor %-28s kernel %.2f us, gap %.2f us, start to start %.2f us (unprofiled)" % (
                name, row["kernel_us"], row["gap_us"], row["start_to_start_us"]))


def _launch_calls(bench: Bench) -> None:
    """Duration of the driver's launch call itself, from the profiler's runtime records (tracing adds to it)."""
    if bench.has("launch", "cudaLaunchKernel, traced"):
        return
    x = torch.ones(8, device=bench.device.type)
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU if bench.device.dry_run else ProfilerActivity.CUDA]) as session:
        for _ in range(200):
            x.add_(1)
        bench.device.sync()
    durations = [event.duration_ns() * 1e-9 for event in session.profiler.kineto_results.events()
                 if "aten::add_" in event.name() or "LaunchKernel" in event.name()]
    if durations:
        bench.write("launch", "cudaLaunchKernel, traced", durations, durations)
