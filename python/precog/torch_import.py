"""Importing torch only when a function needs it, with an error that says what to install."""

from __future__ import annotations

import importlib
import re
from typing import Any

from .errors import PrecogError

OLDEST = (2, 4)


def import_torch(what: str) -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise PrecogError("not_installed", f"{what} needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, which this Python does not have: "
                          "pip install torch (predict and compare need it for nothing)") from error
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version and (int(version[1]), int(version[2])) < OLDEST:
        raise PrecogError("not_installed", f"{what} needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, this is {torch.__version__}")
    return torch
