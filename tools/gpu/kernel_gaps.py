#!/usr/bin/env python3
"""How long the GPU idles between two kernels that are queued, by what they are: chains of one operator and mixed ones.

  python3 tools/gpu/kernel_gaps.py --out RAW          half a minute; kernel_gaps.jsonl

A spinning kernel first, so that the host is far ahead; then a profile of the chain. gap = start of the next kernel - end of this.
A block timed without the profiler beside it tells whether the profiler stretches the gaps (`start_to_start_us` both ways).
"""
import argparse
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]

import torch  # noqa: E402

import common  # noqa: E402

COUNT = 200


def cases():
    made = lambda *shape, dtype=torch.bfloat16: torch.randn(*shape, device="cuda", dtype=dtype)  # noqa: E731
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).split(".")[1]
        for n in (1 << 10, 1 << 18, 1 << 21, 1 << 23, 1 << 25):
            x, y = made(n, dtype=dtype), torch.empty(n, device="cuda", dtype=dtype)
            yield "add %s" % name, n, lambda x=x, y=y: torch.add(x, x, out=y)
        for n in (256, 768, 1536, 3072):
            a, b = made(n, n, dtype=dtype), made(n, n, dtype=dtype)
            out = torch.empty_like(a)
            yield "mm %s" % name, n, lambda a=a, b=b, out=out: torch.mm(a, b, out=out)
        for rows in (1 << 10, 1 << 13):
            x = made(rows, 1024, dtype=dtype)
            w = torch.ones(1024, device="cuda", dtype=dtype)
            yield "layer_norm %s" % name, rows, lambda x=x, w=w: torch.nn.functional.layer_norm(x, (1024,), w, w)
        for n in (1024, 4096):
            a, b = made(n, 1024, dtype=dtype), made(1024, 1024, dtype=dtype)
            w, out, big = torch.ones(1024, device="cuda", dtype=dtype), made(n, 1024, dtype=dtype), made(n, 1024, dtype=dtype)

            def block(a=a, b=b, w=w, out=out, big=big):
                torch.mm(a, b, out=out)
                torch.add(out, a, out=big)
                return torch.nn.functional.layer_norm(big, (1024,), w, w)
            yield "mm, add, layer_norm %s" % name, n, block


def gaps(run, count):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        torch.cuda._sleep(200_000_000)
        for _ in range(count):
            run()
        torch.cuda.synchronize()
    spans = sorted((e.time_range.start, e.time_range.end) for e in recorded.events()
                   if e.device_type == torch.autograd.DeviceType.CUDA and "spin" not in e.name.lower())
    spans = spans[10:]
    between = [b[0] - a[1] for a, b in zip(spans, spans[1:])]
    return len(spans) + 10, statistics.median(e - s for s, e in spans), statistics.median(between), (spans[-1][0] - spans[0][0]) / (len(spans) - 1)


def timed(run, count):
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    first.record()
    for _ in range(count):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) * 1e3 / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    args = parser.parse_args()
    args.dry_run = False
    os.makedirs(args.out, exist_ok=True)
    lines = common.Lines(os.path.join(args.out, "kernel_gaps.jsonl"), common.describe_machine(args, ["gaps"]))
    for name, n, run in cases():
        for _ in range(5):
            run()
        launched, kernel, gap, pitch = gaps(run, COUNT)
        plain = timed(run, COUNT) * COUNT / launched
        lines.write({"case": name, "n": n, "kernel_us": kernel, "gap_us": gap, "start_to_start_us": pitch, "unprofiled_us": plain})
        print("%-30s %9d kernel %9.2f us, gap %6.3f us, pitch %9.2f us, without the profiler %9.2f us" % (name, n, kernel, gap, pitch, plain), flush=True)
    lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
