"""Own code: graph networks on an edge list, with index_add and scatter. `batch` counts thousands of nodes."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Entry, add

FEATURES, CLASSES, DEGREE = 128, 40, 8


class GcnLayer(nn.Module):
    """Neighbours' features, weighted by both degrees, summed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.linear(x)
        ones = torch.ones(target.shape[0], device=x.device, dtype=h.dtype)
        degree = torch.zeros(x.shape[0], device=x.device, dtype=h.dtype).index_add(0, target, ones).clamp(min=1)
        weight = (degree[source] * degree[target]).rsqrt().to(h.dtype)
        return torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None])


class SageLayer(nn.Module):
    """Own features beside the neighbours' mean."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        index = target[:, None].expand(-1, x.shape[1])
        mean = torch.zeros_like(x).scatter_reduce(0, index, x[source], reduce="mean", include_self=False)
        return self.own(x) + self.other(mean)


class GatLayer(nn.Module):
    """Attention over the edges that end in a node."""

    def __init__(self, inputs: int, outputs: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.width = heads, outputs // heads
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.from_weight = nn.Parameter(torch.randn(heads, self.width) * 0.1)
        self.to_weight = nn.Parameter(torch.randn(heads, self.width) * 0.1)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.linear(x).view(-1, self.heads, self.width)
        score = F.leaky_relu((h * self.from_weight).sum(-1)[source] + (h * self.to_weight).sum(-1)[target], 0.2)
        index = target[:, None].expand(-1, self.heads)
        highest = torch.full((x.shape[0], self.heads), -1e4, device=x.device, dtype=score.dtype)
        highest = highest.scatter_reduce(0, index, score.detach(), reduce="amax")
        share = torch.exp(score - highest[target])
        total = torch.zeros(x.shape[0], self.heads, device=x.device, dtype=share.dtype).scatter_add(0, index, share)
        share = F.dropout(share / total[target].clamp(min=1e-9), 0.6, self.training)
        messages = h[source] * share[:, :, None]
        return torch.zeros_like(messages[:1]).expand(x.shape[0], -1, -1).index_add(0, target, messages).flatten(1)


class GinLayer(nn.Module):
    """Own and neighbours' features summed, through an MLP (graph isomorphism network)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Linear(outputs, outputs))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return self.mlp(((1 + self.own).to(x.dtype) * x).index_add(0, target, x[source]))


class GraphNetwork(nn.Module):
    def __init__(self, layer: type[nn.Module], width: int = 256, depth: int = 3, dropout: float = 0.5) -> None:
        super().__init__()
        sizes = [FEATURES] + [width] * (depth - 1) + [CLASSES]
        self.layers = nn.ModuleList(layer(before, after) for before, after in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:-1])
        self.dropout = dropout

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms):
            x = F.dropout(F.relu(norm(layer(x, source, target))), self.dropout, self.training)
        return self.layers[-1](x, source, target)


def _graph(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    nodes = 1000 * batch
    return {"x": torch.randn(nodes, FEATURES, device=device, dtype=dtype),
            "source": torch.randint(0, nodes, (DEGREE * nodes,), device=device),
            "target": torch.randint(0, nodes, (DEGREE * nodes,), device=device),
            "label": torch.randint(0, CLASSES, (nodes,), device=device)}


def _node_classes(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(data["x"], data["source"], data["target"]), data["label"])


for _name, _layer in (("gcn", GcnLayer), ("graphsage", SageLayer), ("gat", GatLayer)):
    add(Entry(_name, "graph", "own", lambda layers=None, tiny=False, layer=_layer: GraphNetwork(layer).train(), _graph,
              _node_classes, 10, None, {"batch": 2}, "batch counts thousands of nodes, 8 edges each"))


class MoleculeClassifier(nn.Module):
    """Many small graphs side by side: their nodes are one long list, an edge counts from its graph's first node."""

    def __init__(self, width: int = 512, depth: int = 5) -> None:
        super().__init__()
        sizes = [FEATURES] + [width] * depth
        self.layers = nn.ModuleList(GinLayer(before, after) for before, after in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.output = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        graphs, nodes = x.shape[:2]
        first = nodes * torch.arange(graphs, device=x.device)[:, None]
        x, source, target = x.flatten(0, 1), (source + first).flatten(), (target + first).flatten()
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x, source, target)))
        return self.output(x.unflatten(0, (graphs, nodes)).sum(dim=1))


def _molecules(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"x": torch.randn(batch, 32, FEATURES, device=device, dtype=dtype),
            "source": torch.randint(0, 32, (batch, 128), device=device),
            "target": torch.randint(0, 32, (batch, 128), device=device),
            "label": torch.randint(0, CLASSES, (batch,), device=device)}


add(Entry("gin", "graph", "own", lambda layers=None, tiny=False: MoleculeClassifier(64 if tiny else 512).train(), _molecules,
          _node_classes, 256, None, None, "five layers of 512; graphs of 32 nodes and 128 edges"))
