#!/usr/bin/env python3
"""Fits a host description (data/hosts/*.json) to the issue times of small stacks.

  python3 tools/gpu/host_fit.py data/measured/2026-11-16-h200-host-mixes/host_stacks.jsonl.gz data/measured/2026-11-16-h200-host-turns/host_turns.jsonl \\
    --mixes data/measured/2026-11-16-h200-host-mixes/host_mixes.jsonl.gz \\
    --launches data/measured/2026-11-15-h200/host_models.jsonl.gz data/measured/2026-11-16-h200-host-turns/host_turns_launches.jsonl \\
    --loops data/measured/2026-11-15-h200 --prior-speed 0.62 --level 1.364 --graphs CACHE --out data/hosts/h200-vm.json

Each stack of precog.gpu.host_stacks is captured once (into CACHE; needs torch) and taken through precog itself, so that what is counted
is what a prediction counts: operators by kind, launches beyond a call's first, modules entered, casts of autocast, parameters.
A phase's time is a sum of counts times costs; the costs are found by least squares, none below half its loop's, drawn gently towards the
figures of single operators in loops (--loops) so that kinds which always come together do not trade places.
The machine's wandering is divided out by the anchor that was timed beside each stack, and the speeds of the two threads that issue a step (Python's and
autograd's, each on a core of its own) by what they are over the fit, per process or, where a stack is built and dropped, per stack. Mixes (precog.gpu.host_mixes) have forward and
backward only. No recorded training step is used.
--folds 5 says how well stacks that were left out are predicted. Needs numpy.
"""
from __future__ import annotations

import argparse
import collections
import gzip
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

import host_loops

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
Counts = dict[str, float]
Case = tuple[str, str, str]  # stack, precision, and what shares the speed of its threads: the file of a process that kept all its stacks, else the stack

# Figure -> operators that share it. What is not listed shares its family's, or "default": the families are precog's own.
FAMILIES = {
    "gemm": "linear matmul grouped_linear scaled_mm mm bmm grouped_mm", "convolution": "conv2d conv2d_backward",
    "attention": "scaled_dot_product_attention attention_backward",
    "normalization": "layer_norm batch_norm rms_norm group_norm layer_norm_backward batch_norm_backward rms_norm_backward group_norm_backward",
    "softmax": "softmax log_softmax softmax_backward log_softmax_backward", "loss": "nll_loss nll_loss_backward",
    "cast": "cast quantize", "copy": "contiguous cat copy copy_into bucket_copy", "reduction": "mean sum reduction scan",
    "pooling": "max_pool2d adaptive_avg_pool2d pool max_pool2d_backward adaptive_avg_pool2d_backward pool_backward",
    "embedding": "embedding embedding_backward", "index": "index_select index_add topk gather scatter sort", "fill": "fill random",
    "view": "view split allocate", "recurrent": "rnn rnn_backward",
}
FAMILY = {kind: family for family, kinds in FAMILIES.items() for kind in kinds.split()}
# Kinds with a figure of their own, where the stacks have enough of them; otherwise a family has one figure.
OWN = {"forward": ("linear", "matmul", "batch_norm", "layer_norm", "group_norm", "rms_norm", "dropout", "split", "cat", "contiguous"),
       "backward": ("mm", "bmm", "layer_norm_backward", "batch_norm_backward", "group_norm_backward", "embedding_backward")}
MEMSET_S = 3.0e-6  # at the stacks' speed; launch_loops.py: sums and sorts that clear a buffer beside the same without. Such small stacks clear hardly any
OP = re.compile(r"^(?:%\S+(?:, %\S+)* = )?(\w+)(?:\.[^(]*)?\((.*?)\)")


def figure_of(kind: str, phase: str) -> str:
    if kind in OWN[phase]:
        return kind
    return FAMILY.get(kind, "pointwise")


def entered(before: list[str], now: list[str]) -> int:
    """Modules whose code is entered on the way from one operator to the next (schedule.cpp counts the same)."""
    shared = 0
    while shared < min(len(before), len(now)) and before[shared] == now[shared]:
        shared += 1
    return len(now) - shared


