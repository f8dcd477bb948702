#!/usr/bin/env python3
"""What a launch after a call's first costs the host: one operator in loops at sizes at which libraries launch one kernel or several.

  python3 tools/gpu/launch_loops.py --out RAW --seconds 20                    on a GPU
  python3 tools/gpu/launch_loops.py --out /tmp/dry --seconds 20 --dry-run

Each case is issued a few dozen times from an idle GPU, fewer calls than the queue holds, in turns because speeds wander; when all are timed (the profiler slows a
process for good) one call's kernels, copies and memsets are counted. Written: launch_loops.jsonl, {"group", "name", "dtype", "host_us", "kernels", "memsets"}.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any, Callable, Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import common  # noqa: E402
from precog.gpu import kernels  # noqa: E402
from precog.gpu.host_issue import make_anchor  # noqa: E402

CALLS = 24


def cases(device: str, small: bool) -> Iterator[tuple[str, str, str, Callable[[], Any]]]:
    def tensor(*shape: int, dtype: torch.dtype, grad: bool = False) -> torch.Tensor:
        return torch.randn(*(min(extent, 16) if small else extent for extent in shape), device=device, dtype=dtype, requires_grad=grad)

    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype)[6:]
        for m, n, k in ((64, 64, 64), (512, 512, 512), (2048, 768, 768), (768, 768, 4096), (768, 3072, 16384), (64, 64, 65536), (96, 288, 50176), (384, 96, 12544), (1000, 768, 64)):
            a, b = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)
            yield "mm", "%dx%dx%d" % (m, n, k), kind, lambda a=a, b=b: torch.mm(a, b)
        for c, size, batch, kernel, groups in ((64, 56, 8, 3, 1), (64, 56, 8, 1, 1), (256, 14, 16, 3, 1), (32, 64, 8, 5, 1), (96, 28, 16, 7, 96), (128, 28, 8, 3, 32), (512, 7, 32, 1, 1), (16, 8, 2, 3, 1)):
            for last in (False, True):
                x, w = tensor(batch, c, size, size, dtype=dtype, grad=True), tensor(c, c // groups, kernel, kernel, dtype=dtype, grad=True)
                if small and groups > 1:
                    continue
                if last:
                    x, w = (t.detach().to(memory_format=torch.channels_last).requires_grad_() for t in (x, w))
                name = "%d,%d,%d,%d,%d%s" % (batch, c, size, kernel, groups, " last" if last else "")
                yield "conv", name, kind, lambda x=x, w=w, p=kernel // 2, g=1 if small else groups: F.conv2d(x, w, padding=p, groups=g)
                y = F.conv2d(x, w, padding=kernel // 2, groups=1 if small else groups)
                yield "conv backward", name, kind, lambda x=x, w=w, y=y, g=torch.randn_like(y): torch.autograd.grad(y, (x, w), g, retain_graph=True)
        for rows, width in ((64, 64), (4096, 768), (50176, 96), (200704, 96), (16, 8192)):
            x, w = tensor(rows, width, dtype=dtype, grad=True), tensor(width, dtype=dtype, grad=True)
            yield "sum rows", "%dx%d" % (rows, width), kind, lambda x=x: torch.sum(x.detach(), 0)
            yield "sum all", "%dx%d" % (rows, width), kind, lambda x=x: torch.sum(x.detach())
            y = F.layer_norm(x, (x.shape[1],), w, w)
            yield "layer_norm", "%dx%d" % (rows, width), kind, lambda x=x, w=w: F.layer_norm(x, (x.shape[1],), w, w)
            yield "layer_norm backward", "%dx%d" % (rows, width), kind, lambda x=x, w=w, y=y, g=torch.randn_like(y): torch.autograd.grad(y, (x, w), g, retain_graph=True)
            yield "sort", "%dx%d" % (rows, width), kind, lambda x=x: torch.sort(x.detach(), -1)
            yield "cat", "%dx%d" % (rows, width), kind, lambda x=x: torch.cat((x.detach(), x.detach()), 1)
            yield "cumsum", "%dx%d" % (rows, width), kind, lambda x=x: torch.cumsum(x.detach(), 1)
        for heads, length in ((8, 64), (12, 512), (12, 1024)):
            q = tensor(4, heads, length, 64, dtype=dtype, grad=True)
            yield "attention", "%dx%d" % (heads, length), kind, lambda q=q: F.scaled_dot_product_attention(q, q, q)
            y = F.scaled_dot_product_attention(q, q, q)
            yield "attention backward", "%dx%d" % (heads, length), kind, lambda q=q, y=y, g=torch.randn_like(y): torch.autograd.grad(y, (q,), g, retain_graph=True)
        table = tensor(30000, 256, dtype=dtype, grad=True)
        for rows in (64, 4096):
            ids = torch.randint(0, table.shape[0], (rows,), device=device)
            y = F.embedding(ids, table)
            yield "embedding", "%d" % rows, kind, lambda ids=ids, table=table: F.embedding(ids, table)
            yield "embedding backward", "%d" % rows, kind, lambda table=table, y=y, g=torch.randn_like(y): torch.autograd.grad(y, (table,), g, retain_graph=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--seconds", type=float, default=20.0, help="timing ends after three quarters of this, whatever is left")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU; the figures mean nothing")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    begun = time.perf_counter()
    device = common.Device(args.dry_run)
    lines = common.Lines(os.path.join(args.out, "launch_loops.jsonl"), {"script": "launch_loops.py", "host": common.HOST, **common._device.describe_machine(args.dry_run)})
    calls = 2 if args.dry_run else CALLS
    listed = []
    for group, name, kind, call in cases(device.type, args.dry_run):
        try:
            for _ in range(2):
                call()
            listed.append((group, name, kind, call, []))
        except Exception as error:  # noqa: BLE001: the others go on
            lines.write({"group": group, "name": name, "dtype": kind, "error": str(error)[:200]})
    anchor = make_anchor(device)
    anchors = [anchor() for _ in range(4)]
    while time.perf_counter() - begun < 0.6 * args.seconds or not listed[-1][4]:
        for *_, call, taken in listed:
            device.sync()
            started = time.perf_counter()
            for _ in range(calls):
                call()
            taken.append((time.perf_counter() - started) / calls)
        anchors.append(anchor())
        device.sync()
    for group, name, kind, call, taken in listed:
        names = [name for _, _, name in kernels.record(device, call)] if not args.dry_run else []
        memsets = sum(1 for text in names if text.lower().startswith(("memset", "memcpy")))
        lines.write({"group": group, "name": name, "dtype": kind, "host_us": round(statistics.median(taken) * 1e6, 2), "turns": len(taken),
                     "kernels": len(names) - memsets, "memsets": memsets})
    lines.write({"anchors_s": anchors})
    lines.close()
    print("%d cases in %.0f s" % (len(listed), time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
