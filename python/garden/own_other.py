"""Own code: an MLP, a NeRF, transformers written from scratch, PyTorch's own transformer layers, channels_last."""
from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .images import classify, images
from .registry import Entry, add


class Mlp(nn.Module):
    def __init__(self, inputs: int = 784, width: int = 2048, depth: int = 4, classes: int = 10) -> None:
        super().__init__()
        sizes = [inputs] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer, norm in zip(self.layers, self.norms):
            x = F.dropout(F.relu(norm(layer(x))), 0.2, self.training)
        return self.output(x)


class Nerf(nn.Module):
    """Points along rays to colour and density, integrated along the ray."""

    def __init__(self, width: int = 256, depth: int = 8, samples: int = 64) -> None:
        super().__init__()
        self.samples = samples
        inputs = 3 + 3 * 2 * 10
        self.layers = nn.ModuleList(nn.Linear(inputs if at == 0 else width + (inputs if at == 4 else 0), width)
                                    for at in range(depth))
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.colour = nn.Sequential(nn.Linear(width + 3 + 3 * 2 * 4, width // 2), nn.ReLU(), nn.Linear(width // 2, 3))

    @staticmethod
    def waves(x: Tensor, octaves: int) -> Tensor:
        parts = [x]
        for octave in range(octaves):
            parts += [torch.sin(x * 2.0 ** octave), torch.cos(x * 2.0 ** octave)]
        return torch.cat(parts, dim=-1)

    def forward(self, origin: Tensor, direction: Tensor) -> Tensor:
        at = torch.linspace(2.0, 6.0, self.samples, device=origin.device, dtype=origin.dtype)
        points = origin[:, None] + direction[:, None] * at[None, :, None]
        x = encoded = self.waves(points, 10)
        for index, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, encoded], dim=-1) if index == 4 else x))
        density = F.relu(self.density(x)).squeeze(-1)
        view = self.waves(F.normalize(direction, dim=-1), 4)[:, None].expand(-1, self.samples, -1)
        colour = torch.sigmoid(self.colour(torch.cat([self.feature(x), view], dim=-1)))
        opacity = 1 - torch.exp(-density * (4.0 / self.samples))
        clear = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], dim=1), dim=1)[:, :-1]
        return ((opacity * clear)[:, :, None] * colour).sum(dim=1)


class EinsumBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(width // heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Parameter(torch.randn(width, heads, width // heads) * 0.02)
                                            for _ in range(3))
        self.out = nn.Parameter(torch.randn(heads, width // heads, width) * 0.02)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, hidden_places: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (torch.einsum("bsd,dhe->bhse", h, weight) for weight in (self.query, self.key, self.value))
        scores = torch.einsum("bhqe,bhke->bhqk", q, k) * self.scale
        shares = self.dropout(scores.masked_fill(hidden_places, float("-inf")).softmax(dim=-1))
        x = x + torch.einsum("bhse,hed->bsd", torch.einsum("bhqk,bhke->bhqe", shares, v), self.out)
        return x + self.mlp(self.norm2(x))


class EinsumTransformer(nn.Module):
    def __init__(self, words: int = 32000, width: int = 768, depth: int = 12, heads: int = 12,
                 longest: int = 2048) -> None:
        super().__init__()
        self.words = words
        self.token, self.position = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(EinsumBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.token(ids) + self.position(places)
        later = torch.ones(ids.shape[1], ids.shape[1], device=ids.device, dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, later)
        return F.linear(self.norm(x), self.token.weight)


class EncoderText(nn.Module):
    """nn.TransformerEncoder as in the tutorials: post-norm, ReLU, a padding mask."""

    def __init__(self, words: int = 32000, width: int = 512, depth: int = 6, heads: int = 8) -> None:
        super().__init__()
        self.words, self.width = words, width
        self.token = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2048, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.output = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.layers(self.token(ids) * math.sqrt(self.width), src_key_padding_mask=ids == 0))


class AttentionVit(nn.Module):
    """A ViT of nn.TransformerEncoderLayer: pre-norm, GELU, no mask."""

    def __init__(self, width: int = 384, depth: int = 12, heads: int = 6, patch: int = 16, size: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu",
                                                               batch_first=True, norm_first=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.summary.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Translator(nn.Module):
    """nn.Transformer, encoder and decoder, with a causal mask."""

    def __init__(self, words: int = 32000, width: int = 512, depth: int = 6) -> None:
        super().__init__()
        self.words = words
        self.token = nn.Embedding(words, width)
        self.layers = nn.Transformer(width, 8, depth, depth, 2048, batch_first=True)
        self.output = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device,
                                                              dtype=self.token.weight.dtype)
        hidden = self.layers(self.token(source), self.token(target), tgt_mask=mask, tgt_is_causal=True)
        return self.output(hidden)


class Autoencoder(nn.Module):
    """A convolutional variational autoencoder: transposed convolutions, batch norms, a sampled code."""

    def __init__(self, width: int = 64, code: int = 128) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.down = nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
                                    for a, b in zip(sizes, sizes[1:])))
        self.code, self.start = nn.Linear(4 * width * 64, 2 * code), nn.Linear(code, 4 * width * 64)
        backwards = sizes[:0:-1]
        self.up = nn.Sequential(*(nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
                                  for a, b in zip(backwards, backwards[1:])), nn.ConvTranspose2d(width, 3, 4, 2, 1))
        self.width = width

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.code(self.down(image).flatten(1)).chunk(2, dim=1)
        sample = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.up(self.start(sample).unflatten(1, (4 * self.width, 8, 8))), mean, spread


