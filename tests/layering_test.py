"""Includes point up the pipeline only: a stage may use those before it in CMakeLists.txt's list, never those after."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def stages():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"set\(PRECOG_STAGES ([^)]*)\)", text).group(1).split()


def violations(sources, order):
    found = []
    for stage, name, text in sources:
        for included in re.findall(r'^#include "(\w+)/', text, re.M):
            if included in order and order.index(included) > order.index(stage):
                found.append(f"{name} includes {included}/")
    return found


class Layering(unittest.TestCase):
    def sources(self):
        for path in sorted((ROOT / "src").rglob("*")):
            if path.suffix in (".h", ".cpp") and not path.name.endswith("_test.cpp"):
                yield path.relative_to(ROOT / "src").parts[0], str(path.relative_to(ROOT)), path.read_text()

    def test_every_folder_is_a_stage(self):
        folders = {path.name for path in (ROOT / "src").iterdir() if path.is_dir()}
        self.assertEqual(folders, set(stages()))

    def test_includes_point_up(self):
        self.assertEqual(violations(self.sources(), stages()), [])

    def test_the_check_can_fail(self):
        wrong = [("graph", "src/graph/x.h", '#include "cost/cost.h"\n')]
        self.assertEqual(len(violations(wrong, stages())), 1)

    def test_the_engine_knows_only_base(self):
        for stage, name, text in self.sources():
            if stage == "sim":
                self.assertEqual(set(re.findall(r'^#include "(\w+)/', text, re.M)) - {"base", "sim"}, set(), name)


if __name__ == "__main__":
    unittest.main()
