#!/usr/bin/env python3
"""Does precog order the precisions of a job as an H200 did? Every pair of precisions that measured more than 5% apart.

  tools/precision_order.py            the pairs that come out the wrong way round, and the counts
  tools/precision_order.py --write    docs/precision_order.md

Measured: data/measured/2026-11-15-h200-precision/order_steps.jsonl.gz (tools/gpu/precision_steps.py).
"""
from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from program import BINARY as PRECOG  # noqa: E402

MEASURED = ROOT / "data" / "measured" / "2026-11-15-h200-precision" / "order_steps.jsonl.gz"
PAGE = ROOT / "docs" / "precision_order.md"
APART = 1.05
MARK = "<!-- tables: tools/precision_order.py --write -->"


def settings() -> dict[str, dict[str, dict[str, Any]]]:
    """Setting -> precision -> the measured run with `predicted_s` beside."""
    with gzip.open(MEASURED, "rt") as lines:
        runs = [run for run in map(json.loads, lines) if "id" in run]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "runs.jsonl"
        path.write_text("".join(json.dumps(run) + "\n" for run in runs))
        done = subprocess.run([str(PRECOG), "validate", str(path), "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    predicted = {run["id"]: run["predicted_s"] for run in json.loads(done.stdout)["runs"]}
    found: dict[str, dict[str, dict[str, Any]]] = collections.defaultdict(dict)
    for run in runs:
        precision = run["request"]["precision"]
        run["predicted_s"] = predicted[run["id"]]
        found[run["id"].removeprefix("h200-").replace(f"-{precision}-", " ")][precision] = run
    return found


def pairs(found: dict[str, dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Pairs that measured more than 5% apart, slower precision first."""
    out = []
    for setting, runs in found.items():
        for a, b in itertools.combinations(runs, 2):
            slow, fast = sorted((a, b), key=lambda precision: -runs[precision]["measured"]["step_s"])
            measured = runs[slow]["measured"]["step_s"] / runs[fast]["measured"]["step_s"]
            if measured <= APART:
                continue
            turns = list(zip(runs[slow]["measured"]["block_means_s"], runs[fast]["measured"]["block_means_s"]))
            out.append({"setting": setting, "slow": slow, "fast": fast, "measured": measured,
                        "predicted": runs[slow]["predicted_s"] / runs[fast]["predicted_s"],
                        "turns": len(turns), "turns_so": sum(x > y for x, y in turns),
                        "busy": min(runs[p]["measured"]["gpu_busy_s"] / runs[p]["measured"]["step_s"] for p in (slow, fast))})
    return out


def wrong(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pair for pair in found if pair["predicted"] <= 1]


def tables(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    all_pairs = pairs(found)
    off = wrong(all_pairs)
    precisions = list(next(iter(found.values())))
    out = [f"{len(found)} settings, {len(all_pairs)} pairs more than 5% apart, {len(off)} of them predicted the other way round "
           f"({len(off) / len(all_pairs):.1%}).", "",
           "Step in milliseconds, measured / predicted; **bold**: the fastest of each.", "",
           "| setting | " + " | ".join(precisions) + " |", "|---|" + "---|" * len(precisions)]
    for setting, runs in found.items():
        best = [min(runs, key=lambda p: runs[p]["measured"]["step_s"]), min(runs, key=lambda p: runs[p]["predicted_s"])]
        cell = lambda seconds, bold: f"**{seconds * 1e3:.1f}**" if bold else f"{seconds * 1e3:.1f}"
        out.append(f"| {setting} | " + " | ".join(
            cell(runs[p]["measured"]["step_s"], p == best[0]) + " / " + cell(runs[p]["predicted_s"], p == best[1]) for p in precisions) + " |")
    out += ["", "The pairs that come out wrong. *turns*: in how many of the interleaved blocks the slower one really was slower. *busy*: the "
            "GPU's share of the step, the lower of the two.", "",
            "| setting | slower | faster | measured | predicted | turns | busy |", "|---|---|---|---|---|---|---|"]
    for pair in off:
        out.append(f"| {pair['setting']} | {pair['slow']} | {pair['fast']} | {pair['measured']:.2f} | {pair['predicted']:.2f} | "
                   f"{pair['turns_so']} of {pair['turns']} | {pair['busy']:.2f} |")
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/precision_order.md")
    args = parser.parse_args()
    text = tables(settings())
    if args.write:
        page = PAGE.read_text()
        PAGE.write_text(page[:page.index(MARK)] + MARK + "\n\n" + text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
