"""Captured models against the real framework: one fp32 capture of each model, and what precog's precision and training passes derive
from it for four precisions, compared with every call that PyTorch made in a recorded training step on an H200
(data/measured/2026-11-15-h200-garden, tools/gpu/trace_garden.py). Differences and their reasons: docs/model_notes/captured_steps.md.
"""

import collections
import json
import pathlib
import sys
import tempfile
import unittest

import framework_calls
from program import ROOT, run

sys.path.insert(0, str(ROOT / "python"))
from precog._library import decompress  # noqa: E402

TRACES = ROOT / "data" / "measured" / "2026-11-15-h200-garden" / "garden_traces.jsonl.gz"
CAPTURED = ROOT / "tests" / "data" / "captured"
LEAST_AGREEMENT = 0.99     # of bytes moved, forward and backward together
MOST_CALLS_OFF = 0.02      # of the number of calls that launch kernels, the whole step
# Models whose differences are known, with the reason in docs/model_notes/captured_steps.md: (model, precision) -> (agreement, calls off).
KNOWN = json.loads((pathlib.Path(__file__).parent / "data" / "captured_known_differences.json").read_text())


def derived(trace):
    """The step graph's text for one trace, and the leaves' types and sizes."""
    job = {"model": {"graph": str(CAPTURED / f"{trace['model']}.precog.json.zst")}, "precision": trace["precision"],
           "cluster": {"gpu": "h200-sxm"}}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        done = run("predict", path, "--dump-after", "training")
    if done.returncode not in (0, 3):
        raise AssertionError(f"{trace['model']} {trace['precision']}: {done.stderr[:500]}")
    document = json.loads(decompress((CAPTURED / f"{trace['model']}.precog.json.zst").read_bytes()))
    return framework_calls.our_calls(done.stdout, framework_calls.leaves(document, "bf16" if trace["precision"] == "bf16" else "fp32"))


def difference(trace):
    """(agreement by bytes, relative difference in calls, only in PyTorch, only in precog)."""
    ours = derived(trace)
    total = shared = 0.0
    counts = [0, 0]
    missing, extra = [], []
    for phase in ("forward", "backward"):
        real = list(framework_calls.real_calls(trace["phases"][phase]))
        mine = ours[phase]
        share, only_real, only_ours = framework_calls.compare(real, mine)
        weight = max(sum(call.bytes for call in side) for side in (real, mine))
        total, shared = total + weight, shared + share * weight
        counts = [counts[0] + len(real), counts[1] + len(mine)]
        missing += [(phase, *item) for item in only_real]
        extra += [(phase, *item) for item in only_ours]
    counts[0] += len(list(framework_calls.real_calls(trace["phases"]["optimizer"])))
    counts[1] += sum(len(calls) for phase, calls in ours.items() if phase not in ("forward", "backward"))
    return shared / total, counts[1] / counts[0] - 1, missing, extra


def traces():
    return framework_calls.recorded_steps(TRACES)


class CapturedModelsAgainstTheFramework(unittest.TestCase):
    def test_every_recorded_step(self):
        models = collections.defaultdict(set)
        for trace in traces():
            models[trace["model"]].add(trace["precision"])
            agreement, calls, missing, extra = difference(trace)
            allowed = KNOWN.get(trace["model"], {}).get(trace["precision"], [LEAST_AGREEMENT, MOST_CALLS_OFF])
            with self.subTest(model=trace["model"], precision=trace["precision"]):
                said = f"\nonly in PyTorch: {missing[:5]}\nonly in precog: {extra[:5]}"
                rounding = 0.0005 if trace["model"] in KNOWN else 0  # known differences are written down with three digits
                self.assertGreaterEqual(agreement + rounding, allowed[0], said)
                self.assertLessEqual(abs(calls) - rounding, allowed[1], said)
        self.assertGreaterEqual(len(models), 25)
        self.assertTrue(all(len(precisions) == 4 for precisions in models.values()))
        # Exceptions stay exceptions.
        self.assertLessEqual(sum(len(precisions) for precisions in KNOWN.values()), 0.2 * sum(map(len, models.values())))


class CostsWithoutMeasurement(unittest.TestCase):
    def test_borrowed_patterns_are_called_estimates(self):
        done = run("predict", "--model", CAPTURED / "lstm-language-model.precog.json.zst", "--gpu", "h200-sxm", "--profile", "none", "--precision", "fp32", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        kinds = {row["what"]: row["kind"] for row in json.loads(done.stdout)["provenance"]}
        self.assertEqual(kinds["recurrent"], "estimate")
        self.assertNotEqual(kinds["gemm"], "estimate")


def table():
    """For tools: one line per model and precision."""
    for trace in traces():
        agreement, calls, missing, extra = difference(trace)
        print(f"{trace['model']:26} {trace['precision']:9} {agreement:8.4f} {calls:+8.2%}  "
              + (f"{missing[:1]} {extra[:1]}" if agreement < LEAST_AGREEMENT else ""), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--table"]:
        table()
    else:
        unittest.main()
