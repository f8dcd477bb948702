"""Models of the tenth list, drawn by lot (tools/draw_list.py --list tenth), that no file of a family has.

Each is what its library makes of the name, with 1000 classes also where its weights have more, or of the configuration class's defaults; where these have
more than 1.5 billion parameters, as many layers as the lot allows.
"""
from __future__ import annotations

from .drawn import _language
from .hf_encoder_decoders import two_sides
from .hugging_face import masked_labels, own_labels
from .images import classify, images
from .registry import Entry, add
from .timm_models import _add as _timm
from .torchvision_models import _network, _regnet

add(Entry("efficientnet_v2_l", "cnn", "torchvision", _network("efficientnet_v2_l"), images(), classify, 16))
add(Entry("regnet_y_16gf", "cnn", "torchvision", _regnet(depth=18, w_0=200, w_a=106.23, w_m=2.48, group_width=112, se_ratio=0.25), images(), classify, 16))
_timm("resnetv2_18", "cnn", batch=16, note="pre-activation")
_timm("mambaout_kobe", "cnn", batch=16, note="a gated convolution in every block, no scan")
_timm("densenet264d", "cnn", batch=16)
_timm("focalnet_xlarge_fl4", "cnn", size=384, batch=4, note="focal modulation in place of attention", num_classes=1000)
for _name, _size in (("deit_base_patch16_384", 384), ("swinv2_cr_base_384", 384), ("tiny_vit_21m_224", 224), ("test_vit3", 160)):
    _timm(_name, "vit", size=_size, batch=8, num_classes=1000)
for _name, _kind, _layers in (("ctrl-short", "CTRL", 42), ("vaultgemma-short", "VaultGemma", 11), ("olmo-short", "Olmo", 5), ("cpmant-short", "CpmAnt", 6)):
    _language(_name, "decoder", "CTRLLMHeadModel" if _kind == "CTRL" else _kind + "ForCausalLM", _kind, own_labels, 2, 256,
              **{"n_layer" if _kind == "CTRL" else "num_hidden_layers": _layers})
_language("xlm-roberta", "encoder", "XLMRobertaForMaskedLM", "XLMRoberta", masked_labels, 8, 128)
_language("xlm-roberta-xl-short", "encoder", "XLMRobertaXLForMaskedLM", "XLMRobertaXL", masked_labels, 8, 128, num_hidden_layers=10)
_language("nllb-moe-short", "encoder_decoder", "NllbMoeForConditionalGeneration", "NllbMoe", two_sides, 4, 128, encoder_layers=3, decoder_layers=3,
          encoder_layerdrop=0.0, decoder_layerdrop=0.0)  # whole layers would come and go between steps; three layers have no experts, every fourth has
_language("pegasus", "encoder_decoder", "PegasusForConditionalGeneration", "Pegasus", two_sides, 4, 128)
