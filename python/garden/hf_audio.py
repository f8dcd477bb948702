"""transformers: speech. Waveforms of 16 kHz or mel spectrograms; `seq` is the number of target tokens."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hugging_face import add_model, own_loss, tokens
from .registry import Inputs


def _spectrogram(model: nn.Module, batch: int, seq: int | None,
                 device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    config = model.config
    frames = 2 * config.max_source_positions
    return {"input_features": torch.randn(batch, config.num_mel_bins, frames, device=device, dtype=dtype),
            "labels": tokens(model, batch, seq or 64, device)}


def _waveform(samples: int) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"input_values": torch.randn(batch, samples, device=device, dtype=dtype),
                "labels": torch.randint(1, 32, (batch, seq or 20), device=device)}
    return make


def _clip_class(model: nn.Module, batch: int, seq: int | None,
                device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 1024, 128, device=device, dtype=dtype),
            "labels": torch.randint(0, 527, (batch,), device=device)}


def _waveform_to_text(samples: int) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"input_values": torch.randn(batch, samples, device=device, dtype=dtype),
                "labels": tokens(model, batch, seq or 64, device)}
    return make


def _frames(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 800, 80, device=device, dtype=dtype),
            "attention_mask": torch.ones(batch, 800, device=device, dtype=torch.int64),
            "labels": torch.randint(1, 1024, (batch, seq or 40), device=device)}


def _tables(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 400, 80, device=device, dtype=dtype),
            "labels": tokens(model, batch, seq or 64, device)}


# The published dropouts; skipping whole layers at random would make two steps of one model differ, so it is off.
_STEADY = dict(layerdrop=0.0)
_WHY = "layerdrop off: whole layers would come and go between steps"


def _whisper(width: int, depth: int, heads: int) -> dict[str, Any]:
    return dict(d_model=width, encoder_layers=depth, decoder_layers=depth, encoder_attention_heads=heads,
                decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width)


def _whisper_model(name: str, settings: dict[str, Any], batch: int, trace: dict[str, Any] | None = None) -> None:
    add_model(name, "audio", "WhisperForConditionalGeneration", "WhisperConfig", settings, batch, 64, _spectrogram,
              trace=trace, depth=("encoder_layers", "decoder_layers"))


_whisper_model("whisper-tiny", _whisper(384, 4, 6), 8)
_whisper_model("whisper-base", _whisper(512, 6, 8), 8)
_whisper_model("whisper-small", _whisper(768, 12, 12), 4, {"batch": 2, "seq": 32, "layers": 2})
_whisper_model("whisper-large-v3", dict(_whisper(1280, 32, 20), num_mel_bins=128, vocab_size=51866), 2)
add_model("wav2vec2-base", "audio", "Wav2Vec2ForCTC", "Wav2Vec2Config", dict(_STEADY, ctc_loss_reduction="mean"), 4, 20,
          _waveform(64000), own_loss, {"batch": 2, "seq": 16, "layers": 2},
          "CTC fine-tuning on 4 s; time masks are drawn on the host; " + _WHY)
add_model("hubert-base", "audio", "HubertForCTC", "HubertConfig", dict(_STEADY, ctc_loss_reduction="mean"), 4, 20,
          _waveform(64000), note="CTC fine-tuning on 4 s; " + _WHY)
add_model("wavlm-base", "audio", "WavLMForCTC", "WavLMConfig", dict(_STEADY, ctc_loss_reduction="mean"), 4, 20,
          _waveform(64000), note="gated relative position bias; " + _WHY)
add_model("sew-d-base", "audio", "SEWDForCTC", "SEWDConfig", {}, 4, 20, _waveform(64000),
          note="CTC fine-tuning on 4 s; features squeezed in time, disentangled attention; time masks are drawn on the host")
add_model("ast-base", "audio", "ASTForAudioClassification", "ASTConfig", dict(num_labels=527), 4, None, _clip_class,
          note="audio spectrogram transformer")
add_model("speech2text-small", "audio", "Speech2TextForConditionalGeneration", "Speech2TextConfig",
          dict(encoder_layerdrop=0.0, decoder_layerdrop=0.0), 4, 64, _tables, note=_WHY)
add_model("moonshine-tiny", "audio", "MoonshineForConditionalGeneration", "MoonshineConfig", dict(pad_token_id=2), 4, 64,
          _waveform_to_text(64000), depth=("encoder_num_hidden_layers", "decoder_num_hidden_layers"),
          note="strided convolutions on the waveform, rotary positions, gated decoder")
add_model("parakeet-ctc-110m", "audio", "ParakeetForCTC", "ParakeetCTCConfig", dict(
    encoder_config=dict(hidden_size=512, num_hidden_layers=17, intermediate_size=2048, **_STEADY), pad_token_id=1024), 4, 40, _frames,
          depth=("encoder_config.num_hidden_layers",), note="fast conformer, CTC on 8 s; " + _WHY)
