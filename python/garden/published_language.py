"""Own code: Transformer-XL after Dai et al. 2019 (arXiv:1901.02860), in the sizes of NVIDIA's WikiText-103 benchmark.

The memory of the previous segment is an input here, as long as the segment itself. The adaptive softmax (Grave et al. 2017)
computes each tail for the tokens that fall into it, a number that depends on the text; here each sequence has a fixed share of
them: an estimate from the word counts of WikiText-103 (about 3% of the tokens beyond rank 20,000 and below 40,000, as many
beyond that, half a per cent beyond 200,000). With `narrower` each rarer cluster has embeddings that many times narrower, and a
projection. `FullWords` scores every word for every token instead: what the benchmark's program does without `--adaptive`.

`early=True` is NVIDIA's code of the containers 19.09 and 19.11 (mem_transformer.py at ca28f55 and ce73b32): the scale a pass of its own over the
scores, and every layer reads back whether its mask hides anything. With `heads_last` (19.09 alone) scores are laid out with the heads innermost.

`plain=True` writes a model as a TensorFlow graph without XLA runs it: layer norm, GELU and dropout are chains of single
operators, a bias is added by a kernel of its own, and slices and transposes are copies.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CUTS = (0, 19_997, 39_997, 199_997, 267_735)  # the head with its three clusters has 20,000 columns
TAILS = (32, 32, 192)  # one token in so many belongs to the tail


class PlainNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        factor = torch.rsqrt((x - mean).square().mean(dim=-1, keepdim=True) + 1e-12) * self.weight
        return x * factor + (self.bias - mean * factor)


class PlainDropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0:
            return x
        kept = torch.rand(x.shape, device=x.device) >= self.p
        return x * (1 / (1 - self.p)) * kept.to(x.dtype)


class PlainLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight)
        return out if self.bias is None else out + self.bias


def parts(plain: bool) -> tuple[type[nn.Linear], type[nn.LayerNorm], type[nn.Dropout]]:
    return (PlainLinear, PlainNorm, PlainDropout) if plain else (nn.Linear, nn.LayerNorm, nn.Dropout)


def copied(x: Tensor, plain: bool) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format) if plain else x


class RelativeAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, dropatt: float, plain: bool = False, early: bool = False,
                 heads_last: bool = False) -> None:
        super().__init__()
        linear, norm, drop = parts(plain)
        self.plain, self.early, self.heads_last = plain, early, heads_last
        self.heads, self.size = heads, 64
        inner = heads * self.size
        self.qkv = linear(width, 3 * inner, bias=False)
        self.places = linear(width, inner, bias=False)
        self.out = linear(inner, width, bias=False)
        self.dropout, self.dropatt = drop(dropout), drop(dropatt)
        self.norm = norm(width)

    @staticmethod
    def shift(x: Tensor) -> Tensor:
        """Row i moves i places to the left: distances become positions."""
        batch, heads, rows, columns = x.shape
        gap = torch.zeros(batch, heads, rows, 1, device=x.device, dtype=x.dtype)
        return torch.cat([gap, x], dim=3).view(batch, heads, columns + 1, rows)[:, :, 1:].view_as(x)

    def early_mix(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor, by_content: Tensor, by_place: Tensor, later: Tensor) -> Tensor:
        order = "bijn" if self.heads_last else "bnij"
        content, position = torch.einsum(f"ibnd,jbnd->{order}", q + by_content, k), torch.einsum(f"ibnd,jnd->{order}", q + by_place, r)
        if self.heads_last:
            batch, rows, columns, heads = position.shape
            gap = torch.zeros(batch, rows, 1, heads, device=q.device, dtype=q.dtype)
            position = torch.cat([gap, position], dim=2).view(batch, columns + 1, rows, heads)[:, 1:].view_as(position)
        else:
            position = self.shift(position)
        scores = content + position
        scores.mul_(self.size ** -0.5)
        later.any().item()
        scores.masked_fill_(later[None, :, :, None] if self.heads_last else later, float("-inf"))
        shares = self.dropatt(F.softmax(scores, dim=2 if self.heads_last else 3))
        return torch.einsum(f"{order},jbnd->ibnd", shares, v)

    def plain_mix(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor, by_content: Tensor, by_place: Tensor, later: Tensor) -> Tensor:
        """As TensorFlow 1.15's einsum makes products: both operands and the result are laid out anew where their axes ask for it.

        The mask is arithmetic, scores * (1 - later) - 1e30 * later, and the scale a pass of its own.
        """
        rows, batch = q.shape[0], q.shape[1]
        content = torch.matmul(copied((q + by_content).permute(1, 2, 0, 3), True), copied(k.permute(1, 2, 3, 0), True))
        position = torch.matmul(copied((q + by_place).permute(2, 0, 1, 3), True).flatten(1, 2), copied(r.permute(1, 2, 0), True))
        position = copied(position.unflatten(1, (rows, batch)).permute(2, 0, 1, 3), True)
        scores = (content + copied(self.shift(position), True)) * self.size ** -0.5
        scores = scores * (1 - later.to(scores.dtype)) - later.to(scores.dtype) * 3e4
        shares = F.softmax(scores, dim=3)
        again = shares.detach()  # its gradient is four operators, g * y, their sum, g - sum and that times y: the first three here, as long
        again - (again * again).sum(dim=3, keepdim=True)
        mixed = torch.matmul(self.dropatt(shares), copied(v.permute(1, 2, 0, 3), True))
        return copied(mixed.permute(2, 0, 1, 3), True).flatten(2)

    def forward(self, x: Tensor, memory: Tensor, places: Tensor, by_content: Tensor, by_place: Tensor, later: Tensor) -> Tensor:
        rows, batch = x.shape[0], x.shape[1]
        q, k, v = (copied(t, self.plain) for t in torch.chunk(self.qkv(torch.cat([memory, x], dim=0)), 3, dim=-1))
        columns = k.shape[0]
        q = copied(q[-rows:], self.plain).view(rows, batch, self.heads, self.size)
        k, v = (t.view(columns, batch, self.heads, self.size) for t in (k, v))
        r = self.places(places).view(columns, self.heads, self.size)
        if self.plain:
            return self.norm(x + self.dropout(self.out(self.plain_mix(q, k, v, r, by_content, by_place, later))))
        if self.early:
            mixed = self.early_mix(q, k, v, r, by_content, by_place, later).contiguous().view(rows, batch, -1)
            return self.norm(x + self.dropout(self.out(mixed)))
        q = q * self.size ** -0.5  # the benchmark scales the sum of both products, in one fused kernel with the addition
        content = torch.einsum("ibnd,jbnd->bnij", q + by_content, k)
        position = self.shift(torch.einsum("ibnd,jnd->bnij", q + by_place, r))
        shares = self.dropatt(F.softmax((content + position).masked_fill_(later, float("-inf")), dim=3))
        mixed = torch.einsum("bnij,jbnd->ibnd", shares, v).contiguous().view(rows, batch, -1)
        return self.norm(x + self.dropout(self.out(mixed)))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, dropout: float, dropatt: float, plain: bool = False, **order: bool) -> None:
        super().__init__()
        linear, norm, drop = parts(plain)
        self.attention = RelativeAttention(width, heads, dropout, dropatt, plain, **order)
        self.mlp = nn.Sequential(linear(width, inner), nn.ReLU(inplace=True), drop(dropout), linear(inner, width), drop(dropout))
        self.norm = norm(width)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        x = self.attention(x, *rest)
        return self.norm(x + self.mlp(x))


class AdaptiveWords(nn.Module):
    """Embeddings by frequency, tied to the output: the head scores the frequent words and the tails, each tail its own words."""

    def __init__(self, width: int, narrower: int, plain: bool = False) -> None:
        super().__init__()
        self.plain = plain
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
        weight, bias = (copied(self.tables[0].weight[:CUTS[1]], self.plain) if len(self.tables) == 1 else self.tables[0].weight), self.bias[:CUTS[1]]
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
                weight = copied(self.tables[0].weight[low:high], self.plain) if len(self.tables) == 1 else self.tables[index].weight
                tail = F.log_softmax(self.scores(hidden.index_select(0, mine), index, weight, self.bias[low:high]), dim=1)
                likely = of_head[:, -index] + tail.gather(1, right).squeeze(1)
            losses.append(-likely)
            start += counts[index]
        return torch.cat(losses).float().mean()

    def scores(self, x: Tensor, index: int, weight: Tensor, bias: Tensor) -> Tensor:
        if self.plain:  # einsum('ibd,nd->ibn'): the words are turned, a copy
            return torch.matmul(x, copied(weight.t(), True)) + bias
        return F.linear(F.linear(x, self.projections[index].weight.t()) if self.projections else x, weight, bias)


class FullWords(nn.Module):
    """One table, tied to the output, and one softmax over all of it (proj_adaptive_softmax.py, n_clusters 0)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table, self.bias = nn.Embedding(CUTS[-1], width), nn.Parameter(torch.zeros(CUTS[-1]))

    def embed(self, ids: Tensor) -> Tensor:
        return self.table(ids)

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        scores = F.linear(hidden.flatten(0, 1), self.table.weight, self.bias)
        likely = -F.log_softmax(scores, dim=-1).gather(1, target.flatten()[:, None]).squeeze(1)
        return likely.view_as(target).float().mean()


