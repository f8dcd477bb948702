"""A request as the user gives it (mapping, job file, keyword arguments, captured graphs) to the JSON that the library reads.

What is right is decided by the library; here only the form changes. Short names go where the command line's flags go.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from typing import Any, Mapping

from .errors import wrong_input
from .graph_files import file_of

# Short name -> the object of the request it belongs to: the command line's flags.
SHORT = {
    **{name: "cluster" for name in ("gpu", "gpus", "gpus_per_node", "network")},
    **{name: "plan" for name in ("dp", "fsdp", "shard_size", "offload", "offload_layers", "tp", "sp", "pp", "vpp", "schedule", "cp", "ep")},
    **{name: "run" for name in ("tokens", "samples", "epochs", "steps", "dataset_samples")},
}
LENGTHS = ("tokens", "samples", "epochs", "steps")


def folder_of(request: Any) -> str:
    """What paths in the request are relative to: a job file's own folder, else the process's."""
    return os.path.dirname(os.fspath(request)) if isinstance(request, (str, os.PathLike)) else ""


def request_text(request: Any, overrides: Mapping[str, Any], single_precision: bool = True) -> str:
    """`single_precision`: whether one precision's name is meant; else it is left out, and lists stay."""
    job = _job(request)
    _override(job, overrides)
    if not single_precision and not isinstance(job.get("precision"), (list, tuple)):
        job.pop("precision", None)
    if "model" in job:
        job["model"] = _model(job["model"])
    try:
        return json.dumps(_plain(job, "request"), allow_nan=False)
    except RecursionError:
        raise wrong_input("request", "contains itself") from None


def _job(request: Any) -> dict[str, Any]:
    if request is None:
        return {}
    if isinstance(request, Mapping):
        return dict(request)
    if isinstance(request, (str, os.PathLike)):
        path = pathlib.Path(request)
        try:
            job = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise wrong_input(str(path), f"cannot be read as a job file: {error.strerror}; a model's name goes into model=") from error
        except (ValueError, RecursionError) as error:
            raise wrong_input(str(path), f"is not JSON: {error}") from error
        if not isinstance(job, dict):
            raise wrong_input(str(path), 'wants an object: a request such as {"model": ..., "batch": ...}')
        return job
    raise wrong_input("request", f"is a {type(request).__name__}; a mapping or a job file's path is wanted")


def _override(job: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    if any(name in overrides for name in LENGTHS) and isinstance(job.get("run"), Mapping):
        job["run"] = {key: value for key, value in job["run"].items() if key not in LENGTHS}
    # layers= speaks of the model, so it comes after model= whatever the order they were written in.
    for name, value in sorted(overrides.items(), key=lambda item: item[0] == "layers"):
        name = {"price": "price_usd_per_gpu_hour", "from_": "from"}.get(name, name)  # "from" is a word of Python's own
        if name == "layers":
            model = job.get("model")
            job["model"] = {**(model if isinstance(model, Mapping) else {"name": model}), "layers": value}
        elif name in SHORT:
            outer = job.get(SHORT[name])
            if isinstance(outer, str) and SHORT[name] == "cluster":
                outer = {"name": outer}
            if outer is not None and not isinstance(outer, Mapping):
                raise wrong_input(f"request.{SHORT[name]}", f"must be an object for {name}= to override a part of it")
            job[SHORT[name]] = {**(outer or {}), name: value}
        elif value is None:
            job.pop(name, None)
        else:
            job[name] = value


def _model(model: Any) -> Any:
    """A captured graph becomes a file; a path object says where one is."""
    if isinstance(model, Mapping):
        return {key: file_of(value) if key == "graph" and not isinstance(value, (str, os.PathLike)) else value
                for key, value in model.items()}
    if isinstance(model, os.PathLike):
        return {"graph": os.fspath(model)}
    if hasattr(model, "to_bytes") and not isinstance(model, int):
        return {"graph": file_of(model)}
    return model


def _plain(value: Any, where: str) -> Any:
    """Only what JSON has: paths become texts, numpy's and torch's numbers become numbers."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise wrong_input(where, f"is {value}; a finite number is wanted")
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):  # a number of numpy or torch
        try:
            number = value.item()
        except (TypeError, ValueError, RuntimeError):
            number = None
        if isinstance(number, (bool, int, float)):
            return _plain(number, where)
    raise wrong_input(where, f"is a {type(value).__name__}; JSON has no such thing")
