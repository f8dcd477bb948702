"""predict, compare and validate: requests as Python values, answers as values with attributes."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Mapping

from . import _library
from .errors import wrong_input
from .report import Comparison, Fields, Report
from .request import folder_of, request_text

__all__ = ["compare", "known", "predict", "validate"]

Request = Mapping[str, Any] | str | os.PathLike[str]


def predict(request: Request | None = None, /, **overrides: Any) -> Report:
    """Predicts one training step.

    `request` is a job (a mapping as in a job file, or a job file's path); keyword arguments override its fields and may
    stand alone. Beside the request's own fields they may be the command line's short names: `gpu`, `gpus`, `network`,
    `dp`, `tp`, `tokens`, `price`, ... "model" may be a name, a path, or what `precog.capture` returned.

    A job that does not fit in memory is an answer (`report.fits` is False); a wrong one raises PrecogError with every
    problem found.
    """
    return Report.from_json(_library.predict(request_text(request, overrides), folder_of(request)))


def compare(request: Request | None = None, /, **overrides: Any) -> Comparison:
    """The same job at every precision its GPU has hardware for, fastest first.

    Takes what `predict` takes; `precision` may be a list of names (or of recipes). A single one in the request is ignored,
    so that a job file serves both. `advise=True`, or the precision that you run now (`advise="amp-bf16"`), adds `advice`:
    changes that would save time, each predicted, largest gain first. `all=True` tries the recipes that are not listed too.
    """
    text = request_text(request, overrides, single_precision=isinstance(overrides.get("precision"), str))
    return Comparison.from_json(_library.compare(text, folder_of(request)))


def validate(runs: str | os.PathLike[str], by: str | list[str] = "precision") -> Fields:
    """Predicts every measured run of a file (JSON lines or CSV) and says how far off it was: `precog validate --json`."""
    path = pathlib.Path(runs)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise wrong_input(str(path), f"cannot be read: {error.strerror}") from error
    return Fields.of(json.loads(_library.validate(content, str(path), by if isinstance(by, str) else ",".join(by))))


def known(kind: str) -> list[str]:
    """The names that requests may use: "gpus", "clusters", "networks", "hosts", "precisions", "models" or "software"."""
    return _library.names(kind)