class TransformerXL(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, inner: int, dropout: float, dropatt: float, narrower: int = 1,
                 plain: bool = False, adaptive: bool = True, **order: bool) -> None:
        super().__init__()
        self.depth, self.width = depth, width
        self.words = AdaptiveWords(width, narrower, plain) if adaptive else FullWords(width)
        self.layers = nn.ModuleList(Layer(width, heads, inner, dropout, dropatt, plain, **order) for _ in range(depth))
        self.by_content, self.by_place = nn.Parameter(torch.zeros(heads, 64)), nn.Parameter(torch.zeros(heads, 64))
        self.dropout = parts(plain)[2](dropout)
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


def transformer_xl_base(**order: bool) -> nn.Module:
    return TransformerXL(16, 512, 8, 2048, 0.1, 0.0, **order).train()


def transformer_xl_large(narrower: int = 4, **order: bool) -> nn.Module:
    return TransformerXL(18, 1024, 16, 4096, 0.2, 0.2, narrower, **order).train()


def transformer_xl_base_first() -> nn.Module:
    return transformer_xl_base(early=True, heads_last=True)


def transformer_xl_base_early() -> nn.Module:
    return transformer_xl_base(early=True)


def transformer_xl_large_early() -> nn.Module:
    return transformer_xl_large(early=True)


