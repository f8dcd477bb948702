"""torchvision's two-stage and one-stage detectors at the picture sizes of published COCO benchmarks.

Proposals and matches depend on values, so the step is followed with real tensors, for a fixed number of pictures. Every picture
brings its own small operators (matching, suppression, sampling), as in the codes that were measured: time grows with pictures
on the host and on the GPU alike.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _detector(name: str, height: int, width: int) -> nn.Module:
    import torchvision
    make = getattr(torchvision.models.detection, name)
    return make(weights=None, weights_backbone=None, min_size=height, max_size=width).train()


def mask_rcnn() -> nn.Module:
    return _detector("maskrcnn_resnet50_fpn", 800, 1216)


def faster_rcnn() -> nn.Module:
    return _detector("fasterrcnn_resnet50_fpn", 800, 1216)


def retinanet() -> nn.Module:
    return _detector("retinanet_resnet50_fpn", 800, 1216)


def retinanet_320() -> nn.Module:
    return _detector("retinanet_resnet50_fpn", 320, 320)


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
