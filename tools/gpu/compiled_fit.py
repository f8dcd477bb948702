#!/usr/bin/env python3
"""Fits the figures of compiled graphs ("compiled" in data/hosts) to the issue times of compiled stacks.

  python3 tools/gpu/compiled_fit.py data/measured/2026-11-16-h200-compiled-parts/compiled_parts.jsonl --level 1.42

A phase's time is its program's launches and library calls, its graph once and its parameters, each times a cost, by least squares over forward and backward of
all stacks (compiled_parts.py). Turns are divided by their anchors and brought to --anchor, the speed at which host_fit.py's figures stand, then times --level as
those are. What every phase costs eagerly too (--once, us: `step` has it) is taken off a graph's share. A parameter's is its whole share, its gradient's hand-over included.
--folds says how well stacks left out come out. Needs numpy.
"""
from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
from typing import Any

import numpy as np

from host_fit import non_negative_least_squares

NAMES = ("kernel", "library_call", "convolution", "convolution_backward", "attention", "attention_backward", "graph", "parameter")
PRIOR = np.array([15.0, 15.0, 30.0, 90.0, 30.0, 90.0, 450.0, 8.0])  # us; three times looser than the data's noise would need
LOOSENESS, NOISE = 1.0, 0.1


def kinds_of(calls: dict[str, int]) -> dict[str, int]:
    out: dict[str, int] = collections.Counter()
    for name, number in calls.items():
        if name == "launch":
            out["kernel"] += number
        elif not name.startswith(("extern_kernels.", "torch.ops.", "aten.")):
            continue
        elif "convolution" in name or "attention" in name:
            out[("convolution" if "convolution" in name else "attention") + ("_backward" if "backward" in name else "")] += number
        else:
            out["library_call"] += number
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements")
    parser.add_argument("--anchor", type=float, default=3435.0, help="us")
    parser.add_argument("--level", type=float, default=1.0)
    parser.add_argument("--once", type=float, nargs=2, default=(60.0, 200.0), help="us of forward and of backward that an eager step has too, the loss's few operators included")
    args = parser.parse_args()
    turns: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    for line in open(args.measurements):
        row = json.loads(line)
        if "round" in row and row["collected"]:
            turns[row["stack"], row["precision"]].append(row)
        elif "programs" in row:
            facts[row["stack"], row["precision"]] = row
    counts, cases = [], []
    for case, known in sorted(facts.items()):
        for number, phase in enumerate(("forward", "backward")):
            taken = statistics.median(row[phase + "_s"] / statistics.mean(row["anchor_s"]) for row in turns[case]) * args.anchor - args.once[number]
            has = {**kinds_of(known["programs"][number]["calls"]), "graph": 1, "parameter": known["tensors"]}
            counts.append(np.array([has.get(name, 0) for name in NAMES]) / taken)
            cases.append((*case, phase))

    def solved(chosen: list[int]) -> np.ndarray:
        matrix = np.vstack([np.array([counts[i] for i in chosen]) / NOISE, np.diag(1 / (LOOSENESS * PRIOR))])
        wanted = np.concatenate([np.full(len(chosen), 1 / NOISE), np.full(len(PRIOR), 1 / LOOSENESS)])
        length = np.linalg.norm(matrix, axis=0)
        return non_negative_least_squares(matrix / length, wanted) / length

    left_out = []
    for one in sorted({case[:2] for case in cases}):
        costs = solved([i for i, case in enumerate(cases) if case[:2] != one])
        left_out += [counts[i] @ costs - 1 for i, case in enumerate(cases) if case[:2] == one]
    costs = solved(list(range(len(cases))))
    for case, row in zip(cases, counts):
        print("%-14s %-9s %-9s %+5.1f%%" % (*case, 100 * (row @ costs - 1)))
    print("%d phases; fitted %.1f%%, left out %.1f%% mean absolute error, bias %+.1f%%" % (
        len(cases), 100 * statistics.mean(abs(row @ costs - 1) for row in counts), 100 * statistics.mean(map(abs, left_out)), 100 * statistics.mean(left_out)))
    print({name: "%.3g us" % (cost * args.level) for name, cost in zip(NAMES, costs)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
