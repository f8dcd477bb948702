"""Own code: fine-tuning with most parameters frozen: a head on a frozen backbone, and LoRA written by hand."""
from __future__ import annotations

import math
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .hf_decoders import LLAMA_32_1B
from .hugging_face import network, own_labels, own_loss, sequence_classes
from .images import classify, images
from .registry import Build, Entry, add


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int = 16, alpha: int = 32,
                 dropout: float = 0.05) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale, self.dropout = alpha / rank, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(self.dropout(x), self.down), self.up) * self.scale


def _sizes(module: nn.Module) -> tuple[int, int]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    return tuple(module.weight.shape)  # GPT-2's Conv1D keeps its weight transposed


def with_lora(build: Build, names: tuple[str, ...], rank: int = 16) -> Build:
    """Freezes the model and puts adapters on the submodules whose last name is among `names`."""
    def built(layers: int | None = None, tiny: bool = False) -> nn.Module:
        model = build(layers=layers, tiny=tiny).requires_grad_(False)
        for path, module in list(model.named_modules()):
            parent, _, last = path.rpartition(".")
            if last in names:
                setattr(model.get_submodule(parent), last, LoraLinear(module, *_sizes(module), rank=rank))
        return model.train()
    return built


def frozen(build: Build, trained: Callable[[str], bool]) -> Build:
    """Freezes every parameter whose name `trained` does not accept."""
    def built(layers: int | None = None, tiny: bool = False) -> nn.Module:
        model = build(layers=layers, tiny=tiny)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained(name))
        return model.train()
    return built


def _resnet50(layers: int | None = None, tiny: bool = False) -> nn.Module:
    import torchvision
    model = torchvision.models.resnet50(weights=None)
    model.fc = nn.Linear(model.fc.in_features, 10)
    return model


_llama = network("LlamaForCausalLM", "LlamaConfig", LLAMA_32_1B)
_gpt2 = network("GPT2LMHeadModel", "GPT2Config", {})
_bert = network("BertForSequenceClassification", "BertConfig", dict(num_labels=2))
_vit = network("ViTForImageClassification", "ViTConfig", dict(num_labels=100))


def _vit_pictures(model: nn.Module, batch: int, seq: int | None,
                  device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 224, 224, device=device, dtype=dtype),
            "labels": torch.randint(0, 100, (batch,), device=device)}


def _layer(name: str) -> int:
    """The number of the encoder layer that a BERT parameter belongs to, -1 outside the layers."""
    parts = name.split(".")
    return int(parts[3]) if parts[:3] == ["bert", "encoder", "layer"] else -1


_ADAPTER_TRACE = {"batch": 2, "seq": 256, "layers": 2}
_BERT_TRACE = {"batch": 4, "seq": 128, "layers": 4}
add(Entry("resnet50-frozen", "adapters", "own", frozen(_resnet50, lambda name: name.startswith("fc.")),
          images(classes=10), classify, 32, None, {"batch": 8}, 
          "only the new head is trained; batch norms stay in training mode"))
add(Entry("resnet50-last-stage", "adapters", "own", frozen(_resnet50, lambda name: name.startswith(("fc.", "layer4."))),
          images(classes=10), classify, 32, None, {"batch": 8}, "head and last stage are trained"))
add(Entry("bert-base-frozen", "adapters", "own",
          frozen(_bert, lambda name: name.startswith(("classifier.", "bert.pooler."))),
          sequence_classes(), own_loss, 16, 128, _BERT_TRACE, "only pooler and classifier are trained"))
add(Entry("bert-base-upper-half", "adapters", "own",
          frozen(_bert, lambda name: name.startswith(("classifier.", "bert.pooler.")) or _layer(name) >= 6),
          sequence_classes(), own_loss, 16, 128, None, "the upper six layers are trained"))
add(Entry("bert-base-bitfit", "adapters", "own",
          frozen(_bert, lambda name: name.endswith(".bias") or name.startswith("classifier.")), sequence_classes(),
          own_loss, 16, 128, _BERT_TRACE, "only the biases are trained"))
add(Entry("llama3.2-1b-lora", "adapters", "own", with_lora(_llama, ("q_proj", "k_proj", "v_proj", "o_proj")),
          own_labels, own_loss, 2, 512, _ADAPTER_TRACE, "rank 16 on the attention projections"))
add(Entry("llama3.2-1b-lora-all", "adapters", "own",
          with_lora(_llama, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 8),
          own_labels, own_loss, 2, 512, None, "rank 8 on every linear layer of the blocks"))
add(Entry("gpt2-lora", "adapters", "own", with_lora(_gpt2, ("c_attn",), 8), own_labels, own_loss, 4, 512,
          _ADAPTER_TRACE, "rank 8 on the packed projection"))
add(Entry("vit-base-lora", "adapters", "own", with_lora(_vit, ("q_proj", "v_proj", "query", "value"), 8), _vit_pictures,
          own_loss, 16, None, None, "rank 8 on queries and values; the head stays frozen"))
