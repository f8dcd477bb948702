#!/usr/bin/env python3
"""Derives a host description (data/hosts/*.json) from operator-level host measurements.

  python3 tools/gpu/host_from_measurements.py data/measured/2026-11-15-h200 > data/hosts/h200-vm.json

Reads host*.jsonl (part C: one operator at a time, in a loop) and host_stack.json (the same kinds of modules in two deep
synthetic stacks). A loop keeps one operator's code hot in the caches; a model does not: the stacks say by how much
everything is slower there. Recorded training steps are not used. src/spec/host_spec.h says what each field means.
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
# What one block of tools/gpu/host_stack.py calls, forward and backward, and how many parameters it has.
BLOCKS = {
    "transformer": (24, {"gemm": 4, "normalization": 2, "attention": 1, "pointwise": 3, "dropout": 2, "view": 3, "split": 1, "copy": 1},
                    {"gemm": 8, "default": 5, "view": 16, "layer_norm_backward": 2, "attention": 1, "pointwise": 5}, 12),
    "cnn": (48, {"convolution": 2, "batch_norm": 2, "pointwise": 5}, {"convolution": 2, "batch_norm_backward": 2, "pointwise": 3}, 6),
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


def stack_factor(stacks, costs, column, direction, parameter=0.0):
    ratios = []
    for row in stacks["rows"]:
        if row["precision"] == "fp32":
            count, forward, backward, parameters = BLOCKS[row["stack"]]
            calls = forward if direction == "forward" else backward
            ratios.append(row[column] / count * 1e6 / (sum(costs[kind] * n for kind, n in calls.items()) + parameters * parameter))
    return statistics.median(ratios)


def main(folder):
    rows, meta = read(folder)
    stacks = json.load(open(os.path.join(folder, "host_stack.json")))
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
    own = rows["chain backward", "add own parameter"] - add
    scaler = rows["scaler foreach", "step + update, 10 tensors"] - rows["optimizer foreach", "step, 10 tensors, float32"] - 2 * per_call
    slower_forward = stack_factor(stacks, forward, "forward_s", "forward")
    slower_backward = stack_factor(stacks, backward, "backward_s", "backward", own)

    figures = {
        "autocast_cast": (cast * slower_forward, "casts", "layer_norm, softmax and cross_entropy on 16-bit inputs less the same on fp32; in a model"),
        "parameter_gradient": (own * slower_backward, "parameter", "chain of additions of own parameters less the chain without; in a model"),
        "optimizer_op": (per_call, "optimizer", "AdamW foreach over %d and %d small tensors: a line in the number of tensors, launches "
                         "beyond a call's first taken off; its constant over %d calls" % (few, many, len(ADAMW_CAPACITY))),
        "optimizer_tensor": (per_tensor, "optimizer_tensor", "the same line's slope: the step counters on the CPU and the lists"),
        "loss_scaler": (scaler, "scaler", "GradScaler step and update over 10 tensors less the optimizer's step and two calls"),
        "kernel_launch": (launch, "launch", "an empty kernel through a thin binding ('sleep(0) kernel'): an upper bound"),
        "synchronise": (rows["sync", "item() on an idle stream"], "sync", "'item() on an idle stream'"),
        "step": (rows["optimizer", "assign grads + zero_grad, 100"], "step", "zero_grad over 100 tensors"),
    }
    texts = {source: text for _, source, text in figures.values()}
    texts["forward"] = ("medians of single operators called from Python with autograd on (group 'forward'), times %.2f: what the synthetic "
                        "stacks take over the sum of their operators (host_stack.json)" % slower_forward)
    texts["backward"] = ("medians per link of chains of one operator (group 'chain backward'), the chain's own sums of gradients taken off, "
                         "times %.2f (host_stack.json)" % slower_backward)
    file_name = "data/measured/%s/host*.jsonl" % os.path.basename(os.path.abspath(folder))
    versions = "PyTorch %s, Python %s, %s" % (meta["torch"], meta["python"], meta["date"][:10])

    figure = lambda value, source: {"value": "%.3g us" % value, "source": source}
    out = {"schema": 1, "name": "h200-vm", "title": "Virtual machine of 16 Intel Xeon cores with one H200", "aliases": [],
           "notes": "Dispatch speed of this machine wandered by tens of per cent from one second to the next; see data/measured/README.md.",
           "forward": {kind: figure(value * slower_forward, "forward") for kind, value in forward.items()},
           "backward": {kind: figure(value * slower_backward, "backward") for kind, value in backward.items()}}
    out.update({key: figure(value, source) for key, (value, source, _) in figures.items()})
    out["sources"] = {source: "measured: %s, %s; %s" % (file_name, versions, text) for source, text in texts.items()}

    def lines(value, indent):  # one figure a line, like the other files of the folder
        nested = [key for key in value if isinstance(value[key], dict) and "value" not in value[key]]
        pad = " " * indent
        return ",\n".join("%s%s: %s" % (pad, json.dumps(key), "{\n%s\n%s}" % (lines(value[key], indent + 2), pad) if key in nested
                                        else json.dumps(value[key])) for key in value)
    print("{\n%s\n}" % lines(out, 2))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
