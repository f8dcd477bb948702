"""Fits of batch normalisation on images: cuDNN's kernels and PyTorch's own, NCHW and NHWC."""
import numpy as np
import pandas as pd

import models
import specs
from fitting import H200, campaign, record, solve

PRIOR = dict(launch_floor=(5e-6, .7), efficiency=(models.STREAM, .05), accesses_per_clock=(4, 1), bytes_per_clock=(40, 1), block_overhead=(.5e-6, 1), block_accesses_per_clock=(2, 1),
             resident_gain=(1.3, .5))


def rows():
    """fp32 and fp16 with fp32 parameters run cuDNN's kernels, bf16 PyTorch's own."""
    a = H200[H200.op.isin(["batch_norm", "batch_norm_backward"])]
    image = a["shape"].str.extract(r"(\w+) (\d+)x(\d+)x(\d+)x(\d+)")
    a = pd.DataFrame(dict(dtype=a.dtype, backward=a.op == "batch_norm_backward", last=image[0] == "nhwc", channels=image[2].astype(float),
                          n=image[[1, 2, 3, 4]].astype(float).prod(axis=1), t=a.us * 1e-6))
    b = campaign("image")
    b = b[b.op.isin(["batch_norm", "batch_norm backward"])]
    b = pd.DataFrame(dict(dtype=b.dtype, backward=b.op == "batch_norm backward", last=b.layout == "nhwc", channels=[float(s[1]) for s in b["shape"]],
                          n=[float(np.prod(s)) for s in b["shape"]], t=b.t))
    d = pd.concat([a, b], ignore_index=True)
    return d.assign(native=d.dtype == "bf16", size=np.where(d.dtype == "fp32", 4, 2))


def time(v, g, x, backward, last):
    passes = 5 if backward else 3
    accesses, nbytes = passes * x.n.values, passes * x.n.values * x["size"].values
    if last:
        return models.memory_bound(v, g, nbytes, accesses)
    return models.batch_norm(v, g, nbytes, accesses, x.channels.values, (x.n / x.channels * x["size"]).values)


def fit_batch_norm():
    """{(native, backward, channels_last): (coefficients, note)}"""
    g, out = specs.load("h200-sxm"), {}
    for (native, backward, last), x in rows().groupby(["native", "backward", "last"]):
        names = ["launch_floor", "efficiency", "accesses_per_clock"] + (["bytes_per_clock"] if last else ["block_overhead", "block_accesses_per_clock", "resident_gain"])
        error, best = lambda v: np.log(time(v, g, x, backward, last) / x.t.values), None
        for rate in (1.5, 4.0, 10.0):
            for e in (.7, models.STREAM):
                start = dict({n: PRIOR[n][0] for n in names}, efficiency=e, accesses_per_clock=rate)
                v = solve(error, start, PRIOR)
                badness = np.mean(abs(error(v)))
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
