"""Detectors at the picture sizes of published COCO benchmarks.

Mask R-CNN and Faster R-CNN are torchvision's. Proposals and matches depend on values, so the step is followed with real tensors,
for a fixed number of pictures. Every picture brings its own small operators (matching, suppression, sampling), as in the codes
that were measured: time grows with pictures on the host and on the GPU alike.

RetinaNet (Lin et al. 2017) is own code: anchors are matched to objects in the input pipeline, the step is dense.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _detector(kind: str, height: int, width: int) -> nn.Module:
    """As all these benchmarks train it, from a classifier's weights: norms frozen, the stem and the first stage too."""
    from torchvision.models import resnet50
    from torchvision.models.detection import FasterRCNN, MaskRCNN
    from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
    from torchvision.ops import FrozenBatchNorm2d
    backbone = _resnet_fpn_extractor(resnet50(weights=None, norm_layer=FrozenBatchNorm2d), 3)
    make = {"mask": MaskRCNN, "faster": FasterRCNN}[kind]
    return make(backbone, 91, min_size=height, max_size=width).train()


def mask_rcnn() -> nn.Module:
    return _detector("mask", 800, 1216)


def faster_rcnn() -> nn.Module:
    return _detector("faster", 800, 1216)


def scenes(height: int, width: int, masks: bool = False, boxes: int = 7) -> Any:
    """COCO has seven objects in a picture on average."""
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        targets = []
        for _ in range(batch):
            corner = torch.rand(boxes, 2, device=device, dtype=dtype) * (height * 0.5)
            extent = torch.rand(boxes, 2, device=device, dtype=dtype) * (height * 0.4) + 8
            target = {"boxes": torch.cat([corner, corner + extent], dim=1), "labels": torch.randint(1, 90, (boxes,), device=device)}
            if masks:
                target["masks"] = torch.randint(0, 2, (boxes, height, width), device=device, dtype=torch.uint8)
            targets.append(target)
        return {"images": [torch.rand(3, height, width, device=device, dtype=dtype) for _ in range(batch)], "targets": targets}
    return make


def losses(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return sum(model(data["images"], data["targets"]).values())


class Head(nn.Module):
    """Four convolutions shared by all levels, then the output."""

    def __init__(self, outputs: int, width: int = 256) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.output = nn.Conv2d(width, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x), inplace=True)
        return self.output(x)


class RetinaNet(nn.Module):
    def __init__(self, classes: int = 90, anchors: int = 9, width: int = 256) -> None:
        super().__init__()
        import torchvision
        body = torchvision.models.resnet50(weights=None)
        self.classes, self.anchors = classes, anchors
        self.stem = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool)
        self.stages = nn.ModuleList([body.layer1, body.layer2, body.layer3, body.layer4])
        self.side = nn.ModuleList(nn.Conv2d(size, width, 1) for size in (512, 1024, 2048))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.p6, self.p7 = nn.Conv2d(2048, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1)
        self.class_head, self.box_head = Head(anchors * classes), Head(anchors * 4)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x, kept = self.stem(image), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        levels = [side(c) for side, c in zip(self.side, kept[1:])]
        for at in (1, 0):
            levels[at] = levels[at] + F.interpolate(levels[at + 1], size=levels[at].shape[-2:], mode="nearest")
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels)]
        levels.append(self.p6(kept[-1]))
        levels.append(self.p7(F.relu(levels[-1])))
        flat = [torch.cat([head(level).permute(0, 2, 3, 1).reshape(image.shape[0], -1, size) for level in levels], dim=1)
                for head, size in ((self.class_head, self.classes), (self.box_head, 4))]
        return flat[0], flat[1]


def matched(height: int, width: int) -> Any:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        places = sum(-(-height // step) * -(-width // step) for step in (8, 16, 32, 64, 128)) * model.anchors
        return {"image": torch.rand(batch, 3, height, width, device=device, dtype=dtype),
                "target": torch.zeros(batch, places, model.classes, device=device, dtype=dtype),
                "boxes": torch.zeros(batch, places, 4, device=device, dtype=dtype)}
    return make


def focal(model: nn.Module, data: dict[str, Any]) -> Tensor:
    scores, boxes = model(data["image"])
    share = torch.sigmoid(scores)
    right = share * data["target"] + (1 - share) * (1 - data["target"])
    entropy = F.binary_cross_entropy_with_logits(scores, data["target"], reduction="none")
    return (entropy * (1 - right) ** 2).sum() + F.smooth_l1_loss(boxes, data["boxes"])
