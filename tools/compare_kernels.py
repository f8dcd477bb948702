#!/usr/bin/env python3
"""Recorded kernels of measured steps against the predicted kernel program: where counts and times differ.

    tools/compare_kernels.py RUNS.jsonl [--precog build/precog] [--only TEXT] [--precision bf16] [--names]

Reads RUNS.jsonl and `by_class` in it, and with --names steps_kernels.jsonl.gz beside it. Without --names: one table
per precision of model x class, predicted minus recorded as a share of the step's kernels and of its GPU time. With
--names: both lists of each run, by class. Classes are read from names (python/precog/gpu/kernels.py): a guide.
"""
from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Of predicted kernels, by pattern or name; first match wins.
PREDICTED = (
    ("optimizer", r"\[multi_tensor\]|^multi_tensor|_scale|unscale|amp_"),
    ("memset", r"^memset"),
    ("layout", r"\[layout\]"),
    ("norm", r"norm"),
    ("attention", r"attention"),
    ("softmax", r"\[softmax"),
    ("loss", r"\[loss\]"),
    ("pool", r"\[pooling"),
    ("dropout", r"\[dropout\]"),
    ("index", r"\[embedding|\[index|sort"),
    ("matrix", r"\[conv|\[gemm|^split_sum|^rnn|^conv2d|^conv_(transforms|partial|prepare)"),
    ("copy", r"^cast|\[copy|\[permute|\[transpose|^copy|^memcpy|^cat|^clone|^contiguous"),
    ("reduce", r"\[reduction|\[bias_gradient"),
    ("elementwise", r""),
)
RECORDED = {"gemm": "matrix", "conv": "matrix", "memcpy": "copy"}
LINE = re.compile(r"^(?P<name>\S+) (?P<what>\[.*?\].*?)(?: x(?P<launches>\d+))?(?: emulated)?(?: unknown)?: (?P<time>[\d.e+-]+) (?P<unit>ns|us|ms|s) ")
UNIT = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def predicted(precog: str, request: dict, folder: Path, data: str = "") -> list[tuple[str, str, int, float]]:
    """(class, description, launches, us) of every kernel of one step."""
    request = json.loads(json.dumps(request))
    if isinstance(request.get("model"), dict) and "graph" in request["model"]:
        request["model"]["graph"] = str((folder / request["model"]["graph"]).resolve())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(request, file)
        file.flush()
        command = [precog, "predict", file.name, "--dump-after", "cost", *(["--data", data] if data else [])]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            print("unread:", line, file=sys.stderr)
            continue
        label = f"{match['name']} {match['what']}"
        kind = next(kind for kind, pattern in PREDICTED if re.search(pattern, label))
        found.append((kind, label, int(match["launches"] or 1), float(match["time"]) * UNIT[match["unit"]]))
    return found


def totals(kernels: list[tuple[str, str, int, float]]) -> dict[str, list[float]]:
    out: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for kind, _, launches, us in kernels:
        out[kind][0] += launches
        out[kind][1] += us
    return out


def short(name: str) -> str:
    """A kernel's name without the boilerplate of templates."""
    name = re.sub(r"torch::headeronly::detail::|at::native::|\(anonymous namespace\)::|c10::|^void ", "", name)
    lambdas = re.findall(r"(\w+_kernel\w*|\w+Functor\w*)", name)
    return (name[:90] + "  {" + ",".join(dict.fromkeys(lambdas[1:4])) + "}") if lambdas[1:] else name[:110]


def class_of(name: str, classes: tuple) -> str:
    lower = name.lower()
    kind = next((kind for kind, patterns in classes if any(pattern in lower for pattern in patterns)), "other")
    return RECORDED.get(kind, kind)


def classes() -> tuple:
    """CLASSES of python/precog/gpu/kernels.py, which cannot be imported without torch."""
    source = (Path(__file__).parents[1] / "python/precog/gpu/kernels.py").read_text()
    text = source[source.index("CLASSES = ") + len("CLASSES = "):]
    return eval(text[:text.index("\n)\n") + 2])  # noqa: S307 - a literal of our own


def names(run: dict, own: list, recorded: list, known: tuple, least: float) -> None:
    for title, rows in (("predicted", own), ("recorded", [(class_of(n, known), short(n), c, us) for n, c, us in recorded])):
        grouped: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
        for kind, label, launches, us in rows:
            label = re.sub(r" [\d.e+-]+ GFLOP| read .*", "", label)
            grouped[kind, label][0] += launches
            grouped[kind, label][1] += us
        print(f"== {run['id']} {title}: {sum(r[2] for r in rows)} kernels {sum(r[3] for r in rows):.0f} us")
        for (kind, label), (count, us) in sorted(grouped.items(), key=lambda item: (item[0][0], -item[1][1])):
            if count >= least:
                print(f"  {kind:12}{count:6.0f} {us:10.0f}  {label}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--precog", default=os.environ.get("PRECOG", "build/precog"))
    parser.add_argument("--data", default=os.environ.get("PRECOG_DATA", ""), help="the data folder to read")
    parser.add_argument("--only", default="", help="runs whose id contains this")
    parser.add_argument("--precision", default="")
    parser.add_argument("--names", action="store_true", help="both lists, run by run")
    parser.add_argument("--least", type=float, default=1, help="with --names: leave out lines of fewer launches")
    arguments = parser.parse_args()
    runs = [json.loads(line) for line in arguments.runs.read_text().splitlines()]
    runs = [run for run in runs if "measured" in run and arguments.only in run["id"] and arguments.precision in ("", run["request"]["precision"])
            and run["request"].get("mode", "eager") == "eager"]
    recorded: dict[str, list] = {}
    if arguments.names:
        with gzip.open(arguments.runs.parent / "steps_kernels.jsonl.gz", "rt") as file:
            for line in file:
                row = json.loads(line)
                if "id" in row:
                    recorded[row["id"]] = row["kernels"]
    known = classes()
    rows = []
    for run in runs:
        try:
            own = predicted(arguments.precog, run["request"], arguments.runs.parent, arguments.data)
        except subprocess.CalledProcessError as failure:
            print(run["id"], failure.stderr, file=sys.stderr)
            continue
        if arguments.names:
            names(run, own, recorded.get(run["id"], []), known, arguments.least)
            continue
        measured = run["measured"]
        seen: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for kind, entry in measured["by_class"].items():
            seen[RECORDED.get(kind, kind)][0] += entry["count"]
            seen[RECORDED.get(kind, kind)][1] += entry["s"] * 1e6
        mine = totals(own)
        rows.append((run, measured["kernels"], measured["gpu_busy_s"] * 1e6, mine, seen))
    if arguments.names or not rows:
        return
    kinds = sorted({kind for *_, mine, seen in rows for kind in (*mine, *seen)})
    for index, title in ((0, "kernels: predicted minus recorded, per cent of the step's"), (1, "GPU time: the same")):
        print(title)
        print(f"{'':44}{'all':>7}" + "".join(f"{kind[:7]:>8}" for kind in kinds))
        errors = []
        for run, count, busy, mine, seen in rows:
            whole = (count, busy)[index]
            error = sum(v[index] for v in mine.values()) / whole - 1
            errors.append(abs(error))
            cells = [(mine[kind][index] - seen[kind][index]) / whole for kind in kinds]
            print(f"{run['id'][5:]:44}{error:+7.1%}" + "".join(f"{cell:+8.1%}" if abs(cell) >= 0.005 else f"{'.':>8}" for cell in cells))
        print(f"{'mean absolute':44}{sum(errors) / len(errors):7.1%}")


if __name__ == "__main__":
    main()
