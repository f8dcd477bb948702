"""Own code: Transformer-XL after Dai et al. 2019 (arXiv:1901.02860), in the sizes of NVIDIA's WikiText-103 benchmark.

The memory of the previous segment is an input here, as long as the segment itself. The adaptive softmax (Grave et al. 2017)
computes each tail for the tokens that fall into it, a number that depends on the text; here each sequence has a fixed share of
them: an estimate from the word counts of WikiText-103 (about 3% of the tokens beyond rank 20,000 and below 40,000, as many
beyond that, half a per cent beyond 200,000). With `narrower` each rarer cluster has embeddings that many times narrower, and a
projection.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CUTS = (0, 20_000, 40_000, 200_000, 267_735)
TAILS = (32, 32, 192)  # one token in so many belongs to the tail


class RelativeAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, dropatt: float) -> None:
        super().__init__()
        self.heads, self.size = heads, 64
        inner = heads * self.size
        self.qkv = nn.Linear(width, 3 * inner, bias=False)
        self.places = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width, bias=False)
        self.dropout, self.dropatt = nn.Dropout(dropout), nn.Dropout(dropatt)
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def shift(x: Tensor) -> Tensor:
        """Row i moves i places to the left: distances become positions."""
        batch, heads, rows, columns = x.shape
        gap = torch.zeros(batch, heads, rows, 1, device=x.device, dtype=x.dtype)
        return torch.cat([gap, x], dim=3).view(batch, heads, columns + 1, rows)[:, :, 1:].view_as(x)

    def forward(self, x: Tensor, memory: Tensor, places: Tensor, by_content: Tensor, by_place: Tensor, later: Tensor) -> Tensor:
        rows, batch = x.shape[0], x.shape[1]
        q, k, v = torch.chunk(self.qkv(torch.cat([memory, x], dim=0)), 3, dim=-1)
        columns = k.shape[0]
        q = q[-rows:].view(rows, batch, self.heads, self.size)
        k, v = (t.view(columns, batch, self.heads, self.size) for t in (k, v))
        r = self.places(places).view(columns, self.heads, self.size)
        q = q * self.size ** -0.5  # the benchmark scales the sum of both products, in one fused kernel with the addition
        content = torch.einsum("ibnd,jbnd->bnij", q + by_content, k)
        position = self.shift(torch.einsum("ibnd,jnd->bnij", q + by_place, r))
        shares = self.dropatt(F.softmax((content + position).masked_fill_(later, float("-inf")), dim=3))
        mixed = torch.einsum("bnij,jbnd->ibnd", shares, v).contiguous().view(rows, batch, -1)
        return self.norm(x + self.dropout(self.out(mixed)))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, dropout: float, dropatt: float) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads, dropout, dropatt)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(inner, width),
                                 nn.Dropout(dropout))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        x = self.attention(x, *rest)
        return self.norm(x + self.mlp(x))


class AdaptiveWords(nn.Module):
    """Embeddings by frequency, tied to the output: the head scores the frequent words and the tails, each tail its own words."""

    def __init__(self, width: int, narrower: int) -> None:
        super().__init__()
        sizes = [width // narrower ** index for index in range(len(CUTS) - 1)]
        rows = [high - low for low, high in zip(CUTS, CUTS[1:])]
        self.tables = nn.ModuleList([nn.Embedding(CUTS[-1], width)] if narrower == 1 else [nn.Embedding(*pair) for pair in zip(rows, sizes)])
        self.projections = nn.ModuleList([] if narrower == 1 else [nn.Linear(size, width, bias=False) for size in sizes])
        self.clusters = nn.Linear(width, len(TAILS))
        self.bias = nn.Parameter(torch.zeros(CUTS[-1]))

    def share(self, length: int, index: int) -> int:
        return length // TAILS[index - 1] if index else length

    def embed(self, ids: Tensor) -> Tensor:
        if len(self.tables) == 1:
            return self.tables[0](ids)
        parts = [project(table(ids[:self.share(len(ids), index)] % table.num_embeddings))
                 for index, (table, project) in enumerate(zip(self.tables, self.projections))]
        whole = torch.zeros_like(parts[0])
        for part in parts:
            whole[:len(part)] = part
        return whole

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Each cluster picks its rows of the head's scores, as the benchmark does: copies that cost as much as the softmax."""
        length, batch = target.shape
        hidden, target = hidden.flatten(0, 1), target.flatten()
        places = torch.arange(length * batch, device=target.device)
        weight, bias = (self.tables[0].weight[:CUTS[1]] if len(self.tables) == 1 else self.tables[0].weight), self.bias[:CUTS[1]]
        head = F.log_softmax(self.scores(hidden, 0, torch.cat([weight, self.clusters.weight]), torch.cat([bias, self.clusters.bias])), dim=1)
        counts = [self.share(length, index) * batch for index in range(len(CUTS) - 1)]
        counts[0] -= sum(counts[1:])
        losses, start = [], 0
        for index, (low, high) in enumerate(zip(CUTS, CUTS[1:])):
            mine = places[start:start + counts[index]]
            right = target.index_select(0, mine)[:, None] % (high - low)
            of_head = head.index_select(0, mine)
            if index == 0:
                likely = of_head.gather(1, right).squeeze(1)
            else:
                weight = self.tables[0].weight[low:high] if len(self.tables) == 1 else self.tables[index].weight
                tail = F.log_softmax(self.scores(hidden.index_select(0, mine), index, weight, self.bias[low:high]), dim=1)
                likely = of_head[:, -index] + tail.gather(1, right).squeeze(1)
            losses.append(-likely)
            start += counts[index]
        return torch.cat(losses).float().mean()

    def scores(self, x: Tensor, index: int, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.projections[index].weight.t()) if self.projections else x, weight, bias)


