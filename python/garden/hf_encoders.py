"""transformers: text encoders."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hugging_face import add_model, masked_labels, padded_labels, sequence_classes, tokens


def _add(name: str, kind: str, settings: dict[str, Any], head: str = "ForMaskedLM", batch: int = 16, seq: int = 128,
         **more: Any) -> None:
    add_model(name, "encoder", kind + head, kind + "Config", settings, batch, seq, **{"inputs": masked_labels, **more})


def _replaced(model: nn.Module, batch: int, seq: int | None,
              device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Electra's discriminator: which tokens did the generator replace?"""
    return {"input_ids": tokens(model, batch, seq or 128, device),
            "labels": torch.randint(0, 2, (batch, seq or 128), device=device)}


def _answers(model: nn.Module, batch: int, seq: int | None,
             device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Where the answer begins and ends, as in SQuAD."""
    return {"input_ids": tokens(model, batch, seq or 128, device),
            "attention_mask": torch.ones(batch, seq or 128, device=device, dtype=torch.int64),
            "start_positions": torch.randint(0, seq or 128, (batch,), device=device),
            "end_positions": torch.randint(0, seq or 128, (batch,), device=device)}


_ROBERTA = dict(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)
_DEBERTA = dict(vocab_size=128100, type_vocab_size=0, relative_attention=True, position_buckets=256,
                norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], max_relative_positions=-1,
                position_biased_input=False, layer_norm_eps=1e-7)
_TRACE = {"batch": 4, "seq": 128, "layers": 2}

_add("bert-base", "Bert", {}, trace={"batch": 4, "seq": 128, "layers": 2})
_add("bert-large", "Bert", dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))
_add("bert-base-classifier", "Bert", dict(num_labels=2), "ForSequenceClassification", inputs=sequence_classes(),
     trace=_TRACE, note="fine-tuning with an attention mask")
_add("roberta-base", "Roberta", _ROBERTA, inputs=padded_labels, trace=_TRACE, note="with an attention mask")
_add("xlm-roberta-base", "XLMRoberta", dict(_ROBERTA, vocab_size=250002), batch=8)
_add("distilbert-base", "DistilBert", {}, trace=_TRACE)
_add("albert-base-v2", "Albert", dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072, vocab_size=30000,
                                      hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
     trace=_TRACE, note="one layer's parameters shared by all layers")
_add("electra-base", "Electra", dict(embedding_size=768, hidden_size=768, num_attention_heads=12,
                                     intermediate_size=3072), "ForPreTraining", inputs=_replaced)
_add("deberta-v3-base", "DebertaV2", dict(_DEBERTA, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
                                          intermediate_size=3072, num_labels=2), "ForSequenceClassification",
     inputs=sequence_classes(), trace=_TRACE, note="disentangled attention")
_add("deberta-v2-xlarge", "DebertaV2", dict(_DEBERTA, conv_kernel_size=3, conv_act="gelu", num_labels=2),
     "ForSequenceClassification", inputs=sequence_classes(), batch=4, note="with its convolution")
_add("mpnet-base", "MPNet", dict(vocab_size=30527, max_position_embeddings=514, layer_norm_eps=1e-5))
_add("modernbert-base", "ModernBert", {}, seq=512, batch=4, trace={"batch": 2, "seq": 256, "layers": 3},
     note="local and global attention alternate")
_add("fnet-base", "FNet", {}, note="Fourier transforms in place of attention")
_add("convbert-base", "ConvBert", {})
_add("minilm-l6", "Bert", dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
     inputs=padded_labels, note="with an attention mask")
_add("roformer-base", "RoFormer", dict(vocab_size=50000, embedding_size=768), note="rotary positions")
_add("longformer-base", "Longformer", dict(_ROBERTA, max_position_embeddings=4098, attention_window=[512] * 12),
     batch=2, seq=1024, depth=(), note="windowed attention; fixed depth")
_add("esm2-150m", "Esm", dict(vocab_size=33, hidden_size=640, num_hidden_layers=30, num_attention_heads=20,
                              intermediate_size=2560, position_embedding_type="rotary", token_dropout=True,
                              mask_token_id=32, pad_token_id=1, max_position_embeddings=1026,
                              emb_layer_norm_before=False), batch=8, seq=256, note="proteins")
_add("roberta-prelayernorm-base", "RobertaPreLayerNorm", {}, note="norms before the layers")
_add("longformer-512", "Longformer", {}, batch=4, seq=256, depth=(), note="windowed attention; padded to its window of 512; fixed depth")
_add("xlnet-base", "XLNet", dict(d_model=768, n_layer=12, n_head=12, d_inner=3072, num_labels=2), "ForSequenceClassification",
     inputs=sequence_classes(), small={"d_inner": 128}, note="relative positions by shifted products")
_add("mobilebert", "MobileBert", {}, "ForQuestionAnswering", inputs=_answers, seq=384,
     small={"intra_bottleneck_size": 32}, note="deep and thin: 24 layers with bottlenecks")