def _digits(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"image": torch.randn(batch, 1, 28, 28, device=device, dtype=dtype),
            "target": torch.randint(0, 10, (batch,), device=device)}


def _rays(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {name: torch.randn(batch, 3, device=device, dtype=dtype) for name in ("origin", "direction", "colour")}


def _ray_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.mse_loss(model(data["origin"], data["direction"]), data["colour"])


def _text(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    ids = torch.randint(1, model.words, (batch, (seq or 128) + 1), device=device)
    return {"ids": ids[:, :-1], "target": ids[:, 1:]}


def _next_word(model: nn.Module, data: dict[str, Any]) -> Tensor:
    logits = model(data["ids"])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), data["target"].reshape(-1))


def _two_texts(model: nn.Module, batch: int, seq: int | None,
               device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    target = torch.randint(1, model.words, (batch, (seq or 128) // 2 + 1), device=device)
    return {"source": torch.randint(1, model.words, (batch, seq or 128), device=device), "before": target[:, :-1],
            "after": target[:, 1:]}


def _translate(model: nn.Module, data: dict[str, Any]) -> Tensor:
    logits = model(data["source"], data["before"])
    return F.cross_entropy(logits.flatten(0, 1), data["after"].flatten(), label_smoothing=0.1)


def _picture(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"image": torch.rand(batch, 3, 64, 64, device=device, dtype=dtype)}


def _evidence(model: nn.Module, data: dict[str, Any]) -> Tensor:
    picture, mean, spread = model(data["image"])
    divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(dim=1).mean()
    return F.mse_loss(torch.sigmoid(picture), data["image"]) + 1e-3 * divergence


def _channels_last(function: str) -> Any:
    def build(layers: int | None = None, tiny: bool = False) -> nn.Module:
        import torchvision
        model = getattr(torchvision.models, function)(weights=None)
        for parameter in model.parameters():  # what .to(memory_format=...) does; that one refuses fake tensors
            if parameter.dim() == 4:
                parameter.data = parameter.data.to(memory_format=torch.channels_last)
        return model.train()
    return build


def _einsum(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return EinsumTransformer(words=512 if tiny else 32000, width=96 if tiny else 768, depth=layers or 12).train()


def _encoder(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return EncoderText(depth=layers or 6).train()


_LAST = "channels_last weights and images"
add(Entry("mlp", "other", "own", lambda layers=None, tiny=False: Mlp().train(), _digits, classify, 256, None,
          {"batch": 64}))
add(Entry("nerf", "other", "own", lambda layers=None, tiny=False: Nerf().train(), _rays, _ray_loss, 1024, None,
          {"batch": 256}, "batch counts rays"))
add(Entry("einsum-transformer", "decoder", "own", _einsum, _text, _next_word, 4, 512,
          {"batch": 2, "seq": 256, "layers": 2}, "attention from scratch, tied output"))
add(Entry("pytorch-encoder", "encoder", "own", _encoder, _text, _next_word, 8, 128,
          {"batch": 4, "seq": 128, "layers": 2}, "nn.TransformerEncoder with a padding mask"))
add(Entry("pytorch-transformer", "encoder_decoder", "own",
          lambda layers=None, tiny=False: Translator(depth=layers or 6).train(), _two_texts, _translate, 8, 128,
          {"batch": 2, "seq": 128, "layers": 2}, "nn.Transformer, label smoothing"))
add(Entry("attention-vit", "vit", "own", lambda layers=None, tiny=False: AttentionVit(depth=layers or 12).train(),
          images(), classify, 16, None, {"batch": 4, "layers": 2}, "nn.TransformerEncoderLayer, pre-norm"))
add(Entry("conv-vae", "diffusion", "own", lambda layers=None, tiny=False: Autoencoder().train(), _picture, _evidence,
          32, None, {"batch": 8}, "variational autoencoder"))
add(Entry("resnet50-channels-last", "cnn", "own", _channels_last("resnet50"), images(channels_last=True), classify, 32,
          None, {"batch": 8}, _LAST))
add(Entry("mobilenet_v2-channels-last", "cnn", "own", _channels_last("mobilenet_v2"), images(channels_last=True),
          classify, 32, None, None, _LAST))
