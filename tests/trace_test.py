"""Our precision and training passes against the real framework: every cast, matrix product and normalisation that PyTorch
ran in recorded training steps on a GPU (data/measured, tools/gpu/part_traces.py), with its types and sizes, forward and
backward, must be what the passes derive from the one precision-free graph. Agreement is weighted by elements.
"""

import collections
import gzip
import json
import pathlib
import re
import tempfile
import unittest

from program import ROOT, run

TRACES = ROOT / "data" / "measured" / "2026-11-15-h200" / "dispatch_traces.jsonl.gz"
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i64": "int64", "bool": "bool", "i32": "int32", "u8": "uint8", "f64": "fp64"}
FLOATS = {"fp32", "fp16", "bf16"}


def product(shape):
    out = 1
    for extent in shape:
        out *= extent
    return out


def real_calls(calls):
    """Multiset of (what, types, sizes) from a recorded phase."""
    found = collections.Counter()
    for call in calls:
        name, inputs, outputs = call[0].split(".")[1], call[1], call[2]
        tensors = [(TYPES.get(t[0], t[0]), t[1]) for t in inputs if isinstance(t, list)]
        results = [(TYPES.get(t[0], t[0]), t[1]) for t in outputs if isinstance(t, list)]
        if name == "_to_copy" and tensors and tensors[0][0] != results[0][0] and {tensors[0][0], results[0][0]} <= FLOATS:
            found["cast", tensors[0][0] + " to " + results[0][0], product(results[0][1])] += 1
        elif name in ("mm", "addmm"):
            (dtype, a), (_, b) = tensors[-2:]
            found["product", dtype, (1, a[0], b[1], a[1])] += 1
        elif name in ("bmm", "baddbmm"):
            (dtype, a), (_, b) = tensors[-2:]
            found["product", dtype, (a[0], a[1], b[2], a[2])] += 1
        elif name in ("convolution", "convolution_backward"):
            found[name, tensors[0][0], product((results if name == "convolution" else tensors)[0][1])] += 1
        elif name in ("native_layer_norm", "native_layer_norm_backward"):
            found[name[len("native_"):], tensors[0][0], product(tensors[0][1])] += 1
        elif "batch_norm" in name:
            found["batch_norm_backward" if "backward" in name else "batch_norm", tensors[0][0], product(tensors[0][1])] += 1
        elif name.startswith("_scaled_dot_product"):
            found["attention_backward" if "backward" in name else "attention", tensors[0][0], product(results[0][1])] += 1
    return found


OUTPUT = re.compile(r"(%\d+|@[\w.]+):(\w+)\[([\d,]*)\]")


def our_calls(dump, parameter_type):
    """The same from `--dump-after training`, by phase."""
    found = collections.defaultdict(collections.Counter)
    types, phase = {}, ""
    for line in dump.splitlines():
        if line.startswith("== "):
            phase = line[3:]
            continue
        if " = " not in line:
            continue
        left, right = line.split(" = ", 1)
        outputs = [(name, dtype, [int(x) for x in shape.split(",") if x]) for name, dtype, shape in OUTPUT.findall(left)]
        for name, dtype, shape in outputs:
            types[name] = (dtype, shape)
        kind = right.split("(", 1)[0].split(".")[0].rstrip("_")
        operands = [types.get(name.strip(), (parameter_type, [])) for name in right.split("(", 1)[1].split(")", 1)[0].split(",") if name.strip()]
        into = found["forward" if phase == "forward" else phase]
        dtype, shape = outputs[0][1], outputs[0][2]
        if kind == "cast" and {operands[0][0], dtype} <= FLOATS:
            into["cast", operands[0][0] + " to " + dtype, product(shape)] += 1
        elif kind in ("linear", "mm", "bmm", "matmul"):
            sizes = tuple(int(x) for x in re.search(r"b=(\d+) m=(\d+) n=(\d+) k=(\d+)", right).groups())
            into["product", re.search(r"math=(\w+)", right).group(1), sizes] += 1
        elif kind == "conv2d":
            into["convolution", dtype, product(shape)] += 1
        elif kind == "conv2d_backward":
            into["convolution_backward", operands[0][0], product(operands[0][1])] += 1
        elif kind in ("layer_norm", "layer_norm_backward", "batch_norm", "batch_norm_backward"):
            into[kind, operands[0][0], product(operands[0][1])] += 1
        elif kind == "scaled_dot_product_attention":
            into["attention", operands[0][0], product(shape)] += 1
        elif kind == "attention_backward":
            into["attention_backward", operands[0][0], product(shape)] += 1
    return found


def weight(key):
    size = key[2]
    return size if isinstance(size, int) else size[0] * size[1] * size[2]


def orientation_free(counter):
    """cuBLAS computes a product or its transpose; both are the same work."""
    out = collections.Counter()
    for (what, dtype, size), count in counter.items():
        if what == "product":
            batch, m, n, k = size
            size = (batch, *sorted((m, n)), k)
        out[what, dtype, size] += count
    return out


def agreement(real, ours):
    shared = sum(weight(key) * count for key, count in (real & ours).items())
    total = max(sum(weight(key) * count for key, count in side.items()) for side in (real, ours))
    return shared / total if total else 1.0


class RealFramework(unittest.TestCase):
    def compare(self, trace):
        job = {"model": {"name": trace["model"], "layers": trace["layers"]} if trace["layers"] else trace["model"], "batch": trace["batch"],
               "precision": trace["precision"], "cluster": {"gpu": "h200-sxm"}}
        for key in ("seq", "src_seq"):
            if trace[key] and not (key == "src_seq" and trace["model"] != "t5-base"):
                job[key] = trace[key]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "job.json"
            path.write_text(json.dumps(job))
            done = run("predict", path, "--dump-after", "training")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        ours = our_calls(done.stdout, "fp32" if trace["precision"] != "bf16" else "bf16")
        for phase in ("forward", "backward"):
            real, derived = orientation_free(real_calls(trace["phases"][phase])), orientation_free(ours[phase])
            for what in sorted({key[0] for key in real} | {key[0] for key in derived}):
                pick = lambda side: collections.Counter({key: n for key, n in side.items() if key[0] == what})
                yield phase, what, pick(real), pick(derived)

    def test_every_recorded_step(self):
        if not TRACES.exists():
            self.skipTest("no recorded traces")
        with gzip.open(TRACES, "rt") as lines:
            traces = [json.loads(line) for line in lines]
        traces = [trace for trace in traces if "model" in trace]
        self.assertGreaterEqual(len(traces), 32)
        for trace in traces:
            for phase, what, real, derived in self.compare(trace):
                with self.subTest(model=trace["model"], precision=trace["precision"], phase=phase, what=what):
                    missing = dict(list((real - derived).items())[:6])
                    extra = dict(list((derived - real).items())[:6])
                    self.assertGreaterEqual(agreement(real, derived), 0.99, f"\nonly in PyTorch: {missing}\nonly in precog: {extra}")


if __name__ == "__main__":
    unittest.main()
