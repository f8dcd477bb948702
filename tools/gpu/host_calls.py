#!/usr/bin/env python3
"""What a call costs the host inside a model's forward: indexing, fills, views and small operators, each between the modules of small layers.

  python3 tools/gpu/host_calls.py --out RAW --seconds 30        on a GPU
  python3 tools/gpu/host_calls.py --out /tmp/dry --seconds 10 --dry-run

A stack of modules (norm, linear, activation, as models write them) is issued from an idle GPU with the call in every layer and without it, in turns because the machine's
speed wanders; the difference per layer is what the call costs where caches are as cold as in a model. A call's result is dropped. Written:
host_calls.jsonl, {"name", "layer_us", "turns_us", "base_us"} and the anchors (host_speed.py) of the sitting.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any, Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import common  # noqa: E402
import host_speed  # noqa: E402

LAYERS, WIDTH, REPEATS = 12, 32, 3
Call = Callable[[torch.Tensor], Any]


def set_item(mask: torch.Tensor, index: Any, value: Any) -> None:
    mask[index] = value


def calls(device: str) -> dict[str, Call]:
    """Name -> call on the layer's activations (4, 8, 32; with a gradient)."""
    mask = torch.zeros(8, 16, 16, device=device)
    flags = mask > 0
    one, flat = torch.ones(4, 1, 1, device=device), torch.randn(4, 8, WIDTH, device=device)
    ids = torch.arange(8, device=device)
    image = torch.randn(2, 8, 8, 16, device=device)
    return {
        "nothing": lambda y: None,  # the method's own noise
        "slice, plain": lambda y: flat[1:3], "slices 2, plain": lambda y: flat[1:3, 2:6], "slices 3, plain": lambda y: flat[1:3, 2:6, 4:8],
        "slice": lambda y: y[1:3], "slices 2": lambda y: y[1:3, 2:6], "slices 3": lambda y: y[1:3, 2:6, 4:8],
        "select": lambda y: y[0], "selects 2": lambda y: y[0, 1], "none": lambda y: y[:, None], "none 2": lambda y: y[:, None, None], "last": lambda y: y[..., 0],
        "set slices 3": lambda y: set_item(mask, (slice(1, 3), slice(2, 6), slice(4, 8)), 3.0), "set slices 2": lambda y: set_item(mask, (slice(1, 3), slice(2, 6)), 3.0),
        "set slice": lambda y: set_item(mask, slice(1, 3), 3.0), "set slice tensor": lambda y: set_item(mask, slice(1, 3), mask[3:5]),
        "fill_": lambda y: mask.fill_(2.0), "zero_": lambda y: mask.zero_(), "add_ scalar": lambda y: mask.add_(1.0), "div_ scalar": lambda y: mask.div_(1.5),
        "bernoulli_": lambda y: one.bernoulli_(0.5), "new_empty": lambda y: y.new_empty((4, 1, 1)), "empty": lambda y: torch.empty((4, 1, 1), device=device),
        "zeros": lambda y: torch.zeros((8, 16), device=device), "new_zeros": lambda y: y.new_zeros((8, 16)), "ones": lambda y: torch.ones((8, 16), device=device),
        "full": lambda y: torch.full((8, 16), 1.5, device=device), "zeros_like": lambda y: torch.zeros_like(flat), "arange": lambda y: torch.arange(16, device=device),
        "rand": lambda y: torch.rand((4, 1, 1), device=device), "linspace": lambda y: torch.linspace(0.0, 1.0, 16, device=device),
        "view": lambda y: y.view(4, 2, 4, WIDTH), "reshape": lambda y: y.reshape(4, -1), "permute": lambda y: y.permute(0, 2, 1), "transpose": lambda y: y.transpose(1, 2),
        "flatten": lambda y: y.flatten(1), "expand": lambda y: y[:, None].expand(4, 3, 8, WIDTH), "unsqueeze": lambda y: y.unsqueeze(1), "unflatten": lambda y: y.unflatten(2, (4, 8)),
        "unbind": lambda y: y.unbind(0), "chunk": lambda y: y.chunk(2, -1), "split": lambda y: y.split(16, -1), "contiguous, none": lambda y: y.contiguous(),
        "contiguous": lambda y: y.transpose(1, 2).contiguous(), "detach": lambda y: y.detach(), "to, none": lambda y: y.to(y.dtype), "size": lambda y: y.size(0),
        "roll": lambda y: torch.roll(image, (1, 1), (1, 2)), "pad": lambda y: F.pad(image, (0, 0, 0, 1, 0, 1)), "cat": lambda y: torch.cat((y, y), -1), "stack": lambda y: torch.stack((y, y)),
        "add": lambda y: y + flat, "mul scalar": lambda y: y * 0.5, "relu": lambda y: F.relu(y), "eq": lambda y: mask == 0, "where": lambda y: torch.where(flags, mask, 1.0),
        "masked_fill": lambda y: mask.masked_fill(flags, -1.0), "masked_fill_": lambda y: mask.masked_fill_(flags, -1.0), "index rows": lambda y: flat[:, ids], "gather": lambda y: torch.index_select(flat, 1, ids),
        "softmax": lambda y: F.softmax(y, -1), "mean": lambda y: y.mean(-1), "pow": lambda y: y.pow(2), "float": lambda y: flat.to(torch.bfloat16), "dropout": lambda y: F.dropout(y, 0.1, True),
        "einsum": lambda y: torch.einsum("bij,bkj->bik", y, flat), "matmul": lambda y: torch.matmul(y, flat.transpose(1, 2)), "baddbmm": lambda y: torch.bmm(y, flat.transpose(1, 2)),
        "attention": lambda y: F.scaled_dot_product_attention(y, flat, flat), "layer_norm": lambda y: F.layer_norm(y, (WIDTH,)), "linear": lambda y: F.linear(y, flat[0]),
        "conv1d": lambda y: F.conv1d(y, flat[:, :, :3].transpose(0, 1)[:, :1].expand(8, 8, 3)),
    }


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.act = nn.GELU()
        self.call: Call | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.up(self.norm(x)))
        if self.call is not None:
            self.call(y)
        return x + self.down(y)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU; the figures mean nothing")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    begun = time.perf_counter()
    device = common.Device(args.dry_run)
    lines = common.Lines(os.path.join(args.out, "host_calls.jsonl"), {"script": "host_calls.py", "host": common.HOST, **common._device.describe_machine(args.dry_run)})
    anchor = host_speed.Anchor(device)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device.type).train()
    x = torch.randn(4, 8, WIDTH, device=device.type)

    def forward(call: Call | None) -> float:
        for layer in model:
            layer.call = call
        device.sync()
        started = time.perf_counter()
        model(x)
        taken = time.perf_counter() - started
        device.sync()
        return taken

    listed: dict[str, tuple[Call, list[float]]] = {}
    for name, call in calls(device.type).items():
        try:
            for _ in range(2):
                forward(call)
            listed[name] = (call, [])
        except Exception as error:  # noqa: BLE001: the others go on
            lines.write({"name": name, "error": "%s: %s" % (type(error).__name__, str(error)[:200])})
    anchors, bases = [anchor() for _ in range(3)], []
    while time.perf_counter() - begun < args.seconds or not bases:
        for call, taken in listed.values():
            pairs = [(forward(None), forward(call)) for _ in range(REPEATS)]
            bases.append(statistics.median(base for base, _ in pairs) / LAYERS)
            taken.append(statistics.median(own - base for base, own in pairs) / LAYERS)
        anchors.append(anchor())
    for name, (_, taken) in listed.items():
        lines.write({"name": name, "layer_us": round(statistics.median(taken) * 1e6, 2), "turns_us": [round(value * 1e6, 2) for value in taken]})
    lines.write({"base_us": round(statistics.median(bases) * 1e6, 2), "anchors_s": anchors})
    lines.close()
    print("%d calls, %d turns, %.0f s" % (len(listed), len(anchors) - 3, time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
