"""What the power limit leaves of the clock, from runs of seconds (family `sustained` of a profile) beside those of milliseconds."""
import collections
import gzip
import json
import statistics

from fitting import CAMPAIGN

PROFILE = CAMPAIGN.with_name("2026-11-15-h200-profile") / "operators.jsonl.gz"
MIXES = CAMPAIGN.with_name("2026-11-16-h200-power") / "power_mixes.jsonl.gz"
LARGE = 3e11  # operations: nothing but the tensor cores bounds such a product
LIMIT, EXPONENT = 700.0, 2.5
# In fp8 operands that fill their range, as recipes with scales have them, and sums as backward has them. The profile's own weights lie below
# e4m3's normal range, have few bits set and draw less: 1308 TFLOP/s.
SCALED = "gemm filled careful"


def rows():
    for path in (PROFILE, MIXES, CAMPAIGN / "operators.jsonl.gz"):
        with gzip.open(path, "rt") as file:
            yield from (json.loads(line) for line in file)


def fit():
    """(coefficients, what to say of them). Short runs: the fastest large product, since the others differ by more than power."""
    short, runs, streaming, idle = {}, collections.defaultdict(list), 0.0, 0.0
    for row in rows():
        if row.get("family") == "sustained" and row["op"] == (SCALED if row["dtype"] == "fp8" else "gemm"):
            runs[row["dtype"]].append(row["flops"] / row["s"])
        elif row.get("family") == "sustained" and row["op"] == "nothing":
            idle = statistics.median(sample[2] for sample in row["samples"][len(row["samples"]) // 2:])
        elif row.get("family") == "sustained":
            later = [sample[2] for sample in row["samples"][len(row["samples"]) // 2:]]  # the first still average what ran before
            streaming = max(streaming, statistics.median(later)) if row["op"] == "chain" else streaming
        elif "s" in row and (row.get("family") == "gemm" and "sustained" not in row["op"] or row.get("family") == "scaled_mm" and row["op"] == "tensor"):
            flops = 2.0 * row.get("b", 1) * row["m"] * row["n"] * row["k"]
            if flops > LARGE:
                short[row["dtype"]] = max(short.get(row["dtype"], 0), flops / row["s"])
    kept = {dtype: statistics.mean(rates) for dtype, rates in runs.items()}
    share = {dtype: round(min(1.0, kept[dtype] / short[dtype]), 3) for dtype in kept}
    return {"streaming": streaming, "idle": idle, "kept_rate": share}, "; ".join(
        "%s %.0f TFLOP/s in milliseconds, %.0f over seconds" % (dtype, short[dtype] * 1e-12, kept[dtype] * 1e-12) for dtype in kept)


def group(note):
    """The architecture's "power" in the profile file; note(key, text) registers a source and returns its key."""
    coefficients, said = fit()
    fitted = note("power_hopper", "fitted: own runs of seconds on an H200 at its limit of 700 W (data/measured/2026-11-15-h200-profile and 2026-11-16-h200-power; "
                  "in fp8 with operands that fill the type's range): " + said)
    guess = note("power_estimate", "estimate: dynamic power by clock to the 2.5 (clock times voltage squared, the voltage falling with it); "
                 "four mixes of products and streaming kernels (2026-11-16-h200-power) come out within 3%")
    return {"idle": {"value": "%.0f W" % coefficients["idle"], "source": fitted}, "streaming": {"value": "%.0f W" % coefficients["streaming"], "source": fitted},
            "limit": {"value": "%g W" % LIMIT, "source": fitted}, "exponent": {"value": EXPONENT, "source": guess},
            "kept_rate": {dtype: {"value": share, "source": fitted} for dtype, share in coefficients["kept_rate"].items()}}
