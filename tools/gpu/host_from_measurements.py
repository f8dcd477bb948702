#!/usr/bin/env python3
"""Derives a host description (data/hosts/*.json) from operator-level host measurements (part C's host.jsonl).

  python3 tools/gpu/host_from_measurements.py data/measured/2026-11-15-h200/host.jsonl > data/hosts/h200-vm.json

Single operators only; whole training steps are never looked at, so that they stay a fair test of the result.
src/spec/host_spec.h says what each field means.
"""
import json
import os
import statistics
import sys

# Operator family -> the rows of group 'forward' whose median it is: modules as models call them, autograd on.
FORWARD = {
    "default": ["nn.Dropout", "cat 2", "softmax", "sum", "mean", "cast to bf16"],
    "gemm": ["nn.Linear bias", "nn.Linear no bias", "matmul 4d"],
    "convolution": ["nn.Conv2d 1x1", "nn.Conv2d 3x3", "nn.Conv2d depthwise"],
    "attention": ["sdpa", "sdpa causal dropout"],
    "normalization": ["nn.LayerNorm"],
    "softmax": ["softmax"],
    "pointwise": ["add", "add residual (no broadcast)", "mul", "mul scalar", "nn.GELU", "nn.SiLU", "nn.ReLU"],
    "cast": ["cast to bf16"],
    "copy": ["reshape copy", "cat 2"],
    "reduction": ["sum", "mean"],
    "pooling": ["nn.MaxPool2d", "nn.AdaptiveAvgPool2d"],
    "embedding": ["nn.Embedding"],
    "view": ["view", "transpose", "slice"],
}
# Family -> rows of group 'chain backward': one link of a long chain, so one backward node each.
BACKWARD = {
    "default": ["mul scalar", "add self", "relu", "gelu", "softmax", "dropout"],
    "pointwise": ["mul scalar", "add self", "relu", "gelu", "dropout"],
    "convolution": ["conv2d"],
    "attention": ["sdpa"],
    "normalization": ["layer_norm", "batch_norm"],
    "softmax": ["softmax"],
    "cast": ["cast and back"],
    "view": ["view", "transpose"],
}
# AdamW's foreach calls by (tensors of one launch): 8 calls a step, in PyTorch's order of use.
ADAMW_CAPACITY = [110, 64, 110, 48, 64, 96, 110, 48]


def main(path):
    rows, meta = {}, {}
    with open(path) as file:
        for line in file:
            row = json.loads(line)
            if "meta" in row:
                meta = row["meta"]
            elif "host_us" in row:
                rows[row["group"], row["name"]] = row["host_us"]
    median = lambda group, names: statistics.median(rows[group, name] for name in names)
    launch = rows["launch", "sleep(0) kernel"]

    # Small tensors: a launch is full when it holds its number of tensors, so launches follow from the count alone.
    def without_extra_launches(count):
        extra = sum(-(-count // capacity) - 1 for capacity in ADAMW_CAPACITY)
        return rows["optimizer foreach", "step, %d tensors, float32" % count] - extra * launch

    few, many = 10, 400
    per_tensor = (without_extra_launches(many) - without_extra_launches(few)) / (many - few)
    per_call = (without_extra_launches(few) - few * per_tensor) / len(ADAMW_CAPACITY)
    forward = {family: (median("forward", names), "forward") for family, names in FORWARD.items()}
    backward = {family: (median("chain backward", names), "backward") for family, names in BACKWARD.items()}
    # A linear's backward is two products between four views; its chain shares one weight, so a sum of gradients too.
    linear = rows["chain backward", "linear shared weight"] - rows["chain backward", "add self"]
    backward["gemm"] = ((linear - 4 * backward["view"][0] / 2) / 2, "backward_gemm")
    casts = [rows["forward amp-bf16 16in", name] - rows["forward amp-bf16", name] for name in ("nn.LayerNorm", "softmax", "cross_entropy")]
    own = rows["chain backward", "add own parameter"] - rows["chain backward", "add self"]
    scaler = rows["scaler foreach", "step + update, 10 tensors"] - rows["optimizer foreach", "step, 10 tensors, float32"] - 2 * per_call

    figures = {
        "autocast_cast": (statistics.median(casts), "casts", "layer_norm, softmax and cross_entropy on 16-bit inputs less the same on fp32"),
        "parameter_gradient": (own, "parameter", "chain of additions of own parameters less the chain without"),
        "optimizer_op": (per_call, "optimizer", "AdamW foreach over %d and %d small tensors: a line in the number of tensors, launches "
                         "beyond a call's first taken off; its constant over %d calls" % (few, many, len(ADAMW_CAPACITY))),
        "optimizer_tensor": (per_tensor, "optimizer_tensor", "the same line's slope: the step counters on the CPU and the lists"),
        "loss_scaler": (scaler, "scaler", "GradScaler step and update over 10 tensors less the optimizer's step and two calls"),
        "kernel_launch": (launch, "launch", "an empty kernel through a thin binding ('sleep(0) kernel'): an upper bound"),
        "synchronise": (rows["sync", "item() on an idle stream"], "sync", "'item() on an idle stream'"),
        "step": (rows["optimizer", "assign grads + zero_grad, 100"], "step", "zero_grad over 100 tensors"),
    }
    texts = {source: text for _, source, text in figures.values()}
    texts["forward"] = "medians of single operators called from Python with autograd on (group 'forward')"
    texts["backward"] = "medians per link of chains of one operator (group 'chain backward')"
    texts["backward_gemm"] = "half of a linear's backward, the views and the sum of gradients taken off"
    file_name = "data/measured/%s" % "/".join(os.path.abspath(path).split(os.sep)[-2:])
    versions = "PyTorch %s, Python %s, %s" % (meta["torch"], meta["python"], meta["date"][:10])

    figure = lambda value, source: {"value": "%.3g us" % value, "source": source}
    out = {"schema": 1, "name": "h200-vm", "title": "Virtual machine of 16 Intel Xeon cores with one H200", "aliases": [],
           "notes": "Dispatch speed of this machine wandered by tens of per cent from one second to the next; see data/measured/README.md.",
           "forward": {family: figure(*value) for family, value in forward.items()},
           "backward": {family: figure(*value) for family, value in backward.items()}}
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
