"""Own code: a diffusion UNet as in the text-to-image and DDPM papers, a diffusion transformer, and a 3D UNet."""
from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Entry, add


def time_features(step: Tensor, width: int) -> Tensor:
    """Sines and cosines of the diffusion step, in fp32 whatever the model's dtype."""
    half = width // 2
    rates = torch.exp(-math.log(10000.0) * torch.arange(half, device=step.device, dtype=torch.float32) / half)
    angles = step[:, None].float() * rates[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.dropout = nn.Dropout(0.1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return self.skip(x) + h


class SpatialAttention(nn.Module):
    """Self-attention over the pixels and, with a context, cross-attention to it."""

    def __init__(self, width: int, heads: int, context: int | None) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.context_norm = nn.LayerNorm(width) if context else None
        if context:
            self.query = nn.Linear(width, width, bias=False)
            self.key_value = nn.Linear(context, 2 * width, bias=False)
            self.context_out = nn.Linear(width, width)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(self._heads(q), self._heads(k), self._heads(v))
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(pixels).chunk(3, dim=-1)
        y = self.out(self._attend(q, k, v))
        if self.context_norm is not None:
            k, v = self.key_value(context).chunk(2, dim=-1)
            y = y + self.context_out(self._attend(self.query(self.context_norm(y)), k, v))
        return x + y.transpose(1, 2).reshape(x.shape)


class DiffusionUNet(nn.Module):
    def __init__(self, channels: int = 4, width: int = 320, scales: tuple[int, ...] = (1, 2, 4, 4), blocks: int = 2,
                 attention_at: tuple[int, ...] = (0, 1, 2), heads: int = 8, context: int | None = 768) -> None:
        super().__init__()
        time_width = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        attention = lambda at, size: SpatialAttention(size, heads, context) if at in attention_at else None
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, size = [width], width
        for at, scale in enumerate(scales):
            for _ in range(blocks):
                block = ResidualBlock(size, scale * width, time_width)
                self.down.append(self._stage(block, attention(at, scale * width)))
                size = scale * width
                kept.append(size)
            if at + 1 < len(scales):
                self.down.append(nn.Conv2d(size, size, 3, stride=2, padding=1))
                kept.append(size)
        self.middle1 = ResidualBlock(size, size, time_width)
        self.middle_attention = SpatialAttention(size, heads, context)
        self.middle2 = ResidualBlock(size, size, time_width)
        for at, scale in reversed(list(enumerate(scales))):
            for _ in range(blocks + 1):
                block = ResidualBlock(size + kept.pop(), scale * width, time_width)
                size = scale * width
                self.up.append(self._stage(block, attention(at, size)))
            if at:
                self.up.append(nn.Conv2d(size, size, 3, padding=1))
        self.norm = nn.GroupNorm(32, size)
        self.last = nn.Conv2d(size, channels, 3, padding=1)

    @staticmethod
    def _stage(block: ResidualBlock, attention: SpatialAttention | None) -> nn.ModuleList:
        return nn.ModuleList([block] if attention is None else [block, attention])

    def forward(self, x: Tensor, step: Tensor, context: Tensor | None = None) -> Tensor:
        time = self.time(time_features(step, self.width).to(x.dtype))
        x = self.first(x)
        kept = [x]
        for stage in self.down:
            x = stage(x) if isinstance(stage, nn.Conv2d) else self._run(stage, x, time, context)
            kept.append(x)
        x = self.middle1(x, time)
        x = self.middle2(self.middle_attention(x, context), time)
        for stage in self.up:
            if isinstance(stage, nn.Conv2d):
                x = stage(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            else:
                x = self._run(stage, torch.cat([x, kept.pop()], dim=1), time, context)
        return self.last(F.silu(self.norm(x)))

    @staticmethod
    def _run(stage: nn.ModuleList, x: Tensor, time: Tensor, context: Tensor | None) -> Tensor:
        x = stage[0](x, time)
        return stage[1](x, context) if len(stage) > 1 else x


class DiTBlock(nn.Module):
    """A transformer block whose norms are scaled and shifted by the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(condition)[:, None].chunk(6, dim=-1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, channels: int = 4, patch: int = 2) -> None:
        super().__init__()
        self.width, self.patch = width, patch
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(1, 256, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.last = nn.Linear(width, patch * patch * channels)

    def forward(self, x: Tensor, step: Tensor, label: Tensor) -> Tensor:
        batch, channels, height, across = x.shape
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = h + self.position
        condition = self.time(time_features(step, 256).to(h.dtype)) + self.label(label)
        for block in self.blocks:
            h = block(h, condition)
        rows, columns = height // self.patch, across // self.patch
        h = self.last(self.norm(h)).reshape(batch, rows, columns, self.patch, self.patch, channels)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


class JointBlock(nn.Module):
    """Text and picture, each with its own weights, in one attention (MM-DiT)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        two = lambda make: nn.ModuleList(make() for _ in range(2))
        self.modulation = two(lambda: nn.Linear(width, 6 * width))
        self.qkv, self.out = two(lambda: nn.Linear(width, 3 * width)), two(lambda: nn.Linear(width, width))
        self.query_norm, self.key_norm = two(lambda: nn.RMSNorm(width // heads)), two(lambda: nn.RMSNorm(width // heads))
        self.mlp = two(lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)))
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(4))

    def forward(self, both: list[Tensor], condition: Tensor) -> list[Tensor]:
        parts = [linear(F.silu(condition))[:, None].chunk(6, dim=-1) for linear in self.modulation]
        heads = []
        for side, x in enumerate(both):
            shift, scale = parts[side][:2]
            q, k, v = self.qkv[side](self.norms[side](x) * (1 + scale) + shift).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            heads.append((self.query_norm[side](q), self.key_norm[side](k), v))
        mixed = F.scaled_dot_product_attention(*(torch.cat(sides, dim=2) for sides in zip(*heads)))
        mixed = mixed.transpose(1, 2).flatten(2).split([x.shape[1] for x in both], dim=1)
        out = []
        for side, x in enumerate(both):
            _, _, gate, shift, scale, mlp_gate = parts[side]
            x = x + gate * self.out[side](mixed[side])
            out.append(x + mlp_gate * self.mlp[side](self.norms[2 + side](x) * (1 + scale) + shift))
        return out


class MmDit(nn.Module):
    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, channels: int = 16, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        self.patches, self.text = nn.Conv2d(channels, width, patch, stride=patch), nn.Linear(768, width)
        self.position = nn.Parameter(torch.zeros(1, 256, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(JointBlock(width, heads) for _ in range(depth))
        self.norm, self.last = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, patch * patch * channels)

    def forward(self, x: Tensor, step: Tensor, context: Tensor) -> Tensor:
        batch, channels, height, across = x.shape
        picture = self.patches(x).flatten(2).transpose(1, 2) + self.position
        condition = self.time(time_features(step, 256).to(picture.dtype))
        both = [self.text(context), picture]
        for block in self.blocks:
            both = block(both, condition)
        rows, columns = height // self.patch, across // self.patch
        h = self.last(self.norm(both[1])).reshape(batch, rows, columns, self.patch, self.patch, channels)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


def _noisy(size: int, channels: int, context: bool, label: bool = False) -> Any:
    def make(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        data = {"x": torch.randn(batch, channels, size, size, device=device, dtype=dtype),
                "noise": torch.randn(batch, channels, size, size, device=device, dtype=dtype),
                "step": torch.randint(0, 1000, (batch,), device=device)}
        if context:
            data["context"] = torch.randn(batch, 77, 768, device=device, dtype=dtype)
        if label:
            data["label"] = torch.randint(0, 1000, (batch,), device=device)
        return data
    return make


def _denoise(model: nn.Module, data: dict[str, Any]) -> Tensor:
    given = {key: value for key, value in data.items() if key not in ("noise", "x")}
    predicted = model(data["x"] + 0.5 * data["noise"], **given)
    return F.mse_loss(predicted.float(), data["noise"].float())


def _latent_unet(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return (DiffusionUNet(width=32, scales=(1, 2), attention_at=(1,), heads=4) if tiny else DiffusionUNet()).train()


def _pixel_unet(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return DiffusionUNet(channels=3, width=32 if tiny else 128, scales=(1, 2, 2, 2), attention_at=(1,), heads=1,
                         context=None).train()


def _dit(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return DiT(width=192 if tiny else 768, depth=layers or 12, heads=3 if tiny else 12).train()


add(Entry("diffusion-unet-latent", "diffusion", "own", _latent_unet, _noisy(64, 4, True), _denoise, 2, None,
          {"batch": 1}, "text-conditioned, 64 x 64 latents, 320 channels"))
add(Entry("diffusion-unet-ddpm", "diffusion", "own", _pixel_unet, _noisy(32, 3, False), _denoise, 16, None,
          {"batch": 4}, "32 x 32 pixels, 128 channels"))
add(Entry("dit-b2", "diffusion", "own", _dit, _noisy(32, 4, False, True), _denoise, 8, None,
          {"batch": 4, "layers": 2}, "32 x 32 latents, adaptive norms"))
add(Entry("mmdit-b2", "diffusion", "own", lambda layers=None, tiny=False: MmDit(192 if tiny else 768, layers or (2 if tiny else 12), 3 if tiny else 12)
          .train(), _noisy(32, 16, True), _denoise, 8, None, None, "text and picture in joint attention, 32 x 32 latents"))


# ---- 3D UNet -------------------------------------------------------------------------------------------------------
def _double3d(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True),
                         nn.LeakyReLU(0.01, inplace=True), nn.Conv3d(outputs, outputs, 3, padding=1),
                         nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01, inplace=True))


class UNet3d(nn.Module):
    def __init__(self, inputs: int = 1, classes: int = 3, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        sizes = [width * 2 ** level for level in range(depth)]
        self.down = nn.ModuleList(_double3d(before, size) for before, size in zip([inputs, *sizes], sizes))
        self.rise = nn.ModuleList(nn.ConvTranspose3d(2 * size, size, 2, stride=2) for size in reversed(sizes[:-1]))
        self.up = nn.ModuleList(_double3d(2 * size, size) for size in reversed(sizes[:-1]))
        self.last = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool3d(x, 2))
            kept.append(x)
        kept.pop()
        for rise, block in zip(self.rise, self.up):
            x = block(torch.cat([rise(x), kept.pop()], dim=1))
        return self.last(x)


def _volumes(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"image": torch.randn(batch, 1, 64, 64, 64, device=device, dtype=dtype),
            "target": torch.randint(0, 3, (batch, 64, 64, 64), device=device)}


def _dice(model: nn.Module, data: dict[str, Any]) -> Tensor:
    logits = model(data["image"])
    shares = logits.softmax(dim=1)
    wanted = F.one_hot(data["target"], logits.shape[1]).permute(0, 4, 1, 2, 3).to(shares.dtype)
    overlap = 2 * (shares * wanted).sum(dim=(2, 3, 4)) / (shares + wanted).sum(dim=(2, 3, 4)).clamp(min=1e-5)
    return F.cross_entropy(logits, data["target"]) + 1 - overlap.mean()


def _unet3d(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return UNet3d(width=8 if tiny else 32).train()


add(Entry("unet3d", "segmentation", "own", _unet3d, _volumes, _dice, 2, None, {"batch": 1},
          "64 cubed volumes, Dice and cross-entropy"))


# ---- the autoencoder of latent diffusion -----------------------------------------------------------------------------
class PlainBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))


class PixelAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(32, width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x).flatten(2).transpose(1, 2)).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(mixed).transpose(1, 2).unflatten(2, x.shape[2:])


class LatentAutoencoder(nn.Module):
    def __init__(self, width: int = 128, scales: tuple[int, ...] = (1, 2, 4, 4), depth: int = 2, code: int = 4) -> None:
        super().__init__()
        sizes = [width * scale for scale in scales]
        down: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        for level, (before, size) in enumerate(zip([width, *sizes], sizes)):
            down += [PlainBlock(before if at == 0 else size, size) for at in range(depth)]
            if level < len(sizes) - 1:
                down += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(size, size, 3, stride=2)]
        top = sizes[-1]
        self.encoder = nn.Sequential(*down, PlainBlock(top, top), PixelAttention(top), PlainBlock(top, top), nn.GroupNorm(32, top), nn.SiLU(),
                                     nn.Conv2d(top, 2 * code, 3, padding=1), nn.Conv2d(2 * code, 2 * code, 1))
        up: list[nn.Module] = [nn.Conv2d(code, code, 1), nn.Conv2d(code, top, 3, padding=1), PlainBlock(top, top), PixelAttention(top),
                               PlainBlock(top, top)]
        for level, (before, size) in enumerate(zip([top, *sizes[::-1]], sizes[::-1])):
            up += [PlainBlock(before if at == 0 else size, size) for at in range(depth + 1)]
            if level < len(sizes) - 1:
                up += [nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(size, size, 3, padding=1)]
        self.decoder = nn.Sequential(*up, nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(image).chunk(2, dim=1)
        spread = spread.clamp(-30.0, 20.0)
        return self.decoder(mean + torch.exp(0.5 * spread) * torch.randn_like(mean)), mean, spread


def _photograph(model: nn.Module, batch: int, seq: int | None,
                device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"image": torch.rand(batch, 3, 256, 256, device=device, dtype=dtype)}


def _rebuilt(model: nn.Module, data: dict[str, Any]) -> Tensor:
    picture, mean, spread = model(data["image"])
    divergence = 0.5 * (mean.pow(2) + spread.exp() - 1.0 - spread).sum(dim=(1, 2, 3)).mean()
    return F.l1_loss(picture, data["image"]) + 1e-6 * divergence


def _latent_autoencoder(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return (LatentAutoencoder(32, (1, 2), 1) if tiny else LatentAutoencoder()).train()


add(Entry("autoencoder-kl", "diffusion", "own", _latent_autoencoder, _photograph, _rebuilt, 2, None, None,
          "256 x 256 pixels to 32 x 32 latents and back"))
