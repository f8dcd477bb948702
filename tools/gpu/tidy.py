#!/usr/bin/env python3
"""Turns a campaign's raw files into what data/measured keeps. Measures nothing, needs no torch.

  python3 tools/gpu/tidy.py RAW_FOLDER data/measured/2026-11-15-h200
  python3 tools/gpu/tidy.py RAW_FOLDER data/measured/2026-11-15-h200-held-out --as-recorded

steps.jsonl becomes one contract-form run per line (`precog validate` reads it as it is): the campaign's header and
clock readings move to meta.json, a run out of memory becomes {"oom": true}, and kernels get the class that their name
has in kernels.py now (with --as-recorded they keep theirs: campaigns after the first have the right ones). The kernel names are kept for the 40 longest a run, packed.
"""
import ast
import gzip
import json
import os
import shutil
import sys

TOP = 40


def classes():
    """CLASSES of the package's kernels.py, read without importing it (it needs torch)."""
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python", "precog", "gpu")
    with open(os.path.join(package, "kernels.py")) as file:
        tree = ast.parse(file.read())
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "CLASSES":
            return ast.literal_eval(node.value)
    raise SystemExit("kernels.py has no CLASSES")


def class_of(name, known):
    lower = name.lower()
    return next((kind for kind, patterns in known if any(pattern in lower for pattern in patterns)), "other")


# Names that were recorded under another class than kernels.py gives them now, and that class.
MOVED = {"flip_filter": "other", "atomic_adaptive_average": "other", "compute_dot_do_o": "conv", "convert_dq": "conv",
         "unpack_cudnn": "conv"}
TEXT = ("bert", "gpt", "qwen", "llama", "mistral", "t5")


def move(by_class, source, target, count, seconds):
    left = by_class[source]
    if count > left["count"]:
        raise SystemExit("%d kernels to move, %s holds %d" % (count, source, left["count"]))
    entry = by_class.setdefault(target, {"count": 0, "s": 0.0})
    entry["count"] += count
    entry["s"] = round(entry["s"] + seconds, 9)
    left["count"] -= count
    left["s"] = round(max(left["s"] - seconds, 0.0), 9)
    if not left["count"]:
        del by_class[source]


def reclassify(model, by_class, kernels, known):
    """Moves kernels to the class kernels.py gives their name now. Only names among the recorded ones can move."""
    for name, count, us in kernels:
        for word, source in MOVED.items():
            if word in name:
                move(by_class, source, class_of(name, known), count, us * 1e-6)
    # A text model convolves nothing: what is left there are attention helpers too short for the list of names.
    if model.startswith(TEXT) and "conv" in by_class:
        move(by_class, "conv", "attention", by_class["conv"]["count"], by_class["conv"]["s"])


def lines(path):
    with (gzip.open(path, "rt") if path.endswith(".gz") else open(path)) as file:
        return [json.loads(line) for line in file if line.strip()]


def pack(path, records):
    with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:  # same bytes every time
        for record in records:
            file.write((json.dumps(record, separators=(",", ":")) + "\n").encode())


def main(raw, out, as_recorded):
    os.makedirs(out, exist_ok=True)
    known = classes()
    names = lines(os.path.join(raw, "steps_kernels.jsonl"))
    top = {record["id"]: record["kernels"] for record in names if "kernels" in record}
    meta, runs = {"clocks_during_steps": []}, []
    for record in lines(os.path.join(raw, "steps.jsonl")):
        if "meta" in record:
            meta["steps"] = record["meta"]
        elif "clocks" in record:
            meta["clocks_during_steps"].append(dict(record["clocks"], after=record["after"]))
        else:
            if record.pop("oom", False):
                record["measured"] = {"oom": True}
            elif "error" in record:
                raise SystemExit("%s failed: %s" % (record["id"], record["error"]))
            elif not as_recorded:
                model = record["request"]["model"]
                reclassify(model if isinstance(model, str) else model["name"], record["measured"]["by_class"],
                           top[record["id"]], known)
            record.pop("host", None)  # the request names it
            runs.append(record)
    with open(os.path.join(out, "steps.jsonl"), "w") as file:
        for run in runs:
            file.write(json.dumps(run, separators=(",", ":")) + "\n")
    pack(os.path.join(out, "steps_kernels.jsonl.gz"),
         [dict(record, kernels=record["kernels"][:TOP]) if "kernels" in record else record for record in names])
    whole = os.path.exists(os.path.join(raw, "host.jsonl"))  # parts B, C and D as well
    if whole:
        meta["others"] = lines(os.path.join(raw, "host.jsonl"))[0]["meta"]
    with open(os.path.join(out, "meta.json"), "w") as file:
        json.dump(meta, file, indent=1)
        file.write("\n")
    if whole:
        shutil.copyfile(os.path.join(raw, "host.jsonl"), os.path.join(out, "host.jsonl"))
        pack(os.path.join(out, "operators.jsonl.gz"), lines(os.path.join(raw, "operators.jsonl")))
        pack(os.path.join(out, "dispatch_traces.jsonl.gz"), lines(os.path.join(raw, "dispatch_traces.jsonl.gz")))
    print("%d runs, %d out of memory" % (len(runs), sum("oom" in run["measured"] for run in runs)))


if __name__ == "__main__":
    folders = [argument for argument in sys.argv[1:] if argument != "--as-recorded"]
    if len(folders) != 2:
        sys.exit(__doc__)
    main(*folders, as_recorded="--as-recorded" in sys.argv)
