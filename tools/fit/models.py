"""The cost formulae, in numpy, as src/cost evaluates them in C++. Each takes a coefficient dict, a Gpu and arrays; returns seconds.

What they leave out: the host, other kernels, clocks that drop under sustained power. docs/model_notes says what each coefficient means.
"""
import numpy as np

TILES = [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64), (32, 32)]
SPLITS = [1, 2, 3, 4, 6, 8, 16, 32, 64, 128]
TM, TN, SPLIT = (np.array(v, float) for v in zip(*[(a, b, s) for a, b in TILES for s in SPLITS]))


def dram_time(c, gpu, nbytes, warm):
    """Bytes that miss the L2 move at DRAM speed; the rest (a benchmark that repeats one call) at l2_gain times that."""
    hit = 1 / (1 + (nbytes / (0.8 * gpu.l2)) ** 4) if warm else 0.0
    return nbytes / (gpu.bandwidth * c["bandwidth_efficiency"]) * (1 - hit + hit / c["l2_gain"])


def gemm(c, gpu, math, batch, m, n, k, size, nbytes, factor=1.0, warm=False):
    """size: bytes of one input element; factor: what misalignment, layout or convolution leaves of the efficiency."""
    col = lambda v: np.asarray(v, float).reshape(-1, 1)
    batch, m, n, k, size, nbytes, factor = map(col, (batch, m, n, k, size, nbytes, factor))
    ctas = batch * np.ceil(m / TM) * np.ceil(n / TN) * SPLIT
    w = ctas / gpu.sms
    waves = np.where(w <= 1, 1.0, w + c["wave_quantisation"] * (np.ceil(w) - w))
    share = np.clip(w, 1, 2)  # two blocks on one SM hide each other's latency
    arithmetic = 2 * TM * TN * gpu.sms / (gpu.peak(math) * c["efficiency"][math] * factor)
    feed = (TM + TN) * size / (c["l2_bytes_per_clock"] * gpu.clock)
    latency = c["k_latency_clocks"][math] * size / 2 / gpu.clock / share
    per_k = (arithmetic**4 + feed**4 + latency**4) ** 0.25
    kk = np.ceil(k / SPLIT / 32) * 32
    compute = waves * (c["tile_overhead"] / share + kk * per_k)
    memory = dram_time(c, gpu, nbytes, warm)
    p = c["overlap_norm"]
    reduce = np.where(SPLIT > 1, c["split_overhead"] + SPLIT * batch * m * n * 8 / (gpu.bandwidth * c["l2_gain"]), 0)
    t = c["launch_floor"] + (compute**p + memory**p) ** (1 / p) + reduce
    t = np.where((SPLIT > 1) & (kk * (SPLIT - 1) >= k), np.inf, t)  # a split with nothing to do
    return t.min(1)


STREAM = .88  # share of the memory bandwidth that plain streams reach


def memory_bound(c, gpu, nbytes, accesses, lanes=np.inf, rows=0):
    """A kernel that streams: bound by DRAM, or by its SMs, which pay per element read or written, per byte, and some per row.
    lanes: how many SMs have work at all, where that is fewer (one block per channel)."""
    clocks = accesses / c["accesses_per_clock"] + nbytes / c["bytes_per_clock"] + rows * c.get("row_clocks", 0)
    return c["launch_floor"] + np.maximum(nbytes / (gpu.bandwidth * c["efficiency"]), clocks / (np.minimum(gpu.sms, lanes) * gpu.clock))


RESIDENT = 128 * 1024  # bytes of one channel that a block keeps on the chip between its passes


def batch_norm(c, gpu, nbytes, accesses, channels, channel_bytes):
    """NCHW batch norm, a block per channel: one block cannot use a whole SM, and few channels not all SMs."""
    gain = np.where(channel_bytes <= RESIDENT, c["resident_gain"], 1)
    busy = np.maximum(1, channels / gpu.sms)  # blocks that each SM runs
    block = accesses / channels / (gpu.clock * c["block_accesses_per_clock"] * gain)
    sm = busy * accesses / channels / (gpu.clock * c["accesses_per_clock"] * gain)
    compute = busy * c["block_overhead"] + (block**2 + sm**2) ** 0.5
    return c["launch_floor"] + np.maximum(nbytes / (gpu.bandwidth * c["efficiency"]), compute)


BLOCK = 128  # query rows that one thread block of a fused attention kernel owns


def attention_rows(gpu, causal, dim, backward=False):
    """Query rows of a flash kernel's block: half where an SM has 100 KB of shared memory (compute capability 8.6, 8.9)."""
    return np.where((gpu.capability in (86, 89)) & (np.asarray(causal) > 0) & (np.asarray(dim) > 64) & (not backward), BLOCK / 2, BLOCK)


def attention(c, gpu, math, batch, heads, q, kv, dim, causal, nbytes, flop_factor=4.0, rows=BLOCK, throttled=1.0):
    """Fused attention; flop_factor 4 forward, 10 backward (five GEMMs against two). throttled: share of the clock that full load leaves."""
    blocks = batch * heads * np.ceil(q / rows) / gpu.sms
    keys = np.where(causal, np.minimum(kv, (kv + rows) / 2), kv)
    idle = np.minimum(1 / throttled, np.maximum(1, 1 / blocks))  # SMs without a block leave their power to the others
    efficiency = np.minimum(np.maximum(.95, c["efficiency"]), c["efficiency"] * idle)
    rate = gpu.peak(math) / gpu.sms * efficiency * np.minimum(1, dim / 128) ** c["head_dim_exponent"]
    block = c["block_overhead"] + flop_factor * rows * keys * dim / rate
    tail = c["block_overhead"] + flop_factor * rows * kv * dim / rate
    compute = np.maximum(blocks, 1) * block + c["tail"] * tail
    memory = nbytes / (gpu.bandwidth * c["bandwidth_efficiency"])
    return c["launch_floor"] + (compute**3 + memory**3) ** (1 / 3)


