"""Fits of everything that is not a matrix product: streaming kernels and fused attention. (Collectives: tools/collectives.)"""
import re

import numpy as np
import pandas as pd

import models
import specs
from fitting import DATA, FILE, H200, PRECISION, campaign, kernel_gap, parse, record, solve

# Operators of h200_operators.csv by the family whose coefficients they set. A cast to a wider type is its own family:
# PyTorch does not vectorise it. Zeroing the table is a fill of its own in embedding_backward.
FAMILY = {"add": "pointwise", "add_": "pointwise", "relu": "pointwise", "threshold_backward": "pointwise", "copy": "copy",
          "gelu": "activation", "gelu_backward": "activation", "silu": "activation", "silu_backward": "activation",
          "broadcast_add": "broadcast", "t_contiguous": "transpose", "native_dropout": "dropout", "sum_all": "reduction",
          "sum_cols": "reduction", "sum_rows": "bias_gradient", "layer_norm": "norm_forward", "layer_norm_backward": "norm_backward",
          "softmax": "softmax_forward", "softmax_backward": "softmax_backward", "log_softmax": "softmax_forward", "log_softmax_backward": "softmax_backward",
          "embedding": "embedding", "embedding_dense_backward": "embedding_backward", "max_pool2d": "pooling_forward",
          "max_pool2d_backward": "pooling_backward", "zero_foreach": "fill"}
ACCESSES = {"adamw_foreach": 20 / 7, "sgd_foreach": 8 / 5}  # reads and writes of its kernels, over those of one fused pass
# DRAM itself gives every stream about as much; what a kernel lacks is its SMs' doing, and travels with their number and clock.
MEMORY_PRIOR = dict(launch_floor=(2e-6, 1.0), efficiency=(models.STREAM, .03), accesses_per_clock=(15, 1.5), bytes_per_clock=(60, 1), row_clocks=(60, 1))
BY_ROW = ("reduction", "norm_forward")


def memory_rows():
    m = H200[~H200.family.isin(["gemm", "convolution", "attention", "batch_norm_forward", "batch_norm_backward"]) & ~H200.op.eq("rms_norm")].copy()  # fused RMS norm: no model calls it yet
    m["t"] = m.us * 1e-6
    m["fam"] = m.op.map(FAMILY).fillna(m.family)
    m.loc[m.family == "cast", "fam"] = np.where(m[m.family == "cast"].dtype == "fp32", "cast", "cast_widen")
    m.loc[m.family.eq("optimizer") & ~m.op.eq("zero_foreach"), "fam"] = "multi_tensor"
    m["bytes"] = m.bytes * m.op.map(ACCESSES).fillna(1)
    m["launches"] = m["shape"].str.extract(r"kernels=(\d+)")[0].astype(float).fillna(1)
    m.loc[m.op == "sum_all", "launches"] = 2.0  # into one value: the last block sums those of all
    size = np.where(m.dtype == "fp32", 4, 2)
    for (_, row), es in zip(m.iterrows(), size):
        k = {a: float(b) for a, b in re.findall(r"([a-z]+)=([0-9]+)", row["shape"])}
        if row.op == "embedding_dense_backward":
            table = k["vocab"] * k["cols"] * es
            m.loc[row.name, "bytes"] -= table
            m.loc[row.name, "t"] -= 3e-6 + table / (4.8e12 * .79)  # the fill, as the fill rows below measure it
    m["accesses"] = m.bytes / size
    m.loc[m.family == "cast", "accesses"] = m.bytes[m.family == "cast"] / 3  # one side is 2 bytes, the other 4
    # Operands of two types: an unrolled kernel that PyTorch does not vectorise. The sizes whose operands stay in the L2 left out.
    mixed = campaign("elementwise")
    mixed = mixed[(mixed.op == "add mixed") & ((mixed.bytes < 2e6) | (mixed.bytes > 8e7))]
    mixed = pd.DataFrame(dict(fam="pointwise_mixed", op=mixed.op, bytes=mixed.bytes, accesses=3.0 * mixed.n, launches=1.0, t=mixed.t))
    # Heads to the front and back: the innermost axis stays.
    heads = campaign("rows")
    heads = heads[(heads.op == "head transpose copy") & (heads.bytes > 40e3)]
    heads = pd.DataFrame(dict(fam="permute", op=heads.op, bytes=heads.bytes, accesses=heads.bytes / np.where(heads.dtype == "fp32", 4, 2), launches=1.0, t=heads.t))
    moved = campaign("permute", PRECISION)
    moved = moved[(moved.bytes < 2e6) | (moved.bytes > 8e7)]
    moved = pd.DataFrame(dict(fam=np.where(moved.op.str.startswith("heads"), "permute", "transpose"), op=moved.op, bytes=moved.bytes,
                              accesses=moved.bytes / np.where(moved.dtype == "fp32", 4, 2), launches=1.0, t=moved.t))
    m["rows"] = [1.0 if op == "sum_all" else float(r[0]) if (r := re.findall(r"rows=([0-9]+)", text)) else 1.0 for op, text in zip(m.op, m["shape"])]
    return pd.concat([m, mixed, heads, moved, *short_rows()], ignore_index=True).fillna({"rows": 1})