def inner_calls(lines: list[str]) -> set[int]:
    """Lines of forward that the framework's own code calls, not Python: attention written as its parts, and what a product of
    batches does to its operands (an expand, a copy, a reshape to three axes) and its result, and the cuts after the first of one indexing
    (host_times.cpp finds the same)."""
    made: dict[str, tuple[int, str, str, int]] = {}  # tensor -> line, kind, first operand, axes
    ends_in_one: set[str] = set()
    out: set[int] = set()
    after_einsum = False
    for number, line in enumerate(lines):
        if line.startswith("== backward"):
            break
        match = OP.match(line)
        if not match:
            continue
        if "math path" in line:
            out.add(number)
        kind, arguments = match.groups()
        operands = [text.strip() for text in arguments.split(",")]
        for name, shape in re.findall(r"(%\d+):\w+\[([\d,]*)\]", line.split(" = ")[0] if " = " in line else ""):
            made[name] = (number, kind, operands[0], shape.count(",") + 1)
            if shape.split(",")[-1] == "1":
                ends_in_one.add(name)
        if kind == "view" and re.search(r"\) slice\b", line) or kind in ("fill", "fill_", "copy") and "_(" in line:  # one indexing, or what it sets
            before = made.get(operands[0], (0, "", "", 0))[0]
            if before == number - 1 and re.search(r"\) slice\b", lines[before]):
                out.add(number)
        result = re.match(r"%\d+", line)
        before = made.get(operands[0], (0, "", "", 0))
        if after_einsum and kind == "view" and before[0] == number - 1:
            out.add(number)
            after_einsum = made[result.group()][3] >= before[3]
        else:
            after_einsum = False
        if kind == "matmul" and made[result.group()][3] == 3:
            for operand in operands[:2]:  # torch.einsum: what it lays out before its product and after it
                name, chain, own = operand, [], 0
                while name in made and made[name][1] in ("view", "contiguous"):
                    chain.append(made[name][0])
                    if made[name][1] == "view" and name in ends_in_one and made[name][3] > made.get(made[name][2], (0, "", "", 0 if made[name][2].startswith("%") else made[name][3] - 1))[3]:
                        own = len(chain)
                    name = made[name][2]
                out.update(chain[:own])
                after_einsum = after_einsum or own > 0
            for operand in operands[:2]:
                at, by, before, axes = made.get(operand, (0, "", "", 0))
                if by != "view" or made.get(before, (0, "", "", 0))[3] < 4:
                    continue
                out.add(at)
                at, by, before, _ = made[before]
                if by == "contiguous":
                    out.add(at)
                    at, by, before, _ = made.get(before, (0, "", "", 0))
                if by == "view":
                    out.add(at)
        elif kind == "view" and operands[0] in made and made[operands[0]][1] == "matmul" and made[operands[0]][0] == number - 1:
            out.add(number)
    return out


def inside_a_node(lines: list[str], number: int) -> str | None:
    """What autograd does in backward without a node of its own: it adds up the gradients of a tensor that was read twice, and a joint's gradient is cut into as many
    parts as were joined (host_times.cpp finds the same)."""
    match = OP.match(lines[number])
    assert match
    kind, operands = match.group(1), [text.strip() for text in match.group(2).split(",")]
    if kind == "add" and len(operands) == 2 and all(text.startswith("%") for text in operands):
        return "gradient_sum"
    before = OP.match(lines[number - 1])
    if kind == "view" and "slice" in lines[number] and before and before.group(1) == "view" and "slice" in lines[number - 1] and before.group(2) == match.group(2):
        return "gradient_part"
    return None


def layers_of(line: str) -> int:
    """Layers times directions of a recurrent call: what its host time goes with."""
    found = dict(re.findall(r"(layers|directions)=(\d+)", line))
    return int(found.get("layers", 1)) * int(found.get("directions", 1))


