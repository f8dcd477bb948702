"""transformers: text-to-text models. `seq` is the source's length, the target is half of it."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hugging_face import add_model, tokens


def two_sides(model: nn.Module, batch: int, seq: int | None,
              device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    length = seq or 128
    return {"input_ids": tokens(model, batch, length, device), "labels": tokens(model, batch, length // 2, device)}


def _add(name: str, kind: str, settings: dict[str, Any], batch: int = 8, traced: bool = False, note: str = "") -> None:
    trace = {"batch": 2, "seq": 128, "layers": 2} if traced else None
    add_model(name, "encoder_decoder", kind + "ForConditionalGeneration" if kind != "Marian" else "MarianMTModel",
              kind + "Config", settings, batch, 128, two_sides, trace=trace, note=note)


_T5_BASE = dict(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_decoder_layers=12, num_heads=12,
                decoder_start_token_id=0, pad_token_id=0)
_T5_V11 = dict(_T5_BASE, d_ff=2048, feed_forward_proj="gated-gelu", tie_word_embeddings=False)

_add("t5-base", "T5", _T5_BASE, traced=True)
_add("flan-t5-base", "T5", _T5_V11, note="gated GELU, separate output layer")
_add("mt5-base", "MT5", dict(_T5_V11, vocab_size=250112))
_add("mt5-small", "MT5", dict(_T5_V11, d_model=512, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6,
                              vocab_size=250112))
_add("m2m100-418m", "M2M100", dict(encoder_layerdrop=0.0, decoder_layerdrop=0.0), batch=4,
     note="layerdrop off: whole layers would come and go between steps")
_add("bart-base", "Bart", dict(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                               decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072), traced=True)
_add("bart-large", "Bart", {}, batch=4)
_add("mbart-large", "MBart", dict(vocab_size=250027), batch=4)
_add("pegasus-large", "Pegasus", dict(d_model=1024, encoder_layers=16, decoder_layers=16, encoder_ffn_dim=4096,
                                      decoder_ffn_dim=4096, vocab_size=96103), batch=4)
_add("marian-en-de", "Marian", dict(d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
                                    decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
                                    vocab_size=58101, pad_token_id=58100, decoder_start_token_id=58100,
                                    activation_function="swish", scale_embedding=True, max_position_embeddings=512),
     traced=True)
_add("mvp-large", "Mvp", {}, batch=4)
_add("pegasus-x-large", "PegasusX", {}, batch=2, note="attention within staggered blocks of 512 and to 32 global tokens in the encoder")
add_model("long-t5-base", "encoder_decoder", "LongT5ForConditionalGeneration", "LongT5Config", _T5_V11, 2, 1024, two_sides,
          note="attention to neighbouring blocks of 128 in the encoder")
