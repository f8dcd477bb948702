"""Zstandard through whatever is there: precog's own library, Python's (3.14), the zstandard package, the zstd program.

Measuring must work on machines where the C++ part was not built; files of measurements are still best kept small.
"""

from __future__ import annotations

import importlib
import subprocess

from .errors import PrecogError


def compress(data: bytes) -> bytes:
    from . import _library
    try:
        return _library.compress(data)
    except PrecogError as error:
        if error.code != "not_installed":
            raise
    for module in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(module).compress(data)
        except ImportError:
            continue
    return _program(["zstd", "-q", "-12", "-c"], data)


def decompress(data: bytes, limit: int = 1 << 30) -> bytes:
    from . import _library
    try:
        return _library.decompress(data, limit)
    except PrecogError as error:
        if error.code != "not_installed":
            raise
    for module in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(module).decompress(data)
        except ImportError:
            continue
    return _program(["zstd", "-q", "-d", "-c"], data)


def _program(command: list[str], data: bytes) -> bytes:
    try:
        done = subprocess.run(command, input=data, capture_output=True)
    except FileNotFoundError:
        raise PrecogError("not_installed", "nothing here compresses with Zstandard: build precog's library, pip install zstandard, or "
                          "choose a file name that does not end in .zst") from None
    if done.returncode != 0:
        raise PrecogError("wrong_input", f"zstd: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
