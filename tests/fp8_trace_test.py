"""fp8 layers against the real framework: steps whose linear layers run in fp8 by hand (python/precog/gpu/fp8.py, on torch._scaled_mm),
recorded on an H200 call by call (data/measured/2026-11-15-h200-precision, tools/gpu/precision_steps.py), and what the precision and
training passes derive for the recipes `fp8` and `fp8-rowwise`. As garden_trace_test.py does for the four main precisions.
"""

import json
import pathlib
import sys
import tempfile
import unittest

import framework_calls
from program import ROOT, run

sys.path.insert(0, str(ROOT / "python"))
from precog._library import decompress  # noqa: E402

TRACES = ROOT / "data" / "measured" / "2026-11-15-h200-precision" / "fp8_traces.jsonl.gz"
CAPTURED = ROOT / "tests" / "data"
# Models that are captured: where torchvision's attention copies its input, before or after autocast's cast, only a capture shows.
GRAPHS = {"vit-b": "captured/vit_b_16"}
LEAST_AGREEMENT = 0.99  # of bytes moved
MOST_CALLS_OFF = 0.02   # of calls that launch kernels


def traces():
    return framework_calls.recorded_steps(TRACES)


def derived(trace):
    model = {"name": trace["model"], "layers": trace["layers"]} if trace["layers"] else trace["model"]
    if trace["model"] in GRAPHS:
        model = {"graph": str(capture_of(trace))}
    job = {"model": model, "batch": trace["batch"], "precision": trace["precision"], "cluster": {"gpu": "h200-sxm"}}
    if trace["seq"]:
        job["seq"] = trace["seq"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        done = run("predict", path, "--dump-after", "training")
    if done.returncode not in (0, 3):
        raise AssertionError(done.stderr[:500])
    return framework_calls.our_calls(done.stdout, leaves(trace))


def capture_of(trace):
    return CAPTURED / f"{GRAPHS.get(trace['model'], 'captured_zoo/' + trace['model'])}.precog.json.zst"


def leaves(trace):
    """The model's parameters in fp32, by name, from the capture of the same zoo model."""
    document = json.loads(decompress(capture_of(trace).read_bytes()))
    found = framework_calls.leaves(document, "fp32")
    for name in list(found):  # a capture may be of fewer layers: the others are like the first
        if ".layers.0." in name:
            for layer in range(1, 100):
                found.setdefault(name.replace(".layers.0.", f".layers.{layer}."), found[name])
    return found


class Fp8LayersAgainstTheFramework(unittest.TestCase):
    def test_every_recorded_step(self):
        precisions = set()
        for trace in traces():
            precisions.add(trace["precision"])
            ours = derived(trace)
            for phase in ("forward", "backward"):
                real = list(framework_calls.real_calls(trace["phases"][phase]))
                share, missing, extra = framework_calls.compare(real, ours[phase])
                with self.subTest(model=trace["model"], precision=trace["precision"], phase=phase):
                    said = f"\nonly in PyTorch: {missing[:5]}\nonly in precog: {extra[:5]}"
                    self.assertGreaterEqual(share, LEAST_AGREEMENT, said)
                    self.assertLessEqual(abs(len(ours[phase]) / len(real) - 1), MOST_CALLS_OFF, said)
                    products = lambda calls: sum(any(dtype.startswith("fp8") for dtype, _ in call.inputs) and call.extents is not None for call in calls)
                    self.assertGreater(products(real), 0)
                    self.assertEqual(products(real), products(ours[phase]))
        self.assertEqual(precisions, {"fp8", "fp8-rowwise"})


if __name__ == "__main__":
    unittest.main()
