#!/usr/bin/env python3
"""What the host pays to issue a compiled graph: a launch of a generated kernel, a library call, a graph, a parameter.

  python3 tools/gpu/compiled_host.py --out results          about three minutes on a GPU
  python3 tools/gpu/compiled_host.py --out /tmp/dry --dry-run

Stacks of one kind at two depths, compiled; forward and backward issued from an idle GPU, so that the time is the host's own. A
line through two depths gives the cost of what each layer adds, its constant that of the graphs. Written: compiled_host.jsonl,
one line per stack (seconds per step, kernels by profiler), and a last line {"compiled": ...} for data/hosts.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402

import common  # noqa: E402
import kernels  # noqa: E402

WIDTH = 256


class Products(torch.nn.Module):
    """Per layer one product forward and two backward; with `between`, one generated kernel more each way."""

    def __init__(self, depth: int, between: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(WIDTH, WIDTH) * WIDTH ** -0.5 for _ in range(depth))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x @ weight
            if self.between is not None:
                x = self.between(x)
        return x.sum()


class Sums(torch.nn.Module):
    """Parameters that one kernel adds up: what each costs by being there."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x * weight
        return x.sum()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    device = common.Device(args.dry_run)
    lines = common.Lines(os.path.join(args.out, "compiled_host.jsonl"), {"host": common.HOST, **common._device.describe_machine(args.dry_run)})
    depths = (2, 4) if args.dry_run else (16, 64)
    stacks = {"products": lambda n: Products(n, None), "products and pointwise": lambda n: Products(n, torch.nn.functional.gelu),
              "parameters": lambda n: Sums(n // 2)}
    seconds: dict[tuple[str, str, int], float] = {}
    for mode in ("default", "reduce-overhead") if not args.dry_run else ("default",):
        for name, build in stacks.items():
            for depth in depths:
                torch._dynamo.reset()
                model = build(depth).to(device.type)
                compiled = torch.compile(model, mode=None if mode == "default" else mode, dynamic=False)
                x = torch.randn(WIDTH, WIDTH, device=device.type)
                s = measure(device, model, compiled, x, 5 if args.dry_run else 40)
                seconds[mode, name, depth] = s
                found = kernels.record(device, lambda: compiled(x).backward())
                lines.write({"mode": mode, "stack": name, "depth": depth, "host_s": s, "kernels": len(found),
                             "generated": sum(1 for _, _, kernel in found if kernel.startswith("triton"))})
                print("%-16s %-24s depth %3d  %8.1f us, %d kernels" % (mode, name, depth, s * 1e6, len(found)), flush=True)

    def slope(mode: str, name: str, per: float = 1) -> float:
        return (seconds[mode, name, depths[1]] - seconds[mode, name, depths[0]]) / (depths[1] - depths[0]) / per

    parameter = slope("default", "parameters") * 2
    library = (slope("default", "products") - parameter) / 3
    generated = (slope("default", "products and pointwise") - slope("default", "products")) / 2
    constant = seconds["default", "products", depths[0]] - slope("default", "products") * depths[0]
    answer = {"kernel_s": generated, "library_call_s": library, "graph_s": constant / 2, "parameter_s": parameter}
    if not args.dry_run:
        answer["replay_s"] = (seconds["reduce-overhead", "products", depths[0]] - slope("reduce-overhead", "products") * depths[0]) / 2
    lines.write({"compiled": answer})
    lines.close()
    print(json.dumps(answer))
    return 0


def measure(device: common.Device, model: torch.nn.Module, compiled: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, repeats: int) -> float:
    """Median over steps of what the host needs for forward and backward; handing gradients over is in it."""
    taken = []
    for index in range(repeats + 5):
        for parameter in model.parameters():
            parameter.grad = None
        device.sync()
        started = time.perf_counter()
        compiled(x).backward()
        if index >= 5:
            taken.append(time.perf_counter() - started)
        device.sync()
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main())
