"""What the fits share: where the data are, the error table, least squares in log space."""
import gzip
import json
import os
import pathlib

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

DATA = pathlib.Path(os.environ.get("PRECOG_REFERENCE_DATA", ""))
HERE = pathlib.Path(__file__).resolve().parent
H200 = pd.read_csv(HERE / "h200_operators.csv")
FILE = {"a100-sxm-80gb": "a100_sxm", "l40s": "l40s", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200-sxm": "b200_sxm", "gb200": "gb200"}
table = []  # (what, gpu, dtype, rows, median %, p95 %, bias %)


def record(what, gpu, dtype, predicted, measured):
    e = np.asarray(predicted) / np.asarray(measured) - 1
    row = (what, gpu, dtype, len(e), 100 * np.median(abs(e)), 100 * np.quantile(abs(e), .95), 100 * np.median(e))
    table.append(row)
    print("%-34s %-14s %-7s n=%-6d median %5.1f%%  p95 %6.1f%%  bias %+5.1f%%" % row, flush=True)
    return "median error %.1f%%, 95th percentile %.0f%%, on %d timings" % (row[4], row[5], row[3])


def solve(residual, start, prior=None, rows=0):
    """start: {name: value}; least squares in log space with a soft loss. residual takes {name: value}, returns logs."""
    names = list(start)
    unpack = lambda x: {n: float(np.exp(v)) for n, v in zip(names, x)}

    def f(x):
        r = residual(unpack(x))
        if not prior:
            return r
        pull = [(v - np.log(prior[n.split("/")[0]][0])) / prior[n.split("/")[0]][1] * .08 * np.sqrt(len(r) / 100) for n, v in zip(names, x)]
        return np.concatenate([r, pull])
    return unpack(least_squares(f, np.log(list(start.values())), loss="soft_l1", f_scale=.08, diff_step=1e-2, max_nfev=60).x)


def parse(frame):
    keys = frame["shape"].str.findall(r"([A-Za-z]+)=([0-9]+)")
    return pd.concat([frame.reset_index(drop=True), pd.DataFrame([{k: float(v) for k, v in row} for row in keys])], axis=1)


# Idle time between two kernels queued on a stream: what separates their starts beyond the first one's duration
# (host.jsonl, "gpu floor"). The campaign's timings have one per kernel; those of h200_operators.csv, replayed from a
# graph or summed from a profile, have next to none.
CAMPAIGN = HERE.parents[1] / "data" / "measured" / "2026-11-15-h200"


def kernel_gap():
    rows = [json.loads(line) for line in (CAMPAIGN / "host.jsonl").read_text().splitlines()]
    floors = [r for r in rows if r.get("group") == "gpu floor"]
    return float(np.median([r["start_to_start_us"] - r["kernel_us"] for r in floors])) * 1e-6


PRECISION = CAMPAIGN.with_name("2026-11-15-h200-precision") / "precision_operators.jsonl.gz"


def campaign(family, path=CAMPAIGN / "operators.jsonl.gz"):
    """The operators of one family that a campaign timed, `t` in seconds with the gap before one kernel taken off."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    d = pd.DataFrame([r for r in rows if r.get("family") == family and "s" in r])
    return d.assign(t=d.s - kernel_gap())
