#!/usr/bin/env python3
"""How long the GPU idles between two kernels that are queued, by what they are and how long they run: chains of one operator and of two in turn.

  python3 tools/gpu/kernel_gaps.py --out RAW          40 s; kernel_gaps.jsonl
  python3 tools/gpu/kernel_gaps.py --out /tmp/dry --dry-run

A spinning kernel first, so that the host is far ahead. The chain is timed by events without the profiler, three times; the profiler then says how long its kernels are and
how many: gap = (time of the chain - the kernels' own) / kernels, which is what a step has between its kernels beyond `gpu_busy_s`. `profiled_gap_us` is the median from the end of one
kernel to the start of the next by the profiler alone.
"""
import argparse
import itertools
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import common  # noqa: E402

CHAIN_S = 4e-3      # how long a chain runs, about
SPIN = 40_000_000   # clocks: 20 ms
MOST = 240          # calls in a chain


def kinds(device):
    """Name -> a call of it. Several lengths of each: from a few microseconds to a hundred or two."""
    made = lambda *shape, dtype=torch.float32: torch.randn(*shape, device=device, dtype=dtype)  # noqa: E731
    small = device == "cpu"
    out = {}
    for dtype in (torch.float32, torch.bfloat16):
        short = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
        for power in (14,) if small else (14, 18, 20, 21, 22, 23, 24, 25):
            x, y = made(1 << power, dtype=dtype), torch.empty(1 << power, device=device, dtype=dtype)
            out["add %s %d" % (short, power)] = lambda x=x, y=y: torch.add(x, x, out=y)
        for power in (14,) if small else (18, 21, 23, 25):
            x = made(1 << power, dtype=dtype).view(-1, 1024)
            y = torch.empty_like(x)
            out["copy %s %d" % (short, power)] = lambda x=x, y=y: y.copy_(x)  # the driver's
            out["zero %s %d" % (short, power)] = lambda y=y: y.zero_()
            w = torch.ones(1024, device=device, dtype=dtype)
            out["layer_norm %s %d" % (short, power)] = lambda x=x, w=w: F.layer_norm(x, (1024,), w, w)
            sums = torch.empty(x.shape[0], device=device, dtype=dtype)
            out["sum %s %d" % (short, power)] = lambda x=x, sums=sums: torch.sum(x, 1, out=sums)
        for n in (64,) if small else (256, 768, 1024, 1536, 2048, 3072):
            a, b = made(n, n, dtype=dtype), made(n, n, dtype=dtype)
            got = torch.empty_like(a)
            out["mm %s %d" % (short, n)] = lambda a=a, b=b, got=got: torch.mm(a, b, out=got)
        for batch in (1,) if small else (2, 16, 64):
            x = made(batch, 64, 56, 56, dtype=dtype).to(memory_format=torch.channels_last)
            w = made(64, 64, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
            out["conv %s %d" % (short, batch)] = lambda x=x, w=w: F.conv2d(x, w, padding=1)
        for tensors, power in ((4, 10),) if small else ((40, 12), (40, 18), (160, 18), (160, 14)):
            many = [made(1 << power, dtype=dtype) for _ in range(tensors)]
            out["foreach %s %d x %d" % (short, tensors, power)] = lambda many=many: torch._foreach_add_(many, many)
    return out


def pairs(singles, device):
    """Two calls in turn, of different kinds and of like and unlike lengths."""
    if device == "cpu":
        names = ("add fp32 14", "mm fp32 64")
    else:
        names = ("add fp32 18", "add fp32 23", "add bf16 24", "mm bf16 768", "mm bf16 2048", "mm fp32 1024", "layer_norm bf16 23", "sum fp32 23", "conv bf16 16", "copy bf16 23", "zero fp32 23", "foreach fp32 160 x 14")
    for a, b in itertools.combinations(names, 2):
        def both(first=singles[a], second=singles[b]):
            first()
            second()
        yield "%s, %s" % (a, b), both


def timed(device, run, calls):
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    device.sync()
    torch.cuda._sleep(SPIN)
    first.record()
    for _ in range(calls):
        run()
    last.record()
    device.sync()
    return first.elapsed_time(last) * 1e3


def profiled(device, run, calls):
    """(start, end) of the chain's kernels in microseconds."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        torch.cuda._sleep(SPIN)
        for _ in range(calls):
            run()
        device.sync()
    return sorted((e.time_range.start, e.time_range.end) for e in recorded.events()
                  if e.device_type == torch.autograd.DeviceType.CUDA and "spin" not in e.name.lower())


def measured(device, name, run):
    for _ in range(3):
        run()
    once = timed(device, run, 20) / 20
    calls = int(min(max(CHAIN_S * 1e6 / once, 20), MOST))
    plain = statistics.median(timed(device, run, calls) for _ in range(3))
    spans = profiled(device, run, calls)
    again = statistics.median(timed(device, run, calls) for _ in range(2))
    own = sum(end - start for start, end in spans)
    between = sorted(b[0] - a[1] for a, b in zip(spans, spans[1:]))
    return {"case": name, "calls": calls, "kernels": len(spans), "chain_us": round(plain, 3), "chain_again_us": round(again, 3), "kernels_us": round(own, 3), "kernel_us": round(own / len(spans), 4),
            "gap_us": round((plain - own) / len(spans), 4), "profiled_gap_us": round(statistics.median(between), 4), "profiled_us": round(spans[-1][1] - spans[0][0], 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    begun = time.perf_counter()
    device = common.Device(args.dry_run)
    lines = common.Lines(os.path.join(args.out, "kernel_gaps.jsonl"), common.describe_machine(args, ["gaps"]))
    singles = kinds(device.type)
    for name, run in [*singles.items(), *pairs(singles, device.type)]:
        if args.dry_run:
            run()
            lines.write({"case": name})
            continue
        if time.perf_counter() - begun > args.seconds:
            break
        try:
            row = measured(device, name, run)
        except Exception as error:  # noqa: BLE001: the others go on
            row = {"case": name, "error": "%s: %s" % (type(error).__name__, str(error)[:200])}
        lines.write(row)
        print(row, flush=True)
    lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
