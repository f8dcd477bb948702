"""The ONNX door against the zoo: the same architecture, exported by PyTorch and read back, predicts the same step.

The files in tests/data/onnx are made by tools/make_onnx_examples.py (weights stripped). What differs, and why it may:
docs/how_to/predict_an_onnx_model.md.
"""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from program import ROOT, run, run_json  # noqa: E402

FOLDER = ROOT / "tests" / "data" / "onnx"
PRECISIONS = ("fp32", "amp-bf16", "bf16")
GPUS = ("a100-sxm-80gb", "h200-sxm")
TOLERANCE = 0.05

# file, model of the zoo, sizes, more of them for the zoo (an export's depth cannot be changed)
CASES = [
    ("resnet50.onnx", "resnet50", ["--batch", 64], []),
    ("resnet50.dynamo.onnx", "resnet50", ["--batch", 64], []),
    ("vit-b.dynamo.onnx", "vit-b", ["--batch", 32], []),
    ("bert-base.onnx", "bert-base", ["--batch", 16, "--seq", 128], ["--layers", 4]),
    ("bert-base.dynamo.onnx", "bert-base", ["--batch", 16, "--seq", 128], []),
    ("gpt2.dynamo.onnx", "gpt2", ["--batch", 8, "--seq", 512], []),
    ("qwen2.5-0.5b.dynamo.onnx", "qwen2.5-0.5b", ["--batch", 4, "--seq", 1024], ["--layers", 4]),
    ("t5-base.dynamo.onnx", "t5-base", ["--batch", 8, "--seq", 128, "--src-seq", 256], ["--layers", 4]),
]


def predict(model, *flags):
    return run_json("predict", "--model", model, *flags, expected=(0, 3))


def table():
    """(file, gpu, precision, step error, busy error, memory error, kernels) of every case."""
    for file, zoo, sizes, depth in CASES:
        for gpu in GPUS:
            for precision in PRECISIONS:
                flags = [*sizes, "--gpu", gpu, "--precision", precision]
                ours, theirs = predict(FOLDER / file, *flags), predict(zoo, *flags, *depth)
                yield file, gpu, precision, ours, theirs


class AgainstTheZoo(unittest.TestCase):
    def test_step_and_memory(self):
        for file, gpu, precision, ours, theirs in table():
            with self.subTest(f"{file} {precision} {gpu}"):
                for field in ("step_s", "gpu_busy_s", "peak_bytes"):
                    error = ours[field] / theirs[field] - 1
                    self.assertLess(abs(error), TOLERANCE, f"{field}: {ours[field]:.6g} against {theirs[field]:.6g}")

    def test_small_batches_wait_for_the_host_alike(self):
        small = {"--batch": 2, "--seq": 64, "--src-seq": 64}
        for file, zoo, sizes, depth in CASES:
            flags = [item for flag in sizes[::2] for item in (flag, small[flag])]
            flags += ["--gpu", "h200-sxm", "--precision", "amp-bf16", "--host", "h200-vm"]
            with self.subTest(file):
                ours, theirs = predict(FOLDER / file, *flags), predict(zoo, *flags, *depth)
                error = ours["step_s"] / theirs["step_s"] - 1
                self.assertLess(abs(error), TOLERANCE, f"{ours['step_s']:.6g} against {theirs['step_s']:.6g}")

    def test_parameters_agree(self):
        for file, zoo, sizes, depth in CASES:
            with self.subTest(file):
                flags = [*sizes, "--gpu", "h200-sxm", "--precision", "bf16"]
                ours, theirs = predict(FOLDER / file, *flags), predict(zoo, *flags, *depth)
                # Buffers that a file holds or leaves out (positions, token types) are a few kB.
                self.assertAlmostEqual(ours["memory"]["parameters"], theirs["memory"]["parameters"], delta=40_000)


class TheDoor(unittest.TestCase):
    def test_a_request_names_a_file(self):
        request = {"schema": 1, "model": {"onnx": "resnet50.onnx"}, "batch": 8, "precision": "amp-bf16",
                   "cluster": {"gpu": "h200-sxm", "gpus": 1}}
        job = FOLDER / "job_for_test.json"
        job.write_text(json.dumps(request))
        try:
            done = run("predict", job, "--json")
        finally:
            job.unlink()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["step_s"], 0)

    def test_what_was_assumed_is_said(self):
        flags = ["--batch", 1, "--seq", 64, "--gpu", "h200-sxm", "--precision", "bf16"]
        warnings = " ".join(predict(FOLDER / "gpt2.dynamo.onnx", *flags)["warnings"])
        for said in ("no loss", "12 attentions", "12 of them causal", "leaves out the dropout of attention"):
            self.assertIn(said, warnings)

    def test_bad_files(self):
        whole = (FOLDER / "resnet50.onnx").read_bytes()
        path = FOLDER / "damaged_for_test.onnx"
        for content in (b"", b"\x00", b"no protobuf at all", whole[: len(whole) // 2], whole[100:], b"\xff" * 64):
            path.write_bytes(content)
            try:
                done = run("predict", "--model", path, "--batch", 2, "--gpu", "h200-sxm", "--precision", "bf16")
            finally:
                path.unlink()
            self.assertEqual(done.returncode, 2, content[:20])
            self.assertIn("damaged_for_test.onnx", done.stderr)

    def test_a_symbolic_sequence_must_be_said(self):
        model = FOLDER / "gpt2.dynamo.onnx"
        done = run("predict", "--model", model, "--batch", 2, "--gpu", "h200-sxm", "--precision", "bf16")
        self.assertEqual(done.returncode, 2)
        self.assertIn("seq", done.stderr)


if __name__ == "__main__":
    if "--table" in sys.argv:
        for file, gpu, precision, ours, theirs in table():
            fields = ("step_s", "gpu_busy_s", "peak_bytes", "kernels")
            errors = "  ".join(f"{100 * (ours[f] / theirs[f] - 1):+6.2f}%" for f in fields)
            print(f"{file:26} {gpu:14} {precision:9} {errors}  {ours['kernels']} / {theirs['kernels']} kernels")
    else:
        unittest.main()
