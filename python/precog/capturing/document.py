"""The captured graph as a document: what is saved, and what a user holds in hand."""
from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .recording import Recording
from .stream import StreamWriter, to_json

FORMAT_VERSION = 1


def block_numbers(model: nn.Module) -> dict[str, int]:
    """Paths of repeated layers, numbered in order: children of one container, at least two of the same class, not single operators."""
    numbers: dict[str, int] = {}
    covered: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or any(path == c or path.startswith(c + ".") for c in covered):
            continue
        inner = {name: child for name, child in module.named_children() if any(True for _ in child.children())}
        classes = Counter(type(child) for child in inner.values())
        if not classes or classes.most_common(1)[0][1] < 2:
            continue
        for name in inner:
            full = f"{path}.{name}" if path else name
            numbers[full] = len(numbers)
            covered.append(full)
    return numbers


def document_of(recordings: list[Recording], symbols: list[str], typed: Recording | None, blocks: dict[str, int], name: str,
                sizes: dict[str, int], reasons: dict[str, str]) -> dict[str, Any]:
    writer = StreamWriter(recordings, symbols, blocks, typed)
    stream = writer.write()
    base = recordings[0]
    notes = list(dict.fromkeys(note for recording in recordings for note in recording.notes))
    from .. import __version__
    document: dict[str, Any] = {
        "precog_graph": FORMAT_VERSION, "name": name, "made_by": {"precog": __version__, "torch": str(torch.__version__)},
        "symbols": {symbol: sizes[symbol] for symbol in symbols}}
    fixed = {symbol: reason for symbol, reason in reasons.items()}
    if fixed:
        document["fixed"] = fixed
    captured = {symbol: size for symbol, size in sizes.items() if symbol not in symbols}
    if captured:
        document["captured"] = captured
    document["memory_format"] = "channels_last" if base.channels_last else "contiguous"
    if "seq" in sizes:
        document["tokens_per_sample"] = "seq" if "seq" in symbols else sizes["seq"]
    if base.scores != "returned":
        document["scores"] = base.scores
    if notes:
        document["notes"] = notes
    document["stream"] = stream
    document["loss"] = writer.numbers[id(base.loss)]
    return document


class CapturedGraph:
    """A captured training step: give it to `precog.predict` as the model, or save it."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._bytes: bytes | None = None

    @property
    def name(self) -> str:
        return self.document["name"]

    @property
    def symbols(self) -> dict[str, int]:
        """The sizes that stay symbolic, with the values that they were captured at."""
        return dict(self.document["symbols"])

    @property
    def notes(self) -> list[str]:
        return list(self.document.get("notes", []))

    def _entries(self):
        for entry in self.document["stream"]:
            if "repeat" in entry:
                for inner in entry["stream"]:
                    yield inner, entry["repeat"]
            else:
                yield entry, 1

    @property
    def operators(self) -> int:
        return sum(times for entry, times in self._entries() if entry.get("op") not in (None, "view"))

    @property
    def parameters(self) -> int:
        total = 0
        for entry, times in self._entries():
            if entry.get("tensor") == "parameter":
                count = times
                for extent in entry["shape"]:
                    count *= extent
                total += count
        return total

    def to_bytes(self) -> bytes:
        """The file's contents, compressed."""
        if self._bytes is None:
            from .._library import compress
            self._bytes = compress(to_json(self.document))
        return self._bytes

    def save(self, path: str | Path) -> None:
        """Writes `*.precog.json.zst`, or plain JSON where the name does not end in .zst."""
        path = Path(path)
        path.write_bytes(self.to_bytes() if path.suffix == ".zst" else to_json(self.document))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{symbol} (captured at {size})" for symbol, size in self.symbols.items()) or "no symbolic size"
        return f"<CapturedGraph {self.name}: {self.operators} operators, {self.parameters:,} parameters, {sizes}>"
