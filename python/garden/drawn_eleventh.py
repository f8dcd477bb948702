"""Models of the eleventh list, drawn by lot (tools/draw_list.py --list eleventh), that no other file has (efficientnet_b1 is in drawn.py).

Each is what its library makes of the name, with 1000 classes also where its weights have others, or of the configuration class's defaults; where these have
more than 1.5 billion parameters, as many layers as the lot allows.
"""
from __future__ import annotations

from .drawn import _language
from .hf_audio import _waveform
from .hf_encoder_decoders import two_sides
from .hugging_face import add_model, masked_labels, own_labels, own_loss, pictures
from .images import classify, images
from .registry import Entry, add
from .timm_models import _add as _timm
from .torchvision_models import _network

add(Entry("mobilenet_v3_small", "cnn", "torchvision", _network("mobilenet_v3_small"), images(), classify, 16))
for _name in ("res2net101_26w_4s", "hrnet_w18_small", "selecsls60", "rdnet_small"):
    _timm(_name, "cnn", batch=16)
for _name, _size in (("twins_svt_large", 224), ("vitamin_large2_224", 224), ("gemma4_vit_167m", 768), ("vit_pe_core_small_patch16_384", 384)):
    _timm(_name, "vit", size=_size, batch=8, num_classes=1000)
for _name, _kind, _layers in (("granite-swa-short", "GraniteSWA", 15), ("arcee-short", "Arcee", 11)):
    _language(_name, "decoder", _kind + "ForCausalLM", _kind, own_labels, 2, 256, num_hidden_layers=_layers)
_language("gemma3-text-short", "decoder", "Gemma3ForCausalLM", "Gemma3Text", own_labels, 2, 256, num_hidden_layers=11)
add_model("mamba2-short", "decoder", "Mamba2ForCausalLM", "Mamba2Config", dict(num_hidden_layers=11), 2, 256, small=dict(num_heads=8),
          note="the slow path: chunks in plain PyTorch")
for _name, _kind in (("yoso", "Yoso"), ("megatron-bert", "MegatronBert")):
    _language(_name, "encoder", _kind + "ForMaskedLM", _kind, masked_labels, 8, 128)
_language("longt5", "encoder_decoder", "LongT5ForConditionalGeneration", "LongT5", two_sides, 4, 128, decoder_start_token_id=0)
_language("blenderbot-short", "encoder_decoder", "BlenderbotForConditionalGeneration", "Blenderbot", two_sides, 4, 128, encoder_layers=8, decoder_layers=8)
add_model("perceiver", "vit", "PerceiverForImageClassificationLearned", "PerceiverConfig", dict(num_labels=1000), 16, None, pictures(56),
          note="every pixel of 56 x 56 is an input, read by 256 latents")
add_model("unispeech", "audio", "UniSpeechForCTC", "UniSpeechConfig", dict(layerdrop=0.0, ctc_loss_reduction="mean"), 4, 20, _waveform(64000), own_loss)
