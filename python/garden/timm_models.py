"""timm: the image networks that torchvision does not have."""
from __future__ import annotations

from typing import Any

from torch import nn

from .images import classify, images
from .registry import Build, Entry, add


def _network(name: str, settings: dict[str, Any]) -> Build:
    def build(layers: int | None = None, tiny: bool = False) -> nn.Module:
        import timm
        return timm.create_model(name, pretrained=False, **settings).train()
    return build


def _add(name: str, family: str = "vit", size: int = 224, batch: int = 32, trace: dict[str, Any] | None = None,
         note: str = "", model: str | None = None, **settings: Any) -> None:
    add(Entry(name, family, "timm", _network(model or name, settings), images(size), classify, batch, None, trace,
              note))


_add("mixer_b16_224", "other", trace={"batch": 4})
_add("resmlp_24_224", "other", trace={"batch": 4})
_add("gmlp_s16_224", "other")
_add("vit_small_patch16_224", "vit", trace={"batch": 4})
_add("deit_base_patch16_224", "vit")
_add("deit3_small_patch16_224", "vit", note="layer scale")
_add("beit_base_patch16_224", "vit", trace={"batch": 4}, note="relative position bias")
_add("cait_s24_224", "vit")
_add("coat_tiny", "vit")
_add("crossvit_small_240", "vit", size=240)
_add("efficientformer_l1", "vit")
_add("eva02_small_patch14_224", "vit", note="rotary positions, SwiGLU", num_classes=1000)  # its own has no classes: features alone
_add("levit_256", "vit")
_add("pvt_v2_b1", "vit")
_add("davit_tiny", "vit")
_add("xcit_small_12_p16_224", "vit")
_add("maxxvit_rmlp_nano_rw_256", "vit", size=256)
_add("twins_svt_small", "vit")
_add("poolformer_s12", "other")
_add("nfnet_f0", "cnn", size=192, note="weight standardisation, no normalisation layers")
_add("resnetv2_50", "cnn", note="pre-activation")
_add("hrnet_w18", "cnn")
_add("repvgg_b0", "cnn")
_add("ghostnet_100", "cnn")
_add("convnextv2_tiny", "cnn", trace={"batch": 4}, note="global response normalisation")
_add("seresnet50", "cnn")
_add("dpn68", "cnn")
_add("cspdarknet53", "cnn", size=256)
_add("tf_efficientnet_b4", "cnn", size=380, batch=8)
_add("res2net50_26w_4s", "cnn")
_add("fastvit_t8", "vit", size=256)
_add("mobilevitv2_100", "vit", size=256)
_add("volo_d1_224", "vit", note="outlook attention")
_add("focalnet_tiny_srf", "vit", note="focal modulation in place of attention")
_add("caformer_s18", "vit", note="separable convolutions, then attention")
_add("hiera_tiny_224", "vit", note="attention within mask units")
_add("mobilenetv4_conv_medium", "cnn")
_add("ese_vovnet39b", "cnn", note="all of a stage's features joined")
_add("resnest50d", "cnn", note="split attention over grouped convolutions")
_add("coatnet_0_rw_224", "vit", note="depthwise stages, then relative attention")
_add("rexnet_100", "cnn", note="widths that grow layer by layer: few are multiples of 8")
_add("repghostnet_130", "cnn", note="ghost modules, re-parameterised")
_add("rdnet_large", "cnn", note="densely joined features, wide layers")
_add("focalnet_base_srf", "vit", note="focal modulation in place of attention")
_add("densenetblur121d", "cnn", note="blurred before it is halved")
_add("deit_tiny_patch16_224", "vit")
_add("mvitv2_small", "vit", note="pooled attention")
_add("nextvit_small", "vit", note="grouped convolutions and attention side by side")
_add("swin_s3_tiny_224", "vit", note="window sizes found by search")
_add("sequencer2d_s", "other", note="recurrent layers over rows and columns in place of attention")
