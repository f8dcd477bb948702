#!/usr/bin/env python3
"""How much slower the host issues operators inside a deep stack of modules than in a tight loop over one.

  python3 tools/gpu/host_stack.py --out DIR

A tight loop keeps one operator's code and data hot in the caches; a model walks through hundreds of modules once a step.
Two synthetic stacks (a transformer's and a CNN's blocks, written here, sizes of no known model) are issued forward and
backward with tensors so small that the GPU never is the bottleneck; the same modules are then looped over one by one in
the same minute, because the machine's speed wanders. The ratio is what a host description calls `in_a_model`.
"""
import argparse
import json
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.drop(self.out(y.transpose(1, 2).reshape(b, s, w)))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.act, self.down, self.drop = (
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        return x + self.drop(self.down(self.act(self.up(self.norm(x)))))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.c2, self.b2 = nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(x + self.b2(self.c2(self.relu(self.b1(self.c1(x))))))


def stack(kind, depth, device):
    if kind == "transformer":
        blocks = [m for _ in range(depth) for m in (Attention(48, 3), Mlp(48))]
        shape = (2, 24, 48)
    else:
        blocks, shape = [Residual(24) for _ in range(2 * depth)], (2, 24, 6, 6)
    return nn.Sequential(*blocks).to(device), shape


def sync(device):
    if device == "cuda":
        torch.cuda.synchronize()


def issue_times(model, x, device, rounds):
    """Median seconds to issue forward and backward once, the GPU idle before each."""
    forward, backward = [], []
    for _ in range(rounds):
        model.zero_grad(set_to_none=True)
        sync(device)
        start = time.perf_counter()
        loss = model(x).sum()
        middle = time.perf_counter()
        sync(device)
        again = time.perf_counter()
        loss.backward()
        backward.append(time.perf_counter() - again)
        forward.append(middle - start)
    return statistics.median(forward), statistics.median(backward)


def looped_times(blocks, x, device, calls, repeats=3):
    """The same blocks, each called `calls` times in a row forward, then backward through that chain of itself."""
    forward = backward = 0.0
    for block in blocks:
        f, b = [], []
        for _ in range(repeats):
            block.zero_grad(set_to_none=True)
            sync(device)
            start = time.perf_counter()
            y = x
            for _ in range(calls):
                y = block(y)
            f.append((time.perf_counter() - start) / calls)
            loss = y.sum()
            sync(device)
            start = time.perf_counter()
            loss.backward()
            b.append((time.perf_counter() - start) / calls)
        forward += statistics.median(f)
        backward += statistics.median(b)
    return forward, backward


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results", type=pathlib.Path)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    device = "cpu" if arguments.dry_run or not torch.cuda.is_available() else "cuda"
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for kind in ("transformer", "cnn"):
        for precision in ("fp32", "amp-bf16"):
            model, shape = stack(kind, 2 if arguments.dry_run else 24, device)
            x = torch.randn(*shape, device=device, requires_grad=True)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=precision != "fp32"):
                issue_times(model, x, device, 3)
                for round_ in range(1 if arguments.dry_run else 4):
                    f, b = issue_times(model, x, device, 2 if arguments.dry_run else 8)
                    hf, hb = looped_times(list(model)[:2], x, device, 4 if arguments.dry_run else 60)
                    share = 2 / len(model)
                    rows.append({"stack": kind, "precision": precision, "round": round_, "forward_s": f, "backward_s": b,
                                 "looped_forward_s": hf / share, "looped_backward_s": hb / share,
                                 "forward_ratio": f / (hf / share), "backward_ratio": b / (hb / share)})
                    print(rows[-1], flush=True)
    facts = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "device": device, "script": "tools/gpu/host_stack.py"}
    (arguments.out / "host_stack.json").write_text(json.dumps({"meta": facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
