"""Fits of batch normalisation on images: cuDNN's kernels and PyTorch's own, NCHW and NHWC."""
import numpy as np
import pandas as pd

import models
import specs
from fitting import H200, PRECISION, campaign, kernel_gap, record, solve

PRIOR = dict(launch_floor=(3e-6, .7), efficiency=(models.STREAM, .05), accesses_per_clock=(4, 1), bytes_per_clock=(40, 1), block_overhead=(.5e-6, 1), block_accesses_per_clock=(2, 1),
             resident_gain=(1.3, .5))


def rows():
    """fp32, and fp16 with fp32 parameters, run cuDNN's kernels; bf16, and fp16 throughout, PyTorch's own."""
    a = H200[H200.op.isin(["batch_norm", "batch_norm_backward"])]
    image = a["shape"].str.extract(r"(\w+) (\d+)x(\d+)x(\d+)x(\d+)")
    a = pd.DataFrame(dict(dtype=a.dtype, backward=a.op == "batch_norm_backward", last=image[0] == "nhwc", channels=image[2].astype(float),
                          n=image[[1, 2, 3, 4]].astype(float).prod(axis=1), t=a.us * 1e-6))
    b = campaign("image")
    b = b[b.op.isin(["batch_norm", "batch_norm backward"])]
    b = pd.DataFrame(dict(dtype=b.dtype, backward=b.op == "batch_norm backward", last=b.layout == "nhwc", channels=[float(s[1]) for s in b["shape"]],
                          n=[float(np.prod(s)) for s in b["shape"]], t=b.t))
    c = campaign("norm", PRECISION)
    c = c[c.op.str.startswith("batch_norm") & (c.dtype != "fp32")]  # weights in the image's type
    c = pd.DataFrame(dict(dtype=c.dtype, backward=c.op.str.endswith("backward"), last=c.layout == "nhwc", channels=[float(s[1]) for s in c["shape"]],
                          n=[float(np.prod(s)) for s in c["shape"]], t=c.t, alike=True))
    d = pd.concat([a.assign(queued=0), b.assign(queued=1), c.assign(queued=1)], ignore_index=True)
    d = d.assign(native=(d.dtype == "bf16") | d.alike.eq(True), size=np.where(d.dtype == "fp32", 4, 2))
    return d.assign(t=d.t - kernel_gap() * d.queued * (launches(d.native, d.backward, d["last"]) - 1))


def launches(native, backward, last):
    """Kernels of one call, as recorded: PyTorch's own are three forward (sums, running statistics, result), backward one in NCHW and two in NHWC."""
    return np.where(native, np.where(backward, np.where(last, 2, 1), 3), 1)


def time(v, g, x, backward, last):
    passes = 5 if backward else 3
    accesses, nbytes = passes * x.n.values, passes * x.n.values * x["size"].values
    more = v["launch_floor"] * (launches(x.native, backward, last) - 1)
    if last:
        return models.memory_bound(v, g, nbytes, accesses) + more
    return models.batch_norm(v, g, nbytes, accesses, x.channels.values, (x.n / x.channels * x["size"]).values) + more


def fit_batch_norm():
    """{(native, backward, channels_last): (coefficients, note)}"""
    g, out = specs.load("h200-sxm"), {}
    for (native, backward, last), x in rows().groupby(["native", "backward", "last"]):
        names = ["launch_floor", "efficiency", "accesses_per_clock"] + (["bytes_per_clock"] if last else ["block_overhead", "block_accesses_per_clock", "resident_gain"])
        error, best = lambda v: np.log(time(v, g, x, backward, last) / x.t.values), None
        for rate in (1.5, 4.0, 10.0):
            for e in (.35, .7, models.STREAM):
                start = dict({n: PRIOR[n][0] for n in names}, efficiency=e, accesses_per_clock=rate)
                v = solve(error, start, PRIOR)
                # NHWC streams, and DRAM is not to blame for what it lacks; of NCHW's blocks this cannot be told from one GPU.
                badness = np.mean(abs(error(v))) + last * .1 * abs(np.log(v["efficiency"] / models.STREAM))
                if best is None or badness < best[0]:
                    best = (badness, v)
        v = best[1]
        v["efficiency"] = min(v["efficiency"], .95)
        said = record(f"{'native' if native else 'cuDNN'} batch norm {'backward' if backward else 'forward'} {'nhwc' if last else 'nchw'}", g.name,
                      "bf16" if native else "32, 16", time(v, g, x, backward, last), x.t)
        out[native, backward, last] = v, said
    return out


if __name__ == "__main__":
    for key, (v, _) in fit_batch_norm().items():
        print(key, {n: float("%.3g" % w) for n, w in v.items()})
