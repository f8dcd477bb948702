"""torchvision: classification, segmentation, detection and video networks."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .images import classify, images
from .registry import Build, Entry, Inputs, Loss, add


def _network(function: str, group: str = "", **settings: Any) -> Build:
    """`group` is the submodule of torchvision.models; layers and tiny change nothing, these stacks are short."""
    def build(layers: int | None = None, tiny: bool = False) -> nn.Module:
        import torchvision
        place = getattr(torchvision.models, group) if group else torchvision.models
        return getattr(place, function)(weights=None, **settings).train()
    return build


def _classifier(name: str, family: str = "cnn", batch: int = 32, size: int = 224, trace: dict[str, Any] | None = None,
                loss: Loss = classify, note: str = "", **settings: Any) -> None:
    add(Entry(name, family, "torchvision", _network(name, **settings), images(size), loss, batch, None, trace, note))


def _auxiliary(weight: float, *weights: float) -> Loss:
    """Inception-style training: the auxiliary heads' losses are added with a weight."""
    def loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
        outputs = model(data["image"])
        total = F.cross_entropy(outputs[0], data["target"])
        for output, share in zip(outputs[1:], (weight, *weights)):
            total = total + share * F.cross_entropy(output, data["target"])
        return total
    return loss


def _regnet(**widths: Any) -> Build:
    """torchvision computes the stages' widths with tensors: real ones on the CPU, whatever the model is built on."""
    def build(layers: int | None = None, tiny: bool = False) -> nn.Module:
        from functools import partial
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torchvision.models.regnet import BlockParams, RegNet
        with unset_fake_temporarily(), torch.device("cpu"):
            stages = BlockParams.from_init_params(**widths)
        return RegNet(stages, norm_layer=partial(nn.BatchNorm2d, eps=1e-5, momentum=0.1)).train()
    return build


_classifier("resnet18", trace={"batch": 8})
_classifier("resnet50", trace={"batch": 8})
_classifier("resnet152")
_classifier("resnext50_32x4d", trace={"batch": 4})
_classifier("wide_resnet50_2")
_classifier("vgg16", trace={"batch": 4})
_classifier("vgg16_bn")
_classifier("alexnet")
_classifier("densenet121", trace={"batch": 4})
_classifier("efficientnet_b0", trace={"batch": 8})
_classifier("efficientnet_v2_s")
_classifier("mobilenet_v2", trace={"batch": 8})
_classifier("mobilenet_v3_large", trace={"batch": 8})
_classifier("mnasnet1_0")
add(Entry("regnet_y_8gf", "cnn", "torchvision", _regnet(depth=17, w_0=192, w_a=76.82, w_m=2.19, group_width=56, se_ratio=0.25), images(), classify, 32))
_classifier("shufflenet_v2_x1_0", trace={"batch": 8})
_classifier("squeezenet1_1")
_classifier("googlenet", loss=_auxiliary(0.3, 0.3), init_weights=False,
            note="both auxiliary heads; init_weights=False: scipy-free plain initialisation")
_classifier("inception_v3", size=299, loss=_auxiliary(0.4), init_weights=False, note="auxiliary head")
_classifier("convnext_tiny", trace={"batch": 4})
_classifier("convnext_base")
_classifier("swin_t", "vit", trace={"batch": 4})
_classifier("swin_v2_t", "vit", size=256)
_classifier("maxvit_t", "vit", batch=16)
_classifier("vit_b_16", "vit", trace={"batch": 4})
_classifier("vit_l_16", "vit", batch=16)


# ---- segmentation --------------------------------------------------------------------------------------------------
def _scenes(size: int, classes: int = 21) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"image": torch.randn(batch, 3, size, size, device=device, dtype=dtype),
                "target": torch.randint(0, classes, (batch, size, size), device=device)}
    return make


def _segment(model: nn.Module, data: dict[str, Any]) -> Tensor:
    outputs = model(data["image"])
    loss = F.cross_entropy(outputs["out"], data["target"], ignore_index=255)
    if "aux" in outputs:
        loss = loss + 0.5 * F.cross_entropy(outputs["aux"], data["target"], ignore_index=255)
    return loss


