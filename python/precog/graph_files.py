"""Captured graphs that live in memory, as files that the library reads.

A graph is written once per content into a folder of this process, removed when it ends. The file's name is the content's
hash and the folder is taken out of answers, so that the same graph gives the same bytes wherever it was predicted.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

from .errors import wrong_input

SUFFIX = ".precog.json.zst"


@functools.lru_cache(maxsize=1)
def _folder() -> pathlib.Path:
    path = pathlib.Path(tempfile.mkdtemp(prefix="precog-graphs-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def name_of(graph: Any) -> str:
    """A file name for this graph: its content's hash."""
    return hashlib.sha256(graph if isinstance(graph, (bytes, bytearray)) else graph.to_bytes()).hexdigest()[:16] + SUFFIX


def file_of(graph: Any) -> str:
    """The path of a file with this graph: an object with to_bytes(), or bytes."""
    if not isinstance(graph, (bytes, bytearray)):
        if not hasattr(graph, "to_bytes") or isinstance(graph, int):
            raise wrong_input("request.model.graph", f"is a {type(graph).__name__}; a path or what precog.capture returned is wanted")
        graph = graph.to_bytes()
    path = _folder() / name_of(graph)
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(graph)
        unfinished.replace(path)
    return str(path)


def hide_folder(answer: str) -> str:
    """The answer without this process's folder."""
    if not _folder.cache_info().currsize:
        return answer
    return answer.replace(json.dumps(str(_folder()) + os.sep)[1:-1], "")
