"""Fits of convolutions as factors on the matrix product: dense on Hopper and on DeepBench's GPUs, depthwise on Hopper."""
import numpy as np
import pandas as pd

import models
import specs
from fit_matrix import SIZE, deepbench
from fitting import H200, PRECISION, campaign, kernel_gap, parse, record, solve

PRIOR = dict(matrix=(.8, .7), tf32=(.6, .7), vector=(.6, .7), winograd=(2, .5), winograd_channels_exponent=(.3, .7), layout_floor=(3e-6, .5),
             layout_accesses=(10, 1), layout_bytes=(40, 1), few_channels_rate=(.4, .7), thin_weight_gradient_factor=(.5, .7),
             strided_gradient_factor=(.8, .5), tf32_pointwise_factor=(.8, .5), indexing_overhead=(2e-6, .7), unfused_factor=(.9, .3))
# How cuDNN 9 was seen to choose in fp32 on H200: Winograd from this many (4x4 output tiles) x (channels), and for data gradients
# of images larger than this. DeepBench's older libraries are not seen to refuse it, nor to copy images to another layout (some of its
# 16-bit 3x3 would leave the convolution itself faster than the tensor cores); PyTorch's steps have those copies as kernels of their own.
CHOICE = dict(winograd_work=150e3, winograd_gradient_size=16.0)
NO_CHOICE = dict(winograd_work=1.0, winograd_gradient_size=1.0)
DIRECTIONS = {"conv_fwd": "forward", "conv_bwd_data": "backward_data", "conv_bwd_weight": "backward_weight"}


def conv_time(c, conv, g, math, direction, x):
    one = lambda n: x[n].values
    return models.convolution(c, conv, g, math, direction, one("batch"), one("cin"), one("h"), one("w"), one("cout"), one("r"), one("s"),
                              one("stride"), one("p"), one("q"), SIZE[math], one("nhwc"))


