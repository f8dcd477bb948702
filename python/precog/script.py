"""A user's script: "my_model.py:build" to (loss_fn, model), with errors that say what was expected."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import pathlib
import sys
import traceback
from typing import Any, Callable

from .errors import PrecogError, wrong_input

SIZES = ("batch", "seq", "src_seq")
_WANTED = "a function that returns (loss_fn, model), where loss_fn(model) is the scalar loss"


class Script:
    def __init__(self, spec: str) -> None:
        path, colon, name = spec.rpartition(":")
        if not colon:
            path, name = spec, "build"
        self.path, self.name = pathlib.Path(path), name
        self.function = self._function()
        self.parameters = self._parameters()

    def _function(self) -> Callable[..., Any]:
        where = f"{self.path}:{self.name}"
        if not self.path.is_file():
            raise wrong_input(str(self.path), "is not there; wanted is a Python file, like my_model.py:build")
        spec = importlib.util.spec_from_file_location(f"precog_script_{self.path.stem}", self.path)
        if spec is None or spec.loader is None:
            raise wrong_input(str(self.path), "is not a Python file (.py)")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        folder = str(self.path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)  # so that it finds the modules beside it, as `python my_model.py` would
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise wrong_input(f"{self.path}, line {error.lineno}", f"is not Python: {error.msg}") from error
        except Exception as error:
            raise wrong_input(str(self.path), f"failed while it was read: {type(error).__name__}: {error}") from error
        function = getattr(module, self.name, None)
        if function is None:
            functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__]
            known = f"; its functions are {', '.join(functions)}" if functions else ""
            raise wrong_input(where, f"there is no {self.name} in it{known}. Wanted: {_WANTED}")
        if not callable(function):
            raise wrong_input(where, f"is a {type(function).__name__}, not a function. Wanted: {_WANTED}")
        return function

    def _parameters(self) -> dict[str, inspect.Parameter]:
        parameters = dict(inspect.signature(self.function).parameters)
        for name, parameter in parameters.items():
            required = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if required and (name not in SIZES or parameter.kind is parameter.POSITIONAL_ONLY):
                raise wrong_input(f"{self.path}:{self.name}", f"wants an argument {name!r}; it may take {', '.join(SIZES)} as keyword "
                                  "arguments, and others only with defaults")
        return parameters

    def takes(self, name: str) -> bool:
        return name in self.parameters or any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())

    def takes_sizes(self) -> bool:
        return any(self.takes(name) for name in ("batch", "seq"))

    def build(self, sizes: dict[str, int], device: str | None) -> tuple[Callable[[Any], Any], Any]:
        """(loss_fn, model), made with `device` as where new tensors go (None: as the script says)."""
        import torch
        where = f"{self.path}:{self.name}"
        for name in sizes:
            if not self.takes(name):
                flag = "--" + name.replace("_", "-")
                raise wrong_input(flag, f"{self.name}() in {self.path} takes no argument {name!r}: write `def {self.name}({name}=8):`")
        missing = [name for name, p in self.parameters.items() if p.default is p.empty and name in SIZES and name not in sizes]
        if missing:
            flags = " and ".join("--" + name.replace("_", "-") for name in missing)
            raise wrong_input(where, f"{self.name}() wants {', '.join(missing)}: give {flags}, or a default in the script")
        try:
            with torch.device(device) if device else contextlib.nullcontext():
                made = self.function(**sizes)
        except PrecogError:
            raise
        except Exception as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self.path)]
            place = f"{self.path}, line {lines[-1]}" if lines else where
            raise PrecogError("script", f"{place}: {self.name}() failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise wrong_input(where, f"returned {_described(made)}; wanted is {_WANTED}")
        modules = [isinstance(item, torch.nn.Module) for item in made]
        if modules == [True, False]:
            made = made[1], made[0]
        elif not any(modules):
            raise wrong_input(where, f"returned {_described(made)}: no torch.nn.Module among them; wanted is {_WANTED}")
        loss_fn, model = made
        if not callable(loss_fn):
            raise wrong_input(where, f"returned a {type(loss_fn).__name__} beside the model; wanted is a function of the model: {_WANTED}")
        return loss_fn, model


def _described(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{len(value)} things ({', '.join(type(item).__name__ for item in value)})"
    return "nothing" if value is None else f"a {type(value).__name__}"
