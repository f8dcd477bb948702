#!/usr/bin/env python3
"""Turns the raw files of a list of models, measured in one call or several of one sitting, into what data/measured keeps.

  python3 tools/gpu/join_calls.py RAW... data/measured/2026-11-19-h200-tenth

A RAW folder is of garden_steps.py, of compiled_steps.py or of both. Rows come in the order of the folders; headers go to meta.json; what failed is left out and told.
`host.json` is of all calls together, brought to the anchors beside all their steps. Of compiled steps one folder's host is kept, the first's.
"""
import gzip
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import host_speed  # noqa: E402
from tidy import lines, pack  # noqa: E402

ROWS = ("steps.jsonl", "compiled_steps.jsonl", "compiled_peaks.jsonl")
KERNELS = ("steps_kernels.jsonl.gz", "compiled_kernels.jsonl.gz")


def of(raws, name):
    """A file's lines in each folder that has it; one that was cut off ends where it was."""
    found = []
    for raw in raws:
        path = os.path.join(raw, name)
        if os.path.exists(path):
            try:
                found.append(lines(path))
            except (EOFError, json.JSONDecodeError):
                found.append(whole_lines(path))
    return found


def whole_lines(path):
    kept = []
    try:
        with (gzip.open(path, "rt") if path.endswith(".gz") else open(path)) as file:
            for line in file:
                kept.append(json.loads(line))
    except (EOFError, json.JSONDecodeError):
        print("%s ends in the middle of a line" % path)
    return kept


def never_updated(runs):
    """(model, precision) of jobs whose loss scaler left out every update, because no gradient ever was finite: those were no training steps."""
    return {job_of(run) for run in runs if run["request"]["precision"] == "amp-fp16" and not run["measured"].get("finite", True)}


def job_of(run):
    return run["request"]["model"]["graph"], run["request"]["precision"]


def once(runs, unusable):
    """A row that was measured in two calls stays as it was first."""
    kept = {}
    for run in runs:
        if job_of(run) in unusable:
            print("left out: %s: no gradient is finite, so that the scaler leaves out every update" % run["id"])
        else:
            kept.setdefault(run["id"], run)
    return list(kept.values())


def main(raws, out):
    os.makedirs(out, exist_ok=True)
    metas, unusable = [], set()
    for name in ROWS:
        records = [record for own in of(raws, name) for record in own]
        runs = [record for record in records if "measured" in record]
        unusable |= never_updated(runs)
        runs = once(runs, unusable)
        if name == "steps.jsonl":
            metas = [record["meta"] for record in records if "meta" in record]
        for record in records:
            if "error" in record or record.get("oom"):
                print("left out: %s: %s" % (record["id"], record.get("error", "out of memory")))
        if runs:
            with open(os.path.join(out, name), "w") as file:
                file.writelines(json.dumps(run, separators=(",", ":")) + "\n" for run in runs)
        refused = [run["id"] for run in runs if run["setup"].get("refused")]
        print("%s: %d rows%s" % (name, len(runs), "; refused memory: " + ", ".join(refused) if refused else ""))
    for name in KERNELS:
        found = of(raws, name)
        if found:
            kernels = {}
            for own in found:
                for record in own:
                    if "meta" not in record:
                        kernels.setdefault(record["id"], record)
            pack(os.path.join(out, name), found[0][:1] + list(kernels.values()))
    readings = [one for own in of(raws, "host_readings.jsonl") for one in own]
    if readings:
        host_speed.write(os.path.join(out, "host.json"), [speed for one in readings for speed in one["speeds"]], readings[0]["name"], readings[0]["machine"],
                         [anchor for one in readings for anchor in one["anchors"]])
    compiled = [path for path in (os.path.join(raw, "host_compiled.json") for raw in raws) if os.path.exists(path)]
    if compiled:
        shutil.copyfile(compiled[0], os.path.join(out, "host_compiled.json"))
    with open(os.path.join(out, "meta.json"), "w") as file:
        json.dump({"clocks_during_steps": [], **{key: meta for key, meta in zip(("steps", "steps_second_call", "steps_third_call", "steps_fourth_call"), metas)}}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1:-1], sys.argv[-1])
