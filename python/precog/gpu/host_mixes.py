"""Random mixes of single operators and modules, for measuring what each costs the host: definitions only, nothing is timed here.

A piece maps activations to activations of the same shape by one operator, or the few that make it fit. `mix(index)` draws eight kinds of piece and
how often each comes, in any order: no kind always comes with another, so that their costs can be told apart, and between two of a kind others run, as in a
model. `tools/gpu/host_mixes.py` times them, `tools/gpu/host_fit.py` counts what precog sees of each piece.
"""
from __future__ import annotations

import random
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

from .host_stacks import GeluByHand, RmsByHand, Within

BATCH, TOKENS, WIDTH, SIDE = 4, 16, 32, 8
KINDS, MOST = 8, 6  # of a mix, and of one kind in it
Given = dict[str, torch.Tensor]
Function = Callable[[torch.Tensor, Given], torch.Tensor]


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(BATCH, TOKENS, 4, WIDTH // 4).transpose(1, 2)


def joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)


def other(x: torch.Tensor) -> torch.dtype:
    return torch.bfloat16 if x.dtype == torch.float32 else torch.float32


def scores(x: torch.Tensor, given: Given) -> torch.Tensor:
    y = heads(x)
    return joined(torch.matmul(torch.matmul(y, y.transpose(-1, -2)), y))


def attention(x: torch.Tensor, given: Given) -> torch.Tensor:
    y = heads(x)
    return joined(F.scaled_dot_product_attention(y, y, y))


def shuffled(x: torch.Tensor, given: Given) -> torch.Tensor:
    b, c, h, w = x.shape
    return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


def dropped_path(x: torch.Tensor, given: Given) -> torch.Tensor:
    kept = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.9)
    kept.div_(0.9)
    return x * kept


# Called as they stand, outside any module of their own.
COMMON: dict[str, Function] = {
    "add": lambda x, g: x + g["same"], "mul": lambda x, g: x * g["same"], "mul_scalar": lambda x, g: x * 0.99, "add_scalar": lambda x, g: x + 0.01, "relu": lambda x, g: F.relu(x),
    "silu": lambda x, g: F.silu(x), "tanh": lambda x, g: torch.tanh(x), "dropout": lambda x, g: F.dropout(x, 0.1, True),
    "casts": lambda x, g: x.to(other(x)).to(x.dtype),
}
TOKEN_FUNCTIONS: dict[str, Function] = {
    **COMMON, "pow": lambda x, g: x.pow(2), "gelu": lambda x, g: F.gelu(x), "views": lambda x, g: x.view(BATCH, TOKENS, 4, 8).view(BATCH, TOKENS, WIDTH),
    "turned": lambda x, g: x.transpose(1, 2).transpose(1, 2), "squeezed": lambda x, g: x.unsqueeze(1).squeeze(1), "rotated": lambda x, g: torch.cat((-x[..., 16:], x[..., :16]), -1),
    "spread": lambda x, g: x[:, None].expand(BATCH, 1, TOKENS, WIDTH).reshape(BATCH, TOKENS, WIDTH), "copied": lambda x, g: x.transpose(1, 2).contiguous().transpose(1, 2),
    "chunks": lambda x, g: torch.cat(x.chunk(2, -1), -1), "stacked": lambda x, g: torch.stack(x.view(BATCH, TOKENS, 2, 16).unbind(2), 2).view(BATCH, TOKENS, WIDTH),
    "softmax": lambda x, g: F.softmax(x, -1), "softmax_fp32": lambda x, g: F.softmax(x, -1, dtype=torch.float32).to(x.dtype), "centred": lambda x, g: x - x.mean(-1, keepdim=True),
    "summed": lambda x, g: x + x.sum(1, keepdim=True), "product": lambda x, g: torch.matmul(x, g["square"]), "bmm": lambda x, g: torch.bmm(x, g["square"]),
    "einsum": lambda x, g: torch.einsum("bij,bjk->bik", x, g["square"]), "scores": scores, "attention": attention, "masked": lambda x, g: x.masked_fill(g["mask"], 0.0),
    "where": lambda x, g: torch.where(g["mask"], x, g["same"]), "rows": lambda x, g: x[:, g["places"]], "selected": lambda x, g: x.index_select(1, g["places"]),
    "padded": lambda x, g: F.pad(x, (0, 0, 0, 1))[:, :TOKENS], "rolled": lambda x, g: torch.roll(x, 1, 1), "counted": lambda x, g: x + torch.arange(WIDTH, device=x.device),
    "zeros": lambda x, g: x + torch.zeros(WIDTH, dtype=x.dtype, device=x.device), "bare_linear": lambda x, g: F.linear(x, g["weight"]), "bare_norm": lambda x, g: F.layer_norm(x, (WIDTH,)),
}
IMAGE_FUNCTIONS: dict[str, Function] = {
    **COMMON, "hardswish": lambda x, g: F.hardswish(x), "gate": lambda x, g: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1)), "gate_mean": lambda x, g: x * x.mean((2, 3), keepdim=True),
    "max_pool": lambda x, g: F.max_pool2d(x, 3, 1, 1), "avg_pool": lambda x, g: F.avg_pool2d(x, 3, 1, 1), "shuffled": shuffled, "halves": lambda x, g: torch.cat(x.chunk(2, 1), 1),
    "dropped_path": dropped_path, "padded": lambda x, g: F.pad(x, (0, 1, 0, 1))[:, :, :SIDE, :SIDE], "larger": lambda x, g: F.max_pool2d(F.interpolate(x, scale_factor=2.0), 2),
}


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, WIDTH)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x + self.table(places)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


