"""The four doors against each other: the same architecture captured from PyTorch, read from its Hugging Face
configuration, from its ONNX export, and from the zoo predicts the same step.

The captures in tests/data/captured_zoo are made by tools/capture_zoo.py. All requests of a test go through one
`precog validate`, which predicts them in one process.

  python3 tests/captured_test.py --table     every difference, worst first
"""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from program import ROOT, run  # noqa: E402

FOLDER = ROOT / "tests" / "data" / "captured_zoo"
ONNX = ROOT / "tests" / "data" / "onnx"
PRECISIONS = ("fp32", "tf32", "fp32-default", "fp16", "bf16", "amp-fp16", "amp-bf16")
ALLOWED = {"zoo": 0.02, "config": 0.025, "onnx": 0.06}  # what a model's Python calls between operators only the capture knows
# Steps in which the host counts: the captures have some small operators more (masks, scales of positions), and the host's figures of 2026-11-16 charge more for these.
KNOWN: dict[tuple[str, str], float] = {("zoo", "t5-base"): 0.036, ("config", "t5-base"): 0.036, ("config", "t5-v1_1-base"): 0.04, ("onnx", "t5-base"): 0.066,
                                       ("zoo", "vit-b"): 0.03, ("zoo", "vit-l"): 0.03, ("config", "qwen1.5-moe"): 0.034,
                                       ("config", "moonlight"): 0.028, ("config", "qwen3-30b-a3b"): 0.031}  # experts: rows read and added by index, strided gates

IMAGES, TEXT, PAIRS = {"batch": 32}, {"batch": 4, "seq": 512}, {"batch": 8, "seq": 128, "src_seq": 256}
TINY = {"batch": 2, "seq": 32, "src_seq": 32}
# Which zoo model a capture is, the depth of the capture where it is not the whole model, and its ONNX files.
ZOO = {"bert-base": None, "deepseek-v3": 4, "gpt-neox-20b": 2, "gpt2": None, "llama3-8b": 2, "mistral-7b": 2, "mixtral-8x7b": 2,
       "mobilenet_v2": None, "qwen2.5-0.5b": 4, "resnet18": None, "resnet50": None, "t5-base": 4, "vgg16": None, "vit-b": None, "vit-l": None}
EXPORTS = {"bert-base": ["bert-base.dynamo.onnx"], "gpt2": ["gpt2.dynamo.onnx"], "qwen2.5-0.5b": ["qwen2.5-0.5b.dynamo.onnx"],
           "resnet50": ["resnet50.onnx", "resnet50.dynamo.onnx"], "t5-base": ["t5-base.dynamo.onnx"], "vit-b": ["vit-b.dynamo.onnx"]}
FAMILIES = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "phi", "gpt2", "gpt_neox", "opt", "bert",
            "roberta", "t5", "deepseek_v3", "vit"}


def captures():
    return sorted(path.name.removesuffix(".precog.json.zst") for path in FOLDER.glob("*.precog.json.zst"))


def config_of(name):
    path = FOLDER / f"{name}.config.json"
    return json.loads(path.read_text()) if path.exists() else None


def sizes_of(name):
    config = config_of(name)
    if config is None or config["model_type"] == "vit":
        return IMAGES
    return PAIRS if config["model_type"] == "t5" else TEXT


def doors(name):
    """(door, model and depth as a request says them) beside the capture."""
    if name in ZOO:
        yield "zoo", {"model": {"name": name, "layers": ZOO[name]} if ZOO[name] else name}
    if config_of(name):
        yield "config", {"model": {"hf_config": str(FOLDER / f"{name}.config.json")}}
    for export in EXPORTS.get(name, []):
        yield "onnx", {"model": {"onnx": str(ONNX / export)}}


def requests(names):
    """(case, door, request): the capture's own request of each case has the door "captured"."""
    for name in names:
        sizes = sizes_of(name)
        every = [(gpu, precision, sizes, {}) for gpu in ("h200-sxm", "a100-sxm-80gb") for precision in PRECISIONS]
        tiny = {key: TINY[key] for key in sizes}
        every += [("h200-sxm", precision, tiny, {"host": "h200-vm"}) for precision in ("fp32", "amp-bf16")]
        for gpu, precision, chosen, more in every:
            case = f"{name} {gpu} {precision}{' small' if more else ''}"
            for door, model in [("captured", {"model": {"graph": str(FOLDER / f"{name}.precog.json.zst")}}), *doors(name)]:
                if door == "onnx" and precision not in ("fp32", "amp-bf16", "bf16"):
                    continue
                yield case, door, {"schema": 1, **model, **chosen, "precision": precision, "cluster": {"gpu": gpu, "gpus": 1}, **more}


def predicted(asked):
    """{id: (step_s, peak_bytes)} of requests by id, all in one process."""
    with tempfile.TemporaryDirectory() as folder:
        runs = pathlib.Path(folder) / "runs.jsonl"
        runs.write_text("".join(json.dumps({"id": key, "source": "none: asked for its prediction", "request": request, "measured": {"step_s": 1.0}})
                                + "\n" for key, request in asked.items()))
        done = run("validate", runs, "--json", timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert not report["unpredicted"], report["unpredicted"][:3]
    return {entry["id"]: (entry["predicted_s"], entry["predicted_peak_bytes"]) for entry in report["runs"]}


def differences(names):
    """(case, door, captured step, the door's step, captured peak, the door's peak)."""
    asked = {}
    for number, (case, door, request) in enumerate(requests(names)):
        asked[f"{number} {door} {case}"] = request
    steps = predicted(asked)
    captured = None
    for key in asked:  # the capture stands before the others of its case
        _, door, case = key.split(" ", 2)
        if door == "captured":
            captured = steps[key]
        else:
            yield case, door, captured[0], steps[key][0], captured[1], steps[key][1]


class TheDoorsAgree(unittest.TestCase):
    def test_at_every_precision(self):
        seen = {door: set() for door in ALLOWED}
        for case, door, ours, theirs, _, _ in differences(captures()):
            seen[door].add(case.split()[0])
            with self.subTest(f"{door} {case}"):
                self.assertLessEqual(abs(theirs / ours - 1), KNOWN.get((door, case.split()[0]), ALLOWED[door]), f"captured {ours:.6g} s, {door} {theirs:.6g} s")
        self.assertEqual(seen["zoo"], set(ZOO))
        self.assertEqual(seen["onnx"], set(EXPORTS))
        self.assertGreaterEqual({config_of(name)["model_type"] for name in seen["config"]}, FAMILIES)

    def test_another_batch_than_the_captured_one(self):
        steps = predicted({str(batch): {"schema": 1, "model": {"graph": str(FOLDER / "gpt2.precog.json.zst")}, "batch": batch, "seq": 1024,
                                        "precision": "bf16", "cluster": {"gpu": "h200-sxm", "gpus": 1}} for batch in (8, 16, 32)})
        self.assertLess(steps["8"][0], steps["16"][0])
        self.assertLess(steps["16"][0], steps["32"][0])


if __name__ == "__main__":
    if "--table" in sys.argv:
        names = [item for item in sys.argv[1:] if item != "--table"] or captures()
        for case, door, ours, theirs, peak, their_peak in sorted(differences(names), key=lambda row: -abs(row[3] / row[2] - 1) / ALLOWED[row[1]]):
            verdict = "" if abs(theirs / ours - 1) <= ALLOWED[door] else "  over"
            print(f"{door:7} {case:44} step {100 * (theirs / ours - 1):+7.2f} %  peak {100 * (their_peak / peak - 1):+7.2f} %{verdict}")
    else:
        unittest.main()
