"""transformers: image models (classification, segmentation, detection, masked pre-training)."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .hugging_face import add_model, own_loss, pictures
from .registry import Entry, Inputs, add

_CLASSES = dict(num_labels=1000)


def _picture_only(size: int) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype)}
    return make


def _scene(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 512, 512, device=device, dtype=dtype),
            "labels": torch.randint(0, 150, (batch, 512, 512), device=device)}


def _objects(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 512, 512, device=device, dtype=dtype),
            "classes": torch.randint(0, 91, (batch, 8), device=device),
            "boxes": torch.rand(batch, 8, 4, device=device, dtype=dtype)}


def _fixed_matching(model: nn.Module, data: dict[str, Any]) -> Tensor:
    """DETR's classification and L1 terms with query i given object i: the Hungarian matching runs on the host."""
    output = model(pixel_values=data["pixel_values"])
    objects = data["classes"].shape[1]
    logits, boxes = output.logits, output.pred_boxes
    nothing = torch.full(logits.shape[:2], logits.shape[-1] - 1, device=logits.device, dtype=torch.int64)
    wanted = torch.cat([data["classes"], nothing[:, objects:]], dim=1)
    return F.cross_entropy(logits.transpose(1, 2), wanted) + 5 * F.l1_loss(boxes[:, :objects], data["boxes"])


def _depth(model: nn.Module, data: dict[str, Any]) -> Tensor:
    predicted = model(pixel_values=data["pixel_values"]).predicted_depth
    return F.l1_loss(predicted, torch.ones_like(predicted))


def _named_objects(model: nn.Module, batch: int, seq: int | None,
                   device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Eight names of 16 tokens for each picture, and which place has which of them."""
    config = model.config
    size, places = config.vision_config.image_size, (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    return {"pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype),
            "input_ids": torch.randint(3, config.text_config.vocab_size - 2, (batch, 8, 16), device=device),
            "present": torch.zeros(batch, places, 8, device=device, dtype=dtype), "boxes": torch.rand(batch, places, 4, device=device, dtype=dtype)}


def _named(model: nn.Module, data: dict[str, Any]) -> Tensor:
    output = model(pixel_values=data["pixel_values"], input_ids=data["input_ids"].flatten(0, 1))
    return F.binary_cross_entropy_with_logits(output.logits, data["present"]) + 5 * F.l1_loss(output.pred_boxes, data["boxes"])


def _small_and_large(model: nn.Module, batch: int, seq: int | None,
                     device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.rand(batch, 3, 64, 64, device=device, dtype=dtype),
            "wanted": torch.rand(batch, 3, 128, 128, device=device, dtype=dtype)}


def _restored(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.l1_loss(model(pixel_values=data["pixel_values"]).reconstruction, data["wanted"])


def _clip_of_frames(model: nn.Module, batch: int, seq: int | None,
                    device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 16, 3, 224, 224, device=device, dtype=dtype),
            "labels": torch.randint(0, 400, (batch,), device=device)}


add_model("vit-base-hf", "vit", "ViTForImageClassification", "ViTConfig", _CLASSES, 32, None, pictures(),
          trace={"batch": 4, "layers": 2})
add_model("dinov2-base", "vit", "Dinov2ForImageClassification", "Dinov2Config", _CLASSES, 16, None, pictures(),
          trace={"batch": 4, "layers": 2}, note="layer scale")
add_model("swin-tiny-hf", "vit", "SwinForImageClassification", "SwinConfig", _CLASSES, 32, None, pictures())
add_model("donut-swin", "vit", "DonutSwinForImageClassification", "DonutSwinConfig", _CLASSES, 32, None, pictures(),
          depth=(), small={"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 32}, note="fixed depth")
add_model("mobilevit-small", "vit", "MobileViTForImageClassification", "MobileViTConfig", _CLASSES, 16, None,
          pictures(256))
add_model("convnext-tiny-hf", "cnn", "ConvNextForImageClassification", "ConvNextConfig", _CLASSES, 16, None, pictures())
add_model("vit-mae-base", "vit", "ViTMAEForPreTraining", "ViTMAEConfig", {}, 16, None, _picture_only(224),
          note="three quarters of the patches are dropped at random")
add_model("videomae-base", "vit", "VideoMAEForVideoClassification", "VideoMAEConfig", dict(num_labels=400), 2, None,
          _clip_of_frames, note="video: 16 frames of 224 x 224")
add_model("segformer-b0", "segmentation", "SegformerForSemanticSegmentation", "SegformerConfig", dict(num_labels=150),
          4, None, _scene, own_loss, {"batch": 2}, "512 x 512 crops")
add_model("dpt-large", "segmentation", "DPTForDepthEstimation", "DPTConfig", dict(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, is_hybrid=False,
    backbone_out_indices=[5, 11, 17, 23], neck_hidden_sizes=[256, 512, 1024, 1024]), 2, None, _picture_only(384),
          _depth,          note="depth estimation")
add_model("detr-resnet50", "detection", "DetrForObjectDetection", "DetrConfig", dict(num_labels=91), 2, None, _objects,
          _fixed_matching, note="matching fixed; needs timm for its backbone")
add_model("yolos-small", "detection", "YolosForObjectDetection", "YolosConfig", dict(
    hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=91, image_size=[512, 512]), 2, None,
          _objects, _fixed_matching, note="matching fixed")
_SMALL_TOWER = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
add_model("owlvit-base-32", "detection", "OwlViTForObjectDetection", "OwlViTConfig", {}, 2, None, _named_objects, _named,
          depth=("text_config.num_hidden_layers", "vision_config.num_hidden_layers"),
          small=dict(projection_dim=64, text_config=dict(_SMALL_TOWER, vocab_size=512), vision_config=dict(_SMALL_TOWER, image_size=96)),
          note="objects by their names: 8 for each picture of 768 x 768; every place compared with each")
add_model("swin2sr-classical-x2", "other", "Swin2SRForImageSuperResolution", "Swin2SRConfig", dict(drop_path_rate=0.1), 2, None,
          _small_and_large, _restored, depth=(), small={"depths": (2,), "num_heads": (2,), "embed_dim": 32},
          note="super-resolution of 64 x 64 crops; fixed depth")


def _upernet(layers: int | None = None, tiny: bool = False) -> nn.Module:
    import transformers
    sizes, depths = ([16, 32, 48, 64], [1, 1, 1, 1]) if tiny else ([96, 192, 384, 768], [3, 3, 9, 3])
    backbone = transformers.ConvNextConfig(hidden_sizes=sizes, depths=depths, out_features=["stage1", "stage2", "stage3", "stage4"])
    config = transformers.UperNetConfig(backbone_config=backbone, num_labels=150, hidden_size=64 if tiny else 512,
                                        auxiliary_in_channels=48 if tiny else 384)
    return transformers.UperNetForSemanticSegmentation(config).train()


add(Entry("upernet-convnext-tiny", "segmentation", "transformers", _upernet, _scene, own_loss, 4, None, None,
          "pyramid pooling and feature pyramid, auxiliary head; 512 x 512 crops"))
