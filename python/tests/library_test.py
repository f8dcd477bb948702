"""The shared library from outside: what it shows, and that C itself can use it."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from package_support import LIBRARY, ROOT, SMALL

import precog
from precog import _library

HEADER = ROOT / "include" / "precog" / "precog.h"
MAIN = r"""
#include <precog/precog.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  precog_catalog* catalog = NULL;
  char* text = NULL;
  if (argc != 3 || precog_open(argv[1], &catalog, &text) != PRECOG_DONE) return 9;
  precog_status status = precog_predict(catalog, argv[2], strlen(argv[2]), NULL, &text);
  fputs(text, stdout);
  precog_free(text);
  precog_close(catalog);
  return status;
}
"""


class Library(unittest.TestCase):
    def test_only_the_interface_is_visible(self):
        declared = set(re.findall(r"PRECOG_API [^;]*?\b(precog_\w+)\(", HEADER.read_text()))
        self.assertGreater(len(declared), 8)
        listed = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
        self.assertEqual({line.split()[-1].split("@")[0] for line in listed.splitlines()}, declared)

    @unittest.skipUnless(shutil.which("gcc"), "gcc is not installed")
    def test_c_can_use_it(self):
        with tempfile.TemporaryDirectory() as folder:
            source, binary = pathlib.Path(folder) / "main.c", pathlib.Path(folder) / "main"
            source.write_text(MAIN)
            library = LIBRARY.resolve()
            subprocess.run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(ROOT / "include"), str(source), "-o",
                            str(binary), str(library), f"-Wl,-rpath,{library.parent}"], check=True)
            done = subprocess.run([str(binary), str(ROOT / "data"), json.dumps(SMALL)], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (0, precog.predict(SMALL).to_json()))
            done = subprocess.run([str(binary), str(ROOT / "data"), "{"], capture_output=True, text=True)
            self.assertEqual((done.returncode, json.loads(done.stdout)["code"]), (2, "wrong_input"))

    def test_versions_agree(self):
        cmake = re.search(r"project\(precog VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
        self.assertEqual({cmake, project, precog.__version__, _library.version()}, {cmake})


if __name__ == "__main__":
    unittest.main()
