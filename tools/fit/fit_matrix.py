"""Fits of matrix products, per architecture and arithmetic."""
import numpy as np
import pandas as pd

import models
import specs
from fitting import DATA, FILE, H200, PRECISION, campaign, parse, record, solve

ARCH = {"ampere": ["a100-sxm-80gb"], "ada": ["l40s"], "hopper": ["h100-sxm", "h200-sxm"], "blackwell": ["b200-sxm", "gb200"]}

# What each GEMM coefficient is expected to be, and how firmly (a standard deviation in log space): the data decide
# where they can; where they cannot, two coefficients that trade off stay near their physical meaning.
PRIOR = dict(launch_floor=(1.5e-6, .3), efficiency=(.8, .3), l2_bytes_per_clock=(64, .5), tile_overhead=(.8e-6, .5), k_latency_clocks=(3, .5),
             bandwidth_efficiency=(.85, .15), split_overhead=(1.5e-6, .5), wave_quantisation=(.5, .7), l2_gain=(1.2, .4), overlap_norm=(2.5, .3))

PER_MATH = ("efficiency", "k_latency_clocks")


def spread(values, math, base=None):
    """Flat solver values -> a coefficient dict; "efficiency/fp8" and the like land in a dict by arithmetic."""
    c = dict(base or {})
    for name in PER_MATH:
        c[name] = dict(c.get(name, {}))
    for name, v in values.items():
        head, _, tail = name.partition("/")
        if head in PER_MATH:
            c[head][tail or math] = v
        else:
            c[head] = v
    return c


