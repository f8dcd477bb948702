#!/usr/bin/env python3
"""h200_operators.csv as the JSON lines that `precog calibrate` reads (the form of precog.profile).

The rows were timed on operands cold in the L2 cache ("rotated"; not those of optimizers), replayed from CUDA graphs or summed from a profile, so that no idle time
between kernels is in them ("graph"). Rows that are no operator of a line's kinds (norms of gradients) are left out, and counted.
usage: lines_from_csv.py OUT.jsonl.gz
"""
import csv
import gzip
import io
import json
import pathlib
import re
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
META = {"format": 1, "gpu_name": "h200-sxm", "date": "2026-11-15", "torch": "2.11.0+cu130", "cuda": "13.0", "made_by": "tools/fit/measure_families.py"}
ELEMENTWISE = {"add": "add", "add_": "add_", "relu": "relu", "threshold_backward": "relu backward", "copy": "copy_", "gelu": "gelu",
               "gelu_backward": "gelu backward", "silu": "silu", "silu_backward": "silu backward", "native_dropout": "native_dropout",
               "to": "cast to the other width"}
ROWS = {"broadcast_add": "add bias", "sum_rows": "sum over rows", "sum_cols": "sum over columns", "layer_norm": "layer_norm",
        "layer_norm_backward": "layer_norm backward", "rms_norm": "rms_norm", "softmax": "softmax", "softmax_backward": "softmax backward",
        "log_softmax": "log_softmax", "log_softmax_backward": "log_softmax backward"}
IMAGES = {"batch_norm": "batch_norm", "batch_norm_backward": "batch_norm backward", "max_pool2d": "max_pool2d 3x3",
          "max_pool2d_backward": "max_pool2d 3x3 backward"}
CONVOLUTIONS = {"forward": "forward", "backward_data": "dgrad", "backward_weight": "wgrad"}
OPTIMIZERS = {"adamw_foreach": "adamw foreach", "adamw_fused": "adamw fused", "sgd_foreach": "sgd-momentum foreach",
              "sgd_fused": "sgd-momentum fused", "unscale": "unscale", "zero_foreach": "zero foreach"}


def line_of(row: dict[str, str]) -> dict[str, Any] | None:
    """What a line says of the operator: family, op and shape; None where no line has such an operator."""
    op, text = row["op"], row["shape"]
    size = {key: int(value) for key, value in re.findall(r"([a-z]+)=(\d+)", text)}
    if row["family"] == "gemm":
        batch = {"b": size["b"]} if op == "bmm" else {}
        return {"family": "gemm", "op": "bmm nn" if op == "bmm" else op, **batch, "m": size["m"], "n": size["n"], "k": size["k"]}
    if row["family"] == "attention":
        direction, backend = op.split("_")
        return {"family": "sdpa", "op": f"{backend} {direction}", "b": size["b"], "heads": size["h"], "seq": size["s"], "dim": size["d"],
                "causal": bool(size["causal"]), "dropout": 0.0}
    if row["family"] == "convolution":
        return {"family": "depthwise" if size["g"] > 1 else "conv", "op": CONVOLUTIONS[op], "batch": size["n"], "cin": size["c"], "cout": size["k"],
                "kernel": size["f"], "stride": size["s"], "size": size["hw"], "groups": size["g"], "layout": text.split(" ")[0]}
    if row["family"].startswith("embedding"):
        return {"family": "vocabulary", "op": "embedding" if op == "embedding" else "embedding backward", "tokens": size["rows"],
                "vocabulary": size["vocab"], "hidden": size["cols"]}
    if op in ELEMENTWISE:
        return {"family": "elementwise", "op": ELEMENTWISE[op], "n": size["n"]}
    if op in ("sum_all", "t_contiguous"):
        return {"family": "elementwise", "op": "sum all" if op == "sum_all" else "transpose copy (n/1024 x 1024)", "n": size["rows"] * size["cols"]}
    if op in ROWS:
        return {"family": "rows", "op": ROWS[op], "rows": size["rows"], "columns": size["cols"]}
    if op in IMAGES:
        layout, extents = text.split(" ")
        return {"family": "image", "op": IMAGES[op], "shape": [int(extent) for extent in extents.split("x")], "layout": layout}
    if op in OPTIMIZERS:
        return {"family": "optimizer", "op": OPTIMIZERS[op], "elements": size["tensors"] * size["size"], "tensors": size["tensors"]}
    return None


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    lines, left_out = [json.dumps({"meta": META}, separators=(",", ":"))], 0
    with open(HERE / "h200_operators.csv", newline="") as file:
        for row in csv.DictReader(file):
            line = line_of(row)
            if line is None:
                left_out += 1
                continue
            line = {"family": line.pop("family"), "op": line.pop("op"), "dtype": row["dtype"], **line, **({} if row["family"] == "optimizer" else {"rotated": True}), "graph": True, "s": float(row["us"]) * 1e-6}
            lines.append(json.dumps(line, separators=(",", ":")))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as out:
        out.write(("\n".join(lines) + "\n").encode())
    pathlib.Path(sys.argv[1]).write_bytes(packed.getvalue())
    print(f"{len(lines) - 1} lines; {left_out} rows have no such line")
    return 0


if __name__ == "__main__":
    sys.exit(main())
