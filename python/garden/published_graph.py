"""Own code: the SE(3)-Transformer (Fuchs et al. 2020, arXiv:2006.10503) as NVIDIA's QM9 benchmark sizes and fuses it.

Seven layers, degrees 0 to 3 with 32 channels each (16 numbers per channel), eight heads. The convolution of a layer is fused over
all pairs of degrees: per edge a radial network makes 44 x 32 x 32 weights, and two batched products apply them to the features in
the basis. A molecule of QM9 has 18 atoms and some 37 directed bonds. The basis of an edge depends on positions only; here a copy
of the right size stands for its computation.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATOMS, BONDS, DEGREES, FREQUENCIES = 18, 37, (1, 3, 5, 7), 44
SIZE = sum(DEGREES)


class Radial(nn.Module):
    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width),
                                 nn.ReLU(), nn.Linear(width, outputs, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Convolution(nn.Module):
    """From and to all degrees, or only from (first layer) or to (last) degree 0, where one frequency per pair remains."""

    def __init__(self, inputs: int, outputs: int, edge: int, first: bool = False, last: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs, self.to = inputs, outputs, 1 if last else SIZE
        self.frequencies, self.start = (len(DEGREES) if first or last else FREQUENCIES), 1 if first else SIZE
        self.radial = Radial(edge, outputs * inputs * self.frequencies)

    def forward(self, x: Tensor, source: Tensor, edge: Tensor, basis: Tensor) -> Tensor:
        weights = self.radial(edge).view(-1, self.outputs, self.inputs * self.frequencies)
        basis = basis[:, :self.start, :self.frequencies, :self.to].flatten(2)
        spread = torch.bmm(x.index_select(0, source), basis).view(-1, self.inputs * self.frequencies, self.to)
        return torch.bmm(weights, spread)


class PerDegree(nn.Module):
    """One matrix per degree over the channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(outputs, inputs) * inputs ** -0.5) for _ in DEGREES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([weight @ part for weight, part in zip(self.weights, x.split(DEGREES, dim=-1))], dim=-1)


class Layer(nn.Module):
    def __init__(self, width: int = 32, heads: int = 8, edge: int = 6, first: bool = False) -> None:
        super().__init__()
        self.heads, inputs = heads, 6 if first else width
        self.key_value = Convolution(inputs, width, edge, first=first)
        self.query, self.out = PerDegree(inputs, width // 2), PerDegree(width // 2 + inputs, width)
        self.norm = nn.GroupNorm(len(DEGREES), len(DEGREES) * width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, edge: Tensor, basis: Tensor) -> Tensor:
        key, value = self.key_value(x, source, edge, basis).chunk(2, dim=1)
        x = F.pad(x, (0, SIZE - x.shape[-1]))  # the first layer's input has degree 0 only
        query = self.query(x)
        shares = (key.reshape(len(key), self.heads, -1) * query.reshape(len(x), self.heads, -1).index_select(0, target)).sum(-1)
        shares = torch.exp(shares / SIZE ** 0.5)
        total = torch.zeros(len(x), self.heads, device=x.device, dtype=shares.dtype).index_add(0, target, shares)
        shares = shares / total.index_select(0, target)
        value = value.reshape(len(value), self.heads, -1) * shares[..., None]
        gathered = torch.zeros(len(x), *value.shape[1:], device=x.device, dtype=value.dtype).index_add(0, target, value)
        x = self.out(torch.cat([gathered.view(len(x), -1, SIZE), x], dim=1))
        norms = torch.stack([torch.sqrt((part * part).sum(dim=-1) + 2 ** -24) for part in x.split(DEGREES, dim=-1)], dim=1)
        scale = F.relu(self.norm(norms.flatten(1))).view_as(norms) / norms
        return torch.cat([part * s[..., None] for part, s in zip(x.split(DEGREES, dim=-1), scale.unbind(1))], dim=-1)


class Se3Transformer(nn.Module):
    def __init__(self, depth: int = 7, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, first=index == 0) for index in range(depth))
        self.last = Convolution(width, 4 * width, 6, last=True)
        self.head = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 1))

    def forward(self, atoms: Tensor, bonds: Tensor, ends: Tensor, basis: Tensor) -> Tensor:
        batch = atoms.shape[0]
        offset = (torch.arange(batch, device=atoms.device) * ATOMS)[:, None]
        source, target = (ends[:, which] + offset for which in (0, 1))
        source, target, edge = source.flatten(), target.flatten(), bonds.flatten(0, 1)
        basis = basis.flatten(0, 1).clone()
        x = atoms.flatten(0, 1)[..., None]
        for layer in self.layers:
            x = layer(x, source, target, edge, basis)
        messages = self.last(x, source, edge, basis)[..., 0]
        nodes = torch.zeros(len(x), messages.shape[1], device=x.device, dtype=messages.dtype).index_add(0, target, messages)
        return self.head(nodes.view(batch, ATOMS, -1).mean(dim=1)).squeeze(-1)


def molecules(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"atoms": torch.randn(batch, ATOMS, 6, device=device, dtype=dtype), "bonds": torch.randn(batch, BONDS, 6, device=device, dtype=dtype),
            "ends": torch.randint(0, ATOMS, (batch, 2, BONDS), device=device),
            "basis": torch.randn(batch, BONDS, SIZE, FREQUENCIES, SIZE, device=device, dtype=dtype),
            "target": torch.randn(batch, device=device, dtype=dtype)}


def property_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.l1_loss(model(data["atoms"], data["bonds"], data["ends"], data["basis"]), data["target"])


def se3_transformer() -> nn.Module:
    return Se3Transformer().train()