def short_rows():
    """Rows of 128 and 768 elements, for the families in BY_ROW: what a row costs does not show on long ones."""
    size = lambda d: np.where(d.dtype == "fp32", 4, 2)
    cold = lambda d: d[(d.bytes < 2e6) | (d.bytes > 8e7)]
    for op, family in (("sum over columns", "reduction"), ("mean over columns", "reduction"), ("layer_norm", "norm_forward")):
        d = campaign("rows")
        d = cold(d[d.op == op])
        yield pd.DataFrame(dict(fam=family, op=d.op, bytes=d.bytes, accesses=d.bytes / size(d), launches=1.0, rows=d.rows.astype(float), t=d.t))
    d = campaign("quantise", PRECISION)
    for op, length in (("amax rows", None), ("amax blocks", 128)):
        x = cold(d[d.op == op])
        rows = x.rows * x["columns"] / length if length else x.rows
        yield pd.DataFrame(dict(fam="reduction", op=x.op, bytes=x.bytes, accesses=x.bytes / size(x), launches=1.0, rows=rows.astype(float), t=x.t))


def memory_time(v, g, x):
    t = models.memory_bound(v, g, x.bytes.values, x.accesses.values, rows=x.rows.values)
    return t + (x.launches.values - 1) * v["launch_floor"]


def fit_memory():
    g, out, rows = specs.load("h200-sxm"), {}, memory_rows()
    for family in sorted(set(rows.fam) - {"norm_backward"}):
        x, best = rows[rows.fam == family], None
        time = lambda v: memory_time(v, g, x)
        error = lambda v: np.log(time(v) / x.t.values)
        for rate in (1.5, 5.0, 20.0):  # where the other bound holds everywhere the slope in this one is zero: several starts
            for width in (15.0, 60.0):
                firm = dict(MEMORY_PRIOR, launch_floor=(2e-6, .01)) if len(x) < 7 else MEMORY_PRIOR  # one size cannot tell a floor
                start = dict(launch_floor=2e-6, efficiency=models.STREAM, accesses_per_clock=rate, bytes_per_clock=width)
                v = solve(error, dict(start, row_clocks=60.0) if family in BY_ROW else start, firm)
                badness = np.median(abs(error(v))) + .3 * np.quantile(abs(error(v)), .9) + .2 * abs(np.log(v["efficiency"] / models.STREAM))
                if best is None or badness < best[0]:
                    best = (badness, v)
        v = best[1]
        v["efficiency"] = min(v["efficiency"], .95)
        out[family] = v, record("memory " + family, "h200-sxm", "all", time(v), x.t)
    out.update(fit_norm_backward(g))
    return out


def norm_lanes(g, rows, columns):
    """SMs that a layer norm's parameter gradients keep busy: a block per 32 columns, unless rows are split too."""
    blocks = np.ceil(columns / 32)
    return np.where((rows > 65536) & (blocks < g.sms / 2), g.sms, np.minimum(g.sms, blocks))


