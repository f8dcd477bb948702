"""transformers: time series. `batch` counts windows."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hugging_face import add_model


def _windows(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    config = model.config
    return {"past_values": torch.randn(batch, config.context_length, config.num_input_channels, device=device, dtype=dtype),
            "future_values": torch.randn(batch, config.prediction_length, config.num_input_channels, device=device, dtype=dtype)}


add_model("patchtst", "other", "PatchTSTForPrediction", "PatchTSTConfig", dict(
    num_input_channels=21, context_length=512, patch_length=16, patch_stride=8, prediction_length=96, num_attention_heads=16, ffn_dim=256,
    attention_dropout=0.2, positional_dropout=0.2, ff_dropout=0.2, head_dropout=0.2), 32, None, _windows,
          note="21 series of weather, 512 steps in patches of 16, 96 ahead")
