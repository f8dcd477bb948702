"""What the power limit leaves of the clock, from runs of seconds (family `sustained` of a profile) beside those of milliseconds."""
import gzip
import json

from fitting import CAMPAIGN

PROFILE = CAMPAIGN.with_name("2026-11-15-h200-profile") / "operators.jsonl.gz"
LARGE = 3e11  # operations: nothing but the tensor cores bounds such a product
IDLE, LIMIT, EXPONENT = 120.0, 700.0, 2.5


def rows():
    for path in (PROFILE, CAMPAIGN / "operators.jsonl.gz"):
        with gzip.open(path, "rt") as file:
            yield from (json.loads(line) for line in file)


def fit():
    """(coefficients, what to say of them). Short runs: the fastest large product, since the others differ by more than power."""
    short, kept, streaming = {}, {}, 0.0
    for row in rows():
        if row.get("family") == "sustained" and row["op"] == "gemm":
            kept[row["dtype"]] = row["flops"] / row["s"]
        elif row.get("family") == "sustained":
            streaming = max(sample[2] for sample in row["samples"])
        elif "s" in row and (row.get("family") == "gemm" and "sustained" not in row["op"] or row.get("family") == "scaled_mm" and row["op"] == "tensor"):
            flops = 2.0 * row.get("b", 1) * row["m"] * row["n"] * row["k"]
            if flops > LARGE:
                short[row["dtype"]] = max(short.get(row["dtype"], 0), flops / row["s"])
    share = {dtype: round(min(1.0, kept[dtype] / short[dtype]), 3) for dtype in kept}
    return {"streaming": streaming, "kept_rate": share}, "; ".join(
        "%s %.0f TFLOP/s in milliseconds, %.0f over 7 s" % (dtype, short[dtype] * 1e-12, kept[dtype] * 1e-12) for dtype in kept)


def group(note):
    """The architecture's "power" in the profile file; note(key, text) registers a source and returns its key."""
    coefficients, said = fit()
    fitted = note("power_hopper", "fitted: own runs of 7 s on an H200 at its limit of 700 W (data/measured/2026-11-15-h200-profile): " + said)
    guess = note("power_estimate", "estimate: power with clocks up and nothing running, and dynamic power by clock to the 2.5 "
                 "(clock times voltage squared, the voltage falling with it); neither was measured")
    return {"idle": {"value": "%g W" % IDLE, "source": guess}, "streaming": {"value": "%.0f W" % coefficients["streaming"], "source": fitted},
            "limit": {"value": "%g W" % LIMIT, "source": fitted}, "exponent": {"value": EXPONENT, "source": guess},
            "kept_rate": {dtype: {"value": share, "source": fitted} for dtype, share in coefficients["kept_rate"].items()}}
