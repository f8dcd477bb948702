#!/usr/bin/env python3
"""timm's published training benchmark on an RTX 3090 against predicted steps: image models by the dozen on a GPU that nobody profiled here.

  PRECOG_REFERENCE_DATA=DIR tools/published_timm.py [--half looking|judging] [--write] [--list]

DIR holds published/published_dl.csv.gz. Of its rows those of timm's results of July 2022 (PyTorch 1.12, autocast to fp16, both memory formats), of the
models that tools/capture_timm.py drew. --write puts the tables into docs/published_timm.md (between its two marks), --list prints every row.
PRECOG names the program (build/release/precog by default).
"""
import argparse
import csv
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import published_speedups as published

FOLDER = published.ROOT / "tests" / "data" / "published_timm"
PAGE = published.ROOT / "docs" / "published_timm.md"
RESULTS = "pt112-cu113-rtx3090.csv"
# What benchmark.py does: autocast without a loss scaler, SGD with momentum (timm's default), zeroed gradients (PyTorch 1.12), a synchronisation after every step.
JOB = {"schema": 1, "precision": {"extends": "amp-fp16", "loss_scaling": False}, "mode": "eager", "optimizer": "sgd-momentum", "software": "pytorch-1.12",
       "reads_loss": True, "cluster": {"gpu": "rtx-3090", "gpus": 1}}
FIRST = 512  # the batch that it tries first; where memory does not suffice the next of 384, 256, 192, 128, ...


def read_rows():
    with gzip.open(published.published_file(), "rt", newline="") as file:
        return [row for row in csv.DictReader(file) if row["source_repo_or_paper"] == "huggingface/pytorch-image-models" and row["source_path"].endswith(RESULTS)]


def next_larger(batch):
    """The batch that was tried before: powers of two and one and a half of them."""
    power = 1 << (batch.bit_length() - 1)
    return power * 3 // 2 if batch == power else power * 2


def job(row, batch):
    return {**JOB, "model": {"graph": str(FOLDER / f"{row['model']}.precog.json.zst")}, "batch": batch,
            "memory_format": "channels_last" if row["channels_last"] == "yes" else "contiguous"}


def evaluate(half=None):
    drawn = json.loads((FOLDER / "list.json").read_text())
    models = {entry["name"]: entry for entry in drawn["models"] if entry["module"] not in drawn["other_models"]}
    rows = [row for row in read_rows() if row["model"] in models and (FOLDER / f"{row['model']}.precog.json.zst").exists()
            and half in (None, models[row["model"]]["half"])]
    lines = []
    for place, row in enumerate(rows):
        batch = int(row["batch_per_gpu"])
        measured = {"step_s": float(row["iteration_time_s"])}
        lines.append({"id": f"{place} fits", "source": "published", "request": job(row, batch), "measured": measured})
        if batch < FIRST:
            lines.append({"id": f"{place} next", "source": "published", "request": job(row, next_larger(batch)), "measured": measured})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "runs.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = subprocess.run([published.PROGRAM, "validate", str(path), "--json"], cwd=published.ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
    result = json.loads(done.stdout)
    found = {run["id"]: run for run in result["runs"]}
    reasons = {entry["id"]: entry["reason"] for entry in result["unpredicted"]}
    out = []
    for place, row in enumerate(rows):
        one, larger = found.get(f"{place} fits"), found.get(f"{place} next")
        entry = {"model": row["model"], "module": models[row["model"]]["module"], "half": models[row["model"]]["half"], "format": "NHWC" if row["channels_last"] == "yes" else "NCHW",
                 "batch": int(row["batch_per_gpu"]), "measured_s": float(row["iteration_time_s"])}
        if one and one.get("predicted_s"):
            entry.update(predicted_s=one["predicted_s"], error=100 * (one["predicted_s"] / entry["measured_s"] - 1), fills=one["predicted_filled"],
                         next_fills=larger["predicted_filled"] if larger else None, by_class=one.get("predicted_by_op_class", {}))
        else:
            entry["reason"] = reasons.get(f"{place} fits", "not predicted")
        out.append(entry)
    return out


def figures(rows):
    errors = [row["error"] for row in rows if "error" in row]
    if not errors:
        return None
    size = [abs(error) for error in errors]
    return {"rows": len(errors), "mape": statistics.mean(size), "median": statistics.median(size), "p95": published.quantile(size, 0.95), "bias": statistics.median(errors)}


def table_row(name, got):
    return "| %s | %d | %.1f%% | %.1f%% | %.1f%% | %+.1f%% |" % (name, got["rows"], got["mape"], got["median"], got["p95"], got["bias"])


def tables(rows):
    lines = ["| | rows | MAPE | median | 95th percentile | bias (median) |", "|---|---|---|---|---|---|"]
    for half in ("judging", "looking"):
        of_half = [row for row in rows if row["half"] == half]
        for name, some in [(f"{half}, all", of_half)] + [(f"{half}, {kind}", [row for row in of_half if row["format"] == kind]) for kind in ("NCHW", "NHWC")]:
            got = figures(some)
            if got:
                lines.append(table_row(name, got))
    done = [row for row in rows if "error" in row]
    ran, given_up = [row["fills"] for row in done], [row["next_fills"] for row in done if row["next_fills"] is not None]
    counted = lambda name, shares, right: "| %s | %d | %d |" % (name, len(shares), sum(right(share) for share in shares))
    plain = lambda shares: [share for share in shares if not 0.95 <= share <= 1.05]
    fits, does_not = lambda share: share <= 1, lambda share: share > 1
    return lines + ["", "| verdict `fits` | rows | right |", "|---|---|---|",
                    counted("the batch that ran", ran, fits), counted("... whose need is more than 5% from the capacity", plain(ran), fits),
                    counted("the next larger one, which was given up", given_up, does_not), counted("... whose need is more than 5% from the capacity", plain(given_up), does_not)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=("looking", "judging"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if not published.published_file():
        sys.exit("PRECOG_REFERENCE_DATA names no folder with published/published_dl.csv.gz")
    rows = evaluate(arguments.half)
    if arguments.list:
        for row in sorted(rows, key=lambda row: row.get("error", 0)):
            print("%-36s %-24s %s b%-4d %8.1f ms %s" % (row["model"], row["module"], row["format"], row["batch"], row["measured_s"] * 1e3, row.get("reason") or "%+6.1f%%, fills %3.0f%%%s" % (
                row["error"], 100 * row["fills"], ", the next larger one %.0f%%" % (100 * row["next_fills"]) if row["next_fills"] else "")))
    text = "\n".join(tables(rows))
    print(text)
    if arguments.write:
        head, mark, _ = PAGE.read_text().partition("<!-- tables: tools/published_timm.py --write -->\n")
        PAGE.write_text(head + mark + "\n" + text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
