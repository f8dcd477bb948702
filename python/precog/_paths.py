"""Where the parts written in C++ are: in the installed package, or in the checkout that this file is part of.

PRECOG_LIBRARY, PRECOG_BINARY and PRECOG_DATA name others, for tests and packagers.
"""

from __future__ import annotations

import os
import pathlib

from .errors import PrecogError

_PACKAGE = pathlib.Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent
_BUILDS = ("release", "dev")  # a sanitizer's build does not load into an ordinary Python


def _found(variable: str, installed: str, in_checkout: list[pathlib.Path], what: str) -> pathlib.Path:
    given = os.environ.get(variable)
    if given:
        path = pathlib.Path(given)
        if not path.exists():
            raise PrecogError("not_installed", f"{variable} is {given!r}, and nothing is there")
        return path.resolve()
    places = [_PACKAGE / "_native" / installed]
    if (_CHECKOUT / "CMakeLists.txt").is_file():
        places += in_checkout
    for place in places:
        if place.exists():
            return place
    raise PrecogError("not_installed", f"{what} is not there: run `make build` in the checkout, or `pip install .`, or set "
                      f"{variable} to its path; looked in " + ", ".join(str(place) for place in places))


def library() -> pathlib.Path:
    return _found("PRECOG_LIBRARY", "lib/libprecog.so", [_CHECKOUT / "build" / name / "libprecog.so" for name in _BUILDS],
                  "precog's library (libprecog.so)")


def binary() -> pathlib.Path:
    return _found("PRECOG_BINARY", "bin/precog", [_CHECKOUT / "build" / name / "precog" for name in _BUILDS], "the program precog")


def data() -> pathlib.Path:
    return _found("PRECOG_DATA", "share/precog/data", [_CHECKOUT / "data"], "precog's data folder")