def fit_norm_backward(g):
    """The gradient of the input and, launched beside it, those of weight and bias: two kernels fitted to the time of both."""
    a = parse(H200[H200.op == "layer_norm_backward"])
    b = campaign("rows")
    b = b[b.op == "layer_norm backward"]
    x = pd.concat([pd.DataFrame(dict(dtype=a.dtype, rows=a.rows, columns=a["cols"], t=a.us * 1e-6)),
                   pd.DataFrame(dict(dtype=b.dtype, rows=b.rows, columns=b["columns"], t=b.t - kernel_gap()))], ignore_index=True)
    rows, columns = x.rows.values.astype(float), x["columns"].values.astype(float)
    n, size = rows * columns, np.where(x.dtype == "fp32", 4, 2)
    one = lambda v, kernel: {name.partition("/")[0]: w for name, w in v.items() if name.endswith(kernel)}

    def time(v):
        return models.memory_bound(one(v, "/input"), g, 3 * n * size, 3 * n) + \
            models.memory_bound(one(v, "/parameters"), g, 2 * n * size, 2 * n, norm_lanes(g, rows, columns))
    prior = dict(launch_floor=(2.5e-6, .5), efficiency=(models.STREAM, .03), accesses_per_clock=(8, 1), bytes_per_clock=(40, 1))
    v = solve(lambda v: np.log(time(v) / x.t.values), {f"{n}/{kernel}": p[0] for kernel in ("input", "parameters") for n, p in prior.items()}, prior)
    said = record("memory norm_backward", g.name, "all", time(v), x.t)
    return {"norm_backward": (one(v, "/input"), said), "norm_parameters": (one(v, "/parameters"), said)}


def transformer_ops():
    t = pd.read_csv(DATA / "measured_ops" / "transformer_ops_fp16.csv.gz")
    t = t[t.operator.isin(["gelu", "layernorm", "res_add", "flash_atten"])]
    f = pd.DataFrame([{k: float(v) for k, v in (a.split("=") for a in row.split(";"))} for row in t.fields])
    return pd.concat([t.reset_index(drop=True)[["gpu", "operator"]], f], axis=1).fillna({"mp": 1})


def check_memory_elsewhere(memory):
    """Hopper's streaming coefficients on other GPUs, nothing fitted: how well they travel."""
    notes, t = {}, transformer_ops()
    for name, gpu in (("a100-sxm-80gb", "a100-sxm-80gb"), ("gh200", "gh200")):
        g = specs.load(gpu)
        for op, family, forward, backward in (("res_add", "pointwise", 6, None), ("gelu", "activation", 16, 24), ("layernorm", "norm_forward", 4, None),
                                              ("layernorm", "norm_backward", None, 6)):
            x = t[(t.gpu == name) & (t.operator == op)]
            n = x.b * x.l * x["dim"] / x.mp
            for per, column in ((forward, "F_dur(us)"), (backward, "B_dur(us)")):
                if per:
                    p = models.memory_bound(memory[family][0], g, n * per, n * per / 2, rows=x.b * x.l)
                    if family == "norm_backward":
                        p += models.memory_bound(memory["norm_parameters"][0], g, n * 4, n * 2, norm_lanes(g, x.b * x.l, x["dim"]))
                    notes[gpu, family] = record(f"transfer {op} {column[0]} as {family}", gpu, "fp16", p, x[column] * 1e-6)
    return notes


ATTENTION_PRIOR = dict(launch_floor=(3e-6, .4), efficiency=(.5, 1), head_dim_exponent=(.4, .5), block_overhead=(1.5e-6, .7), tail=(.5, .7))


def fit_attention_rows(g, x, math, backward, label, memory=None, converts=True):
    """Backward has kernels beside the main one, lowered and costed on their own: row sums of gradient times output first, and
    where the query gradient is gathered in fp32 its conversion last."""
    start, beside = {n: v[0] for n, v in ATTENTION_PRIOR.items()}, 0.0
    if backward:
        n, size = (x.b * x.h * x.s * x.d).values, 4 if math == "fp32" else 2
        beside = models.memory_bound(memory["reduction"][0], g, 2 * n * size, 2 * n, rows=(x.b * x.h * x.s).values)
        if converts:
            beside = beside + models.memory_bound(memory["cast"][0], g, 6 * n, 2 * n)
    f = lambda v: beside + models.attention(dict(v, bandwidth_efficiency=.85), g, math, x.b.values, x.h.values, x.s.values, x.s.values, x.d.values,
                                   x.causal.values > 0, x.bytes.values, 10.0 if backward else 4.0)
    v = solve(lambda v: np.log(f(v) / x.t.values), start, ATTENTION_PRIOR)
    return dict(v, bandwidth_efficiency=.85), record(label, g.name, math, f(v), x.t)


