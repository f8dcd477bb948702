"""`python -m precog`: passes through to the program, and says what was expected of a script."""

import json
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

from package_support import HAS_TORCH, SMALL, WITHOUT_TORCH, environment, program

from precog import PrecogError
from precog.gpu.names import KNOWN, gpu_name
from precog.script import Script
import precog


def run(*arguments, cwd):
    command = [sys.executable, "-m", "precog", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, env=environment())


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, text):
        (self.folder / "my_model.py").write_text(textwrap.dedent(text))
        return str(self.folder / "my_model.py")


class PassingThrough(InFolder):
    def test_the_program_answers(self):
        (self.folder / "job.json").write_text(json.dumps(SMALL))
        for arguments in (["predict", "job.json", "--json"], ["compare", "job.json"], ["gpus"], ["predict"], ["nonsense"]):
            through = run(*arguments, cwd=self.folder)
            itself = program.run(*arguments, cwd=self.folder)
            for part in ("returncode", "stdout", "stderr"):
                self.assertEqual(getattr(through, part), getattr(itself, part), arguments)

    def test_help(self):
        done = run("--help", cwd=self.folder)
        self.assertEqual(done.returncode, 0)
        for word in ("predict", "compare", "capture", "host", "measure", "profile"):
            self.assertIn(word, done.stdout)
        for command in ("capture", "host", "measure", "profile"):
            self.assertIn("Example: precog", run(command, "--help", cwd=self.folder).stdout)

    @unittest.skipIf(HAS_TORCH, "torch is installed here")
    def test_what_is_missing_is_said(self):
        for command in (["capture", "x.py", "-o", "x.zst"], ["measure", "x.py"], ["profile", "x.jsonl"], ["host", "-o", "x.json"]):
            done = run(*command, cwd=self.folder)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("pip install torch", done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        with self.assertRaises(PrecogError) as caught:
            precog.capture(lambda model: None, None)
        self.assertEqual(caught.exception.code, "not_installed")


class Scripts(InFolder):
    def wrong(self, text, expected, name=""):
        with self.assertRaises(PrecogError) as caught:
            Script(self.script(text) + name)
        self.assertEqual(caught.exception.code, "wrong_input")
        self.assertRegex(str(caught.exception), expected)

    def test_wrong_scripts(self):
        self.wrong("def make(): pass", "there is no build in it; its functions are make. Wanted: a function that returns")
        self.wrong("build = 3", "is a int, not a function")
        self.wrong("def build(:", "line 1: is not Python")
        self.wrong("import no_such_module", "failed while it was read: ModuleNotFoundError")
        self.wrong("def build(width): pass", "wants an argument 'width'; it may take batch, seq, src_seq")
        self.wrong("def build(): pass", "there is no other in it; its functions are build", ":other")
        with self.assertRaisesRegex(PrecogError, "nowhere.py: is not there"):
            Script("nowhere.py:build")

    def test_right_scripts(self):
        for text, sizes in (("def build(): pass", False), ("def build(batch=8, width=3): pass", True), ("def build(*, seq): pass", True),
                            ("def build(**sizes): pass", True)):
            self.assertEqual(Script(self.script(text)).takes_sizes(), sizes, text)

    @unittest.skipUnless(HAS_TORCH, WITHOUT_TORCH)
    def test_what_it_returns(self):
        head = "import torch\nmodel = torch.nn.Linear(2, 2)\n"
        for text, expected in (("def build(): return 3", "returned a int; wanted is a function that returns"),
                               ("def build(): pass", "returned nothing"),
                               ("def build(): return 1, 2", "no torch.nn.Module among them"),
                               ("def build(): return model, 3", "returned a int beside the model"),
                               ("def build(): return model, 3, 4", "returned 3 things")):
            with self.assertRaisesRegex(PrecogError, expected):
                Script(self.script(head + text)).build({}, None)
        with self.assertRaisesRegex(PrecogError, r"my_model.py, line 3: build\(\) failed: ZeroDivisionError"):
            Script(self.script(head + "def build(): return 1 / 0")).build({}, None)
        for order in ("model, len", "len, model"):
            self.assertIs(Script(self.script(f"{head}def build(): return {order}")).build({}, None)[0], len)
        with self.assertRaisesRegex(PrecogError, "--batch: build.. in .* takes no argument 'batch'"):
            Script(self.script(head + "def build(): return len, model")).build({"batch": 3}, None)
        with self.assertRaisesRegex(PrecogError, "wants seq: give --seq"):
            Script(self.script(head + "def build(seq): return len, model")).build({}, None)


class GpuNames(unittest.TestCase):
    def test_every_name_is_known(self):
        self.assertLessEqual({name for name, _ in KNOWN}, set(precog.known("gpus")))

    def test_drivers_names(self):
        for driver, name in {"NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H200": "h200-sxm", "NVIDIA H100 PCIe": "h100-pcie",
                             "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb", "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
                             "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "Tesla V100-SXM2-16GB": "v100-sxm2-16gb", "Tesla T4": "t4",
                             "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti", "NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA L4": "l4",
                             "NVIDIA L40S": "l40s", "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada", "NVIDIA GB200": "gb200",
                             # neighbours that are other GPUs
                             "NVIDIA GeForce RTX 3090 Ti": None, "NVIDIA A10G": None, "NVIDIA GeForce RTX 4090 Laptop GPU": None,
                             "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None, "NVIDIA L40": None, "": None}.items():
            self.assertEqual(gpu_name(driver), name, driver)


if __name__ == "__main__":
    unittest.main()
