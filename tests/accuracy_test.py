"""The recorded accuracy is a golden: a change that moves predictions must be seen, explained and written down."""

import os
import subprocess
import sys
import unittest

from program import BINARY, ROOT


class Accuracy(unittest.TestCase):
    def test_figures_in_the_documents_are_what_the_program_says(self):
        done = subprocess.run([sys.executable, str(ROOT / "tools" / "accuracy"), "--check"], cwd=ROOT, capture_output=True, text=True,
                              env={**os.environ, "PRECOG": str(BINARY)}, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