def counts_of(precog: str, request: dict[str, Any]) -> dict[str, Counts]:
    """Phase -> what a step has of each thing that costs the host time."""
    def dump(stage: str) -> list[str]:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as job:
            json.dump(request, job)
            job.flush()
            done = subprocess.run([precog, "predict", job.name, "--dump-after", stage], capture_output=True, text=True)
        if done.returncode not in (0, 3):
            raise RuntimeError(done.stderr.strip()[:300])
        return done.stdout.splitlines()

    out: dict[str, Counts] = collections.defaultdict(lambda: collections.defaultdict(float))
    lines = dump("training")
    inner = inner_calls(lines)
    phase, module, last = "", [], []
    for number, line in enumerate(lines):
        if line.startswith("== "):
            phase, module = line[3:], []
        elif line.startswith("-- "):
            module = [] if line == "-- (model)" else line[3:].split(".")
        elif match := OP.match(line):
            kind, arguments = match.groups()
            if phase == "forward":
                out[phase]["module_call"] += entered(last, module)
                last = module
                made = line.split("=", 1)[1].strip()
                if made.startswith("cast.rnn(@"):  # laid into one buffer, one after the other, by the recurrent layer itself
                    out[phase]["recurrent_parameter"] += 1
                    continue
                if kind == "cast" and "autocast" in line.partition("#")[2] and made.startswith("cast."):
                    out[phase]["autocast_cast"] += 1
                    out[phase]["autocast_parameter"] += arguments.startswith("@")
                    continue
                out[phase]["python_call"] += number not in inner
            if phase == "forward" and kind == "rnn" and "math=bf16" in line:  # not kept in one buffer: copied there in every call
                out[phase]["recurrent_parameter"] += arguments.count("@")
            if phase == "backward" and (part := inside_a_node(lines, number)):
                out[phase][part] += 1
            elif phase in ("forward", "backward"):
                out[phase][figure_of(kind, phase)] += layers_of(line) if kind.startswith("rnn") else 1
                out[phase]["autograd_call"] += phase == "backward"
            elif phase == "optimizer" and (launched := re.search(r"launches=(\d+)", line)):
                out["optimizer"]["optimizer_op"] += 1
                out["optimizer"]["kernel_launch"] += int(launched.group(1)) - 1
    launches, kind = 0, ""
    for line in [*dump("kernel"), "end end"]:
        if not line.startswith("  "):
            if launches > 1 and phase in ("forward", "backward"):
                if kind.startswith("rnn"):
                    out[phase]["library_launch"] += launches
                else:
                    out[phase]["kernel_launch"] += launches - 1
            phase, _, kind = line.partition(" ")
            launches = 0
        else:
            times = re.search(r" x(\d+)", line)
            launches += int(times.group(1)) if times else 1
    for phase in ("forward", "backward"):
        if "recurrent" in out[phase]:
            out[phase]["library_launch"] -= out[phase]["recurrent"]  # one of each layer's belongs to the call
    return out


def captured(stack: Any, folder: str) -> str:
    path = os.path.join(folder, stack.name + ".precog.json")
    if not os.path.exists(path):
        sys.path.insert(0, os.path.join(ROOT, "python"))
        import precog
        from precog.gpu import host_stacks
        model = stack.build().train()
        host_stacks.train_only(model, stack.frozen)
        data = stack.inputs("cpu")
        precog.capture(None, None, build=lambda: (lambda built: stack.loss(built, data), model), name=stack.name).save(path)
    return path


def captured_mix(name: str, folder: str) -> str:
    path = os.path.join(folder, name + ".precog.json")
    if not os.path.exists(path):
        sys.path.insert(0, os.path.join(ROOT, "python"))
        import precog
        from precog.gpu import host_mixes
        model = host_mixes.mix(int(name.partition("-")[2])).train()
        x, given = host_mixes.inputs(model.family, "cpu")
        precog.capture(None, None, build=lambda: (lambda built: built(x, given), model), name=name).save(path)
    return path


PHASES = ("zero_grad", "forward", "backward", "optimizer")


def measured(paths: list[str], counted: list[str]) -> tuple[dict[tuple[str, str], dict[str, float]], dict[str, Any], float]:
    """(stack, precision) -> seconds by phase at the sitting's median speed: the median over turns, each divided by its anchor. Of
    the files `counted` only the launches are taken: a process that the profiler has slowed says what is launched, not how fast."""
    turns: dict[tuple[str, str], list[dict[str, float]]] = collections.defaultdict(list)
    meta: dict[str, Any] = {}
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    anchors = []
    kept = False  # all stacks were, and took turns of two steps
    for path in [*paths, *counted]:
        for line in gzip.open(path, "rt") if path.endswith(".gz") else open(path):
            row = json.loads(line)
            meta = row.get("meta", meta) if path in paths else meta
            if "round" in row and path not in paths:
                continue
            if "round" in row:
                anchor = statistics.mean(row["anchor_s"])
                anchors.append(anchor)
                kept = row["steps"] == 2
                middle = "_min_s" if kept else "_s"  # of two steps the first has cold caches
                turns[row["stack"], row["precision"]].append({phase: row[phase + middle] / anchor for phase in PHASES} | {"anchor": anchor})
            elif "kernels" in row:
                known = facts.setdefault((row["stack"], row["precision"]), {"tensors": 0, "kernels": {}})
                known["tensors"], known["kernels"] = row["tensors"] or known["tensors"], row["kernels"] or known["kernels"]
    usual = statistics.median(anchors)
    out = {}
    for key, rows in turns.items():
        out[key] = {phase: statistics.median(row[phase] for row in rows) * usual for phase in PHASES}
        out[key]["tensors"] = facts[key]["tensors"]
        out[key]["launched"] = facts[key].get("kernels")
        out[key]["kept"] = kept
    return out, meta, usual