class TransformerXL(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, inner: int, dropout: float, dropatt: float, narrower: int = 1) -> None:
        super().__init__()
        self.depth, self.width = depth, width
        self.words = AdaptiveWords(width, narrower)
        self.layers = nn.ModuleList(Layer(width, heads, inner, dropout, dropatt) for _ in range(depth))
        self.by_content, self.by_place = nn.Parameter(torch.zeros(heads, 64)), nn.Parameter(torch.zeros(heads, 64))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("frequencies", 1 / 10000 ** (torch.arange(0.0, width, 2.0) / width))

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        rows, columns = ids.shape[0], ids.shape[0] + memory.shape[1]
        x = self.dropout(self.words.embed(ids) * self.width ** 0.5)
        angles = torch.outer(torch.arange(columns - 1, -1, -1, device=ids.device, dtype=self.frequencies.dtype), self.frequencies)
        places = self.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1))
        later = torch.ones(rows, columns, device=ids.device, dtype=torch.bool).triu(1 + columns - rows)
        for index, layer in enumerate(self.layers):
            x = layer(x, memory[index], places, self.by_content, self.by_place, later)
        return self.dropout(x)


def segments(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    length = seq or 192
    return {"ids": torch.randint(0, CUTS[-1], (length, batch), device=device),
            "target": torch.randint(0, CUTS[-1], (length, batch), device=device),
            "memory": torch.randn(model.depth, length, batch, model.width, device=device, dtype=dtype)}


def next_word(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return model.words.loss(model(data["ids"], data["memory"]), data["target"])


def transformer_xl_base() -> nn.Module:
    return TransformerXL(16, 512, 8, 2048, 0.1, 0.0).train()


def transformer_xl_large(narrower: int = 4) -> nn.Module:
    return TransformerXL(18, 1024, 16, 4096, 0.2, 0.2, narrower).train()


def transformer_xl_large_wide() -> nn.Module:
    """As lambdal ran it: all words as wide as the model."""
    return transformer_xl_large(1)