def gemm_rows(gpu, dtype, count=1500, seed=0):
    d = pd.read_csv(DATA / "measured_ops" / f"gemm_{FILE[gpu]}.csv.gz")
    d = d[d.dtype == dtype]
    d = d.assign(t=d.latency_ms * 1e-3)
    big = d[(d.m >= 512) & (d.n >= 512) & (d.k >= 256)]  # the shapes of training, half of the sample
    return pd.concat([big.sample(count // 2, random_state=seed), d.sample(count // 2, random_state=seed)]), d, big


SIZE = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8-block": 1, "nvfp4": .5625, "fp32": 4, "tf32": 4}
QUANTISE = {"fp8", "fp8-block", "nvfp4"}  # those timings include quantising the activations: a launch and passes over m*k


def predict_rows(c, gpu, math, s, warm=True):
    size = SIZE[math]
    nbytes = size * (s.m * s.k + s.n * s.k) + 2 * s.m * s.n
    t = models.gemm(c, gpu, math, 1, s.m, s.n, s.k, size, nbytes, warm=warm)
    if math in QUANTISE:
        t = t + c["quantise_floor"] + c["quantise_bytes"] * s.m.values * s.k.values / gpu.bandwidth
    return t


def fit_gemm_arch(gpus, math="bf16", dtype="bfloat16", seed=0):
    parts = [(specs.load(g), gemm_rows(g, dtype, seed=seed)[0]) for g in gpus]
    start = {n: v[0] for n, v in PRIOR.items()}
    res = lambda v: np.concatenate([np.log(predict_rows(spread(v, math), g, math, s) / s.t.values) for g, s in parts])
    return spread(solve(res, start, PRIOR), math)


def evaluate_gemm(c, gpu, math, dtype, label):
    _, everything, big = gemm_rows(gpu, dtype)
    g = specs.load(gpu)
    s = everything.sample(6000, random_state=7)
    record(label + " all shapes", gpu, math, predict_rows(c, g, math, s), s.t)
    s = big.sample(4000, random_state=7)
    return record(label + " training shapes", gpu, math, predict_rows(c, g, math, s), s.t)


def fit_low_precision(c, gpus, math, dtype):
    parts = [(specs.load(g), gemm_rows(g, dtype)[0]) for g in gpus]
    start = {"efficiency/" + math: .7, "quantise_floor": 3e-6, "quantise_bytes": 5.0, "k_latency_clocks/" + math: c["k_latency_clocks"]["bf16"]}
    prior = None
    if math == "fp8-block":
        # Those calls have a floor of 55 to 350 us by machine: the host's, not the kernel's. Only what is well above it tells of the product.
        everything = {g.name: gemm_rows(g.name, dtype)[1] for g, _ in parts}
        parts = [(g, s[s.t > 4 * s.t.min()]) for g, s in ((g, everything[g.name]) for g, _ in parts)]
        parts = [(g, s.sample(min(1500, len(s)), random_state=1)) for g, s in parts]
        prior = {"efficiency": (.7, .3), "quantise_floor": (6e-6, .05), "quantise_bytes": (8, .5), "k_latency_clocks": (2, .5)}
        start["quantise_floor"] = 6e-6
    res = lambda v: np.concatenate([np.log(predict_rows(spread(v, math, c), g, math, s) / s.t.values) for g, s in parts])
    v = solve(res, start, prior)
    if math == "fp8-block":
        full = spread(v, math, c)
        return v, "; ".join(f"{g.name}: " + record("gemm, floors left out", g.name, math, predict_rows(full, g, math, s), s.t) for g, s in parts)
    return v


def fit_scaled(c):
    """fp8 and fp8-block on Hopper from torch._scaled_mm itself: scales per tensor and per row, with fast accumulation and without; per block
    of 128, twice as many products with square blocks on the weight's side (output and input gradient) as without (weight gradient)."""
    d, g, notes = campaign("scaled_mm", PRECISION), specs.load("h200-sxm"), {}
    for math, ops in (("fp8", ["tensor", "tensor fast", "row", "row fast"]), ("fp8-block", ["block 1x128 128x128"] * 2 + ["block 1x128 1x128"])):
        x = pd.concat([d[d.op == op] for op in ops])
        nbytes = x.m * x.k + x.n * x.k + 2 * x.m * x.n
        time = lambda v: models.gemm(spread(v, math, c), g, math, 1, x.m, x.n, x.k, 1, nbytes, warm=True)
        v = solve(lambda v: np.log(time(v) / x.t.values), {"efficiency/" + math: .75, "k_latency_clocks/" + math: 2.0},
                  {"efficiency": (.75, .5), "k_latency_clocks": (2, .5)})
        c, notes[math] = spread(v, math, c), record("torch._scaled_mm", g.name, math, time(v), x.t)
    return c, notes


def fit_ragged():
    """What is left of the speed where rows are no multiple of 16 bytes, and of 4 (an odd number of 16-bit elements)."""
    d = campaign("ragged", PRECISION)
    d = d.assign(rate=d.flops / d.t, size=d.dtype.map(SIZE))
    d = d[(d.m > 3000) & ((d.off == 0) | ~((d.axis == "m") & (d.op != "tn")) & ~((d.axis == "k") & (d.op == "tn")))]  # axes that end a row
    aligned = d[d.off == 0].set_index(["op", "dtype"]).rate
    d = d[d.off > 0]
    left, bytes_off = d.rate / aligned.reindex(pd.MultiIndex.from_frame(d[["op", "dtype"]])).values, d.off * d["size"]
    pick = lambda math, rows: float(np.exp(np.log(left[(d.dtype == math) & rows]).mean()))
    misaligned = {m: min(1.0, pick(m, (bytes_off % 16 != 0) & (bytes_off % 4 == 0))) for m in ("fp16", "bf16", "tf32", "fp32")}
    odd = {m: pick(m, bytes_off % 4 != 0) for m in ("fp16", "bf16")}
    return misaligned, odd


def own_gemm(c, math, rows, tn=1.0, misaligned=1.0):
    g = specs.load("h200-sxm")
    contiguous = {"nt": ["k"], "nn": ["k", "n"], "tn": ["m", "n"], "bmm": ["k", "n"]}  # the row lengths of A and B as stored
    bad = np.array([any(row[d] * SIZE[math] % 16 for d in contiguous[row["op"]] + ["n"]) for _, row in rows.iterrows()])
    factor = np.where(rows.op == "tn", tn, 1.0) * np.where(bad, misaligned, 1.0)
    return models.gemm(c, g, math, rows.b, rows.m, rows.n, rows.k, SIZE[math], rows.bytes, factor=factor)


def fit_own_gemm(c):
    """fp32, tf32, fp16 from the H200 measurements: efficiency, latency, and what layout and misalignment cost."""
    notes, tn, misaligned = {}, {}, {}
    d = parse(H200[H200.family == "gemm"])
    bf16, latency = c["efficiency"]["bf16"], c["k_latency_clocks"]["bf16"]
    for math in ("fp16", "bf16", "tf32", "fp32"):
        x = d[d.dtype == math]
        t = x.us.values * 1e-6
        start = {"misaligned": .5, "tn": .9, "efficiency/" + math: .8}
        if math in ("bf16", "fp16"):
            c = spread({"k_latency_clocks/" + math: latency}, math, c)
        else:
            start["k_latency_clocks/" + math] = latency
        coefficients = lambda v: spread({n: w for n, w in v.items() if n not in ("tn", "misaligned")}, math, c)
        v = solve(lambda v: np.log(own_gemm(coefficients(v), math, x, v["tn"], v["misaligned"]) / t), start)
        c, tn[math], misaligned[math] = coefficients(v), v["tn"], v["misaligned"]
        notes[math] = record("gemm, PyTorch, cold operands", "h200-sxm", math, own_gemm(c, math, x, tn[math], misaligned[math]), t)
    # The two 16-bit types keep the ratio measured side by side here, at the level of the larger data set.
    c["efficiency"]["fp16"] *= bf16 / c["efficiency"]["bf16"]
    c["efficiency"]["bf16"] = bf16
    return c, {m: min(v, 1.0) for m, v in tn.items()}, misaligned, notes


def xla_table(c, gpu, g, dtype, math, label):
    """Efficiency and latency of one arithmetic from the GEMM table in openxla/xla, the rest as given."""
    d = pd.read_csv(DATA / "published" / "published_oplevel.csv.gz", low_memory=False)
    s = parse(d[(d.source == "openxla/xla") & (d.gpu == gpu) & (d.dtype == dtype)])
    size, t = SIZE[math], s.time_ms.values * 1e-3
    nbytes = s.B * (size * (s.M * s.K + s.N * s.K) + (4 if dtype.endswith("f32") else 2) * s.M * s.N)
    f = lambda v: models.gemm(spread(v, math, c), g, math, s.B, s.M, s.N, s.K, size, nbytes, warm=True)
    v = solve(lambda v: np.log(f(v) / t), {"efficiency/" + math: .8, "k_latency_clocks/" + math: 8.0})
    return v, record("gemm, openxla table", label, math, f(v), t)


def deepbench(gpu):
    d = pd.read_csv(DATA / "published" / "published_oplevel.csv.gz", low_memory=False)
    d = parse(d[(d.source == "baidu-research/DeepBench") & (d.gpu == gpu) & d.dtype.isin(["fp32", "fp16 in, fp32 accumulate"])])
    return d.assign(t=d.time_ms.astype(float) * 1e-3, math=np.where(d.dtype == "fp32", "fp32", "fp16"))


def deepbench_gemm(c, g, s, misaligned):
    math = s.math.iloc[0]
    size = SIZE[math]
    bad = (s.M * size % 16 != 0) | (s.K * size % 16 != 0)
    nbytes = size * (s.M * s.K + s.N * s.K + s.M * s.N)
    return models.gemm(c, g, math, 1, s.M, s.N, s.K, size, nbytes, factor=np.where(bad, misaligned, 1.0), warm=True)


def fit_deepbench_gemm(gpu, name, base):
    d, g, notes = deepbench(gpu), specs.load(name), {}
    parts = [x for _, x in d[d.op == "gemm"].groupby("math")]
    start = {n: PRIOR[n][0] for n in ("launch_floor", "tile_overhead", "bandwidth_efficiency", "wave_quantisation")}
    start["launch_floor"] = 4e-6
    prior = dict(PRIOR, launch_floor=(4e-6, .5), misaligned=(.5, .5))
    for x in parts:
        math = x.math.iloc[0]
        start["efficiency/" + math], start["k_latency_clocks/" + math] = .8, base["k_latency_clocks"][math]
    prior["k_latency_clocks"] = (10, 2)
    start["misaligned"] = .5
    split = lambda v: ({n: w for n, w in v.items() if n != "misaligned"}, v["misaligned"])

    def residual(v):
        v, bad = split(v)
        return np.concatenate([np.log(deepbench_gemm(spread(v, "fp16", base), g, x, bad) / x.t.values) for x in parts])
    v, bad = split(solve(residual, start, prior))
    clean = {k: w for k, w in base.items()}
    clean["efficiency"], clean["k_latency_clocks"] = {}, {}
    c = spread(v, "fp16", clean)
    for x in parts:
        notes[x.math.iloc[0]] = record("gemm, DeepBench", name, x.math.iloc[0], deepbench_gemm(c, g, x, bad), x.t)
    return c, bad, notes


def leave_one_out():
    """Each GPU predicted with coefficients fitted to all the others, bf16: what a GPU nobody measured can expect."""
    for gpu in FILE:
        others = [g for g in FILE if g != gpu]
        evaluate_gemm(fit_gemm_arch(others), gpu, "bf16", "bfloat16", "left out: gemm")
