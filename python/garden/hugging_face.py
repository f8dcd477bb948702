"""How the transformers entries are built: a configuration class, the published settings, the model's own loss.

Settings are those of the checkpoints' public config.json files; what is not given is the class's default. Caches are
off, as in training. Attention is what the library chooses by itself (sdpa where the model has it).
"""
from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from .registry import Build, Entry, Inputs, Loss, add

# What `tiny` changes, where the published settings or the class have it.
TINY = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_layers": 2, "n_heads": 2, "dim": 64, "hidden_dim": 128,
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 128, "ffn_dim": 128, "vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 128,
        "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "embedding_size": 32, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128, "num_experts": 8,
        "num_local_experts": 8, "word_embed_proj_dim": 64, "pad_token_id": 0, "decoder_start_token_id": 0}
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
          "decoder_layers")


def network(model_class: str, config_class: str, settings: dict[str, Any], depth: tuple[str, ...] = (),
            small: dict[str, Any] | None = None) -> Build:
    """`depth` names the settings that count layers (found by name if not given); a dotted
    one sits in a tower's configuration. `small` is added by tiny."""
    def build(layers: int | None = None, tiny: bool = False) -> nn.Module:
        import transformers
        logging.getLogger("transformers").setLevel(logging.ERROR)
        kind = getattr(transformers, config_class)
        chosen = dict(settings)
        if layers is not None:
            chosen.update({key: layers for key in depth or _depths(kind, settings) if "." not in key})
        if tiny:
            chosen.update({key: value for key, value in TINY.items() if key in settings or _has(kind, key)})
            chosen.update(small or {})
        config = kind(**chosen)
        config.use_cache = False
        for key in depth if layers is not None else ():
            if "." in key:  # a tower's own configuration
                tower, setting = key.split(".")
                setattr(getattr(config, tower), setting, layers)
        model = getattr(transformers, model_class)(config)
        wanted = torch.get_default_device()
        if any(parameter.device.type != wanted.type for parameter in model.parameters()):
            model = model.to(wanted)  # wav2vec2 makes one parameter with a constructor that ignores the device context
        return model.train()
    return build


def _has(kind: Any, key: str) -> bool:
    return key in getattr(kind, "__dataclass_fields__", {})


def _depths(kind: Any, settings: dict[str, Any]) -> list[str]:
    found = [key for key in _DEPTH if key in settings or _has(kind, key)]
    if not found:
        raise ValueError(f"garden: {kind.__name__} has no known setting for its number of layers")
    return found


def vocabulary(model: nn.Module) -> int:
    config = model.config
    return getattr(config, "vocab_size", None) or config.text_config.vocab_size


def tokens(model: nn.Module, batch: int, length: int, device: torch.device) -> Tensor:
    return torch.randint(3, vocabulary(model), (batch, length), device=device)


def own_labels(model: nn.Module, batch: int, seq: int | None,
               device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Causal models shift the labels themselves; full sequences, no mask, as in packed pre-training data."""
    ids = tokens(model, batch, seq or 128, device)
    return {"input_ids": ids, "labels": ids}


def masked_labels(model: nn.Module, batch: int, seq: int | None,
                  device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Masked language modelling with a collator's attention mask left out: full sequences."""
    return {"input_ids": tokens(model, batch, seq or 128, device), "labels": tokens(model, batch, seq or 128, device)}


def padded_labels(model: nn.Module, batch: int, seq: int | None,
                  device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """As masked_labels, with the attention mask that a padding collator hands over."""
    data = masked_labels(model, batch, seq, device, dtype)
    return {**data, "attention_mask": torch.ones(batch, seq or 128, device=device, dtype=torch.int64)}


def sequence_classes(classes: int = 2) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"input_ids": tokens(model, batch, seq or 128, device),
                "attention_mask": torch.ones(batch, seq or 128, device=device, dtype=torch.int64),
                "labels": torch.randint(0, classes, (batch,), device=device)}
    return make


def pictures(size: int = 224, classes: int = 1000) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype),
                "labels": torch.randint(0, classes, (batch,), device=device)}
    return make


def own_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return model(**data).loss


def add_model(name: str, family: str, model_class: str, config_class: str, settings: dict[str, Any], batch: int,
              seq: int | None = None, inputs: Inputs = own_labels, loss: Loss = own_loss,
              trace: dict[str, Any] | None = None, note: str = "", **how: Any) -> None:
    add(Entry(name, family, "transformers", network(model_class, config_class, settings, **how), inputs, loss, batch,
              seq, trace, note))