def own_attention():
    """Both H200 files. Neither 16-bit type is faster than the other; dropout left out."""
    d = parse(H200[H200.family == "attention"])
    kind = d.op.str.split("_", expand=True)
    a = d[["dtype", "b", "h", "s", "d", "causal", "bytes"]].assign(direction=kind[0], backend=kind[1], t=d.us * 1e-6)
    d = campaign("sdpa")
    d = d[(d.dropout == 0) & ~d.op.str.startswith("math") & (d.dtype != "tf32")]
    kind = d.op.str.split(" ", expand=True)
    beside = np.where(kind[1] == "backward", np.where(kind[0] == "efficient", 1, 2), 0)  # kernels beside the main one, a gap before each
    size = np.where(d.dtype == "fp32", 4, 2)
    b = d[["dtype", "b", "causal"]].assign(h=d.heads, s=d.seq, d=d["dim"], bytes=d.b * d.heads * d.seq * d["dim"] * size * np.where(kind[1] == "backward", 8, 4),
                                           direction=kind[1], backend=kind[0], t=d.t - beside * kernel_gap())
    x = pd.concat([a, b], ignore_index=True)
    return x.assign(causal=x.causal.astype(float), math=np.where(x.dtype == "fp32", "fp32", "bf16"))


CACHE_LAUNCH = 1.6e-6  # of the pass below: what the same harness takes for the smallest product


def fit_reference_attention(name, throttled={"l40s": .6575 / .84}):
    """The reference timings hold a pass that writes keys and values to a cache before the attention kernel, and find in the L2 what
    the call before left there: both are fitted beside the kernel's coefficients, and dropped."""
    a, g = pd.read_csv(DATA / "measured_ops" / f"attention_forward_{FILE[name]}.csv.gz"), specs.load(name)
    a = a[(a.window == 0) & (a.seq >= 16) & (a.head_dim <= 128)].sample(3000, random_state=1)
    b, h, kvh, s, d, t = (a[c].values.astype(float) for c in ("batch", "heads", "kv_heads", "seq", "head_dim", "latency_ms"))
    t, nbytes, cached = t * 1e-3, 2 * b * s * d * (2 * h + 2 * kvh), 2 * b * s * d * kvh
    found = 1 / (1 + (nbytes / (.75 * g.l2)) ** 3)

    def f(v):
        share = 1 - found + found * g.bandwidth * .85 / (v["l2_bytes_per_clock"] * g.sms * g.clock)
        c = dict(v, bandwidth_efficiency=.85)
        kernel = models.attention(c, g, "bf16", b, h, s, s, d, True, nbytes * share, rows=models.attention_rows(g, True, d), throttled=throttled.get(name, 1.0))
        return kernel + CACHE_LAUNCH + v["pass_bytes"] * cached * share / g.bandwidth
    prior = dict(ATTENTION_PRIOR, l2_bytes_per_clock=(10, .4), pass_bytes=(8, .5))
    v = solve(lambda v: np.log(f(v) / t), {n: p[0] for n, p in prior.items()}, prior)
    note = record("attention forward", name, "bf16", f(v), t)
    return ({n: v[n] for n in ATTENTION_PRIOR} | {"bandwidth_efficiency": .85},
            f"{note}, {name}, {a.kernel.iloc[0]} (aiconfigurator), its cache pass taken off")


def fit_attention(memory):
    """{(architecture, backend, direction): (coefficients, note)}"""
    out, g = {}, specs.load("h200-sxm")
    for (backend, math, direction), x in own_attention().groupby(["backend", "math", "direction"]):
        name = "efficient_16bit" if backend == "efficient" and math != "fp32" else backend
        v, note = fit_attention_rows(g, x, math, direction == "backward", f"attention {direction}, PyTorch {name}", memory, backend != "efficient")
        out["hopper", name, direction] = v, note + ", H200, PyTorch 2.11"
    for arch, name in (("ampere", "a100-sxm-80gb"), ("ada", "l40s"), ("blackwell", "b200-sxm")):
        out[arch, "flash", "forward"] = fit_reference_attention(name)
    t = transformer_ops()
    t = t[(t.operator == "flash_atten") & (t.gpu == "a100-sxm-80gb")]
    x = t.assign(s=t.l, h=t.h / t.mp, d=t["dim"] / t.h, causal=0, t=t["B_dur(us)"] * 1e-6)
    x = x[(x.d <= 128) & (x.h >= 1)]
    v, note = fit_attention_rows(specs.load("a100-sxm-80gb"), x.assign(bytes=16 * x.b * x.s * x.d * x.h), "fp16", True, "attention backward", memory)
    out["ampere", "flash", "backward"] = v, note + ", A100 (estimate-train-time)"
    return out