def read_mixes(path: str, usual: float) -> dict[tuple[str, str], dict[str, float]]:
    """(mix, precision) -> seconds of forward and backward at the speed at which an anchor takes `usual`."""
    out = {}
    for line in gzip.open(path, "rt") if path.endswith(".gz") else open(path):
        row = json.loads(line)
        if "forward_us" in row:
            out["mix-%d" % row["mix"], row["precision"]] = {**{phase: row[phase + "_us"] / row["anchor_us"] * usual for phase in ("forward", "backward")}, "tensors": row["tensors"]}
    return out


def solve(rows: list[Counts], seconds: list[float], prior: dict[str, float], looseness: float, noise: float = 0.05) -> dict[str, float]:
    """Costs of which each row is the sum to within `noise` of itself, each to within `looseness` of its prior and not below half of it:
    what is there is not free, and in a model nothing is much faster than in a loop of its own."""
    names = sorted({name for row in rows for name, count in row.items() if count})
    first = np.array([prior[name] for name in names])
    least = 0.5 * first
    top = np.array([[row.get(name, 0.0) for name in names] for row in rows]) / (noise * np.array(seconds))[:, None]
    matrix = np.vstack([top, np.diag(1 / (looseness * first))])
    wanted = np.concatenate([np.full(len(rows), 1 / noise), np.full(len(first), 1 / looseness)]) - matrix @ least
    length = np.linalg.norm(matrix, axis=0)
    return dict(zip(names, map(float, least + non_negative_least_squares(matrix / length, wanted) / length)))


def non_negative_least_squares(matrix: np.ndarray, wanted: np.ndarray, sweeps: int = 20000) -> np.ndarray:
    """Coordinate descent: each cost in turn becomes the best that is not negative, until none moves. The columns have length 1."""
    products, towards = matrix.T @ matrix, matrix.T @ wanted
    answer = np.maximum(towards, 0)
    for _ in range(sweeps):
        moved = 0.0
        for j in range(len(answer)):
            better = max(0.0, answer[j] + towards[j] - products[j] @ answer)
            moved = max(moved, abs(better - answer[j]))
            answer[j] = better
        if moved < 1e-10 * max(1.0, answer.max()):
            break
    return answer


def total(row: Counts, costs: dict[str, float]) -> float:
    return sum(count * costs.get(name, 0.0) for name, count in row.items())


def all_counts(args: argparse.Namespace, seen: dict[Case, dict[str, float]]) -> dict[Case, dict[str, Counts]]:
    """Per case, phase by phase; kept in --cache, because it takes minutes."""
    kept = json.load(open(args.cache)) if args.cache and os.path.exists(args.cache) else {}
    out = {}
    stacks = None
    for case in seen:
        stack_name, precision = case[:2]
        key = stack_name + " " + precision
        if key not in kept:
            if stacks is None:
                from precog.gpu import host_stacks
                stacks = {stack.name: stack for stack in host_stacks.stacks()}
            if stack_name.startswith("mix-"):
                kept[key] = counts_of(args.precog, {"schema": 1, "model": {"graph": os.path.abspath(captured_mix(stack_name, args.graphs))}, "precision": precision,
                                                    "cluster": {"gpu": "h200-sxm", "gpus": 1}})
                out[case] = kept[key]
                continue
            stack = stacks[stack_name]
            if args.captured_only and not os.path.exists(os.path.join(args.graphs, stack.name + ".precog.json")):
                continue
            request = {"schema": 1, "model": {"graph": os.path.abspath(captured(stack, args.graphs))}, "precision": precision,
                       "cluster": {"gpu": "h200-sxm", "gpus": 1}, "optimizer": stack.optimizer, "optimizer_impl": stack.implementation}
            kept[key] = {**counts_of(args.precog, request), "optimizer_form": stack.implementation if stack.implementation == "fused" else stack.optimizer}
            if args.cache:
                json.dump(kept, open(args.cache, "w"))
        out[case] = kept[key]
    return out


