#!/usr/bin/env python3
"""Fits the figures of compiled graphs ("compiled" in data/hosts) to the issue times of compiled stacks.

  python3 tools/gpu/compiled_fit.py data/measured/2026-11-16-h200-host-turns/compiled_stacks.jsonl --parameter-gradient 13.3

A phase's time is its generated kernels, its library's kernels, its graph once and its parameters, each times a cost, by least squares,
drawn gently towards what compiled_host.py had found in a process that the profiler had slowed (less that factor). Turns are divided by
their anchors and brought to --anchor, the speed at which host_fit.py's figures stand. Of backward's share per parameter autograd's own
hand-over (--parameter-gradient, us, from host_fit.py) is taken off; the rest is the same for both graphs. Stacks whose products fall
into several kernels a call (--skip) are left out: a figure is per call. Needs numpy.
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

NAMES = ("kernel", "library_call", "graph", "parameter forward", "parameter backward")
PRIOR = np.array([20.0, 10.0, 250.0, 10.0, 20.0])  # us
LOOSENESS, NOISE = 0.6, 0.08


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements")
    parser.add_argument("--anchor", type=float, default=3435.0, help="us")
    parser.add_argument("--parameter-gradient", type=float, required=True, help="us, at that anchor")
    parser.add_argument("--skip", nargs="*", default=["tokens-03"])
    args = parser.parse_args()
    turns: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    for line in open(args.measurements):
        row = json.loads(line)
        if "round" in row:
            turns[row["stack"], row["precision"]].append(row)
        elif "kernels" in row:
            facts[row["stack"], row["precision"]] = row
    counts, cases = [], []
    for case, known in sorted(facts.items()):
        if case[0] in args.skip:
            continue
        for phase in ("forward", "backward"):
            taken = statistics.median(row[phase + "_s"] / statistics.mean(row["anchor_s"]) for row in turns[case]) * args.anchor
            generated = known["generated"][phase]
            row = [generated, known["kernels"][phase] - generated, 1, known["tensors"] * (phase == "forward"), known["tensors"] * (phase == "backward")]
            counts.append(np.array(row) / taken)
            cases.append((*case, phase))
    matrix = np.vstack([np.array(counts) / NOISE, np.diag(1 / (LOOSENESS * PRIOR))])
    wanted = np.concatenate([np.full(len(counts), 1 / NOISE), np.full(len(PRIOR), 1 / LOOSENESS)])
    length = np.linalg.norm(matrix, axis=0)
    costs = non_negative_least_squares(matrix / length, wanted) / length
    for case, row in zip(cases, counts):
        print("%-12s %-9s %-9s %+5.1f%%" % (*case, 100 * (row @ costs - 1)))
    print({name: round(float(cost), 2) for name, cost in zip(NAMES, costs)})
    print("parameter, of each graph: %.1f us" % ((costs[3] + costs[4] - args.parameter_gradient) / 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
