"""Models drawn by lot (tools/draw_list.py --list ninth --next 14): those that come after the ninth list's, in families that it does not have.

Each is what its library makes of the name, or of the configuration class's defaults; where these have more than 1.5 billion parameters,
as many layers as the lot allows.
"""
from __future__ import annotations

from typing import Any

from .hf_audio import _waveform
from .hf_encoder_decoders import two_sides
from .hugging_face import add_model, masked_labels, own_labels, own_loss, pictures
from .images import classify, images
from .registry import Entry, Inputs, add
from .timm_models import _add as _timm
from .torchvision_models import _clips, _network, _scenes, _segment

for _name in ("resnext101_64x4d", "efficientnet_b1"):
    add(Entry(_name, "cnn", "torchvision", _network(_name), images(), classify, 16))
add(Entry("deeplabv3_resnet101", "segmentation", "torchvision", _network(
    "deeplabv3_resnet101", "segmentation", weights_backbone=None, num_classes=21, aux_loss=True), _scenes(256), _segment, 8))
add(Entry("s3d", "cnn", "torchvision", _network("s3d", "video"), _clips(16, 224), classify, 4, note="video: 16 frames of 224 x 224"))

for _name in ("hgnet_tiny", "gernet_s", "rexnetr_130", "tresnet_v2_l", "skresnext50_32x4d", "efficientnet_b0_g8_gn", "fasternet_t0", "inception_next_small",
              "cpubone_b3", "legacy_seresnet18", "convnextv2_atto", "res2net50_26w_8s"):
    _timm(_name, "cnn", batch=16)
_timm("xception65", "cnn", size=299, batch=16)
for _name, _size in (("hiera_small_abswin_256", 256), ("flexivit_large", 240), ("davit_base", 224), ("tiny_vit_5m_224", 224), ("lowformer_b3", 224),
                     ("volo_d2_384", 384), ("vit_relpos_small_patch16_rpn_224", 224), ("repvit_m0_9", 224),
                     ("poolformerv2_s36", 224), ("swinv2_large_window12_192", 192)):
    _timm(_name, "vit", size=_size, batch=8)
_timm("fastvit_mci1", "vit", size=256, batch=8, num_classes=1000)  # its own has 512: features


def _language(name: str, family: str, kind: str, config: str, inputs: Inputs, batch: int, seq: int, **settings: Any) -> None:
    add_model(name, family, kind, config + "Config", settings, batch, seq, inputs)


for _name, _kind, _layers in (("olmo3-short", "Olmo3", 5), ("gptj-short", "GPTJ", 5), ("nanochat", "NanoChat", None), ("hyperclovax-short", "HyperCLOVAX", 6),
                              ("falcon-short", "Falcon", 5), ("ernie4.5-moe-short", "Ernie4_5_Moe", 2), ("mellum-short", "Mellum", 2),
                              ("afmoe-short", "Afmoe", 2)):
    _language(_name, "moe" if _kind in ("Ernie4_5_Moe", "Mellum", "Afmoe") else "decoder", _kind + "ForCausalLM", _kind, own_labels, 2, 256,
              **({"n_layer" if _kind == "GPTJ" else "num_hidden_layers": _layers} if _layers else {}))
for _name, _kind in (("rembert", "RemBert"), ("nomic-bert", "NomicBert"), ("funnel", "Funnel"), ("squeezebert", "SqueezeBert"),
                     ("big-bird", "BigBird"), ("nystromformer", "Nystromformer"), ("eurobert", "EuroBert")):
    _language(_name, "encoder", _kind + "ForMaskedLM", _kind, masked_labels, 8, 128)
for _name, _kind in (("plbart", "PLBart"), ("blenderbot-small", "BlenderbotSmall"), ("umt5", "UMT5"), ("prophetnet", "ProphetNet")):
    _language(_name, "encoder_decoder", _kind + "ForConditionalGeneration", _kind, two_sides, 4, 128)
_language("switch-transformers", "moe", "SwitchTransformersForConditionalGeneration", "SwitchTransformers", two_sides, 4, 128,
          decoder_start_token_id=0)
for _name, _kind in (("levit-hf", "Levit"), ("hgnet-v2", "HGNetV2"), ("data2vec-vision", "Data2VecVision"),
                     ("dinov2-with-registers", "Dinov2WithRegisters"), ("swinv2-hf", "Swinv2"), ("mobilevitv2-hf", "MobileViTV2"), ("textnet", "TextNet")):
    _size = 256 if _kind == "MobileViTV2" else 640 if _kind == "TextNet" else 224
    add_model(_name, "vit", _kind + "ForImageClassification", _kind + "Config", dict(num_labels=1000), 16, None, pictures(_size))
for _name, _kind in (("unispeech-sat", "UniSpeechSat"), ("sew", "SEW"), ("data2vec-audio", "Data2VecAudio")):
    add_model(_name, "audio", _kind + "ForCTC", _kind + "Config", dict(layerdrop=0.0, ctc_loss_reduction="mean"), 4, 20, _waveform(64000), own_loss)
