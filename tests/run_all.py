"""Runs the tests that meet precog from outside: its program, its data files, its documents. Standard library only."""

import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


class Result(unittest.TextTestResult):
    """Keeps the ids of what ran, so that a test of many parts counts once however many of them fail."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.started = set()

    def startTest(self, test):
        super().startTest(test)
        self.started.add(test.id())

    def ids(self, entries):
        return {getattr(test, "test_case", test).id() for test in entries}  # a part's test_case is the test it belongs to

    def counts(self):
        failed = self.ids([test for test, _ in self.failures + self.errors] + self.unexpectedSuccesses)
        skipped = self.ids([test for test, _ in self.skipped]) - failed
        return len(self.started - failed - skipped), len(failed), len(skipped)


def main() -> int:
    os.chdir(ROOT)
    suite = unittest.defaultTestLoader.discover(str(ROOT / "tests"), pattern="*_test.py")
    result = unittest.TextTestRunner(verbosity=1, resultclass=Result).run(suite)
    for test, reason in result.skipped:
        print(f"skipped {test.id()}: {reason}")
    passed, failed, skipped = result.counts()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not result.started else 0


if __name__ == "__main__":
    sys.exit(main())
