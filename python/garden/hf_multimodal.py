"""transformers: pictures and text together. `seq` is the text's length."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hugging_face import add_model, own_loss, tokens
from .registry import Entry, Inputs, add


_TOWERS = ("text_config.num_hidden_layers", "vision_config.num_hidden_layers")


def _pairs(size: int, loss_flag: bool = True) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        data: dict[str, Any] = {"pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype),
                                "input_ids": tokens(model, batch, seq or 32, device)}
        if loss_flag:
            data["return_loss"] = True
        return data
    return make


def _captions(model: nn.Module, batch: int, seq: int | None,
              device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    data = _pairs(384, False)(model, batch, seq, device, dtype)
    return {**data, "labels": data["input_ids"]}


def _questions(model: nn.Module, batch: int, seq: int | None,
               device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {**_pairs(384, False)(model, batch, seq, device, dtype),
            "labels": torch.rand(batch, model.config.num_labels, device=device, dtype=dtype)}


def _chat(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """A picture's 576 places come first, then the text."""
    config = model.config
    places = torch.full((batch, 576), config.image_token_index, device=device)
    ids = torch.cat([places, torch.randint(3, 32000, (batch, seq or 64), device=device)], dim=1)
    return {"pixel_values": torch.randn(batch, 3, 336, 336, device=device, dtype=dtype), "input_ids": ids,
            "labels": ids}


add_model("clip-vit-b-32", "multimodal", "CLIPModel", "CLIPConfig", {}, 16, 77, _pairs(224),
          trace={"batch": 4, "seq": 32, "layers": 2}, depth=_TOWERS, note="contrastive loss")
add_model("siglip-base", "multimodal", "SiglipModel", "SiglipConfig", {}, 16, 64, _pairs(224), depth=_TOWERS,
          note="sigmoid loss")
add_model("blip-base", "multimodal", "BlipForConditionalGeneration", "BlipConfig",
          dict(vision_config=dict(image_size=384)), 4, 32, _captions, note="captioning")
add_model("vilt-b32", "multimodal", "ViltForQuestionAnswering", "ViltConfig", dict(num_labels=3129), 4, 40, _questions,
          note="patches are chosen by value")
add_model("llava-1.5-7b", "multimodal", "LlavaForConditionalGeneration", "LlavaConfig", dict(
    image_token_index=32000, vision_feature_layer=-2, vision_feature_select_strategy="default",
    vision_config=dict(model_type="clip_vision_model", hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                       num_attention_heads=16, image_size=336, patch_size=14, projection_dim=768),
    text_config=dict(model_type="llama", vocab_size=32064, max_position_embeddings=4096)), 1, 64, _chat,
          note="picture features are scattered into the text by a mask")


def _reader(layers: int | None = None, tiny: bool = False) -> nn.Module:
    import transformers
    depth, width = layers or (2 if tiny else 12), 64 if tiny else 384
    encoder = transformers.DeiTConfig(hidden_size=width, num_hidden_layers=depth, num_attention_heads=width // 32 if tiny else 6,
                                      intermediate_size=4 * width, image_size=384)
    decoder = transformers.TrOCRConfig(
        vocab_size=512 if tiny else 64044, d_model=64 if tiny else 256, decoder_layers=layers or (2 if tiny else 6),
        decoder_attention_heads=8, decoder_ffn_dim=128 if tiny else 1024, activation_function="relu", scale_embedding=True,
        cross_attention_hidden_size=width)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    config.decoder.use_cache = False
    return transformers.VisionEncoderDecoderModel(config=config).train()


def _lines_of_text(model: nn.Module, batch: int, seq: int | None,
                   device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 384, 384, device=device, dtype=dtype),
            "labels": torch.randint(3, model.config.decoder.vocab_size, (batch, seq or 32), device=device)}


add(Entry("trocr-small", "multimodal", "transformers", _reader, _lines_of_text, own_loss, 4, 32, None,
          "a picture of a line, its text"))
