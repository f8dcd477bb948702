"""What the package's tests share: the package of this checkout, over the library that was built beside the program under test."""

import importlib.util
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
for folder in (ROOT / "tests", ROOT / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import program  # noqa: E402

# A sanitizer's library does not load into an ordinary Python: the optimised build has the same answers.
BUILD = program.BINARY.parent.parent / "release" if program.BINARY.parent.name == "asan" else program.BINARY.parent
LIBRARY = pathlib.Path(os.environ.setdefault("PRECOG_LIBRARY", str(BUILD / "libprecog.so")))
HAS_TORCH = importlib.util.find_spec("torch") is not None
WITHOUT_TORCH = "torch is not installed in this Python; run python3 tests/run_all.py with one that has it"

SMALL = {"model": "bert-base", "batch": 4, "seq": 64, "precision": "amp-bf16", "cluster": {"gpu": "h100-sxm", "gpus": 2}}


def environment(**extra):
    """For programs that a test starts: the package and its library."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "PRECOG_LIBRARY": str(LIBRARY.resolve()),
            "PRECOG_BINARY": str(program.BINARY), **extra}
