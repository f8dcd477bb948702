"""Own code: Transformer-XL after Dai et al. 2019 (arXiv:1901.02860), in the sizes of NVIDIA's WikiText-103 benchmark.

The memory of the previous segment is an input here, as long as the segment itself. The adaptive softmax (Grave et al. 2017)
computes each tail for the tokens that fall into it, a number that depends on the text; here each sequence has a fixed share of
them: an estimate from the word counts of WikiText-103 (about 3% of the tokens beyond rank 20,000 and below 40,000, as many
beyond that, half a per cent beyond 200,000).
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
        content = torch.einsum("ibnd,jbnd->bnij", q + by_content, k)
        position = self.shift(torch.einsum("ibnd,jnd->bnij", q + by_place, r))
        scores = (content + position) * self.size ** -0.5
        shares = self.dropatt(F.softmax(scores.masked_fill(later, float("-inf")), dim=3))
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


class TransformerXL(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, inner: int, dropout: float, dropatt: float) -> None:
        super().__init__()
        self.depth, self.width = depth, width
        self.words = CUTS[-1]
        self.token = nn.Embedding(self.words, width)
        self.layers = nn.ModuleList(Layer(width, heads, inner, dropout, dropatt) for _ in range(depth))
        self.by_content, self.by_place = nn.Parameter(torch.zeros(heads, 64)), nn.Parameter(torch.zeros(heads, 64))
        self.clusters = nn.Linear(width, len(TAILS))
        self.bias = nn.Parameter(torch.zeros(self.words))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("frequencies", 1 / 10000 ** (torch.arange(0.0, width, 2.0) / width))

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        rows, columns = ids.shape[0], ids.shape[0] + memory.shape[1]
        x = self.dropout(self.token(ids) * self.width ** 0.5)
        angles = torch.outer(torch.arange(columns - 1, -1, -1, device=ids.device, dtype=self.frequencies.dtype), self.frequencies)
        places = self.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1))
        later = torch.ones(rows, columns, device=ids.device, dtype=torch.bool).triu(1 + columns - rows)
        for index, layer in enumerate(self.layers):
            x = layer(x, memory[index], places, self.by_content, self.by_place, later)
        return self.dropout(x)

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Tied weights; the head scores the frequent words and the three tails, each tail its words for its tokens."""
        weight = torch.cat([self.token.weight[:CUTS[1]], self.clusters.weight])
        bias = torch.cat([self.bias[:CUTS[1]], self.clusters.bias])
        head = F.log_softmax(F.linear(hidden.flatten(0, 1), weight, bias), dim=1)
        total = -head.gather(1, (target % CUTS[1]).flatten()[:, None]).squeeze(1)
        losses = [total.float().mean()]
        for low, high, share in zip(CUTS[1:], CUTS[2:], TAILS):
            rows = hidden.shape[0] // share
            tail = F.log_softmax(F.linear(hidden[:rows].flatten(0, 1), self.token.weight[low:high], self.bias[low:high]), dim=1)
            losses.append(-tail.gather(1, (target[:rows] % (high - low)).flatten()[:, None]).float().mean())
        return torch.stack(losses).sum()


def segments(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    length = seq or 192
    return {"ids": torch.randint(0, model.words, (length, batch), device=device),
            "target": torch.randint(0, model.words, (length, batch), device=device),
            "memory": torch.randn(model.depth, length, batch, model.width, device=device, dtype=dtype)}


def next_word(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return model.loss(model(data["ids"], data["memory"]), data["target"])


def transformer_xl_base() -> nn.Module:
    return TransformerXL(16, 512, 8, 2048, 0.1, 0.0).train()


def transformer_xl_large() -> nn.Module:
    return TransformerXL(18, 1024, 16, 4096, 0.2, 0.2).train()
