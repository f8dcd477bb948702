#!/usr/bin/env python3
"""Fits the figures of compiled graphs ("compiled" in data/hosts) to the issue times of compiled stacks.

  python3 tools/gpu/compiled_fit.py data/measured/2026-11-16-h200-compiled-parts/compiled_parts.jsonl=4878 data/measured/2026-11-16-h200-compiled-parts-2/compiled_parts.jsonl=74100

A phase's time is its program's launches and library calls, its graphs and its parameters, each times a cost, by least squares over forward and backward of
all stacks (compiled_parts.py). Turns are divided by their anchors and brought to FILE=US, what the anchor takes at the host's level; the last file's is the anchor of lists of steps, and
the others are laid to it by one ratio, found with the costs. What every phase costs eagerly too (--once, us: `step` has it) is taken off a graph's share. A graph's own
is what remains outside the programs where there are no parameters; a parameter's is its whole share, its gradient's hand-over included, and forward takes those that do not train, too. Needs numpy.
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
PRIOR = np.array([24.0, 24.0, 42.0, 150.0, 40.0, 150.0, 500.0, 10.0])  # us
LOOSENESS, NOISE = 1.0, 0.1
SURE = 0.03  # of a graph's share, which is found first
PHASES = ("forward", "backward")

Rows = list[tuple[tuple[str, str, str], np.ndarray, float]]


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
    parser.add_argument("measurements", nargs="+", metavar="FILE=US")
    parser.add_argument("--once", type=float, nargs=2, default=(85.0, 284.0), help="us of forward and of backward that an eager step has too, the loss's few operators included")
    args = parser.parse_args()
    rows: list[Rows] = []
    constants = []
    for text in args.measurements:
        name, anchor = text.rsplit("=", 1)
        found, outside = read(name, float(anchor), args.once)
        rows.append(found)
        constants += outside
    prior = PRIOR.copy()
    prior[NAMES.index("graph")] = statistics.mean(constants)
    print("a graph, outside its program: %s us" % ", ".join("%.0f" % one for one in constants))

    def scaled(ratio: float) -> Rows:
        return [(case, has, taken * (ratio if number < len(rows) - 1 else 1)) for number, one in enumerate(rows) for case, has, taken in one]

    def errors(of: Rows, costs: np.ndarray) -> list[float]:
        return [float(has @ costs / taken - 1) for _, has, taken in of]
    ratio = min((number / 100 for number in range(90, 121)), key=lambda one: sum(e * e for e in errors(scaled(one), solved(scaled(one), prior))))
    every = scaled(ratio)
    left_out = []
    for one in sorted({case[:2] for case, _, _ in every}):
        costs = solved([row for row in every if row[0][:2] != one], prior)
        left_out += errors([row for row in every if row[0][:2] == one], costs)
    costs = solved(every, prior)
    for (case, _, _), error in zip(every, errors(every, costs)):
        print("%-14s %-9s %-9s %+5.1f%%" % (*case, 100 * error))
    print("%d phases; earlier files times %.2f; fitted %.1f%%, left out %.1f%% mean absolute error, bias %+.1f%%" % (
        len(every), ratio, 100 * statistics.mean(map(abs, errors(every, costs))), 100 * statistics.mean(map(abs, left_out)), 100 * statistics.mean(left_out)))
    print({name: "%.3g us" % cost for name, cost in zip(NAMES, costs)})
    return 0


def read(name: str, anchor: float, once: tuple[float, float]) -> tuple[Rows, list[float]]:
    """Per case and phase what it has and what it took (us); of each phase the constant outside the programs."""
    turns: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    for line in open(name):
        row = json.loads(line)
        if "round" in row and row["collected"]:
            turns[row["stack"], row["precision"]].append(row)
        elif "programs" in row:
            facts[row["stack"], row["precision"]] = row
    out: Rows = []
    outside: dict[str, list[tuple[float, float]]] = {phase: [] for phase in PHASES}
    for case, known in sorted(facts.items()):
        programs, half = known["programs"], len(known["programs"]) // 2
        if case[0].startswith("broken"):  # equal parts share their programs: runs are not counted
            continue
        parameters = max(known["tensors"], programs[0]["inputs"] - 1 - known["buffers"])
        for number, phase in enumerate(PHASES):
            def taken(what: str) -> float:
                return statistics.median((row[phase + "_s"] - (row[phase + "_program_s"] if what else 0)) / statistics.mean(row["anchor_s"]) for row in turns[case]) * anchor - once[number]
            has: dict[str, float] = collections.Counter({"graph": half, "parameter": known["tensors"] if number else parameters})
            for program in programs[half:] if number else programs[:half]:
                for kind, times in kinds_of(program["calls"]).items():
                    has[kind] += times
            out.append(((*case, phase), np.array([has.get(one, 0) for one in NAMES]), taken("")))
            if half == 1:
                outside[phase].append((has["parameter"], taken("outside")))
    constants = []
    for pairs in outside.values():
        matrix = np.array([[1 / time, count / time] for count, time in pairs])
        length = np.linalg.norm(matrix, axis=0)
        constants.append(float((non_negative_least_squares(matrix / length, np.ones(len(pairs))) / length)[0]))
    return out, constants


def solved(rows: Rows, prior: np.ndarray) -> np.ndarray:
    loose = np.full(len(NAMES), LOOSENESS)
    loose[NAMES.index("graph")] = SURE
    matrix = np.vstack([np.array([has / taken for _, has, taken in rows]) / NOISE, np.diag(1 / (loose * prior))])
    wanted = np.concatenate([np.full(len(rows), 1 / NOISE), 1 / loose])
    length = np.linalg.norm(matrix, axis=0)
    return non_negative_least_squares(matrix / length, wanted) / length


if __name__ == "__main__":
    sys.exit(main())
