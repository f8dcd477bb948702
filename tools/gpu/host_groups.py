#!/usr/bin/env python3
"""What a product costs the host whose number of rows is new each time, and a grouped product that the framework issues group by group.

  python3 tools/gpu/host_groups.py --out RAW --seconds 15        on a GPU
  python3 tools/gpu/host_groups.py --out /tmp/dry --seconds 5 --dry-run

Issued from an idle GPU, in turns. Written: host_groups.jsonl, {"name", "dtype", "rows", "call_us"}: microseconds per product, and the anchors of the sitting.
"""
from __future__ import annotations

import itertools
import os
import random
import statistics
import sys
import time
from typing import Any, Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402

import host_speed  # noqa: E402
from host_models import options, sitting  # noqa: E402

GROUPS, INNER, OUTER = 32, 512, 256


def sizes(rows: int, vary: bool, draw: random.Random) -> list[int]:
    return [max(1, round(draw.gauss(rows, rows ** 0.5))) if vary else rows for _ in range(GROUPS)]


def cases(device: str, dry_run: bool) -> dict[tuple[str, str, int], Callable[[], Any]]:
    draw = random.Random(1)
    out: dict[tuple[str, str, int], Callable[[], Any]] = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        weight = torch.randn(GROUPS, INNER, OUTER, device=device, dtype=dtype)
        for rows in (4,) if dry_run else (64, 512):
            x = torch.randn(2 * rows * GROUPS, INNER, device=device, dtype=dtype)

            def products(vary: bool, x: torch.Tensor = x, weight: torch.Tensor = weight, rows: int = rows) -> None:
                start = 0
                for group, size in enumerate(sizes(rows, vary, draw)):
                    torch.mm(x[start:start + size], weight[group])
                    start += size

            def grouped(vary: bool, x: torch.Tensor = x, weight: torch.Tensor = weight, rows: int = rows) -> None:
                ends = list(itertools.accumulate(sizes(rows, vary, draw)))
                torch._grouped_mm(x[:ends[-1]], weight, offs=torch.tensor(ends, dtype=torch.int32).to(x.device))
            for vary in (False, True):
                out["products, %s" % ("any rows" if vary else "same rows"), str(dtype), rows] = lambda products=products, vary=vary: products(vary)
                out["grouped, %s" % ("any rows" if vary else "same rows"), str(dtype), rows] = lambda grouped=grouped, vary=vary: grouped(vary)
    ends = torch.arange(1, 9)
    out["read on the host", "int64", 8] = lambda: [ends[i % 8].item() for i in range(GROUPS)]
    return out


def main() -> int:
    args = options(__doc__ or "", 15.0).parse_args()
    begun = time.perf_counter()
    device, lines, _ = sitting("host_groups.py", "host_groups.jsonl", args)
    anchor = host_speed.Anchor(device)
    taken: dict[tuple[str, str, int], list[float]] = {}
    listed, anchors = cases(device.type, args.dry_run), [anchor()]
    while time.perf_counter() - begun < args.seconds or not taken:
        for key, call in listed.items():
            device.sync()
            started = time.perf_counter()
            try:
                call()
            except Exception as error:  # noqa: BLE001: the others go on
                print(key, str(error)[:200], flush=True)
                continue
            taken.setdefault(key, []).append((time.perf_counter() - started) / GROUPS)
        anchors.append(anchor())
    for (name, dtype, rows), values in taken.items():
        lines.write({"name": name, "dtype": dtype.replace("torch.", ""), "rows": rows, "call_us": round(statistics.median(values) * 1e6, 2), "turns": len(values)})
    lines.write({"anchors_s": anchors})
    lines.close()
    print("%d cases, %d turns, %.0f s" % (len(taken), len(anchors) - 1, time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