NO_CALL = {"view", "split", "gradient_part", "module_call", "python_call", "autograd_call", "autocast_parameter", "kernel_launch", "library_launch"}  # counted, but no launch of their own


def phase_rows(phase: str, counts: dict[str, Any], seen: dict[str, float], precision: str) -> Counts:
    """What the phase is a sum of, with what every step has once and what every parameter has."""
    row = dict(counts.get(phase, {}))
    launched = (seen.get("launched") or {}).get(phase)
    if launched is not None:  # tensors as small as these get other kernels than predicted: the profiler's count is what the host did
        calls = sum(count for name, count in row.items() if name not in NO_CALL)
        more = max(0, launched - calls)
        if "library_launch" in row:  # where a recurrent layer is, what its kernels are was guessed: the rest is known better
            more, row["library_launch"] = row.get("kernel_launch", 0.0), max(0, launched - calls - row.get("kernel_launch", 0.0))
        row["kernel_launch"] = more
    if "optimizer" not in seen:  # a mix: what it begins and ends with is not a model's
        row["mix_once"] = 1
    elif phase == "forward":
        row["forward_once"] = 1
    if phase == "zero_grad":
        row = {"zero_grad": 1, "zero_grad_tensor": seen["tensors"]}
    elif phase == "backward":
        row["parameter_gradient"] = seen["tensors"]
        if "optimizer" in seen:
            row["backward_once"] = 1
    elif phase == "optimizer":
        form = counts["optimizer_form"]
        row["optimizer_tensor" + {"fused": "_fused", "sgd-momentum": "_sgd"}.get(form, "")] = seen["tensors"]
        row["optimizer_once"] = 1
        if precision == "amp-fp16":
            row |= {"loss_scaler": 1, "loss_scaler_tensor": seen["tensors"]}
    return row


def prior_of(folder: str, speed: float = 1.0) -> dict[str, dict[str, float]]:
    """Phase -> figure -> seconds, from single operators in loops, times `speed` for a process that is faster than the one they ran in.
    What loops do not give are guesses that the stacks override."""
    loops, _ = host_loops.figures(folder)
    unit = 1e-6 * speed
    tables = {phase: {key: value * unit for key, value in loops[phase].items()} for phase in ("forward", "backward")}
    shared = {key: value * unit for key, value in loops.items() if not isinstance(value, dict)}
    guesses = {"library_launch": 6.4e-6, "recurrent_parameter": 1e-4, "loss_scaler_tensor": 2e-6, "python_call": 1e-5, "autograd_call": 1e-5, "module_call": 3e-6, "autocast_parameter": 4e-6, "zero_grad_tensor": 6e-7, "zero_grad": 2e-5, "mix_once": 2e-4, "forward_once": 5e-5, "backward_once": 1e-4,
               "optimizer_once": 1e-4, "optimizer_tensor_fused": 5e-6, "optimizer_tensor_sgd": 5e-6}

    class Filled(dict):
        def __init__(self, table: dict[str, float]) -> None:
            super().__init__({**{key: value * speed for key, value in guesses.items()}, **shared, **table})

        def __missing__(self, name: str) -> float:
            return self.get(FAMILY.get(name, ""), self["default"])
    tables["forward"]["recurrent"], tables["backward"]["recurrent"] = 1e-4 * speed, 4e-4 * speed
    tables["backward"]["gradient_sum"], tables["backward"]["gradient_part"] = (tables["forward"].get(kind, tables["forward"]["default"]) for kind in ("pointwise", "view"))
    return {"forward": Filled(tables["forward"]), "backward": Filled(tables["backward"]), "optimizer": Filled({}), "zero_grad": Filled({})}


THREAD = {"zero_grad": 0, "forward": 0, "optimizer": 0, "backward": 1}  # Python's, autograd's


