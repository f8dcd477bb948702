"""measure and profile on a pretended device: the CPU goes through the same lines as a GPU would, and figures mean nothing."""

import copy
import json
import pathlib
import tempfile
import unittest
import warnings

from package_support import HAS_TORCH, WITHOUT_TORCH, program

import precog

if HAS_TORCH:
    import torch
    import torch.nn.functional as F
    from torch import nn

    from precog.gpu.device import Device
    from precog.gpu.trainer import OPTIMIZERS, PRECISIONS
    torch.set_num_threads(1)


@unittest.skipUnless(HAS_TORCH, WITHOUT_TORCH)
class Measure(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(4 * 36, 10))
        image, target = torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,))
        self.model, self.image = model.eval(), image
        self.loss = lambda trained: F.cross_entropy(trained(image), target)

    def measure(self, **options):
        return precog.measure(self.loss, self.model, device=Device(dry_run=True), **options)

    def test_every_precision_and_all_is_as_before(self):
        self.model[0].weight.grad = torch.ones_like(self.model[0].weight)
        state, random = copy.deepcopy(self.model.state_dict()), torch.get_rng_state()
        switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        for precision in PRECISIONS:
            with self.subTest(precision):
                run = self.measure(precision=precision, request={"model": "resnet18", "batch": 2})
                self.assertGreater(run["measured"]["step_s"], 0)
                self.assertGreater(run["measured"]["kernels"], 10)
                self.assertTrue(run["measured"]["finite"])
                self.assertEqual(run["request"]["precision"], precision)
        for key, value in self.model.state_dict().items():
            self.assertEqual(value.dtype, state[key].dtype)
            self.assertTrue(torch.equal(value, state[key]), key)
        self.assertTrue(torch.equal(self.model[0].weight.grad, torch.ones_like(self.model[0].weight)))
        self.assertIsNone(self.model[5].weight.grad)
        self.assertFalse(any(module.training for module in self.model.modules()))
        self.assertFalse(self.model._forward_pre_hooks)
        self.assertEqual((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32), switches)
        self.assertTrue(torch.equal(torch.get_rng_state(), random))
        self.assertEqual(self.image.dtype, torch.float32)

    def test_every_optimizer(self):
        for optimizer in OPTIMIZERS:
            self.assertEqual(self.measure(optimizer=optimizer, steps=1, blocks=1)["request"]["optimizer"], optimizer)
        kernels = {form: self.measure(optimizer_impl=form, steps=1, blocks=1)["measured"]["kernels"] for form in ("foreach", "for-loop")}
        self.assertNotEqual(kernels["foreach"], kernels["for-loop"])

    def test_validate_reads_what_is_saved(self):
        path = self.folder / "runs.jsonl"
        for precision in ("fp32", "amp-bf16"):
            run = self.measure(precision=precision, request={"model": "resnet18", "batch": 2}, gpu="h200-sxm")
            run.save(path)
        done = program.run("validate", path, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["overall"]["predicted"], 2)

    def test_frozen_parameters_are_not_trained(self):
        every = self.measure(steps=1, blocks=1)["measured"]["kernels"]
        self.model[0].requires_grad_(False)
        self.assertLess(self.measure(steps=1, blocks=1)["measured"]["kernels"], every)

    def test_everything_is_put_back_after_a_failure(self):
        before = self.model[5].weight.detach().clone()
        image = self.image

        def fails(trained):
            trained(image)
            raise ValueError("mine")
        with self.assertRaisesRegex(ValueError, "mine"):
            precog.measure(fails, self.model, precision="bf16", device=Device(dry_run=True))
        self.assertTrue(torch.equal(self.model[5].weight, before))
        self.assertEqual(self.model[5].weight.dtype, torch.float32)

    def test_wrong_arguments(self):
        image = self.image
        for expected, call in (("precision: is 'fp8'", lambda: self.measure(precision="fp8")),
                               ("optimizer: is 'lion'", lambda: self.measure(optimizer="lion")),
                               ("returned a tensor of shape", lambda: precog.measure(lambda m: m(image), self.model, device=Device(True))),
                               ("model: is a int", lambda: precog.measure(self.loss, 3)),
                               ("no values", lambda: precog.measure(self.loss, nn.Linear(2, 2, device="meta"), device=Device(True)))):
            with self.assertRaisesRegex(precog.PrecogError, expected):
                call()
        if not torch.cuda.is_available():
            with self.assertRaises(precog.PrecogError) as caught:
                precog.measure(self.loss, self.model)
            self.assertEqual(caught.exception.code, "no_device")


@unittest.skipUnless(HAS_TORCH, WITHOUT_TORCH)
class Profile(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def profile(self, name, **options):
        return precog.profile(self.folder / name, device=Device(dry_run=True), progress=lambda *words: None, **options)

    def read(self, name):
        from precog.compression import decompress
        content = (self.folder / name).read_bytes()
        return [json.loads(line) for line in (decompress(content) if name.endswith(".zst") else content).splitlines()]

    def test_an_interrupted_file_goes_on(self):
        for name in ("a.jsonl", "a.jsonl.zst"):
            with self.subTest(name):
                first = self.profile(name, only=["gemm"])
                plain = self.folder / (name + ".part" if name.endswith(".zst") else name)
                lines = self.read(name)
                # As after a kill in the middle of a line: compressed files are still the plain part then.
                cut = "".join(json.dumps(line) + "\n" for line in lines[:10]) + '{"family": "ge'
                (self.folder / name).unlink()
                plain.write_text(cut)
                second = self.profile(name, only=["gemm"])
                self.assertEqual(second["measurements"], first["measurements"])
                self.assertEqual(second["new"], first["measurements"] - 9)
                self.assertEqual(self.profile(name, only=["gemm"])["new"], 0)
                self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(name)], [name])
                self.assertTrue(self.read(name)[0]["meta"]["torch"])

    def test_a_spent_budget_is_said(self):
        summary = self.profile("b.jsonl", only=["operators"], budget_s=3.4)  # of which 3 s are a reserve
        self.assertFalse(summary["complete"])
        self.assertRegex(" ".join(summary["notes"]), r"budget: operators stopped after \d+ of \d+ cases")

    def test_another_machines_file_is_refused(self):
        (self.folder / "c.jsonl").write_text(json.dumps({"meta": {"torch": "0.1"}}) + "\n")
        with self.assertRaisesRegex(precog.PrecogError, "was measured with another"):
            self.profile("c.jsonl", only=["gemm"])
        (self.folder / "d.jsonl").write_text("not a measurement\n")
        with self.assertRaisesRegex(precog.PrecogError, "line 1: is no measurement"):
            self.profile("d.jsonl", only=["gemm"])

    def test_wrong_arguments(self):
        with self.assertRaisesRegex(precog.PrecogError, "only: has 'x'; known are host, operators, gemm"):
            self.profile("e.jsonl", only=["x"])
        with self.assertRaisesRegex(precog.PrecogError, "there is no folder"):
            self.profile("no/e.jsonl")


if __name__ == "__main__":
    unittest.main()
