"""The architectures that published benchmarks measured and neither the zoo nor the garden's libraries have.

They stand apart from the garden's list: they are captured for tools/published_speedups.py (tools/capture_published.py writes
tests/data/published), not for coverage. An entry is a name, what builds the model, its data, its loss, and the sizes of the
capture: batch and, for text, the length.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from torch import Tensor, nn

from . import published_language as language
from . import published_medical as medical


@dataclass(frozen=True)
class Published:
    build: Callable[[], nn.Module]
    inputs: Callable[..., dict[str, Any]]
    loss: Callable[[nn.Module, dict[str, Any]], Tensor]
    batch: int
    seq: int | None = None


MODELS = {
    "nnunet-2d": Published(medical.nnunet_2d, medical.pictures(192, 160), medical.dice_and_entropy, 4),
    "nnunet-3d": Published(medical.nnunet_3d, medical.pictures(128, 128, 128), medical.dice_and_entropy, 2),
    "transformer-xl-base": Published(language.transformer_xl_base, language.segments, language.next_word, 4, 192),
    "transformer-xl-large": Published(language.transformer_xl_large, language.segments, language.next_word, 4, 384),
    "transformer-xl-large-256": Published(language.transformer_xl_large, language.segments, language.next_word, 4, 256),
}
