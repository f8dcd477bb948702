#!/usr/bin/env python3
"""What the host pays to issue a collective: torch.distributed's calls in a group of one, so that only the issuing is seen.

  python3 tools/gpu/host_collectives.py --out RAW            seconds on a GPU
  python3 tools/gpu/host_collectives.py --out /tmp/dry --dry-run

Each call's time in a loop of nothing else, and between the two halves of a small layer (linear, gelu, linear, as a tensor-parallel block
calls it), where caches are as cold as in a model: the layer with the call less the layer without it. Written: host_collectives.jsonl,
{"name", "loop_us", "layer_us", "anchor_us"} with a multiplication in a layer (torch.mul) beside them as what a plain operator costs there.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import common  # noqa: E402

WIDTH, CALLS, REPEATS = 64, 60, 9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU; the figures mean nothing")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    device = common.Device(args.dry_run)
    lines = common.Lines(os.path.join(args.out, "host_collectives.jsonl"), {"host": common.HOST, **common._device.describe_machine(args.dry_run)})
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo" if args.dry_run else "nccl", init_method="file://" + os.path.join(folder, "store"), world_size=1, rank=0,
                                device_id=None if args.dry_run else torch.device("cuda", 0))
        x = torch.randn(8, WIDTH, device=device.type)
        out = torch.empty_like(x)
        up, down = (torch.randn(WIDTH, WIDTH, device=device.type, requires_grad=True) for _ in range(2))
        calls: dict[str, Callable[[torch.Tensor], object]] = {
            "torch.mul": lambda t: torch.mul(t, t),
            "all_reduce": lambda t: dist.all_reduce(t),
            "all_reduce async": lambda t: dist.all_reduce(t, async_op=True).wait(),
            "all_gather_into_tensor": lambda t: dist.all_gather_into_tensor(out, t),
            "reduce_scatter_tensor": lambda t: dist.reduce_scatter_tensor(out, t),
            "broadcast": lambda t: dist.broadcast(t, 0),
        }

        def layer(call: Callable[[torch.Tensor], object] | None) -> None:
            y = F.linear(F.gelu(F.linear(x, up)), down)
            if call is not None:
                call(y.detach())
            F.layer_norm(x + y, (WIDTH,))

        def per_call(call: Callable[[], object]) -> float:
            device.sync()
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            taken = time.perf_counter() - started
            device.sync()
            return taken / CALLS * 1e6

        for call in calls.values():
            for _ in range(5):
                layer(call)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
        for _ in range(2 if args.dry_run else REPEATS):  # in turns: the machine's speed wanders
            for name, call in calls.items():
                bare = per_call(lambda: layer(None))
                found[name].append((per_call(lambda: call(x)), per_call(lambda: layer(call)) - bare, bare))
        for name, rows in found.items():
            loop, inside, bare = (statistics.median(column) for column in zip(*rows))
            lines.write({"name": name, "loop_us": round(loop, 2), "layer_us": round(inside, 2), "anchor_us": round(bare, 2)})
            print("%-24s loop %6.1f us, in a layer %6.1f us" % (name, loop, inside), flush=True)
        dist.destroy_process_group()
    lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