THIN_TILES = 32  # 1x1 weight gradients in fp32 and NCHW of fewer 128x128 tiles than this run slow kernels


def winograd(conv, math, direction, batch, cin, cout, r, s, stride, p, q):
    work = batch * np.ceil(p / 4) * np.ceil(q / 4) * cout
    ok = (math == "fp32") & (r == 3) & (s == 3) & (stride == 1) & (cin > 4)
    if direction == "forward":
        return ok & (work >= conv["winograd_work"])
    return ok & (work >= conv["winograd_work"]) & (p > conv["winograd_gradient_size"]) if direction == "backward_data" else ok


def layout_changes(conv, math, direction, batch, cin, cout, h, w, r, s, stride, p, q, channels_last):
    """Whether images are copied to another layout around a convolution: tensor cores want NHWC, most fp32 kernels NCHW."""
    last = np.asarray(channels_last, bool)
    if math != "fp32":
        return ~last & ~((r * s == 1) & (stride == 1) & (h * w % 8 == 0))  # but for a batched GEMM as it lies in memory
    return last & (cin > 4) & ((direction != "backward_weight") | winograd(conv, math, direction, batch, cin, cout, r, s, stride, p, q))


def unfused_winograd(c, conv, gpu, direction, batch, cin, h, w, cout, p, q):
    """F(4x4, 3x3) with its transforms in kernels of their own: 36 products, and passes over what they read and write."""
    high, wide = (h, w) if direction == "backward_data" else (p, q)
    tiles = batch * np.ceil(high / 4) * np.ceil(wide / 4)
    m, n, k = {"forward": (tiles, cout, cin), "backward_data": (tiles, cin, cout), "backward_weight": (cout, cin, tiles)}[direction]
    moved = 4 * 36 * (tiles * cin + tiles * cout + cin * cout)
    passes = (moved + 4 * batch * (cin * h * w + cout * p * q)) / (gpu.bandwidth * STREAM)
    return gemm(c, gpu, "fp32", 36, m, n, k, 4, moved, factor=conv["unfused_factor"]) + passes + 2 * conv["indexing_overhead"]


def convolution(c, conv, gpu, math, direction, batch, cin, h, w, cout, r, s, stride, p, q, size, channels_last):
    """A dense convolution as the GEMM that it is, plus the layout changes that its kernels ask for."""
    x, y, weight = batch * cin * h * w, batch * cout * p * q, cout * cin * r * s
    if direction == "forward":
        m, n, k = batch * p * q, cout, cin * r * s
    elif direction == "backward_data":
        m, n, k = batch * h * w, cin, cout * r * s / stride**2  # a strided gradient multiplies by zeros, or skips them
    else:
        m, n, k = cout, cin * r * s, batch * p * q
    factor = np.full(len(m), conv[direction]["vector" if math == "fp32" else "tf32" if math == "tf32" else "matrix"])
    product = (r * s == 1) & (stride == 1)
    if math == "fp32":
        gain = conv[direction]["winograd"]
        if direction == "backward_weight":  # in steps of its own, whose share of the time shrinks with the channels
            gain = gain * (np.minimum(512, np.sqrt(cin * cout)) / 128) ** conv["winograd_channels_exponent"]
            thin = product & ~np.asarray(channels_last, bool) & (cin * cout < THIN_TILES * 128 * 128)
            factor = np.where(thin, factor * conv["thin_weight_gradient_factor"], factor)
        factor = np.where(winograd(conv, math, direction, batch, cin, cout, r, s, stride, p, q), factor * gain, factor)
    else:
        if math == "tf32" and direction != "backward_weight":
            factor = np.where(product, factor * conv["tf32_pointwise_factor"], factor)
        if direction == "backward_data":
            factor = np.where(stride > 1, factor * conv["strided_gradient_factor"], factor)
        # Three channels: no wide loads, so the tensor cores wait; the pace is a share of the vector units', whatever the arithmetic
        few = conv["few_channels_rate"] * gpu.vector["fp32"] / (gpu.peak(math) * c["efficiency"][math])
        factor = np.where(cin <= 4, few, factor)
    t = gemm(c, gpu, math, 1, m, n, np.maximum(k, 1), size, size * (x + y + weight), factor=factor)
    t = t + np.where(product, 0, conv["indexing_overhead"])
    if math == "fp32" and "unfused_factor" in conv:
        apart = unfused_winograd(c, conv, gpu, direction, batch, cin, h, w, cout, p, q)
        t = np.where((r == 3) & (s == 3) & (stride == 1) & (cin > 4), np.minimum(t, apart), t)
    if conv.get("no_layout"):
        return t
    change = 2 * conv["layout_floor"] + np.maximum(2 * size * (x + y) / (gpu.bandwidth * STREAM), 2 * (x + y) * (1 / conv["layout_accesses"] + size / conv["layout_bytes"]) / (gpu.sms * gpu.clock))
    return t + np.where(layout_changes(conv, math, direction, batch, cin, cout, h, w, r, s, stride, p, q, channels_last), change, 0)


def depthwise(c, gpu, nbytes, flops, taps):
    """One filter per channel: too little work per byte for any tensor core; bound by memory or by the loads of its SMs."""
    return c["launch_floor"] + np.maximum(nbytes / (gpu.bandwidth * c["efficiency"]), flops * (taps + c["tap_overhead"]) / taps / (gpu.sms * gpu.clock * c["flops_per_clock"]))
