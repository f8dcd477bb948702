#!/usr/bin/env python3
"""What the GPU draws, and what clock it keeps, over seconds of one kind of work and of two in turns.

  python3 tools/gpu/power_mixes.py --out DIR [--budget 75] [--seconds 4] [--dry-run]

  products    8192 cubed in bf16 and fp8. In fp8 with weights as the profile's runs have them (times k to the -0.5: most lie below
              e4m3's normal range and have few bits set) and with operands that fill the range, as scaled training has them; sums
              fast and careful; gradients in e5m2
  attention   flash attention's two passes in bf16
  chain       pointwise operators that stream through memory
  mixes       a product and a chain in turns, so that the clock for an average power can be seen
  nothing     a context, clocks up, no kernels
Lines as those of family `sustained` (precog.gpu.sustained), into DIR/power_mixes.jsonl.gz; the first line {"meta": ...} names the machine.
"""
import argparse
import os
import sys
import time
import types

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common  # noqa: E402
from precog.gpu.clocks import Sampler  # noqa: E402
from precog.gpu.make.work import Work, random  # noqa: E402
from precog.gpu.sustained import watch  # noqa: E402

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}


def filled(x, dtype):
    """As a recipe with scales has it: the largest value is the type's largest."""
    return (x * (LARGEST[dtype] / x.abs().max())).to(dtype)


class Works:
    def __init__(self, device, edge):
        self.device, self.edge = device, edge
        self.flops = 2 * edge ** 3

    def bf16(self):
        a, b = (random(self.device, self.edge, self.edge, dtype=torch.bfloat16) for _ in range(2))
        return Work(lambda: F.linear(a, b), 0, self.flops, written=False)

    def fp8(self, scaled=True, fast=True, left=E4M3):
        x, w = random(self.device, self.edge, self.edge), random(self.device, self.edge, self.edge) * self.edge ** -0.5
        a, b = (filled(x, left), filled(w, E4M3)) if scaled else (x.to(left), w.to(E4M3))
        one = torch.ones((), device=self.device)
        return Work(lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast), 0, self.flops, written=False)

    def attention(self):
        length = self.edge // 2
        heads = 32 if length >= 4096 else 2
        q, k, v = (random(self.device, 1, heads, length, 128, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
        back = random(self.device, 1, heads, length, 128, dtype=torch.bfloat16)

        def both():
            F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(back)
            q.grad = k.grad = v.grad = None
        return Work(both, 0, 14 * heads * length * length * 128 // 2, written=False)

    def chain(self):
        n = self.edge * self.edge
        x, y, z, last = (random(self.device, n, dtype=torch.bfloat16) for _ in range(4))

        def call():
            torch.add(x, y, out=z)
            torch.mul(z, 1.001, out=last)
        return Work(call, 5 * x.nbytes, kernels=2)

    def mixed(self, product, chains):
        chain = self.chain()

        def call():
            product.call()
            for _ in range(chains):
                chain.call()
        return Work(call, 0, product.flops, written=False)


def plan(w):
    """(operator, type, its work): the products first, since a short budget ends with the rest."""
    yield "gemm", "bf16", w.bf16
    yield "gemm as profiled", "fp8", lambda: w.fp8(scaled=False)
    yield "gemm filled", "fp8", w.fp8
    yield "gemm filled careful", "fp8", lambda: w.fp8(fast=False)
    yield "gemm filled careful e5m2", "fp8", lambda: w.fp8(fast=False, left=E5M2)
    yield "attention", "bf16", w.attention
    # A chain takes a tenth of a product in bf16 and a fifth of one in fp8.
    yield "gemm and 4 chains", "bf16", lambda: w.mixed(w.bf16(), 4)
    yield "gemm and 10 chains", "bf16", lambda: w.mixed(w.bf16(), 10)
    yield "gemm filled and 2 chains", "fp8", lambda: w.mixed(w.fp8(), 2)
    yield "gemm filled and 5 chains", "fp8", lambda: w.mixed(w.fp8(), 5)
    yield "chain", "bf16", w.chain


def nothing(seconds):
    with Sampler() as sampler:
        time.sleep(seconds)
    return {"s": seconds, "samples": sampler.entries}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT", "results"))
    parser.add_argument("--budget", type=float, default=75, help="seconds after which no new measurement is started")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each kind of work")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    if not given.dry_run and not torch.cuda.is_available():
        parser.error("no CUDA device; --dry-run goes through the same code on a CPU")
    campaign = common.Campaign(types.SimpleNamespace(held_out=False, only=None, **vars(given)), ["power_mixes"])
    lines, works = campaign.lines("power_mixes.jsonl.gz"), Works(campaign.device.type, 64 if given.dry_run else 8192)
    seconds = 0.1 if given.dry_run else given.seconds
    for op, dtype, make in plan(works):
        if campaign.clock.left() < seconds + 1:
            campaign.note("budget: stopped before " + op)
            break
        line = {"family": "sustained", "op": op, "dtype": dtype, "seconds": seconds}
        try:
            line |= watch(campaign.device, make(), seconds)
        except Exception as error:  # noqa: BLE001: whatever one library call throws, the rest is worth measuring
            line["error"] = "%s: %s" % (type(error).__name__, str(error)[:200])
        lines.write(line)
        rate = line["flops"] / line["s"] * 1e-12 if "flops" in line else 0
        campaign.say("%s %s: %s" % (op, dtype, line.get("error") or "%.0f TFLOP/s, %.6f s" % (rate, line["s"])))
        campaign.device.free()
    if campaign.clock.left() > 3:
        lines.write({"family": "sustained", "op": "nothing", "dtype": "bf16", "seconds": 2.0, **nothing(0.6 if given.dry_run else 2.0)})
    lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