def conv(size: int, groups: int = 1, bias: bool = False) -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2, groups=groups, bias=bias)


TOKEN_MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(WIDTH, WIDTH), "Linear, no bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False), "LayerNorm": lambda: nn.LayerNorm(WIDTH), "RMSNorm": lambda: nn.RMSNorm(WIDTH),
    "RmsByHand": lambda: RmsByHand(WIDTH), "GeluByHand": GeluByHand, "GELU": nn.GELU, "Dropout": lambda: nn.Dropout(0.1), "Identity": nn.Identity,
    "Identities": lambda: nn.Sequential(nn.Identity(), nn.Identity()), "Within": lambda: Within(Within(nn.Identity())), "Table": Table, "Scale": Scale,
}
IMAGE_MODULES: dict[str, Callable[[], nn.Module]] = {
    "Conv2d 3": lambda: conv(3), "Conv2d 1": lambda: conv(1), "Conv2d 3, bias": lambda: conv(3, bias=True), "Conv2d 3, each": lambda: conv(3, WIDTH), "Conv2d 3, groups": lambda: conv(3, 4),
    "BatchNorm2d": lambda: nn.BatchNorm2d(WIDTH), "GroupNorm": lambda: nn.GroupNorm(4, WIDTH), "ReLU": nn.ReLU, "SiLU": nn.SiLU, "ChannelNorm": lambda: ChannelNorm(WIDTH),
    "Conv, norm, ReLU": lambda: nn.Sequential(conv(3), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True)), "Identity": nn.Identity, "Identities": lambda: nn.Sequential(nn.Identity(), nn.Identity()),
}
FAMILIES: dict[str, tuple[dict[str, Function], dict[str, Callable[[], nn.Module]]]] = {"tokens": (TOKEN_FUNCTIONS, TOKEN_MODULES), "images": (IMAGE_FUNCTIONS, IMAGE_MODULES)}


class Mix(nn.Module):
    """Pieces by name, one after the other."""

    def __init__(self, family: str, order: list[str]) -> None:
        super().__init__()
        functions, modules = FAMILIES[family]
        self.family, self.counts = family, {name: order.count(name) for name in order}
        self.first = nn.Parameter(torch.ones(1))  # every piece has a gradient to pass on
        self.pieces = nn.ModuleList(modules[name]() for name in order if name in modules)
        built = iter(self.pieces)
        self.calls: list[Any] = [(name, next(built) if name in modules else None, functions.get(name)) for name in order]

    def forward(self, x: torch.Tensor, given: Given) -> torch.Tensor:
        x = x * self.first
        for name, module, function in self.calls:
            if module is None:
                x = function(x, given)
            elif name == "Table":
                x = module(x, given["places"])
            else:
                x = module(x)
        return x.sum()


def drawn(index: int) -> tuple[str, list[str]]:
    draw = random.Random(index)
    family = "images" if index % 3 == 2 else "tokens"
    functions, modules = FAMILIES[family]
    # modules and functions half and half, though there are more of the latter
    names = draw.sample(sorted(functions), KINDS // 2) + draw.sample(sorted(modules), KINDS - KINDS // 2)
    order = [name for name in names for _ in range(draw.randint(1, MOST))]
    draw.shuffle(order)
    return family, order


def inputs(family: str, device: str) -> tuple[torch.Tensor, Given]:
    shape = (BATCH, TOKENS, WIDTH) if family == "tokens" else (BATCH, WIDTH, SIDE, SIDE)
    x, given = torch.randn(shape, device=device), {"same": torch.randn(shape, device=device)}
    if family == "tokens":
        given |= {"square": torch.randn(BATCH, WIDTH, WIDTH, device=device), "weight": torch.randn(WIDTH, WIDTH, device=device), "mask": torch.rand(shape, device=device) > 0.5,
                  "places": torch.arange(TOKENS, device=device)}
    return x, given


def mix(index: int) -> Mix:
    return Mix(*drawn(index))
