"""Detectors at the picture sizes of published COCO benchmarks.

Mask R-CNN and Faster R-CNN are torchvision's. Proposals and matches depend on values, so the step is followed with real tensors,
for a fixed number of pictures. Every picture brings its own small operators (matching, suppression, sampling), as in the codes
that were measured: time grows with pictures on the host and on the GPU alike.

RetinaNet (Lin et al. 2017) is own code: anchors are matched to objects in the input pipeline, the step is dense. `TensorFlowSsd` is
the same network as TensorFlow's Object Detection API trains it (NVIDIA's ssd320_bench.config): six anchors a place, norms
that do not learn their statistics, and within the step, picture by picture, the matching of all anchors to 100 (padded) objects.
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

    def pyramid(self, image: Tensor) -> list[Tensor]:
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
        return levels

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        levels = self.pyramid(image)
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


class NormedHead(nn.Module):
    """The convolutions are shared by all levels, their norms are not."""

    def __init__(self, outputs: int, levels: int = 5, width: int = 256) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4)) for _ in range(levels))
        self.output = nn.Conv2d(width, outputs, 3, padding=1)

    def forward(self, x: Tensor, level: int) -> Tensor:
        for conv, norm in zip(self.convs, self.norms[level]):
            x = F.relu6(norm(conv(x)), inplace=True)
        return self.output(x)


class TensorFlowSsd(RetinaNet):
    def __init__(self, classes: int = 90, anchors: int = 6) -> None:
        super().__init__(classes, anchors)
        self.class_head, self.box_head = NormedHead(anchors * classes), NormedHead(anchors * 4)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        levels = self.pyramid(image)
        flat = [torch.cat([head(level, index).permute(0, 2, 3, 1).reshape(image.shape[0], -1, size) for index, level in enumerate(levels)], dim=1)
                for head, size in ((self.class_head, self.classes), (self.box_head, 4))]
        return flat[0].float(), flat[1].float()  # the loss is arithmetic after the last product: fp32 in TensorFlow's mixed precision


def padded(height: int, width: int, objects: int = 100) -> Any:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        places = sum(-(-height // step) * -(-width // step) for step in (8, 16, 32, 64, 128)) * model.anchors
        return {"image": torch.rand(batch, 3, height, width, device=device, dtype=dtype),
                "anchors": torch.rand(places, 4, device=device, dtype=dtype),
                "boxes": torch.rand(batch, objects, 4, device=device, dtype=dtype),
                "labels": torch.rand(batch, objects, model.classes + 1, device=device, dtype=dtype),
                "weights": torch.rand(batch, objects, device=device, dtype=dtype)}
    return make


def area(box: list[Tensor]) -> Tensor:
    return (box[2] - box[0]) * (box[3] - box[1])


def center(box: list[Tensor]) -> tuple[Tensor, ...]:
    high, wide = box[2] - box[0], box[3] - box[1]
    return box[0] + high / 2, box[1] + wide / 2, high, wide


def overlaps(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Intersection over union of every object with every anchor, operator by operator."""
    b, a = list(boxes.split(1, dim=1)), [column.squeeze(1).unsqueeze(0) for column in anchors.split(1, dim=1)]
    sides = [F.relu(torch.minimum(b[at + 2], a[at + 2]) - torch.maximum(b[at], a[at])) for at in (0, 1)]
    common = sides[0] * sides[1]
    whole = area(b) + area(a) - common
    return torch.where(common == 0, torch.zeros_like(common), common / whole)


def gathered(rows: Tensor, match: Tensor) -> Tensor:
    """Rows picked by a product with one-hot rows (use_matmul_gather), two more for anchors without an object and ignored ones."""
    table = torch.cat([torch.zeros(2, rows.shape[1], device=rows.device, dtype=rows.dtype), rows])
    picks = F.one_hot(torch.clamp_min(match + 2, 0), table.shape[0]).to(rows.dtype)
    return torch.matmul(picks, table)


def targets_of(boxes: Tensor, labels: Tensor, weights: Tensor, anchors: Tensor) -> tuple[Tensor, ...]:
    """One picture's targets: each anchor's best object above one half, every object's best anchor by force."""
    shares = overlaps(boxes, anchors)
    match, best = shares.argmax(dim=0), shares.amax(dim=0)
    for limit, number in ((best < 0.5, -1), ((best >= 0.5) & (best < 0.5), -2)):
        match = match * (1 - limit.to(match.dtype)) + number * limit.to(match.dtype)
    forced = F.one_hot(shares.argmax(dim=1), anchors.shape[0]) * (weights > 0).to(match.dtype).unsqueeze(1)
    match = torch.where(forced.amax(dim=0) > 0, forced.argmax(dim=0), match)
    y, x, high, wide = center(list(gathered(boxes, match).split(1, dim=1)))
    at_y, at_x, at_high, at_wide = center(list(anchors.split(1, dim=1)))
    codes = torch.cat([(y - at_y) / (at_high + 1e-8) * 10, (x - at_x) / (at_wide + 1e-8) * 10,
                       torch.log((high + 1e-8) / (at_high + 1e-8)) * 5, torch.log((wide + 1e-8) / (at_wide + 1e-8)) * 5], dim=1)
    codes = torch.where((match >= 0).unsqueeze(1), codes, torch.zeros_like(codes))
    return codes, gathered(labels, match), gathered(weights.unsqueeze(1), match), gathered(weights.unsqueeze(1), match)


def matching_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    """Matching, focal loss and smooth L1 as chains of operators."""
    made = [targets_of(boxes, labels, weights, data["anchors"])
            for boxes, labels, weights in zip(data["boxes"].unbind(0), data["labels"].unbind(0), data["weights"].unbind(0))]
    boxes, labels, box_weights, weights = (torch.stack(parts) for parts in zip(*made))
    labels = labels[:, :, 1:].contiguous()
    scores, places = model(data["image"])
    entropy = F.relu(scores) - scores * labels + torch.log1p(torch.exp(-torch.abs(scores)))
    share = torch.sigmoid(scores)
    right = labels * share + (1 - labels) * (1 - share)
    factor = torch.pow(1 - right, 2.0)
    alpha = labels * 0.25 + (1 - labels) * 0.75
    of_class = (factor * alpha * entropy * weights).sum()
    gap = torch.abs(places - boxes)
    of_place = (torch.where(gap < 1, 0.5 * gap * gap, gap - 0.5) * box_weights).sum()
    return (of_class + of_place) / box_weights.sum().clamp_min(1)
