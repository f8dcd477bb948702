"""Own code: the U-Nets of published medical-segmentation benchmarks, two- and three-dimensional.

nnU-Net after Isensee et al. 2021 (arXiv:1809.10486), sized as in NVIDIA's benchmark of the brain-tumour task: 192 x 160 slices
or 128 cubed patches, four modalities, four classes, halved until a side would fall below four, instance norm, leaky ReLU,
transposed convolutions up, the sum of Dice and cross-entropy.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainNorm(nn.Module):
    """Instance norm as a chain of operators, as TensorFlow 1 computes tf.contrib.layers.instance_norm without XLA."""

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        self.places = tuple(range(2, 2 + dims))
        self.weight, self.bias = (nn.Parameter(torch.zeros(channels, *[1] * dims)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=self.places, keepdim=True)
        gap = x - mean
        factor = torch.rsqrt((gap * gap).mean(dim=self.places, keepdim=True) + 1e-6) * self.weight
        return x * factor + (self.bias - mean * factor)


def turned(x: Tensor) -> Tensor:
    """A copy with the channels moved from the last axis to the first, or back: as long as one that keeps the shape's name."""
    return x.flatten(2).transpose(1, 2).contiguous().view(x.shape)


class PlainConv3d(nn.Conv3d):
    """A convolution of NDHWC tensors as TensorFlow 1.15 runs it: turned to NCDHW, computed, and turned back.

    Backward does the same with both gradients, and turns the weight gradient's two operands for itself: as long here, in forward.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(turned(x))
        turned(x.detach()), turned(y.detach())
        return turned(y)


class PlainUp3d(nn.ConvTranspose3d):
    """The same for the transposed convolution."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        y = super().forward(turned(x), output_size)
        turned(x.detach()), turned(y.detach())
        return turned(y)


class Block(nn.Module):
    """Two convolutions, each with instance norm and leaky ReLU; the first may halve the picture.

    The ReLU is in place on what instance norm returns, a view: autograd copies slices for that. A norm fused into one kernel
    returns no view; so does an ordinary ReLU after it.
    """

    def __init__(self, dims: int, inputs: int, outputs: int, stride: int = 1, fused: bool = False, plain: bool = False) -> None:
        super().__init__()
        self.in_place = not fused and not plain
        conv, norm = (nn.Conv2d, nn.InstanceNorm2d) if dims == 2 else (PlainConv3d if plain else nn.Conv3d, nn.InstanceNorm3d)
        self.conv1 = conv(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = conv(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = (PlainNorm(outputs, dims) if plain else norm(outputs, affine=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.norm1(self.conv1(x)), 0.01, inplace=self.in_place)
        return F.leaky_relu(self.norm2(self.conv2(x)), 0.01, inplace=self.in_place)


class UNet(nn.Module):
    def __init__(self, dims: int, widths: tuple[int, ...], inputs: int = 4, classes: int = 4, fused: bool = False,
                 plain: bool = False) -> None:
        super().__init__()
        conv, up = (nn.Conv2d, nn.ConvTranspose2d) if dims == 2 else (PlainConv3d, PlainUp3d) if plain else (nn.Conv3d, nn.ConvTranspose3d)
        self.dims, self.inputs, self.classes = dims, inputs, classes
        before = (inputs,) + widths[:-1]
        self.down = nn.ModuleList(Block(dims, a, b, 1 if level == 0 else 2, fused, plain) for level, (a, b) in enumerate(zip(before, widths)))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(up(a, b, 2, 2, bias=True) for a, b in pairs)
        self.merge = nn.ModuleList(Block(dims, 2 * b, b, 1, fused, plain) for _, b in pairs)
        self.output = conv(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1]):
            x = merge(torch.cat([up(x), skip], dim=1))
        return self.output(x)


def pictures(*size: int) -> Any:
    """Images and class numbers of that size; `seq` plays no part."""
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        return {"image": torch.randn(batch, model.inputs, *size, device=device, dtype=dtype),
                "target": torch.randint(0, model.classes, (batch, *size), device=device)}
    return make


def dice_and_entropy(model: nn.Module, data: dict[str, Any]) -> Tensor:
    logits = model(data["image"])
    shares = torch.softmax(logits, dim=1)
    truth = F.one_hot(data["target"], model.classes).movedim(-1, 1).to(shares.dtype)
    places = tuple(range(2, logits.dim()))
    overlap = (2 * (shares * truth).sum(places) + 1e-5) / (shares.sum(places) + truth.sum(places) + 1e-5)
    return F.cross_entropy(logits, data["target"]) + 1 - overlap.mean()


def decayed(model: nn.Module, data: dict[str, Any]) -> Tensor:
    """As TensorFlow 2's edition trains it: half the sum of squares of all weights but the norms' is part of the loss."""
    weights = [weight for name, weight in model.named_parameters() if "norm" not in name]
    return dice_and_entropy(model, data) + 5e-5 * sum((weight * weight).sum() for weight in weights)


def nnunet_2d() -> nn.Module:
    return UNet(2, (32, 64, 128, 256, 512, 512)).train()


def nnunet_3d() -> nn.Module:
    return UNet(3, (32, 64, 128, 256, 320, 320)).train()


def nnunet_3d_fused() -> nn.Module:
    return UNet(3, (32, 64, 128, 256, 320, 320), fused=True).train()


def nnunet_2d_fused() -> nn.Module:
    return UNet(2, (32, 64, 128, 256, 512, 512), fused=True).train()


def unet_3d_plain() -> nn.Module:
    return UNet(3, (32, 64, 128, 256, 320, 320), plain=True).train()