def fit(cases: list[Case], rows: dict[str, dict[Case, Counts]], seen: Any, prior: Any, looseness: float) -> dict[str, dict[str, float]]:
    """All phases at once: a launch costs the same in each, everything else is a phase's own."""
    own = lambda phase, name: name if name in ("kernel_launch", "library_launch") else phase + ":" + name
    together = [({own(phase, name): count for name, count in rows[phase][case].items()}, seen[case][phase]) for phase in PHASES for case in cases if case in rows[phase]]
    first = {own(phase, name): prior[phase][name] for phase in PHASES for case in cases if case in rows[phase] for name in rows[phase][case]}
    answer = solve([row for row, _ in together], [taken for _, taken in together], first, looseness)
    return {phase: {name: answer[own(phase, name)] for case in cases if case in rows[phase] for name, count in rows[phase][case].items() if count} for phase in PHASES}


def speeds_of(cases: list[Case], rows: Any, seen: Any, costs: Any) -> dict[tuple[str, int], float]:
    """(unit, thread) -> the logarithm of its time over the costs': the median over its cases, of a few by as much as they are. A file's mean over its units is
    what its processes have in common; over all files it is nothing: the costs are at the speed of all of them together."""
    found: dict[tuple[str, int], list[float]] = collections.defaultdict(list)
    for case in cases:
        for thread in (0, 1):
            phases = [phase for phase in PHASES if THREAD[phase] == thread and case in rows[phase]]
            found[case[2], thread].append(math.log(sum(seen[case][phase] for phase in phases) / sum(total(rows[phase][case], costs[phase]) for phase in phases)))
    out = {key: statistics.median(own) * (1.0 if len(own) > 20 else len(own) / (len(own) + 2)) for key, own in found.items()}
    for thread in (0, 1):
        files: dict[str, list[float]] = collections.defaultdict(list)
        for (unit, its), value in out.items():
            if its == thread:
                files[unit.partition(" ")[0]].append(value)
        middle = statistics.mean(statistics.mean(values) for values in files.values())
        out.update({key: value - middle for key, value in out.items() if key[1] == thread})
    return out


def at_one_speed(seen: Any, cases: list[Case], speeds: dict[tuple[str, int], float]) -> dict[Case, Any]:
    return {case: {name: value / math.exp(speeds.get((case[2], THREAD[name]), 0.0)) if name in THREAD else value for name, value in seen[case].items()} for case in cases}


def fit_with_speeds(cases: list[Case], rows: Any, seen: Any, prior: Any, looseness: float, rounds: int = 4) -> tuple[dict[str, dict[str, float]], dict[tuple[str, int], float]]:
    """Costs, and the speeds of the threads that issued them, in turn."""
    speeds: dict[tuple[str, int], float] = {}
    for _ in range(rounds):
        costs = fit(cases, rows, at_one_speed(seen, cases, speeds), prior, looseness)
        speeds = speeds_of(cases, rows, seen, costs)
    return costs, speeds


def errors(cases: list[Case], rows: Any, seen: Any, costs: Any) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {phase: [total(rows[phase][c], costs[phase]) / seen[c][phase] - 1 for c in cases if c in rows[phase]] for phase in PHASES}
    whole = [c for c in cases if c in rows["optimizer"]]  # mixes have no optimizer
    out["step"] = [sum(total(rows[phase][c], costs[phase]) for phase in PHASES) / sum(seen[c][phase] for phase in PHASES) - 1 for c in whole]
    return out


def said(values: list[float]) -> str:
    if not values:
        return "none"
    return "%4d: mean abs %5.1f%%, bias %+5.1f%%, worst %+5.1f%%" % (len(values), 100 * statistics.mean(abs(v) for v in values), 100 * statistics.mean(values),
                                                            100 * max(values, key=abs))


