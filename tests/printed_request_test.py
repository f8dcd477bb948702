"""What --print-request prints is a job of its own: read again it is the same job, with the same answer, on every GPU."""

import json
import unittest

from program import ROOT, run

GPUS = sorted(json.loads(path.read_text())["name"] for path in (ROOT / "data" / "gpus").glob("*.json"))


class EveryGpu(unittest.TestCase):
    def test_the_same_answer(self):
        for gpu in GPUS:
            with self.subTest(gpu):
                flags = ("predict", "--model", "bert-base", "--layers", 2, "--gpu", gpu, "--batch", 2, "--precision", "fp32")
                printed = run(*flags, "--print-request")
                self.assertEqual(printed.returncode, 0, printed.stderr)
                asked, again = run(*flags, "--json"), run("predict", "-", "--json", stdin=printed.stdout)
                self.assertEqual(again.returncode, asked.returncode, again.stderr)
                first, second = json.loads(asked.stdout), json.loads(again.stdout)
                self.assertEqual(first["request"], second["request"])
                self.assertEqual(first["step_s"], second["step_s"])
                self.assertEqual(first["memory"], second["memory"])


if __name__ == "__main__":
    unittest.main()
