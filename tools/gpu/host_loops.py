#!/usr/bin/env python3
"""What single operators cost the host in loops of one: from part C's measurements to figures by operator and family.

  python3 tools/gpu/host_loops.py data/measured/2026-11-15-h200

Reads host*.jsonl. A loop keeps one operator's code hot in the caches, so that these are what an operator costs at best; they are
where tools/gpu/host_fit.py starts from. src/spec/host_spec.h says what each figure means.
"""
import glob
import json
import os
import statistics
import sys

# Operator or family -> the rows of group 'forward' whose median it is: modules as models call them, autograd on.
FORWARD = {
    "default": ["cat 2", "softmax", "sum", "mean", "cast to bf16"],
    "gemm": ["nn.Linear bias", "nn.Linear no bias", "matmul 4d"],
    "convolution": ["nn.Conv2d 1x1", "nn.Conv2d 3x3", "nn.Conv2d depthwise"],
    "attention": ["sdpa", "sdpa causal dropout"],
    "normalization": ["nn.LayerNorm"],
    "softmax": ["softmax"],
    "pointwise": ["add", "add residual (no broadcast)", "mul", "mul scalar", "nn.GELU", "nn.SiLU", "nn.ReLU"],
    "dropout": ["nn.Dropout"],
    "cast": ["cast to bf16"],
    "copy": ["reshape copy", "cat 2"],
    "reduction": ["sum", "mean"],
    "pooling": ["nn.MaxPool2d", "nn.AdaptiveAvgPool2d"],
    "embedding": ["nn.Embedding"],
    "view": ["view", "transpose", "slice"],
    "split": ["split 3"],
}
# The same for group 'chain backward' (one link of a long chain: one backward node), and how many sums of gradients the
# chain has besides, because its links share a weight or use one tensor several times.
BACKWARD = {
    "default": (["mul scalar", "add self", "relu", "gelu", "softmax", "dropout"], 0),
    "pointwise": (["mul scalar", "add self", "relu", "gelu", "dropout"], 0),
    "convolution": (["conv2d"], 1),
    "attention": (["sdpa"], 2),
    "layer_norm_backward": (["layer_norm"], 2),
    "batch_norm_backward": (["batch_norm"], 2),
    "softmax": (["softmax"], 0),
    "cast": (["cast and back"], 0),
    "view": (["view", "transpose"], 0),
}
ADAMW_CAPACITY = [110, 64, 110, 48, 64, 96, 110, 48]  # tensors of one launch, by foreach call of AdamW


def read(folder):
    """(group, name) -> mean over the recorded sessions of the median time."""
    sessions, meta = [], {}
    for path in sorted(glob.glob(os.path.join(folder, "host*.jsonl"))):
        rows = {}
        for line in open(path):
            row = json.loads(line)
            if "meta" in row:
                meta = row["meta"]
            elif "host_us" in row:
                rows[row["group"], row["name"]] = row["host_us"]
        sessions.append(rows)
    shared = set.intersection(*(set(rows) for rows in sessions))
    return {key: statistics.mean(rows[key] for rows in sessions) for key in shared}, meta


def figures(folder):
    """{"forward": {figure: microseconds}, "backward": {...}, and single figures}, with the machine's meta."""
    rows, meta = read(folder)
    median = lambda group, names: statistics.median(rows[group, name] for name in names)
    launch = rows["launch", "sleep(0) kernel"]
    add = rows["chain backward", "add self"]

    # Small tensors: a launch is full when it holds its number of tensors, so launches follow from the count alone.
    def without_extra_launches(count):
        extra = sum(-(-count // capacity) - 1 for capacity in ADAMW_CAPACITY)
        return rows["optimizer foreach", "step, %d tensors, float32" % count] - extra * launch

    few, many = 10, 400
    per_tensor = (without_extra_launches(many) - without_extra_launches(few)) / (many - few)
    per_call = (without_extra_launches(few) - few * per_tensor) / len(ADAMW_CAPACITY)
    forward = {kind: median("forward", names) for kind, names in FORWARD.items()}
    forward["batch_norm"] = rows["forward", "nn.BatchNorm2d"] - forward["pointwise"]  # its counter is an operator of its own
    backward = {kind: median("chain backward", names) - sums * add for kind, (names, sums) in BACKWARD.items()}
    # A linear's backward is two products between four views; its chain shares one weight.
    backward["gemm"] = (rows["chain backward", "linear shared weight"] - add - 4 * backward["view"] / 2) / 2
    cast = statistics.median(rows["forward amp-bf16 16in", name] - rows["forward amp-bf16", name]
                             for name in ("nn.LayerNorm", "softmax", "cross_entropy"))
    return {"forward": forward, "backward": backward, "autocast_cast": cast,
            "parameter_gradient": rows["chain backward", "add own parameter"] - add, "optimizer_op": per_call, "optimizer_tensor": per_tensor,
            "loss_scaler": rows["scaler foreach", "step + update, 10 tensors"] - rows["optimizer foreach", "step, 10 tensors, float32"] - 2 * per_call,
            "kernel_launch": launch, "synchronise": rows["sync", "item() on an idle stream"]}, meta


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(json.dumps(figures(sys.argv[1])[0], indent=1))
