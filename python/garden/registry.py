"""What a model of the garden is, and the list of them.

An entry knows how to build one published architecture with random weights, which data a training step takes and
which loss a user would write. It does not know precisions, optimizers or GPUs. Nothing is imported from torchvision,
timm or transformers until an entry is built, so a missing library costs its own entries only.
"""
from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor, nn

FAMILIES = ("cnn", "vit", "detection", "segmentation", "encoder", "decoder", "moe", "encoder_decoder", "audio",
            "multimodal", "diffusion", "recurrent", "recommendation", "graph", "adapters", "other")
SOURCES = ("torchvision", "timm", "transformers", "own")

Build = Callable[..., nn.Module]
Inputs = Callable[[nn.Module, int, "int | None", torch.device, torch.dtype], "dict[str, Any]"]
Loss = Callable[[nn.Module, "dict[str, Any]"], Tensor]


@dataclass(frozen=True)
class Entry:
    """One model with its data and its loss.

    `build()` makes the published size in training mode, on the torch.device context that is active (meta and fake
    included). `build(layers=2)` shortens the stack where the entry has one and `build(tiny=True)` makes something a
    CPU can train; both are for tests and traces. `inputs(model, batch, seq, device, dtype)` makes random data whose
    floating tensors have the dtype. `trace` holds batch, seq and layers of the recorded GPU step, None = not traced.
    """
    name: str
    family: str
    source: str
    build: Build
    inputs: Inputs
    loss: Loss
    batch: int
    seq: int | None = None
    trace: dict[str, Any] | None = None
    note: str = ""


_ENTRIES: dict[str, Entry] = {}


def add(entry: Entry) -> None:
    """Adds one entry; a wrong one is a mistake in this package, so it stops the import."""
    if entry.name in _ENTRIES:
        raise ValueError(f"garden: the name {entry.name!r} is taken")
    if entry.family not in FAMILIES:
        raise ValueError(f"garden: {entry.name}: family {entry.family!r} is none of {', '.join(FAMILIES)}")
    if entry.source not in SOURCES:
        raise ValueError(f"garden: {entry.name}: source {entry.source!r} is none of {', '.join(SOURCES)}")
    _ENTRIES[entry.name] = entry


def entries() -> list[Entry]:
    """All entries, in the order in which the family files list them."""
    return list(_ENTRIES.values())


def find(name: str) -> Entry:
    """The entry of that name, or a KeyError that names the nearest ones."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    near = difflib.get_close_matches(name, _ENTRIES, n=3) or sorted(_ENTRIES)[:5]
    raise KeyError(f"no model {name!r} in the garden; near: {', '.join(near)}")