def describe(costs: dict[str, dict[str, float]], counts: Any, rows: Any, meta: dict[str, Any], args: argparse.Namespace, left_out: str, seen: Any, prior: Any) -> dict[str, Any]:
    """The host description: fitted figures, and from the prior what the stacks do not have."""
    before, loops = json.load(open(args.base)), host_loops.figures(args.loops)[0]
    figure = lambda seconds, source: {"value": "%.3g us" % (seconds * 1e6), "source": source}
    out = {key: before[key] for key in ("schema", "name", "title", "aliases", "notes")}
    for phase in ("forward", "backward"):
        scalars = {"kernel_launch", "library_launch", "recurrent_parameter", "python_call", "autograd_call", "module_call", "autocast_cast", "autocast_parameter", "parameter_gradient", "forward_once", "backward_once", "mix_once", "memset"}
        table = {name: cost for name, cost in costs[phase].items() if name not in scalars}
        met = {name: sum(row[phase].get(name, 0) for row in counts.values()) for name in table if name != "recurrent"}
        table["default"] = sum(table[name] * met[name] for name in met) / sum(met.values()) if "default" not in table else table["default"]
        everywhere = costs[phase].get("autograd_call", 0.0)  # of every node alike; Python's share is apart because not every call has it
        out[phase] = {name: figure(table[name] + everywhere, "stacks") for name in sorted(table, key=lambda name: (name != "default", name))}
        one = prior["backward"]["mm"] * args.level  # of a grouped product's, issued one after the other: what it costs in a loop
        out[phase]["grouped_linear" if phase == "forward" else "grouped_mm"] = figure(one, "loops")
        out[phase] |= {name: kept for name, kept in before[phase].items() if kept["source"] == "calls"}  # the stacks have a few each, always beside the same things
    step = costs["zero_grad"]["zero_grad"] + costs["forward"]["forward_once"] + costs["backward"]["backward_once"] + costs["optimizer"]["optimizer_once"]
    scalars = {"kernel_launch": costs["forward"]["kernel_launch"], **{key: costs["forward"][key] for key in ("library_launch", "recurrent_parameter") if key in costs["forward"]}, "memset": MEMSET_S * args.level,
               "python_call": costs["forward"]["python_call"], "module_call": costs["forward"]["module_call"],
               "autocast_cast": costs["forward"]["autocast_cast"], "autocast_parameter": costs["forward"]["autocast_parameter"],
               "parameter_gradient": costs["backward"]["parameter_gradient"], "optimizer_op": costs["optimizer"]["optimizer_op"],
               **{key: costs["optimizer"][key] for key in ("optimizer_tensor", "optimizer_tensor_fused", "optimizer_tensor_sgd")},
               "step": step, "zero_grad_tensor": costs["zero_grad"]["zero_grad_tensor"]}
    out.update({key: figure(value, "stacks") for key, value in scalars.items()})
    out["synchronise"] = figure(loops["synchronise"] * 1e-6, "loops")
    scaler = {key: costs["optimizer"][key] for key in ("loss_scaler", "loss_scaler_tensor") if key in costs["optimizer"]}
    if scaler:  # its calls are counted apart in a prediction: the check, the flag read back, the new scale
        default = (2 * costs["forward"]["pointwise"] + costs["optimizer"]["optimizer_op"] + loops["synchronise"] * 1e-6)
        scaler["loss_scaler"] = max(0.0, scaler["loss_scaler"] - default)
    out.update({key: figure(value, "stacks") for key, value in scaler.items()} or {"loss_scaler": figure(loops["loss_scaler"] * 1e-6, "loops")})
    out["compiled"] = before["compiled"]
    # What each reference stack took, at the speed of these figures: over all stacks they are right, over four of them they need not be.
    whole = [case for case in counts if case in rows["optimizer"] and case[1] != "amp-fp16"]
    right = math.exp(statistics.mean(math.log(sum(total(rows[phase][c], costs[phase]) for phase in PHASES) / sum(seen[c][phase] for phase in PHASES)) for c in whole))
    own = lambda case: [c for c in counts if c[:2] == case]
    out["reference"] = {"%s %s" % case: {phase: round(right * statistics.mean(seen[c][phase] for c in own(case)), 6) for phase in ("forward", "backward", "optimizer")}
                        for case in REFERENCE if own(case)}
    versions = "PyTorch %s, Python %s, %s" % (meta["torch"], meta["python"], meta["date"][:10])
    out["sources"] = {
        "stacks": "measured: %s, %s; issue times of %d small stacks of modules as counts times costs (tools/gpu/host_fit.py); stacks left out of the fit: %s%s" % (
            ", ".join(os.path.relpath(path, ROOT) for path in args.measurements), versions, len(counts), left_out,
            "; times %g: %s" % (args.level, args.because) if args.because else ""),
        "loops": "measured: %s/host*.jsonl, %s; item() on an idle stream; GradScaler's step and update over 10 tensors less the optimizer's step and two calls" % (
            os.path.relpath(args.loops, ROOT), versions),
        **{key: before["sources"][key] for key in ("calls", "compiled", "replay") if key in before["sources"]}}
    return out


