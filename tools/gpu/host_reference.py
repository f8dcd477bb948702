#!/usr/bin/env python3
"""What `precog host` holds a machine against: how long its reference stacks take at the speed of a host's figures.

  python3 tools/gpu/host_reference.py data/measured/2026-11-16-h200-host-mixes/host_stacks.jsonl.gz data/measured/2026-11-16-h200-host-stacks/host_stacks.jsonl.gz \\
    --graphs CACHE [--write]

Each file is a sitting of host_mixes.py --stacks: all stacks of precog.gpu.host_stacks in turns, the reference's among them. precog itself says what a step of each costs the host; the
sitting's speed is the mean of measured over predicted (logarithms), and the reference's times divided by it are what stands in the host's file: over all stacks the figures are right,
over the reference's eight cases they need not be. Only stacks under autocast tell the speed: products of tensors as small as these take kernels in fp32 that a model's do not.
--write puts the new times into the host's file. The figures themselves stay; stacks are captured where CACHE lacks them (needs torch).
"""
import argparse
import collections
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PHASES = ("forward", "backward", "optimizer")
TELLING = "amp-bf16"


def sitting(path):
    """(stack, precision) -> seconds by phase, zero_grad with them: the median over turns, each divided by the anchor beside it, at the median anchor."""
    turns = collections.defaultdict(list)
    for line in gzip.open(path, "rt") if path.endswith(".gz") else open(path):
        row = json.loads(line)
        if "round" in row:
            turns[row["stack"], row["precision"]].append((row, statistics.mean(row["anchor_s"])))
    usual = statistics.median(anchor for rows in turns.values() for _, anchor in rows)
    return {case: {phase: usual * statistics.median(row[phase + "_s"] / anchor for row, anchor in rows) for phase in ("zero_grad", *PHASES)} for case, rows in turns.items()}


def host_seconds(precog, graph, precision, optimizer, implementation, host):
    """What one step costs this host, by precog."""
    request = {"schema": 1, "model": {"graph": os.path.abspath(graph)}, "precision": precision, "cluster": {"gpu": "h200-sxm", "gpus": 1}, "optimizer": optimizer,
               "optimizer_impl": implementation, "host": host}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as job:
        json.dump(request, job)
        job.flush()
        done = subprocess.run([precog, "predict", job.name, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["host_s"]


def speed(seen, predicted):
    """A sitting's time over the figures': the mean over stacks."""
    return math.exp(statistics.mean(math.log(sum(seen[case].values()) / predicted[case]) for case in predicted if case in seen))


def reference(sittings, predicted, cases):
    """Case -> phase -> seconds at the figures' speed, the mean over sittings."""
    out = {}
    for case in cases:
        own = [{phase: seen[case][phase] / speed(seen, predicted) for phase in PHASES} for seen in sittings if case in seen]
        out[case] = {phase: math.exp(statistics.mean(math.log(one[phase]) for one in own)) for phase in PHASES}
    return out


def one_ratio(seen, there):
    """As a campaign finds it (host_speed.py): by phase the median over the reference's cases, phases by their share."""
    weight = {phase: sum(taken[phase] for taken in there.values()) for phase in PHASES}
    found = {phase: statistics.median(seen[case][phase] / taken[phase] for case, taken in there.items() if case in seen) for phase in PHASES}
    return sum(found[phase] * weight[phase] for phase in PHASES) / sum(weight.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--graphs", required=True)
    parser.add_argument("--precog", default=os.environ.get("PRECOG", os.path.join(ROOT, "build", "release", "precog")))
    parser.add_argument("--host", default=os.path.join(ROOT, "data", "hosts", "h200-vm.json"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    sys.path[:0] = [HERE, os.path.join(ROOT, "python")]
    import host_fit
    from precog.gpu import host_stacks
    from precog.hosting import host_text
    with open(args.host) as file:
        host = json.load(file)
    sittings = [sitting(path) for path in args.files]
    stacks = {stack.name: stack for stack in host_stacks.stacks()}
    predicted = {}
    for name, precision in sorted(set().union(*sittings)):
        if precision == TELLING:
            stack = stacks[name]
            predicted[name, precision] = host_seconds(args.precog, host_fit.captured(stack, args.graphs), precision, stack.optimizer, stack.implementation, os.path.abspath(args.host))
    before = {tuple(case.split(" ")): taken for case, taken in host["reference"].items()}
    now = reference(sittings, predicted, before)
    changes = []
    for path, seen in zip(args.files, sittings):
        known = [case for case in predicted if case in seen]
        ratios = one_ratio(seen, before), one_ratio(seen, now)
        changes.append(ratios[1] / ratios[0])
        print("%s: %d stacks at %.3f of the figures; by the reference before %.3f, now %.3f" % (path, len(known), speed(seen, predicted), *ratios))
    print("a host described before by these stacks is %.3f times as slow" % math.exp(statistics.mean(map(math.log, changes))))
    if args.write:
        host["reference"] = {" ".join(case): {phase: round(value, 6) for phase, value in taken.items()} for case, taken in now.items()}
        with open(args.host, "w") as file:
            file.write(host_text(host))
    return 0


if __name__ == "__main__":
    sys.exit(main())
