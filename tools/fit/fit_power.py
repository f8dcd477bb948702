"""What the power limit leaves of the clock, from runs of seconds (family `sustained` of a profile) beside those of milliseconds.

  tools/fit/fit_power.py --write     the powers of data/profiles/datasheet.json alone, its other coefficients as they are
"""
import collections
import gzip
import json
import statistics
import sys

from fitting import CAMPAIGN
from specs import load

PROFILE = CAMPAIGN.with_name("2026-11-15-h200-profile") / "operators.jsonl.gz"
MIXES = CAMPAIGN.with_name("2026-11-16-h200-power") / "power_mixes.jsonl.gz"
LARGE = 3e11  # operations: nothing but the tensor cores bounds such a product
LIMIT, EXPONENT = 700.0, 2.5
ESTIMATE = ("estimate: dynamic power by clock to the 2.5 (clock times voltage squared, the voltage falling with it); "
            "four mixes of products and streaming kernels (2026-11-16-h200-power) come out within 3%")
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
    # At full clock they would draw what the limit leaves beyond idle, times what the clock fell by.
    drawn = {dtype: (LIMIT - idle) * max(1.0, short[dtype] / rate)**EXPONENT / (short[dtype] * 1e-12) for dtype, rate in kept.items()}
    return {"streaming": streaming, "idle": idle, "watts_per_tflops": drawn}, "; ".join(
        "%s %.0f TFLOP/s in milliseconds, %.0f over seconds" % (dtype, short[dtype] * 1e-12, kept[dtype] * 1e-12) for dtype in kept)


def leaves(coefficients, key, note):
    guess = note("power_estimate", ESTIMATE)
    return {"idle": {"value": "%.0f W" % coefficients["idle"], "source": key}, "streaming": {"value": "%.0f W" % coefficients["streaming"], "source": key},
            "exponent": {"value": EXPONENT, "source": guess},
            "watts_per_tflops": {dtype: {"value": round(drawn, 3), "source": key} for dtype, drawn in coefficients["watts_per_tflops"].items()}}


def group(note):
    """The architecture's "power" in the profile file; note(key, text) registers a source and returns its key."""
    coefficients, said = fit()
    key = note("power_hopper", "fitted: own runs of seconds on an H200 at its limit of 700 W (data/measured/2026-11-15-h200-profile and 2026-11-16-h200-power; "
               "in fp8 with operands that fill the type's range): " + said)
    out = leaves(coefficients, key, note)
    out["watts_per_tflops"]["fp8-block"] = {"value": out["watts_per_tflops"]["fp8"]["value"], "source": note("power_like_fp8", "estimate: unmeasured; the multipliers of fp8")}
    return out


# One attention kernel repeated on a B200: the SM clock falls from 1965 to 1580 MHz at 1000 W, the rate from 1450 to 1237 TFLOP/s
# (flashinfer-ai/flashinfer, pull request 2899: FlashAttention 4 forward in bf16, 4 x 8192 tokens, 16 heads of 128).
THROTTLED_CLOCK, THROTTLED_TFLOPS = 1580 / 1965, 1450


def carried(note):
    """The same for Blackwell: what bf16 draws from the run above, other types by the H200's ratios between them; four bits as far below
    eight as those are below sixteen."""
    hopper, _ = fit()
    key = note("power_blackwell", "derived: a B200 at 1000 W keeps 1580 of 1965 MHz under FlashAttention 4 at 1450 TFLOP/s (flashinfer pull request 2899); other types by an H200's ratios; "
               "idle by the limits of both, streaming by their bandwidths")
    b200, h200, drawn = load("b200-sxm"), load("h200-sxm"), hopper["watts_per_tflops"]
    idle = hopper["idle"] * b200.power / LIMIT
    bf16 = (b200.power - idle) / THROTTLED_CLOCK**EXPONENT / THROTTLED_TFLOPS
    eight = drawn["fp8"] / drawn["bf16"]
    ratio = {dtype: one / drawn["bf16"] for dtype, one in drawn.items()} | {"mxfp8": eight, "fp8-block": eight, "nvfp4": eight**2}
    return leaves({"idle": idle, "streaming": idle + (hopper["streaming"] - hopper["idle"]) * b200.bandwidth / h200.bandwidth,
                   "watts_per_tflops": {dtype: bf16 * one for dtype, one in ratio.items()}}, key, note)


def main():
    from fit_profile import OUT, render
    profile = json.loads(OUT.read_text())

    def note(key, text):
        profile["sources"][key] = text
        return key

    for architecture, power in (("hopper", group(note)), ("blackwell", carried(note))):
        profile["architectures"][architecture]["power"] = power
        print(architecture, render(power))
    if "--write" in sys.argv:
        OUT.write_text(render(profile) + "\n")


if __name__ == "__main__":
    main()
