"""Calling the program under test: PRECOG names the binary, the release build by default."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = pathlib.Path(os.environ.get("PRECOG", ROOT / "build" / "release" / "precog")).resolve()


def run(*arguments, cwd=ROOT, timeout=60, stdin=None):
    return subprocess.run([str(BINARY), *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=timeout, input=stdin)


def run_json(*arguments, expected=(0,)):
    done = run(*arguments, "--json")
    assert done.returncode in expected, f"exit {done.returncode}: {done.stderr}{done.stdout[-500:]}"
    return json.loads(done.stdout)
