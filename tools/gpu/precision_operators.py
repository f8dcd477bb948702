#!/usr/bin/env python3
"""Operators whose kernel depends on the type, timed on the GPU: what the choice of precision changes beyond the peak rate.

  python3 tools/gpu/precision_operators.py --out DIR [--budget 170] [--only scaled_mm,permute] [--dry-run]

  scaled_mm   fp8 products (torch._scaled_mm): one scale per tensor, per row, per block of 128; and bf16 beside them
  quantise    what stands before them: largest value, scale, cast, transpose of the 8-bit copy
  depthwise   filters of 3, 5 and 7; the library's own kernel or PyTorch's, by type and layout
  grouped     convolutions of 4 to 64 channels a group, by type and layout
  permute     copies to another order of axes, the innermost kept or not
  norm        batch norm with 16-bit weights; group norm
  recurrent   LSTM and GRU layers
  ragged      products whose rows are no multiple of 16 bytes, by how far they are off
Lines as those of precog.gpu.operators, into DIR/precision_operators.jsonl; a first line {"meta": ...} names the machine.
"""
import argparse
import itertools
import os
import sys
import types

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common  # noqa: E402
from precog.gpu import operator_cases as cases  # noqa: E402
from precog.gpu.operators import PRECISIONS, Bench  # noqa: E402

FP8 = torch.float8_e4m3fn
BLOCK = 128  # elements that share a scale in the blockwise form
THREE = (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16))

# (tokens, out, in) of linear layers; backward's two products are the same three numbers in another order.
LINEARS = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 768, 2560), (8192, 3072, 1024),
           (2048, 14336, 4096), (4096, 4096, 14336), (4096, 1024, 4096), (16384, 4096, 4096), (4096, 14336, 2048), (512, 4096, 4096),
           (4096, 4096, 16384), (1024, 4096, 1024), (4096, 6144, 4096)]


