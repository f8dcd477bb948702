"""What ran on the GPU during a call: kernel intervals from the profiler, their union, and a coarse class by name.

The class is read from the kernel's name and is a guide, not a fact; the names themselves are kept beside it.
"""
from __future__ import annotations

import warnings

import torch
from torch.profiler import ProfilerActivity, profile

# First match wins; all patterns are lower case and searched in the lower-case kernel name.
CLASSES = (
    ("memset", ("memset",)),
    ("memcpy", ("memcpy",)),
    ("optimizer", ("multi_tensor_apply", "multitensorapply", "foreach", "fused_adam")),
    # cuDNN's attention brings helpers whose names do not say so.
    ("attention", ("flash", "fmha", "sdpa", "attention", "mha_", "compute_dot_do_o", "convert_dq", "unpack_cudnn")),
    ("norm", ("layer_norm", "layernorm", "batch_norm", "batchnorm", "bn_fw", "bn_bw", "bnfw", "bnbw", "::bn", "gammabeta",
              "rms_norm", "rmsnorm", "rowwisemoments", "group_norm", "computegradweights")),
    ("loss", ("nll_loss", "nllloss", "cross_entropy")),
    ("softmax", ("softmax",)),
    ("layout", ("nchwtonhwc", "nhwctonchw", "tensortransform", "transpose_readwrite", "nchw2nhwc", "nhwc2nchw",
                "kernel_transpose", "computeoffsetskernel")),
    ("conv", ("fprop", "dgrad", "wgrad", "convol", "conv_", "conv2d", "depthwise", "winograd", "cudnn", "implicit", "scudnn", "fft2d",
              "flip_filter")),
    ("gemm", ("gemm", "nvjet", "cutlass", "gemv", "splitk", "xmma", "cublas", "dot_kernel", "matmul")),
    ("pool", ("pool", "adaptive_average")),
    ("dropout", ("dropout", "distribution_", "philox", "bernoulli")),
    ("index", ("embedding", "index", "gather", "scatter", "radixsort", "deviceradix", "cub::", "krn_partial",
               "sum_and_scatter", "compute_grad_weight")),
    ("copy", ("copy_kernel", "catarray", "direct_copy", "_copy")),
    ("reduce", ("reduce",)),
    ("elementwise", ("elementwise", "vectorized", "unrolled", "fill", "triu", "tril", "arange")),
)
_NOT_WORK = ("context sync", "stream sync", "event sync", "stream wait", "lazy function loading", "activity buffer")


def class_of(name):
    lower = name.lower()
    for kind, patterns in CLASSES:
        if any(pattern in lower for pattern in patterns):
            return kind
    return "other"


def record(device, call):
    """[(start_ns, duration_ns, name)] of the GPU's work during call(), in order of start; [] if none was seen."""
    activity = ProfilerActivity.CPU if device.dry_run else ProfilerActivity.CUDA
    device.sync()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that events of earlier cycles are gone; there is one cycle
        with profile(activities=[activity]) as session:  # acc_events off: Python parsing of every event takes seconds
            call()
            device.sync()
    wanted = torch.autograd.DeviceType.CPU if device.dry_run else torch.autograd.DeviceType.CUDA
    found = []
    for event in session.profiler.kineto_results.events():
        name = event.name()
        # The optimizer's own range marker is mirrored on the GPU's timeline and would count as a long kernel.
        if getattr(event, "is_user_annotation", bool)() or name.startswith("Optimizer."):
            continue
        if event.device_type() == wanted and not name.lower().startswith(_NOT_WORK):
            found.append((event.start_ns(), event.duration_ns(), name))
    return sorted(found)


def busy_ns(intervals):
    """Length of the union of the intervals (sorted by start)."""
    total, reached = 0, None
    for start, duration, _ in intervals:
        end = start + duration
        if reached is None or start >= reached:
            total += duration
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


def summarise(intervals, top=40):
    by_class, by_name = {}, {}
    for _, duration, name in intervals:
        kind = class_of(name)
        entry = by_class.setdefault(kind, [0, 0])
        entry[0] += 1
        entry[1] += duration
        entry = by_name.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += duration
    ranked = sorted(by_name.items(), key=lambda item: -item[1][1])
    return {"gpu_busy_s": busy_ns(intervals) * 1e-9, "kernels": len(intervals),
            "by_class": {kind: {"count": n, "s": round(ns * 1e-9, 9)} for kind, (n, ns) in sorted(by_class.items())}}, \
           [[name[:400], n, round(ns * 1e-3, 3)] for name, (n, ns) in ranked[:top]]
