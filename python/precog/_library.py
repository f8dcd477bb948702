"""The C interface (include/precog/precog.h) through ctypes: JSON text in, JSON text out, errors as PrecogError.

Loaded on first use, once. ctypes releases the interpreter's lock during a call, so predictions on several threads run at
the same time.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading
from typing import Any

from . import _paths
from .errors import PrecogError, Problem
from .graph_files import hide_folder

_ABI = 1  # the oldest interface that has what is used here; later ones only add
_DONE, _DOES_NOT_FIT = 0, 3
_lock = threading.Lock()


@functools.lru_cache(maxsize=1)
def _loaded() -> ctypes.CDLL:
    path = _paths.library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise PrecogError("not_installed", f"precog's library cannot be loaded: {error}") from error
    void, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    out, out_size = ctypes.POINTER(void), ctypes.POINTER(size)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "precog_abi_version": (ctypes.c_int, []),
        "precog_version": (text, []),
        "precog_open": (ctypes.c_int, [text, out, out]),
        "precog_predict": (ctypes.c_int, [void, text, size, text, out]),
        "precog_compare": (ctypes.c_int, [void, text, size, text, out]),
        "precog_validate": (ctypes.c_int, [void, text, size, text, text, out]),
        "precog_names": (ctypes.c_int, [void, text, out]),
        "precog_compress": (ctypes.c_int, [text, size, ctypes.c_int, out, out_size, out]),
        "precog_decompress": (ctypes.c_int, [text, size, size, out, out_size, out]),
        "precog_free": (None, [void]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name, None)
        if function is None:
            raise PrecogError("not_installed", f"{path} has no {name}: it is older than this package; build it again")
        function.restype, function.argtypes = result, arguments
    if library.precog_abi_version() < _ABI:
        raise PrecogError("not_installed", f"{path} is older than this package; build it again")
    return library


def _taken(pointer: ctypes.c_void_p) -> str:
    """The text that a function returned, its memory given back."""
    try:
        return ctypes.string_at(pointer.value).decode("utf-8", "replace") if pointer.value else ""
    finally:
        _loaded().precog_free(pointer)


def _error(text: str) -> PrecogError:
    try:
        value = json.loads(text)
    except ValueError:
        return PrecogError("bug", "precog's library failed without saying why")
    return PrecogError(value["code"], value["message"], [Problem(p["where"], p["message"]) for p in value["problems"]])


_catalog_pointer: int | None = None


def _catalog() -> int:
    """Everything under data/, read once in this process."""
    global _catalog_pointer
    with _lock:
        if _catalog_pointer is None:
            catalog, error = ctypes.c_void_p(), ctypes.c_void_p()
            status = _loaded().precog_open(os.fsencode(_paths.data()), ctypes.byref(catalog), ctypes.byref(error))
            if status != _DONE:
                raise _error(_taken(error))
            _catalog_pointer = catalog.value
        return _catalog_pointer  # type: ignore[return-value]


def _asked(function: str, *arguments: Any) -> str:
    answer = ctypes.c_void_p()
    status = getattr(_loaded(), function)(_catalog(), *arguments, ctypes.byref(answer))
    text = hide_folder(_taken(answer))
    if status not in (_DONE, _DOES_NOT_FIT):
        raise _error(text)
    return text


def predict(request: str, folder: str = "") -> str:
    """A request's JSON to a report's JSON, byte for byte what `precog predict --json` prints. Paths are relative to `folder`."""
    encoded = request.encode()
    return _asked("precog_predict", encoded, len(encoded), os.fsencode(folder))


def compare(request: str, folder: str = "") -> str:
    encoded = request.encode()
    return _asked("precog_compare", encoded, len(encoded), os.fsencode(folder))


def validate(runs: bytes, name: str, by: str) -> str:
    return _asked("precog_validate", runs, len(runs), os.fsencode(name), by.encode())


def names(kind: str) -> list[str]:
    """What is known of one kind: gpus, clusters, networks, hosts, precisions, models."""
    return json.loads(_asked("precog_names", kind.encode()))["names"]


def version() -> str:
    return _loaded().precog_version().decode()


def _packed(function: str, data: bytes, extra: int) -> bytes:
    out, size, error = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
    status = getattr(_loaded(), function)(data, len(data), extra, ctypes.byref(out), ctypes.byref(size), ctypes.byref(error))
    if status != _DONE:
        raise _error(_taken(error))
    try:
        return ctypes.string_at(out.value or 0, size.value)
    finally:
        _loaded().precog_free(out)


def compress(data: bytes, level: int = 12) -> bytes:
    """One Zstandard frame with a checksum; `level` from 1 (fast) to 19 (small)."""
    return _packed("precog_compress", bytes(data), level)


def decompress(data: bytes, limit: int = 1 << 30) -> bytes:
    """All frames of `data`, at most `limit` bytes; PrecogError when it is damaged, cut short or larger."""
    return _packed("precog_decompress", bytes(data), limit)
