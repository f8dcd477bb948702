"""Runs the tests that meet precog from outside: its program, its data files, its documents, its Python package. Standard
library only; what needs torch says that it skips where there is none.

  python3 tests/run_all.py [FILE...]     all, or those files alone (capture_test.py)

Where PRECOG_TORCH_PYTHON is set, tools/run_tests runs those that need torch with that interpreter: not counted here.
"""

import collections
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = [ROOT / "tests", ROOT / "python" / "tests"]
for folder in FOLDERS:
    sys.path.insert(0, str(folder))


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
    patterns = sys.argv[1:] or ["*_test.py"]
    suite = unittest.TestSuite(unittest.TestLoader().discover(str(folder), pattern=pattern) for folder in FOLDERS for pattern in patterns)
    result = unittest.TextTestRunner(verbosity=1, resultclass=Result).run(suite)
    if os.environ.get("PRECOG_TORCH_PYTHON"):
        result.skipped = [(test, reason) for test, reason in result.skipped if not reason.startswith("torch is not installed")]
    by_reason = collections.Counter((test.id().split(".")[0], reason) for test, reason in result.skipped)
    for (file, reason), count in sorted(by_reason.items()):
        print(f"skipped {count} of {file}: {reason}")
    passed, failed, skipped = result.counts()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not (result.started or result.skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