# What `precog host` issues on another machine: both kinds of stacks, with autocast and without.
REFERENCE = [(name, precision) for name in ("tokens-00", "tokens-19", "images-00", "images-03") for precision in ("fp32", "amp-bf16")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="+")
    parser.add_argument("--launches", nargs="*", default=[], help="measurements whose profiled launches are used, and nothing else")
    parser.add_argument("--mixes", nargs="*", default=[], help="measurements of random mixes (host_mixes.py)")
    parser.add_argument("--graphs", required=True, help="folder for captured stacks")
    parser.add_argument("--captured-only", action="store_true", help="leave out stacks that are not in --graphs yet")
    parser.add_argument("--cache", help="keep what was counted in this file")
    parser.add_argument("--precog", default=os.path.join(ROOT, "build", "release", "precog"))
    parser.add_argument("--loops", required=True, help="folder of the measurements of single operators (host_loops.py)")
    parser.add_argument("--base", default=os.path.join(ROOT, "data", "hosts", "h200-vm.json"), help="host description whose names and compiled figures stay")
    parser.add_argument("--prior-speed", type=float, default=1.0, help="a loop's time in the process of the stacks over its time in the process of the loops")
    parser.add_argument("--looseness", type=float, default=0.5, help="how far a cost may be from its prior, relatively")
    parser.add_argument("--level", type=float, default=1.0, help="a training process's speed over that of the process in which the stacks were issued")
    parser.add_argument("--because", default="", help="what the level rests on; stands in the host's sources")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--out", help="write the host description here")
    args = parser.parse_args()
    sys.path[:0] = [HERE, os.path.join(ROOT, "python")]
    seen: dict[Case, Any] = {}
    for path in reversed(args.measurements):  # brought to the anchors of the last
        part, meta, own = measured([path], args.launches)
        usual = usual if seen else own
        for (name, precision), one in part.items():
            unit = path if one["kept"] else "%s %s" % (path, name)
            seen[name, precision, unit] = {key: value * usual / own if key in PHASES else value for key, value in one.items()}
    for path in args.mixes:
        seen.update({(*case, path): one for case, one in read_mixes(path, usual).items()})
    counts = all_counts(args, seen)
    cases = sorted(counts)
    rows = {phase: {case: phase_rows(phase, counts[case], seen[case], case[1]) for case in cases if phase in seen[case]} for phase in PHASES}
    print("%d cases; anchor %.0f us" % (len(cases), usual * 1e6))
    prior = prior_of(args.loops, args.prior_speed)
    names = sorted({case[0] for case in cases if case in rows["optimizer"]})
    held_out: dict[str, list[float]] = collections.defaultdict(list)
    by_family: dict[str, list[float]] = collections.defaultdict(list)
    for fold in range(args.folds):
        outside = set(names[fold::args.folds])
        costs, speeds = fit_with_speeds([c for c in cases if c[0] not in outside], rows, seen, prior, args.looseness)
        left = [c for c in cases if c[0] in outside and (c[2], 0) in speeds]  # of a stack that was built alone nothing is known of its threads
        for phase, values in errors(left, rows, at_one_speed(seen, left, speeds), costs).items():
            held_out[phase] += values
            if phase == "step":
                for case, value in zip(left, values):
                    by_family[case[1]].append(value)
                    by_family[re.sub(r"-\d+$", "", case[0])].append(value)
    costs, speeds = fit_with_speeds(cases, rows, seen, prior, args.looseness)
    seen = at_one_speed(seen, cases, speeds)
    for phase, values in errors(cases, rows, seen, costs).items():
        print("%-10s fitted %s" % (phase, said(values)))
        print("%-10s left out %s" % ("", said(held_out[phase])))
    for name, values in sorted(by_family.items()):
        print("  left out, %-28s %s" % (name, said(values)))
    for phase in PHASES:
        print(phase + ":", ", ".join("%s %.1f (%.1f)" % (name, cost * 1e6, prior[phase][name] * 1e6) for name, cost in sorted(costs[phase].items())))
    if args.out:
        costs = {phase: {name: cost * args.level for name, cost in table.items()} for phase, table in costs.items()}
        from precog.hosting import host_text
        left_out = "%.1f%% mean absolute error of a step, bias %+.1f%%" % (100 * statistics.mean(map(abs, held_out["step"])), 100 * statistics.mean(held_out["step"]))
        text = host_text(describe(costs, counts, rows, meta, args, left_out, seen, prior))
        with open(args.out, "w") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