def scaled_mm(bench: Bench) -> None:
    device = bench.device.type
    for m, n, k in bench.campaign.some(LINEARS):
        shape = dict(m=m, n=n, k=k, flops=2 * m * n * k)
        x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device) * k ** -0.5
        with bench.campaign.survive("bf16 product"):
            a, b = x.bfloat16(), w.bfloat16()
            bench.time(lambda i: F.linear(a, b), "scaled_mm", "plain", "bf16", **shape)
        a, b = x.to(FP8), w.to(FP8).t()
        one = torch.ones((), device=device)
        rows, columns = torch.ones(m, 1, device=device), torch.ones(1, n, device=device)
        # Block scales lie with the rows innermost; those of 128x128 blocks in rows of a multiple of four (k is one of 512).
        thin_a = torch.ones(k // BLOCK, m, device=device).t()
        thin_b, square_b = torch.ones(k // BLOCK, n, device=device), torch.ones(n // BLOCK, k // BLOCK, device=device).t()
        scales = {"tensor": (one, one), "row": (rows, columns), "block 1x128 128x128": (thin_a, square_b),
                  "block 1x128 1x128": (thin_a, thin_b)}
        for name, (scale_a, scale_b) in scales.items():
            for fast in (True, False):
                if name.startswith("block") and fast:
                    continue
                bench.time(lambda i: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast),
                           "scaled_mm", name + (" fast" if fast else ""), "fp8", **shape)
    bench.device.free()


def quantise(bench: Bench) -> None:
    device = bench.device.type
    for rows, columns in bench.campaign.some([(512, 4096), (2048, 4096), (4096, 4096), (8192, 4096), (4096, 14336), (1024, 1024)]):
        for label, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            x = torch.randn(rows, columns, device=device, dtype=dtype)
            scale, eight, e = torch.ones((), device=device), x.to(FP8), dtype.itemsize
            per_row, n = torch.ones(rows, 1, device=device), rows * columns
            blocks = x.view(rows, columns // BLOCK, BLOCK)
            cast = lambda: (x * scale).clamp(-448.0, 448.0).to(FP8)
            calls = {"abs": (lambda: x.abs(), 2 * e), "max of abs": (lambda: x.abs().max(), 3 * e), "aminmax": (lambda: torch.aminmax(x), e),
                     "amax rows": (lambda: x.amax(1, keepdim=True), e), "amax blocks": (lambda: blocks.amax(-1), e),
                     "mul scale": (lambda: x * scale, 2 * e), "mul rows": (lambda: x * per_row, 2 * e),
                     "clamp": (lambda: x.clamp(-448.0, 448.0), 2 * e), "cast": (lambda: x.to(FP8), e + 1),
                     "mul clamp cast": (cast, 5 * e + 1), "transpose 8": (lambda: eight.t().contiguous(), 2)}
            for op, (call, per_element) in calls.items():
                bench.time(lambda i: call(), "quantise", op, label, rows=rows, columns=columns, bytes=n * per_element, kernels=4)
    bench.device.free()


def convolutions(bench: Bench, family: str, shapes: list[tuple[int, int, int, int, int, int]]) -> None:
    """(batch, channels, kernel, stride, size, groups): as many channels out as in."""
    for batch, channels, kernel, stride, size, groups in bench.campaign.some(shapes):
        for label, dtype in PRECISIONS:
            bench.device.tf32(label == "tf32", label == "tf32")
            if label == "tf32" and groups == channels:
                continue  # no tensor cores in it: measured to be as fp32
            for layout in ("nchw", "nhwc"):
                shape = dict(batch=batch, cin=channels, cout=channels, kernel=kernel, stride=stride, size=size, groups=groups, layout=layout)
                with bench.campaign.survive("%s %s" % (family, shape)):
                    calls, work = cases.convolution(bench.device.type, batch, channels, channels, kernel, stride, size, groups, dtype, layout)
                    for direction, call in calls.items():
                        bench.time(lambda i: call(), family, direction, label, flops=work, kernels=4, target_s=1.5e-3, **shape)
                calls = call = None
        bench.device.free()


def depthwise(bench: Bench) -> None:
    shapes = [(32, 96, 7, 1, 56, 96), (32, 384, 7, 1, 14, 384), (32, 144, 5, 2, 56, 144), (32, 240, 5, 1, 28, 240), (32, 672, 5, 1, 14, 672),
              (64, 1152, 5, 1, 7, 1152), (32, 128, 3, 2, 56, 128), (32, 256, 3, 2, 28, 256), (32, 64, 3, 1, 56, 64), (32, 16, 3, 1, 112, 16)]
    convolutions(bench, "depthwise", shapes)


def grouped(bench: Bench) -> None:
    shapes = [(32, 128, 3, 1, 56, 32), (32, 256, 3, 1, 28, 32), (32, 512, 3, 1, 14, 32), (32, 1024, 3, 1, 7, 32), (32, 256, 3, 2, 56, 32),
              (32, 256, 3, 1, 56, 4), (32, 512, 3, 1, 28, 8), (64, 240, 3, 1, 28, 10), (64, 768, 3, 1, 14, 32)]
    convolutions(bench, "grouped", shapes)


def permute(bench: Bench) -> None:
    device = bench.device.type
    orders = {"heads (0,2,1,3)": (0, 2, 1, 3), "heads to front (2,0,1,3)": (2, 0, 1, 3), "inner moved (0,1,3,2)": (0, 1, 3, 2),
              "inner moved (0,2,3,1)": (0, 2, 3, 1), "inner moved (0,3,1,2)": (0, 3, 1, 2), "channels (0,3,2,1)": (0, 3, 2, 1)}
    shapes = [(8, 128, 12, 64), (64, 197, 12, 64), (8, 1024, 16, 64), (2, 2048, 32, 128), (16, 49, 4, 32), (512, 49, 4, 32), (32, 50, 3, 768),
              (32, 56, 56, 96), (64, 196, 2, 384)]
    for shape in bench.campaign.some(shapes):
        for label, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            x = torch.randn(*shape, device=device, dtype=dtype)
            for op, order in orders.items():
                y = x.permute(order)
                bench.time(lambda i: y.contiguous(), "permute", op, label, shape=shape, bytes=2 * x.nbytes)
    bench.device.free()


def norm(bench: Bench) -> None:
    device = bench.device.type
    images = [(32, 64, 112, 112), (32, 256, 56, 56), (32, 512, 28, 28), (32, 1024, 14, 14), (32, 2048, 7, 7), (8, 512, 28, 28)]
    for image, layout in bench.campaign.some(itertools.product(images, ("nchw", "nhwc"))):
        for label, dtype in THREE:
            x = torch.randn(*image, device=device, dtype=dtype)
            x = (x.to(memory_format=torch.channels_last) if layout == "nhwc" else x).requires_grad_()
            weight, bias = (torch.ones(image[1], device=device, dtype=dtype, requires_grad=True) for _ in range(2))
            mean, var = torch.zeros(image[1], device=device, dtype=dtype), torch.ones(image[1], device=device, dtype=dtype)
            batch = lambda: torch.batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5, torch.backends.cudnn.enabled)
            group = lambda: F.group_norm(x, 32, weight, bias)
            for op, forward in (("batch_norm, weights alike", batch), ("group_norm", group)):
                with bench.campaign.survive(op):
                    y = forward()
                    gradient = torch.randn_like(y)
                    bench.time(lambda i: forward(), "norm", op, label, shape=image, layout=layout, bytes=3 * x.nbytes, kernels=4)
                    bench.time(lambda i: torch.autograd.grad(y, (x, weight, bias), gradient, retain_graph=True), "norm", op + " backward", label,
                               shape=image, layout=layout, bytes=5 * x.nbytes, kernels=4)
                y = gradient = None
    bench.device.free()


def recurrent(bench: Bench) -> None:
    device = bench.device.type
    shapes = [("lstm", 32, 64, 512, 512, 1), ("lstm", 64, 50, 1024, 1024, 1), ("lstm", 128, 32, 1024, 1024, 2), ("lstm", 8, 200, 256, 256, 1),
              ("gru", 32, 64, 512, 512, 1), ("gru", 64, 100, 1024, 1024, 1), ("lstm", 16, 35, 650, 650, 2), ("lstm", 128, 100, 1024, 2048, 1)]
    for kind, batch, steps, width, hidden, layers in bench.campaign.some(shapes):
        for label, dtype in PRECISIONS:
            bench.device.tf32(label == "tf32", label == "tf32")
            shape = dict(batch=batch, steps=steps, width=width, hidden=hidden, layers=layers)
            with bench.campaign.survive("%s %s" % (kind, shape)):
                layer = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(width, hidden, layers, device=device, dtype=dtype)
                x = torch.randn(steps, batch, width, device=device, dtype=dtype, requires_grad=True)
                y = layer(x)[0]
                gradient = torch.randn_like(y)
                wanted = (x, *layer.parameters())
                # Hundreds of kernels a call: few calls, so that the launch queue does not fill.
                bench.time(lambda i: layer(x), "recurrent", kind + " forward", label, kernels=200, **shape)
                bench.time(lambda i: torch.autograd.grad(y, wanted, gradient, retain_graph=True), "recurrent", kind + " backward", label,
                           kernels=200, **shape)
            y = gradient = None
    bench.device.free()


def ragged(bench: Bench) -> None:
    device = bench.device.type
    for (m, n, k), off in bench.campaign.some(itertools.product([(2048, 2048, 1024), (4096, 4096, 4096)], (0, 1, 2, 4, 8, 16, 32))):
        for axis, layout in itertools.product("mnk", ("nt", "nn", "tn")):
            if off == 0 and axis != "m":
                continue
            size = {"m": m, "n": n, "k": k}
            size[axis] += off
            for label, dtype in PRECISIONS:
                bench.device.tf32(label == "tf32", label == "tf32")
                with bench.campaign.survive("ragged"):
                    call = cases.gemm(device, size["m"], size["n"], size["k"], dtype, layout, bias=False)
                    bench.time(lambda i: call(), "ragged", layout, label, axis=axis, off=off, flops=2 * size["m"] * size["n"] * size["k"], **size)
                call = None
    bench.device.free()


FAMILIES = {"scaled_mm": scaled_mm, "depthwise": depthwise, "grouped": grouped, "quantise": quantise, "permute": permute, "norm": norm,
            "recurrent": recurrent, "ragged": ragged}


class OneFile(common.Campaign):
    def lines(self, name: str):  # Bench asks for operators.jsonl, which is another campaign's
        return super().lines("precision_" + name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT", "results"))
    parser.add_argument("--budget", type=float, default=170, help="seconds after which no new measurement is started")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these families")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    if not given.dry_run and not torch.cuda.is_available():
        parser.error("no CUDA device; --dry-run goes through the same code on a CPU")
    campaign = OneFile(types.SimpleNamespace(held_out=False, **vars(given)), ["precision_operators"])
    bench = Bench(campaign)
    for name, measure in FAMILIES.items():
        if given.only and name not in given.only:
            continue
        before = bench.count
        try:
            with campaign.survive(name):
                measure(bench)
        except common.BudgetSpent:
            campaign.note("budget: stopped in " + name)
            break
        campaign.say("%s: %d measurements" % (name, bench.count - before))
    bench.lines.write({"clocks": {} if campaign.dry_run else common.clocks_now()})
    bench.lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