def own(depthwise=False):
    """Both H200 files: h200_operators.csv (cold operands) and the campaign (the shapes of models, three batch sizes)."""
    d = parse(H200[H200.family == "convolution"])
    a = pd.DataFrame(dict(math=d.dtype, direction=d.op, batch=d.n, cin=d.c, cout=d.k, h=d.hw, r=d.f, stride=d.s, groups=d.g,
                          nhwc=d["shape"].str.startswith("nhwc"), t=d.us * 1e-6, queued=0))
    d = campaign("conv")
    b = pd.DataFrame(dict(math=d.dtype, direction=d.op.map({"forward": "forward", "dgrad": "backward_data", "wgrad": "backward_weight"}), batch=d.batch, cin=d.cin,
                          cout=d.cout, h=d["size"], r=d.kernel, stride=d.stride, groups=d.groups, nhwc=d.layout == "nhwc", t=d.t, queued=1))
    d = campaign("depthwise", PRECISION)
    d = pd.DataFrame(dict(math=d.dtype, direction=d.op.map({"forward": "forward", "dgrad": "backward_data", "wgrad": "backward_weight"}), batch=d.batch, cin=d.cin,
                          cout=d.cout, h=d["size"], r=d.kernel, stride=d.stride, groups=d.groups, nhwc=d.layout == "nhwc", t=d.t, queued=1))
    x = pd.concat([a, b, d], ignore_index=True)
    padding = np.where(x.r == x.stride, 0, x.r // 2)  # patches do not overlap
    x["p"] = (x.h + 2 * padding - x.r) // x.stride + 1
    x = x.assign(w=x.h, s=x.r, q=x.p)
    # The layout changes that come with a call are kernels of their own, with a gap before each.
    for (math, direction), y in x[(x.groups == 1) & (x.queued == 1)].groupby(["math", "direction"]):
        changes = models.layout_changes(CHOICE, math, direction, y.batch, y.cin, y.cout, y.h, y.w, y.r, y.s, y.stride, y.p, y.q, y.nhwc)
        x.loc[y.index, "t"] -= 2 * kernel_gap() * changes
    return x[(x.groups > 1) == depthwise]


def deepbench_rows(gpu):
    d = deepbench(gpu)
    d = d[d.op.isin(DIRECTIONS)].reset_index(drop=True)
    d = d[d["shape"].str.contains("stride=")]
    pads = d["shape"].str.extract(r"pad=(\d+),(\d+) stride=(\d+),(\d+)").astype(float)
    x = pd.DataFrame(dict(math=d.math, direction=d.op.map(DIRECTIONS), batch=d.N, cin=d.C, cout=d.K, h=d.H, w=d.W, r=d.R, s=d.S, stride=pads[2], nhwc=False, t=d.t))
    best = None
    for swap in (False, True):  # which of R and S runs along the width differs between the files: take what gives their own FLOP/s
        r, s = (x.s, x.r) if swap else (x.r, x.s)
        p, q = (x.h + 2 * pads[0] - r) // x.stride + 1, (x.w + 2 * pads[1] - s) // x.stride + 1
        off = abs(2 * x.batch * x.cout * p * q * x.cin * r * s / x.t / 1e12 / pd.to_numeric(d.tflops, errors="coerce") - 1)
        y = x.assign(r=r, s=s, p=p, q=q, off=off.fillna(9))
        best = y if best is None else best.where(best.off <= y.off, y)
    return best[(best.off < .02) & (best.cin > 1)].infer_objects()  # spectrograms (one channel) have paths of their own


def unpack(v):
    conv = {d: {} for d in DIRECTIONS.values()}
    for n, w in v.items():
        kind, _, direction = n.partition("/")
        if direction:
            conv[direction][kind] = w
        else:
            conv[kind] = w
    return conv


def fit(c, g, x, label, base=None):
    """base: coefficients where these rows have no say (a data set without fp32, or without tf32)."""
    kinds = {"fp32": ["vector", "winograd"], "tf32": ["tf32"], "fp16": ["matrix"], "bf16": ["matrix"]}
    have = {k for m in set(x.math) for k in kinds[m]}
    start = {"indexing_overhead": 2e-6}
    start.update({f"{k}/{d}": PRIOR[k][0] for d in DIRECTIONS.values() for k in sorted(have)})
    if "vector" in have:
        start.update(thin_weight_gradient_factor=.5)
        # DeepBench's libraries take the faster of two Winograds; on Hopper, which cuDNN 9 chooses was seen to follow the channels alone.
        start.update(dict(unfused_factor=.9) if base else dict(winograd_channels_exponent=.3))
    if have & {"matrix", "tf32"}:
        start.update(few_channels_rate=.4, strided_gradient_factor=.8)
        if not base:
            start.update(layout_floor=3e-6, layout_accesses=10.0, layout_bytes=40.0)
    if "tf32" in have:
        start.update(tf32_pointwise_factor=.8)

    def full(v):
        conv = dict(unpack(v), **(dict(NO_CHOICE, no_layout=True, winograd_channels_exponent=0.0) if base else CHOICE))
        for n, w in (base or {}).items():
            conv[n] = dict(w, **conv[n]) if n in DIRECTIONS.values() else conv.get(n, w)
        return conv
    parts = [(m, d, y) for (m, d), y in x.groupby(["math", "direction"])]
    v = solve(lambda v: np.concatenate([np.log(conv_time(c, full(v), g, m, d, y) / y.t.values) for m, d, y in parts]), start, PRIOR)
    notes = {}
    for m, d, y in parts:
        notes[m, d] = record(f"convolution {d}, {label}", g.name, m, conv_time(c, full(v), g, m, d, y), y.t)
    return {n: w for n, w in full(v).items() if n != "no_layout"}, notes


GROUP_WIDTH = 16  # channels of narrow groups that one block of tensor cores takes together
KIND = {"fp32": "vector", "tf32": "tf32", "fp16": "matrix", "bf16": "matrix"}


def fit_grouped(c, conv):
    """{direction: {grouped_matrix, grouped_tf32, grouped_vector}} and notes: what 3x3 convolutions of 4 to 64 channels a group reach of the
    dense factors, as products per group (narrow ones several at a time on tensor cores, zeros included), the layout copies taken off.
    Groups of 24 in NHWC are left out: cuDNN has nothing good for them (four times slower than NCHW with its copies)."""
    g, d = specs.load("h200-sxm"), campaign("grouped", PRECISION)
    d = d[(d.layout == "nchw") | ((d.cin // d.groups) % 16 == 0) | (d.cin // d.groups < 16)]
    d = d.assign(direction=d.op.map({"forward": "forward", "dgrad": "backward_data", "wgrad": "backward_weight"}), kind=d.dtype.map(KIND))
    out, notes = {x: {} for x in DIRECTIONS.values()}, {}
    for (direction, kind), x in d.groupby(["direction", "kind"]):
        size, p = x.dtype.map(SIZE).values, ((x["size"] - 1) // x.stride + 1).values
        image, result, channels = (x.batch * x["size"] ** 2).values, (x.batch * p**2).values, x.cin.values
        width = channels / x.groups.values
        if kind != "vector":
            width = np.minimum(channels, width * np.ceil(GROUP_WIDTH / width))
        taps, groups = (x.kernel**2).values, np.ceil(channels / width)
        m, n, k = {"forward": (result, width, width * taps), "backward_data": (image, width, width * taps / x.stride.values**2),
                   "backward_weight": (width, width * taps, result)}[direction]
        copied = 2 * channels * (image + result)
        copies = 2 * (conv["layout_floor"] + kernel_gap()) + np.maximum(copied * size / (g.bandwidth * models.STREAM), copied * (1 / conv["layout_accesses"] + size / conv["layout_bytes"]) / (g.sms * g.clock))
        copies = np.where((x.layout == "nchw") & (kind != "vector"), copies, 0)
        strided = np.where((direction == "backward_data") & (kind != "vector") & (x.stride > 1), conv["strided_gradient_factor"], 1)
        # one type of each width stands for the kind: the two 16-bit ones share peak and efficiency up to 3%
        time = lambda v: models.gemm(c, g, x.dtype.iloc[0], groups, m, n, np.maximum(k, 1), size, size * channels * (image + result),
                                     factor=conv[direction][kind] * strided * v["factor"]) + conv["indexing_overhead"] + copies
        v = solve(lambda v: np.log(time(v) / x.t.values), {"factor": .8}, {"factor": (.8, .7)})
        out[direction][f"grouped_{kind}"] = v["factor"]
        notes[kind, direction] = record(f"grouped convolution {direction}", g.name, kind, time(v), x.t)
    return out, notes


def depthwise_kernel(x):
    """Which kernel PyTorch runs: in NCHW cuDNN's for fp16 under conditions (src/kernel/lower_conv.cpp has them all; every measured image is
    wide and square), else its own; in NHWC cuDNN's. A strided data gradient of cuDNN's in NCHW is no faster than PyTorch's own."""
    taken = (x.math == "fp16") & (x.cin >= 32) & x.r.isin([1, 3, 5]) & (x.h >= 7)
    taken &= (x.stride == 1) | ((x.stride == 2) & ((x.cin >= 512) | ((x.cin >= 256) & (x.h >= 28))) & (x.direction != "backward_data"))
    return np.where(x.nhwc, "cudnn_nhwc_" + x.math.replace("tf32", "fp32"), np.where(taken, "cudnn_fp16", "native"))


def fit_depthwise():
    """{kernel: {direction: (coefficients, note)}} from the H200 measurements."""
    g, out, d = specs.load("h200-sxm"), {}, own(depthwise=True)
    for (kernel, direction), x in d.groupby([depthwise_kernel(d), "direction"]):
        size = x.math.map(SIZE)
        inputs, outputs, weights = x.batch * x.cin * x.h * x.w, x.batch * x.cout * x.p * x.q, x.cin * x.r * x.s
        nbytes, flops = size * (inputs + outputs + weights), 2 * outputs * x.r * x.s
        if direction == "backward_data":  # every tap at every input, those that meet no output too
            flops = flops * x.stride**2
        f = lambda v: models.depthwise(v, g, nbytes.values, flops.values, (x.r * x.s).values)
        v = solve(lambda v: np.log(f(v) / x.t.values), dict(launch_floor=5e-6, efficiency=.8, flops_per_clock=12.0, tap_overhead=3.0),
                  dict(launch_floor=(5e-6, .5), efficiency=(models.STREAM, .05), flops_per_clock=(12, 2), tap_overhead=(3, 2)))
        out.setdefault(kernel, {})[direction] = v, record(f"depthwise {direction}", g.name, kernel.replace("cudnn_", ""), f(v), x.t)
    return out
