"""Image data and the classification loss that the vision entries share."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Inputs


def images(size: int = 224, classes: int = 1000, channels_last: bool = False) -> Inputs:
    """Random square images and class numbers."""
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        image = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
        if channels_last:
            image = image.to(memory_format=torch.channels_last)
        return {"image": image, "target": torch.randint(0, classes, (batch,), device=device)}
    return make


def classify(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(data["image"]), data["target"])
