"""What `precog profile` measures: the plan (no torch needed), and its cases made on a CPU, where figures mean nothing."""

import collections
import itertools
import json
import math
import pathlib
import tempfile
import unittest
import warnings
from unittest import mock

from package_support import HAS_TORCH, WITHOUT_TORCH

import precog
from precog.gpu.plan import FAMILIES, plan
from precog.gpu.plan import convolutions_gaps, gaps, thin_ops
from precog.gpu.plan.dense import Dice
from precog.gpu.plan.sampling import Draw, interleave, points

if HAS_TORCH:
    import torch

    import precog.profiling
    from precog.gpu import operators
    from precog.gpu.device import Device
    from precog.gpu.make import make
    torch.set_num_threads(1)


def lines_of(cases):
    return [json.dumps(case.line(op), sort_keys=True) for case in cases for op in case.ops]


class Plan(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.full, cls.quick = plan(), plan(quick=True)

    def test_it_is_the_same_every_time_and_nothing_is_in_it_twice(self):
        lines = lines_of(self.full)
        self.assertEqual(lines, lines_of(plan()))
        self.assertEqual([line for line, count in collections.Counter(lines).items() if count > 1], [])

    def test_quick_is_a_balanced_part_of_it(self):
        whole = set(lines_of(self.full))
        self.assertEqual([line for line in lines_of(self.quick) if line not in whole], [])
        self.assertLess(len(lines_of(self.quick)), len(whole) / 4)
        kinds = lambda cases: {(case.family, case.dtype) for case in cases if case.family != "sustained"}
        self.assertEqual(kinds(self.quick), kinds(self.full))

    def test_every_beginning_is_balanced(self):
        """A tenth of the plan holds about a tenth of each family, and something of each family and type."""
        begun = self.full[:len(self.full) // 10 * 2]
        whole, part = (collections.Counter(case.family for case in cases) for cases in (self.full, begun))
        for family, count in whole.items():
            if count > 40:
                self.assertGreater(part[family], 0.1 * count, family)
                self.assertLess(part[family], 0.5 * count, family)
        kinds = {(case.family, case.dtype) for case in self.full if case.family != "sustained"}
        self.assertEqual(kinds - {(case.family, case.dtype) for case in begun}, set())

    def test_what_the_product_promises_to_measure(self):
        dtypes = collections.defaultdict(set)
        for case in self.full:
            dtypes[case.family].add(case.dtype)
        for family in ("gemm", "conv", "grouped", "conv1d", "conv3d", "conv_transpose", "sdpa", "recurrent"):
            self.assertEqual(dtypes[family], {"fp32", "tf32", "fp16", "bf16"}, family)
        for family in ("depthwise", "elementwise", "pointwise", "rows", "broadcast", "reduce", "permute", "copies",
                       "index", "sort", "loss", "image", "norm", "pool", "resize", "vocabulary", "optimizer"):
            self.assertEqual(dtypes[family], {"fp32", "fp16", "bf16"}, family)
        self.assertEqual(dtypes["sustained"], {"fp16", "bf16", "tf32", "fp8"})
        ops = {(case.family, op) for case in self.full for op in case.ops}
        for wanted in (("gemm", "tn"), ("gemm", "nt+bias"), ("gemm", "bmm nn"), ("scaled_mm", "row"), ("conv", "wgrad"),
                       ("sdpa", "cudnn backward"), ("sdpa_gqa", "flash forward"), ("sdpa_mask", "efficient backward"),
                       ("rows", "layer_norm backward"), ("index", "scatter_add"), ("optimizer", "sgd fused"), ("optimizer", "unscale"), ("transfer", "h2d pageable"), ("sustained", "chain"),
                       ("elementwise", "zero_"), ("norm", "instance_norm backward"), ("resize", "bilinear backward"), ("sort", "topk")):
            self.assertIn(wanted, ops)
        self.assertGreater(sum("cold" in case.shape for case in self.full), 300)

    def test_no_case_is_beyond_a_common_gpu(self):
        for case in self.full:
            for key, value in case.shape.items():
                for number in value if isinstance(value, list) else [value]:
                    if isinstance(number, (int, float)) and key not in ("padding", "dropout", "causal", "cold", "inputs", "masked"):
                        self.assertGreater(number, 0, case)
                        self.assertLessEqual(number, 2 ** 28, case)
            if "cin" in case.shape:
                self.assertEqual((case.shape["cin"] % case.shape["groups"], case.shape["cout"] % case.shape["groups"]), (0, 0), case)

    def test_cases_of_thin_operators_fit_beside_others(self):
        """Four copies of the operands and of what a few calls make of them want a few gigabytes."""
        for name, (_, cases) in {**thin_ops.SHARES, **gaps.SHARES, **convolutions_gaps.SHARES}.items():
            drawn = list(itertools.islice(cases(Dice(name, small=False)), 400))
            self.assertGreater(len(set(map(repr, drawn))), 350, name)
            for case in drawn:
                s = case.shape
                sizes = [s.get("elements", 1), s.get("n", 1), s.get("tokens", 1) * s.get("hidden", 1), s.get("vocabulary", 1) * s.get("hidden", 1),
                         s.get("columns", 1) * max(s.get("rows", 1), s.get("picked", 1)), math.prod(s.get("shape", ())), math.prod((*s.get("shape", ())[:2], *s.get("to", ())))]
                self.assertTrue(all(1 <= size <= 2 ** 27 for size in sizes), case)

    def test_points_fill_the_space(self):
        """Each of 4 x 4 x 4 cells gets about ten of 640 points; random ones rarely would."""
        cells = collections.Counter(tuple(int(4 * value) for value in point) for point, _ in zip(points("any name", 3), range(640)))
        self.assertEqual(len(cells), 64)
        self.assertTrue(all(5 <= count <= 15 for count in cells.values()), cells)
        self.assertNotEqual(next(points("a", 3)), next(points("b", 3)))

    def test_sizes_are_ragged_and_round(self):
        sizes = [Draw(point, small=False).size(64, 8192) for point, _ in zip(points("sizes", 2), range(200))]
        self.assertTrue(all(64 <= size <= 8192 for size in sizes))
        self.assertGreater(sum(size % 64 == 0 for size in sizes), 60)
        self.assertGreater(sum(size % 8 != 0 for size in sizes), 20)

    def test_interleaving(self):
        self.assertEqual(interleave(["aaaa", "bb", "c"]), ["a", "b", "c", "a", "a", "b", "a"])


@unittest.skipUnless(HAS_TORCH, WITHOUT_TORCH)
class Rehearsal(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def profile(self, name, **options):
        return precog.profile(self.folder / name, device=Device(dry_run=True), progress=lambda *words: None, **options)

    def read(self, name):
        records = [json.loads(line) for line in (self.folder / name).read_text().splitlines()]
        return [record for record in records if "family" in record]

    def test_what_another_file_has_is_not_measured_again(self):
        first = self.profile("f.jsonl", only=["sort"])
        second = self.profile("g.jsonl", only=["sort", "loss"], known=[self.folder / "f.jsonl"])
        self.assertEqual(set(first["families"]), {"sort"})
        self.assertEqual(set(second["families"]), {"loss"})
        with self.assertRaisesRegex(precog.PrecogError, "no.jsonl: cannot be read"):
            self.profile("h.jsonl", only=["sort"], known=[self.folder / "no.jsonl"])
        (self.folder / "bad.jsonl").write_text("[1]\n{")
        with self.assertRaisesRegex(precog.PrecogError, "bad.jsonl: holds no measurements"):
            self.profile("h.jsonl", only=["sort"], known=[self.folder / "bad.jsonl"])

    def test_every_operator_of_the_plan_can_be_made(self):
        """Of one dtype, and of the families that a CPU takes long for one operator; a rehearsal on a CPU goes through all."""
        families = [name for name in FAMILIES if name not in ("conv", "depthwise", "grouped", "other convolutions", "recurrent")]
        without = lambda *words, **more: [case for case in plan(*words, **more) if case.dtype != "fp16"]
        with mock.patch.object(operators, "plan", without):
            summary = self.profile("i.jsonl", only=families)
        lines = self.read("i.jsonl")
        self.assertEqual([line for line in lines if "error" in line or not line["s"] > 0], [])
        self.assertEqual(summary["failed"], 0)
        measured = {(line["family"], line["op"]) for line in lines}
        missing = {(case.family, op) for case in plan(only=families) for op in case.ops} - measured
        # A CPU has neither of these attentions, and no fp8 products with several scales.
        self.assertEqual({op.split(" ")[0] for _, op in missing}, {"cudnn", "efficient", "row", "block", "chain"})
        self.assertTrue(all(line["rotated"] > 1 for line in lines if line.get("cold")))

    def test_thin_operators_can_be_made(self):
        for name, (_, cases) in {**thin_ops.SHARES, **gaps.SHARES}.items():
            for case in itertools.islice(cases(Dice(name, small=True)), 12):
                if case.dtype == "fp32" and math.prod(case.shape.get("shape", ())) < 2 ** 20:
                    made = make(case, "cpu")
                    for op in case.ops:
                        made[op].call()
                        self.assertGreater(made[op].bytes, 0, case)

    def test_convolutions_of_all_kinds(self):
        chosen = [case for case in plan(only=["conv", "grouped", "depthwise", "other convolutions", "recurrent"], small=True)
                  if case.dtype == "fp32" and case.shape.get("layout") != "nhwc"]
        with mock.patch.object(operators, "plan", lambda *words, **more: chosen):
            self.profile("j.jsonl", only=["operators"])
        lines = self.read("j.jsonl")
        self.assertEqual([line for line in lines if "error" in line], [])
        self.assertEqual(len(lines), sum(len(case.ops) for case in chosen))
        self.assertEqual({line["family"] for line in lines}, {
            "conv", "grouped", "depthwise", "conv1d", "conv3d", "conv_dilated", "conv_transpose", "recurrent",
            "recurrent_bidirectional"})

    def test_a_failing_case_is_recorded_and_the_rest_goes_on(self):
        def broken(case, device):
            if case.ops[0] == "topk":
                raise RuntimeError("no such kernel")
            return make(case, device)
        with mock.patch.object(operators, "make", broken):
            summary = self.profile("k.jsonl", only=["sort"])
        lines = self.read("k.jsonl")
        self.assertEqual({line["op"] for line in lines if "error" in line}, {"topk"})
        self.assertEqual(summary["failed"], 3)
        self.assertGreater(len([line for line in lines if "s" in line]), 5)

    def test_a_case_that_ended_the_process_is_not_tried_again(self):
        deadly = next(case for case in plan(only=["sort"], small=True) if case.ops == ("topk",))

        def ends(case, device):
            if case == deadly:
                raise SystemExit("killed")
            return make(case, device)
        killed = mock.patch.object(precog.profiling._File, "finish", lambda file: file.file.close())
        with mock.patch.object(operators, "make", ends), killed, self.assertRaises(SystemExit):
            self.profile("l.jsonl", only=["sort"])
        summary = self.profile("l.jsonl", only=["sort"])
        failed = [line for line in self.read("l.jsonl") if "error" in line]
        self.assertEqual([(line["op"], line["error"]) for line in failed], [("topk", "the process ended while this was measured")])
        self.assertEqual(summary["measurements"], len(lines_of(plan(only=["sort"], small=True))))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["l.jsonl"])

    def test_a_gpu_that_stops_answering_ends_the_sitting(self):
        def broken(case, device):
            if case.ops[0] == "topk":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return make(case, device)

        def dead(device):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        with mock.patch.object(operators, "make", broken), mock.patch.object(Device, "sync", dead):
            with mock.patch.object(operators, "gpu_seconds", lambda *words, **more: (1.0, 1.0, 1)):
                summary = self.profile("m.jsonl", only=["sort"])
        self.assertEqual((summary["lost"], summary["complete"]), (True, False))
        self.assertIn("no longer answers", summary["notes"][-1])


if __name__ == "__main__":
    unittest.main()
