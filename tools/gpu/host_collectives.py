#!/usr/bin/env python3
"""What the host pays to issue a collective, and for what tensor-parallel layers do around it: torch.distributed's calls in a group of one, so
that only the issuing is seen.

  python3 tools/gpu/host_collectives.py --out RAW            seconds on a GPU
  python3 tools/gpu/host_collectives.py --out /tmp/dry --dry-run

Each call's time in a loop of nothing else, and between the two halves of a small layer (linear, gelu, linear, as a tensor-parallel block
calls it), where caches are as cold as in a model: the layer with the call less the layer without it. Written: host_collectives.jsonl,
{"name", "loop_us", "layer_us", "anchor_us"} with a multiplication in a layer (torch.mul) beside them as what a plain operator costs there.
Beside the calls, Megatron's own Python: random states read and set (its tracker's fork() reads two and sets two around each dropout), and, as
{"name", "forward_us", "backward_us"} of a layer with it less one without it, an autograd function of Python's around nothing (one at each end of a
split layer), the same with an all_reduce in its forward or backward, and a checkpointed layer (torch.utils.checkpoint, which saves and sets random
states as Megatron's and DeepSpeed's do; its recomputed forward is taken off).
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
import torch.utils.checkpoint  # noqa: E402

import common  # noqa: E402

WIDTH, CALLS, REPEATS = 64, 60, 9


class Same(torch.autograd.Function):
    """Nothing, as Megatron's regions begin and end."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Reduced(Same):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x.view_as(x)


class ReducedGradient(Same):
    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()  # a sum's gradient is expanded
        dist.all_reduce(grad)
        return grad


def around_layers(device: common.Device, lines: common.Lines, rounds: int) -> None:
    """Forward and backward of a stack of small layers with something around each, less the bare stack's, per layer."""
    depth = 12
    weights = [torch.randn(WIDTH, WIDTH, device=device.type, requires_grad=True) for _ in range(2 * depth)]
    x = torch.randn(8, WIDTH, device=device.type, requires_grad=True)

    def block(y: torch.Tensor, i: int) -> torch.Tensor:
        return F.layer_norm(y + F.linear(F.gelu(F.linear(y, weights[2 * i])), weights[2 * i + 1]), (WIDTH,))

    around: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
        "bare": block,
        "function": lambda y, i: Same.apply(block(y, i)),
        "function with all_reduce forward": lambda y, i: Reduced.apply(block(y, i)),
        "function with all_reduce backward": lambda y, i: ReducedGradient.apply(block(y, i)),
        "checkpoint": lambda y, i: torch.utils.checkpoint.checkpoint(block, y, i, use_reentrant=True),
    }

    def issue(call: Callable[[torch.Tensor, int], torch.Tensor]) -> tuple[float, float]:
        y = x
        device.sync()
        started = time.perf_counter()
        for i in range(depth):
            y = call(y, i)
        middle = time.perf_counter()
        loss = y.sum()
        device.sync()
        again = time.perf_counter()
        loss.backward()
        ended = time.perf_counter()
        device.sync()
        return (middle - started) / depth * 1e6, (ended - again) / depth * 1e6

    for call in around.values():
        for _ in range(3):
            issue(call)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in around if name != "bare"}
    for _ in range(rounds):
        for name, call in around.items():
            if name == "bare":
                continue
            bare, with_it = issue(block), issue(call)
            again = bare[0] if name == "checkpoint" else 0.0
            found[name].append((with_it[0] - bare[0], with_it[1] - bare[1] - again))
    for name, rows in found.items():
        forward, backward = (statistics.median(column) for column in zip(*rows))
        lines.write({"name": name, "forward_us": round(forward, 2), "backward_us": round(backward, 2)})
        print("%-36s forward %6.1f us, backward %6.1f us" % (name, forward, backward), flush=True)


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
        device_states = torch if args.dry_run else torch.cuda
        state, host_state = device_states.get_rng_state(), torch.get_rng_state()
        up, down = (torch.randn(WIDTH, WIDTH, device=device.type, requires_grad=True) for _ in range(2))
        calls: dict[str, Callable[[torch.Tensor], object]] = {
            "torch.mul": lambda t: torch.mul(t, t),
            "all_reduce": lambda t: dist.all_reduce(t),
            "all_reduce async": lambda t: dist.all_reduce(t, async_op=True).wait(),
            "all_gather_into_tensor": lambda t: dist.all_gather_into_tensor(out, t),
            "reduce_scatter_tensor": lambda t: dist.reduce_scatter_tensor(out, t),
            "broadcast": lambda t: dist.broadcast(t, 0),
            "random state read": lambda t: device_states.get_rng_state(),
            "random state set": lambda t: device_states.set_rng_state(state),
            "host's random state read": lambda t: torch.get_rng_state(),
            "host's random state set": lambda t: torch.set_rng_state(host_state),
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
        around_layers(device, lines, 2 if args.dry_run else 60)
        dist.destroy_process_group()
    lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
