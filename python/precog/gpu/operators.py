"""Single operators on the GPU, for fitting kernel costs. `run(session)` writes one line per measurement:

  {"family", "op", "dtype", ...shape..., "s", "s_min", "calls"[, "bytes", "flops", "rotated"]}
`s` is GPU time per call (the median of repeats; see device.gpu_seconds). `bytes` is what the operator must at least
read and write; `rotated` buffers are too many to stay in the L2 cache, else the operands may be L2-resident ("hot").
Shapes and the operators themselves live in operator_cases.py.
"""
from __future__ import annotations

from typing import Any, Callable

import torch

from . import operator_cases as cases
from .device import clocks_now, gpu_seconds
from .session import BudgetSpent, Session

PRECISIONS = (("fp32", torch.float32), ("tf32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16))


class Bench:
    def __init__(self, campaign: Session) -> None:
        self.campaign, self.device = campaign, campaign.device
        self.lines = campaign.lines("operators.jsonl")
        self.count = 0
        self.best: dict[tuple[str, str, str, str], float] = {}

    def over(self) -> bool:
        return self.campaign.clock.left() < 6

    def time(self, call: Callable[[int], Any], family: str, op: str, dtype: str, kernels: int = 1, target_s: float = 2e-3,
             most: int = 50, **shape: Any) -> None:
        """Measures call(i) and writes a line, unless an earlier sitting did."""
        record: dict[str, Any] = {"family": family, "op": op, "dtype": dtype, **shape}
        if self.campaign.has(record):
            return
        if self.over():
            raise BudgetSpent
        self.campaign.progress("%s %s %s" % (family, op, dtype))
        with self.campaign.survive("%s %s %s %s" % (family, op, dtype, shape), self.lines, record):
            record["s"], record["s_min"], record["calls"] = gpu_seconds(self.device, call, target_s, most,
                                                                              kernels=kernels)
            self.lines.write(record)
            self.count += 1
            for unit in ("bytes", "flops"):
                if record.get(unit):
                    key = (family, op, dtype, unit)
                    self.best[key] = max(self.best.get(key, 0), record[unit] / record["s"])


def run(campaign: Session) -> None:
    bench = Bench(campaign)
    for name, measure in FAMILIES.items():
        if campaign.only and name not in campaign.only:
            continue
        before = bench.count
        try:
            with campaign.survive("operators " + name):
                measure(bench)
        except BudgetSpent:
            campaign.note("budget: operators stopped in " + name)
        campaign.device.free()
        campaign.say("operators: %s, %d measurements" % (name, bench.count - before))
        if bench.over():
            if name != list(FAMILIES)[-1]:
                campaign.note("budget: operators after %s were not measured" % name)
            break
    bench.lines.write({"clocks": {} if campaign.dry_run else clocks_now()})
    bench.lines.close()
    if not campaign.verbose:
        return
    print("\nbest rate per operator (TB/s or TFLOP/s)")
    table: dict[tuple[str, str, str], list[str]] = {}
    for (family, op, dtype, unit), rate in bench.best.items():
        table.setdefault((family, op, "TB/s" if unit == "bytes" else "TFLOP/s"), []).append("%s %.3g" % (dtype, rate / 1e12))
    for (family, op, unit), rates in table.items():
        print("%-12s %-26s %-7s %s" % (family, op, unit, "  ".join(rates)))


def _sizes(bench: Bench) -> Any:
    if bench.campaign.dry_run:
        return (12, 14)
    return (12, 18, 22, 26) if bench.campaign.quick else range(12, 29, 2)


def _elementwise(bench: Bench) -> None:
    device = bench.device
    for exponent in _sizes(bench):
        n = 1 << exponent
        for label, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            for op, (make, per_element) in cases.ELEMENTWISE.items():
                moved = n * per_element(dtype.itemsize)
                with bench.campaign.survive("elementwise %s %d" % (op, n)):
                    call = make(device.type, n, dtype)
                    bench.time(lambda i: call(), "elementwise", op, label, n=n, bytes=moved)
                    # Below the L2's size the same operands again and again are read from the cache; many copies are not.
                    if 18 <= exponent <= 24 and op in cases.ROTATED:
                        copies = min(256, int(256e6 / moved) + 2)
                        several = [make(device.type, n, dtype) for _ in range(copies)]
                        bench.time(lambda i: several[i % copies](), "elementwise", op, label, n=n, bytes=moved,
                                   rotated=copies)
                    call, several = None, []
        device.free()


def _rows(bench: Bench) -> None:
    device = bench.device
    for exponent in _sizes(bench):
        for columns in ((32,) if bench.campaign.dry_run else (768, 4096)):
            rows = max(1, (1 << exponent) // columns)
            for label, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
                for op, make in cases.ROWS.items():
                    with bench.campaign.survive("rows %s" % op):
                        call, moved, launches = make(device.type, rows, columns, dtype)
                        bench.time(lambda i: call(), "rows", op, label, rows=rows, columns=columns, bytes=moved,
                                   kernels=launches)
                    call = None
        device.free()
    for shape in bench.campaign.some(cases.IMAGES, 1):
        for label, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
            for layout in ("nchw", "nhwc"):
                for op, make in cases.IMAGE_OPS.items():
                    with bench.campaign.survive("image %s" % op):
                        call, moved = make(device.type, shape, dtype, layout)
                        bench.time(lambda i: call(), "image", op, label, shape=shape, layout=layout, bytes=moved)
                    call = None
        device.free()
    for tokens, vocabulary, hidden in bench.campaign.some(cases.VOCABULARIES, 1):
        for label, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            for op, make in cases.VOCABULARY_OPS.items():
                with bench.campaign.survive("vocabulary %s" % op):
                    call, moved = make(device.type, tokens, vocabulary, hidden, dtype)
                    bench.time(lambda i: call(), "vocabulary", op, label, tokens=tokens, vocabulary=vocabulary,
                               hidden=hidden, bytes=moved, kernels=6)
                call = None
        device.free()


def _gemm(bench: Bench) -> None:
    device = bench.device
    shapes = bench.campaign.some(cases.GEMMS, 3)
    for index, (m, n, k) in enumerate(shapes):
        for label, dtype in PRECISIONS:
            device.tf32(label == "tf32", label == "tf32")
            # Forward of a linear layer is "nt"; its two gradients are "nn" (input) and "tn" (weight).
            for layout in ("nt", "nn", "tn") if index % 3 == 0 else ("nt",):
                with bench.campaign.survive("gemm"):
                    call = cases.gemm(device.type, m, n, k, dtype, layout, bias=False)
                    bench.time(lambda i: call(), "gemm", layout, label, m=m, n=n, k=k, flops=2 * m * n * k)
                    if layout == "nt" and index % 4 == 0:
                        call = cases.gemm(device.type, m, n, k, dtype, layout, bias=True)
                        bench.time(lambda i: call(), "gemm", "nt+bias", label, m=m, n=n, k=k, flops=2 * m * n * k)
                call = None
    for size in () if bench.campaign.dry_run else (8192,) if bench.campaign.quick else (4096, 8192):  # long enough to meet the power limit
        for label, dtype in PRECISIONS:
            device.tf32(label == "tf32", label == "tf32")
            with bench.campaign.survive("gemm sustained"):
                call = cases.gemm(device.type, size, size, size, dtype, "nt", bias=False)
                bench.time(lambda i: call(), "gemm", "nt sustained", label, target_s=0.15, most=600, m=size, n=size, k=size,
                           flops=2 * size ** 3)
    for b, m, n, k in bench.campaign.some(cases.BATCHED, 1):
        for label, dtype in PRECISIONS:
            device.tf32(label == "tf32", label == "tf32")
            with bench.campaign.survive("bmm"):
                x = torch.randn(b, m, k, device=device.type, dtype=dtype)
                y = torch.randn(b, n, k, device=device.type, dtype=dtype)
                bench.time(lambda i: torch.bmm(x, y.transpose(1, 2)), "gemm", "bmm nt", label, b=b, m=m, n=n, k=k,
                           flops=2 * b * m * n * k)
    device.free()


def _optimizer(bench: Bench) -> None:
    device = bench.device
    totals = bench.campaign.some((1 << 20, 1 << 23, 1 << 26, 1 << 28, 1 << 29))
    if bench.campaign.dry_run:
        totals = [1 << 14]
    for total in totals:
        for tensors in (20, 160):
            for label, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
                for op, make in cases.OPTIMIZERS.items():
                    if op == "unscale" and label == "bf16":
                        continue  # PyTorch has no such kernel: GradScaler is for fp16
                    with bench.campaign.survive("optimizer %s" % op):
                        call, per_element = make(device.type, total, tensors, dtype)
                        # A step of many tensors is hundreds of launches: few calls, so that the queue does not fill.
                        bench.time(lambda i: call(), "optimizer", op, label, elements=total, tensors=tensors,
                                   bytes=total * per_element, kernels=40 if tensors < 100 else 150)
                    call = None
                    device.free()


def _sdpa(bench: Bench) -> None:
    device = bench.device
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
                "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
    if bench.campaign.dry_run:
        backends = {"math": SDPBackend.MATH}
    for b, heads, seq, dim, causal, dropout in bench.campaign.some(cases.ATTENTIONS, 2):
        for label, dtype in PRECISIONS:
            device.tf32(label == "tf32", label == "tf32")
            for name, backend in backends.items():
                if dtype == torch.float32 and name in ("flash", "cudnn"):
                    continue
                if name == "math" and b * heads * seq * seq > (1 << 29):
                    continue
                shape = dict(b=b, heads=heads, seq=seq, dim=dim, causal=causal, dropout=dropout)
                work = 4 * b * heads * seq * seq * dim // (2 if causal else 1)
                failed = {"family": "sdpa", "op": name, "dtype": label, **shape}
                with bench.campaign.survive("sdpa %s %s" % (name, shape), bench.lines, failed), sdpa_kernel(backend):
                    forward, backward = cases.sdpa(device.type, b, heads, seq, dim, causal, dropout, dtype)
                    bench.time(lambda i: forward(), "sdpa", name + " forward", label, flops=work, kernels=8, **shape)
                    bench.time(lambda i: backward(), "sdpa", name + " backward", label, flops=work * 5 // 2, kernels=14,
                               **shape)
                forward = backward = None
        device.free()


def _conv(bench: Bench) -> None:
    _convolutions(bench, 2 if bench.campaign.dry_run else 32, cases.CONVOLUTIONS)


def _conv_batches(bench: Bench) -> None:
    """The batch sizes of measured steps, where the library may choose otherwise than at 32."""
    common = [case for case in cases.CONVOLUTIONS if case[0] in ("resnet50", "mobilenet_v2")]
    for batch in (3,) if bench.campaign.dry_run else () if bench.campaign.quick else (8, 128):
        _convolutions(bench, batch, common)


def _convolutions(bench: Bench, batch: int, chosen: list[Any]) -> None:
    device = bench.device
    for case in chosen[2:4] if bench.campaign.dry_run else bench.campaign.some(chosen):
        model, cin, cout, kernel, stride, size, groups = case
        size = min(size, 14) if bench.campaign.dry_run else size
        for label, dtype in PRECISIONS:
            if bench.campaign.dry_run and label == "fp16":
                continue
            device.tf32(label == "tf32", label == "tf32")
            for layout in ("nchw", "nhwc"):
                shape = dict(batch=batch, cin=cin, cout=cout, kernel=kernel, stride=stride, size=size, groups=groups,
                             layout=layout, model=model)
                failed = {"family": "conv", "op": "build", "dtype": label, **shape}
                with bench.campaign.survive("conv %s" % (shape,), bench.lines, failed):
                    calls, work = cases.convolution(device.type, batch, cin, cout, kernel, stride, size, groups, dtype,
                                                    layout)
                    for direction, call in calls.items():
                        bench.time(lambda i: call(), "conv", direction, label, flops=work, kernels=4, target_s=1.5e-3,
                                   **shape)
                calls = call = None
        device.free()


FAMILIES: dict[str, Callable[[Bench], None]] = {
    "elementwise": _elementwise, "gemm": _gemm, "rows": _rows, "sdpa": _sdpa, "optimizer": _optimizer, "conv": _conv,
    "conv batches": _conv_batches}