for _name, _trace in (("fcn_resnet50", None), ("fcn_resnet101", None), ("deeplabv3_resnet50", {"batch": 2}),
                      ("deeplabv3_mobilenet_v3_large", None), ("lraspp_mobilenet_v3_large", {"batch": 4})):
    _aux = {} if _name.startswith("lraspp") else {"aux_loss": True}
    add(Entry(_name, "segmentation", "torchvision",
              _network(_name, "segmentation", weights_backbone=None, num_classes=21, **_aux),
              _scenes(256), _segment, 8, None, _trace, "256 x 256 crops, 21 classes"))


# ---- detection -----------------------------------------------------------------------------------------------------
def _objects(size: int, masks: bool = False, keypoints: bool = False, boxes: int = 4) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        pictures = [torch.rand(3, size, size, device=device, dtype=dtype) for _ in range(batch)]
        targets = []
        for _ in range(batch):
            corner = torch.rand(boxes, 2, device=device, dtype=dtype) * (size * 0.5)
            extent = torch.rand(boxes, 2, device=device, dtype=dtype) * (size * 0.4) + 8
            target = {"boxes": torch.cat([corner, corner + extent], dim=1),
                      "labels": torch.randint(1, 2 if keypoints else 90, (boxes,), device=device)}
            if masks:
                target["masks"] = torch.randint(0, 2, (boxes, size, size), device=device, dtype=torch.uint8)
            if keypoints:
                target["keypoints"] = torch.cat([torch.rand(boxes, 17, 2, device=device, dtype=dtype) * size,
                                                 torch.ones(boxes, 17, 1, device=device, dtype=dtype)], dim=2)
            targets.append(target)
        return {"images": pictures, "targets": targets}
    return make


def _detect(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return sum(model(data["images"], data["targets"]).values())


_VALUES = "proposals and matches depend on values: needs real tensors"
for _name, _inputs, _batch in (
        ("fasterrcnn_resnet50_fpn", _objects(512), 2), ("fasterrcnn_mobilenet_v3_large_fpn", _objects(512), 2),
        ("retinanet_resnet50_fpn", _objects(512), 2), ("fcos_resnet50_fpn", _objects(512), 2),
        ("maskrcnn_resnet50_fpn", _objects(512, masks=True), 2),
        ("keypointrcnn_resnet50_fpn", _objects(512, keypoints=True), 2),
        ("ssd300_vgg16", _objects(300), 4), ("ssdlite320_mobilenet_v3_large", _objects(320), 4)):
    add(Entry(_name, "detection", "torchvision", _network(_name, "detection", weights_backbone=None), _inputs, _detect,
              _batch, None, None, _VALUES))


# ---- video ---------------------------------------------------------------------------------------------------------
def _clips(frames: int, size: int) -> Inputs:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"image": torch.randn(batch, 3, frames, size, size, device=device, dtype=dtype),
                "target": torch.randint(0, 400, (batch,), device=device)}
    return make


add(Entry("r3d_18", "cnn", "torchvision", _network("r3d_18", "video"), _clips(16, 112), classify, 4, None,
          {"batch": 2}, "video: 16 frames of 112 x 112"))
add(Entry("mc3_18", "cnn", "torchvision", _network("mc3_18", "video"), _clips(16, 112), classify, 4, None,
          None, "video: 16 frames of 112 x 112; convolutions over time in the first stages only"))
add(Entry("r2plus1d_18", "cnn", "torchvision", _network("r2plus1d_18", "video"), _clips(16, 112), classify, 4, None,
          None, "video: 16 frames of 112 x 112"))
add(Entry("swin3d_t", "vit", "torchvision", _network("swin3d_t", "video"), _clips(16, 224), classify, 2, None, None,
          "video: 16 frames of 224 x 224"))
add(Entry("mvit_v2_s", "vit", "torchvision", _network("mvit_v2_s", "video"), _clips(16, 224), classify, 2, None, None,
          "video: 16 frames of 224 x 224; pooled attention"))
