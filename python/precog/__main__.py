"""`python -m precog ...`, and `precog ...` where the package is installed.

  capture SCRIPT.py[:FUNCTION] -o GRAPH      the function returns (loss_fn, model); writes the captured graph
  measure SCRIPT.py[:FUNCTION] --precision P real steps on the local GPU; prints or appends a measured run
  host -o FILE.json                          how fast this machine feeds its GPU: a host description
  profile FILE                               operators and host of the local GPU
Everything else (predict, compare, validate, models, ...) goes to the program written in C++ as it is.
"""

from __future__ import annotations

import os
import sys
from typing import Sequence

from .errors import PrecogError

_OURS = ("capture", "host", "measure", "profile")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as the program's: 0 done, 2 wrong input, 1 our bug."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in _OURS:
            from . import commands
            return commands.run(given)
        if not given or given[0] in ("-h", "--help"):
            return _help(given)
        return _program(given)
    except PrecogError as error:
        for problem in error.problems:
            print(f"precog: error: {problem}", file=sys.stderr)
        return 1 if error.code == "bug" else 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("precog: interrupted", file=sys.stderr)
        return 130


def _program(given: list[str]) -> int:
    from . import _paths
    binary = str(_paths.binary())
    sys.stdout.flush()
    os.execv(binary, ["precog", *given])


def _help(given: list[str]) -> int:
    import subprocess

    from . import _paths
    code = subprocess.run([str(_paths.binary()), *given]).returncode
    print("\nIn Python (with PyTorch): precog capture | host | measure | profile; each has --help", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
