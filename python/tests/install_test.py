"""`pip install .` into a fresh environment, without a network: the package, its library, its data and its command are there."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from package_support import BUILD, ROOT, SMALL, program

import precog


@unittest.skipUnless((BUILD / "CMakeCache.txt").is_file(), f"{BUILD} is not a build folder")
class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([sys.executable, "-m", "venv", str(cls.folder / "venv")], check=True, capture_output=True)
        cls.environment = {key: value for key, value in os.environ.items() if not key.startswith(("PRECOG", "PYTHON", "PIP"))}
        cls.environment["PIP_CACHE_DIR"] = str(cls.folder / "cache")

    def run_in(self, *command, code=0):
        program_path = self.folder / "venv" / "bin" / command[0]
        done = subprocess.run([str(program_path), *map(str, command[1:])], cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout

    def test_install(self):
        self.run_in("pip", "install", "--no-index", "--config-settings", f"build-dir={BUILD}", ROOT)
        (self.folder / "job.json").write_text(json.dumps(SMALL))
        code = "import precog, sys; assert 'torch' not in sys.modules; sys.stdout.write(precog.predict('job.json').to_json())"
        expected = program.run("predict", self.folder / "job.json", "--json").stdout
        self.assertEqual(self.run_in("python", "-c", code), expected)
        self.assertEqual(self.run_in("precog", "predict", "job.json", "--json"), expected)  # its own program, its own data
        where = self.run_in("python", "-c", "import precog; print(precog.__file__)")
        self.assertTrue(where.startswith(str(self.folder / "venv")), where)
        self.assertIn(f"Version: {precog.__version__}", self.run_in("pip", "show", "precog"))
        self.run_in("pip", "check")
        self.run_in("pip", "uninstall", "-y", "precog")
        self.assertEqual(list((self.folder / "venv").rglob("precog*")), [])

        self.run_in("pip", "install", "--no-index", "--config-settings", f"build-dir={BUILD}", "-e", ROOT)
        where = self.run_in("python", "-c", "import precog; print(precog.__file__)")
        self.assertEqual(pathlib.Path(where.strip()), ROOT / "python" / "precog" / "__init__.py")


if __name__ == "__main__":
    unittest.main()
