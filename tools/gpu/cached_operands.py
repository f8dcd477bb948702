#!/usr/bin/env python3
"""What a kernel takes by how long ago its operands were written, and the kernels of calls that are several: recurrent layers, joins of two types.

  python3 tools/gpu/cached_operands.py --out DIR [--seconds 110] [--seed 1] [--dry-run]

Writes DIR/cached_operands.jsonl.gz: a case's line with "between", the bytes that other kernels moved since a kernel wrote the
operands ("cold": more than any cache), or -1 where the call itself ran just before, and "kernels": [[number of the name,
microseconds], ...] in the order they ran; lines {"name": number, "is": "..."} come before a number's first use. Half of the time goes
to these, drawn at random; the other calls (part "several") start cold. Marks between calls as in kernel_choices.py.
"""
from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import sys
import time
from typing import Any, Callable, Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import in_package  # noqa: E402,F401
from kernel_choices import Session, record_sessions  # noqa: E402

MIB = 1 << 20
BETWEEN = (-1, 0, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 24 * MIB, 32 * MIB, 48 * MIB, 64 * MIB, "cold")
TYPES = ("fp32", "bf16", "fp16")
Call = Callable[[], Any]


def types() -> dict[str, Any]:
    import torch
    return {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def readers(dice: random.Random, device: Any) -> Iterator[tuple[dict[str, Any], Callable[[], None], Call]]:
    """(line, what writes the operands, what reads them)."""
    import torch
    import torch.nn.functional as F
    while True:
        name, columns = dice.choice(TYPES), dice.choice((32, 64, 96, 128, 192, 256, 320, 384, 512, 576, 768, 1024, 1280, 1536, 2048, 3072, 4096))
        dtype, other = types()[name], torch.bfloat16 if name == "fp32" else torch.float32
        size = 2 ** dice.uniform(10, 12 if device.dry_run else 24)
        rows = max(2, int(size / columns) // 2 * 2)
        x, y = (torch.randn(rows, columns, device=device.type).to(dtype) for _ in range(2))
        a, b, out = torch.randn_like(x), torch.randn_like(x), torch.empty_like(x)
        heads = 4 if columns % 4 == 0 else 1
        split_x = x.view(2, rows // 2, heads, columns // heads)
        row, one, zero = torch.ones_like(x[0]), torch.rand_like(x[:, :1].float()), torch.zeros_like(x[:, :1].float())
        each = one.to(dtype)
        calls: dict[str, tuple[Call, bool]] = {
            "add": (lambda: torch.add(x, y, out=out), True), "mul": (lambda: torch.mul(x, y, out=out), True),
            "relu": (lambda: torch.relu(x), False), "gelu": (lambda: F.gelu(x), False), "cast": (lambda: x.to(other), False),
            "gelu backward": (lambda: torch.ops.aten.gelu_backward(x, y), True), "mul rows": (lambda: x * each, False),
            "add bias": (lambda: torch.add(x, row, out=out), False), "sum over rows": (lambda: x.sum(0), False),
            "sum over columns": (lambda: x.sum(1), False), "sum all": (lambda: x.sum(), False),
            "heads copy": (lambda: split_x.transpose(1, 2).contiguous(), False), "turned copy": (lambda: x.t().contiguous(), False),
            "cat inner": (lambda: torch.cat((x, y), 1), True), "slice copy": (lambda: x[:, :columns // 2].contiguous(), False),
            "softmax": (lambda: torch.softmax(x, -1), False), "layer_norm": (lambda: F.layer_norm(x, (columns,), row, row), False),
            "layer_norm backward": (lambda: torch.ops.aten.native_layer_norm_backward(x, y, [columns], zero, one, row, row, [True, True, True]), True)}
        op = dice.choice(list(calls))
        call, both = calls[op]

        def write() -> None:
            if both:
                y.copy_(b)
            x.copy_(a)
        yield {"part": "readers", "op": op, "dtype": name, "rows": rows, "columns": columns}, write, call


def several(dice: random.Random, device: Any) -> Iterator[tuple[dict[str, Any], Call]]:
    """Recurrent layers forward and backward; cats and stacks of two types, along any axis."""
    import torch
    while True:
        if dice.random() < 0.75:
            name, kind = dice.choice(("fp32", "tf32", "bf16", "fp16")), dice.choice(("LSTM", "LSTM", "GRU", "RNN"))
            shape = {"input": dice.choice((64, 100, 128, 256, 300, 512, 650, 1024)), "hidden": dice.choice((32, 64, 96, 128, 200, 256, 320, 512, 650, 800, 1024)),
                     "layers": dice.choice((1, 1, 2, 3)), "bidirectional": dice.random() < 0.5, "steps": dice.choice((8, 16, 32, 35, 64, 128)),
                     "batch": dice.choice((1, 4, 8, 16, 20, 32, 64, 128, 256))}
            if device.dry_run:
                shape.update(input=8, hidden=8, steps=2, batch=2)
            layer = getattr(torch.nn, kind)(shape["input"], shape["hidden"], shape["layers"], bidirectional=shape["bidirectional"], device=device.type,
                                            dtype=types()[name])
            x = torch.randn(shape["steps"], shape["batch"], shape["input"], device=device.type, dtype=types()[name], requires_grad=True)
            made: list[Any] = []
            device.tf32(name == "tf32", name == "tf32")
            yield {"part": "several", "op": kind.lower() + " forward", "dtype": name, **shape}, lambda: made.append(layer(x)[0])
            if made:
                gradient = torch.randn_like(made[-1])
                yield {"part": "several", "op": kind.lower() + " backward", "dtype": name, **shape}, lambda: torch.autograd.backward(made[-1], gradient)
            continue
        name = dice.choice(("bf16", "fp16"))
        rows, first, second = dice.choice((64, 1024, 16384, 65536)), dice.choice((27, 63, 64, 128, 256, 319)), dice.choice((63, 64, 256, 512))
        if device.dry_run:
            rows = 4
        wide = torch.randn(rows, first, device=device.type, requires_grad=True)
        narrow = torch.randn(rows, second, device=device.type).to(types()[name]).requires_grad_()
        joined: list[Any] = []
        line = {"part": "several", "dtype": name, "rows": rows, "first": first, "second": second}
        yield {**line, "op": "cat mixed"}, lambda: joined.append(torch.cat((wide, narrow), 1))
        if joined:
            gradient = torch.randn_like(joined[-1])
            yield {**line, "op": "cat mixed backward"}, lambda: torch.autograd.backward(joined[-1], gradient)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="small cases on the CPU: the times mean nothing")
    arguments = parser.parse_args()
    until = time.time() + arguments.seconds
    import torch
    from precog.gpu.device import Device, describe_machine
    device, dice = Device(arguments.dry_run), random.Random(arguments.seed)
    os.makedirs(arguments.out, exist_ok=True)
    reading, others = readers(dice, device), several(dice, device)
    between = torch.zeros(64 if device.dry_run else 64 * MIB // 8, dtype=torch.float64, device=device.type)

    def reader(session: Session) -> None:
        line, write, call = next(reading)
        call()
        for distance in dice.sample(BETWEEN, 4):
            if distance == -1:
                call()
            else:
                write()
                if distance == "cold":
                    session.scratch.zero_()
                elif distance:
                    between[:distance // 16].mul_(1.0)  # reads and writes
            session.mark({**line, "between": distance})
            call()
            session.mark(None)

    def other(session: Session) -> None:
        line, call = next(others)
        if line["op"].endswith("forward") or line["op"] == "cat mixed":
            call()  # plans are made on the first
        session.scratch.zero_()
        session.mark(line)
        call()
        session.mark(None)

    with gzip.open(os.path.join(arguments.out, "cached_operands.jsonl.gz"), "wt", 6) as lines:
        lines.write(json.dumps({"meta": {"script": "cached_operands.py", "seed": arguments.seed, **describe_machine(arguments.dry_run)}}) + "\n")
        rows = record_sessions(device, lines, until, {"readers": 1.0, "several": 1.0}, lambda session, part: (reader if part == "readers" else other)(session))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