def transformer_xl_large_wide_early() -> nn.Module:
    return transformer_xl_large(1, adaptive=False, early=True)


def transformer_xl_large_wide() -> nn.Module:
    """As lambdal ran it: all words as wide as the model, each scored for every token."""
    return transformer_xl_large(1, adaptive=False)


def transformer_xl_base_plain() -> nn.Module:
    return TransformerXL(16, 512, 8, 2048, 0.1, 0.0, plain=True).train()


class Bert(nn.Module):
    """BERT (Devlin et al. 2018): in pre-training, with 20 masked words in 128 (80 in 512), or with `labels`, one for every word.

    `plain`: as a TensorFlow graph without XLA computes it. Otherwise norms, GELU and dropout are one kernel each; with `apart`, a bias
    is still added and an axis moved by a kernel of its own.
    """

    def __init__(self, plain: bool, labels: int = 0, apart: bool = False, width: int = 768, depth: int = 12, heads: int = 12, words: int = 30522,
                 longest: int = 512) -> None:
        super().__init__()
        linear, norm, drop = parts(plain)
        linear = PlainLinear if apart else linear
        self.plain, self.apart = plain, plain or apart
        self.labels, self.width, self.heads, self.words = labels, width, heads, words
        self.token, self.position, self.segment = nn.Embedding(words, width), nn.Embedding(longest, width), nn.Embedding(2, width)
        self.norm, self.dropout = norm(width), drop(0.1)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "q": linear(width, width), "k": linear(width, width), "v": linear(width, width), "o": linear(width, width),
            "up": linear(width, 4 * width), "down": linear(4 * width, width), "norm1": norm(width), "norm2": norm(width)})
            for _ in range(depth))
        if labels:
            self.label = linear(width, labels)
        else:
            self.transform, self.head_norm, self.bias = linear(width, width), norm(width), nn.Parameter(torch.zeros(words))
            self.pool, self.next = linear(width, width), linear(width, 2)

    def gelu(self, x: Tensor) -> Tensor:
        return x * (0.5 * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3))))) if self.plain else F.gelu(x)

    def forward(self, ids: Tensor, segments: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        batch, length = ids.shape
        x = self.token(ids) + self.position(torch.arange(length, device=ids.device)) + self.segment(segments)
        x = self.dropout(self.norm(x))
        hidden = torch.zeros(batch, 1, length, length, device=ids.device, dtype=x.dtype)
        for block in self.blocks:
            q, k, v = (copied(block[name](x).view(batch, length, self.heads, -1).transpose(1, 2), self.apart) for name in ("q", "k", "v"))
            shares = self.dropout(F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.125 + hidden, dim=-1))
            mixed = copied(torch.matmul(shares, v).transpose(1, 2), True).view(batch, length, -1)
            x = block["norm1"](x + self.dropout(block["o"](mixed)))
            x = block["norm2"](x + self.dropout(block["down"](self.gelu(block["up"](x)))))
        if self.labels:
            return (self.label(x),)
        masked = x.flatten(0, 1).index_select(0, places.flatten())
        masked = self.head_norm(self.gelu(self.transform(masked)))
        return F.linear(masked, self.token.weight) + self.bias, self.next(torch.tanh(self.pool(copied(x[:, 0], True))))


def masked_text(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    length = seq or 128
    hidden = length * 20 // 128
    return {"ids": torch.randint(0, model.words, (batch, length), device=device), "segments": torch.randint(0, 2, (batch, length), device=device),
            "places": torch.randint(0, length, (batch, hidden), device=device), "words": torch.randint(0, model.words, (batch, hidden), device=device),
            "follows": torch.randint(0, 2, (batch,), device=device)}


def labelled_text(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    data = masked_text(model, batch, seq, device, dtype)
    return {**data, "labels": torch.randint(0, model.labels, tuple(data["ids"].shape), device=device)}


def labelling(model: nn.Module, data: dict[str, Any]) -> Tensor:
    scores, = model(data["ids"], data["segments"], data["places"])
    return F.cross_entropy(scores.flatten(0, 1), data["labels"].flatten())


def pre_training(model: nn.Module, data: dict[str, Any]) -> Tensor:
    scores, follows = model(data["ids"], data["segments"], data["places"])
    return F.cross_entropy(scores, data["words"].flatten()) + F.cross_entropy(follows, data["follows"])


def bert_base(plain: bool = False, labels: int = 0, apart: bool = False) -> nn.Module:
    return Bert(plain, labels, apart).train()
