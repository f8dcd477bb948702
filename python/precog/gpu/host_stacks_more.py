"""More small stacks for measuring the host, of what host_stacks.py has not: definitions only, nothing is timed here.

Recurrent layers, windows that are rolled and cut, gathers and scatters of a graph, masks, products written as einsum, routed
experts, tables of many embeddings, convolutions over time with weight norms, branches that are resized and added, losses and
distances. Written as models write them, at sizes of no published model, each a few dozen operators deep. `more_stacks()` is a fixed list;
host_stacks.stacks() ends with it. A block is a function of the running tensor and of what its module holds.
"""
from __future__ import annotations

import math
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, TOKENS, BATCH = 64, 4, 24, 2
Block = Callable[[], nn.Module]


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, kind: str, layers: int, both: bool, drop: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.cell = getattr(nn, kind)(WIDTH, WIDTH, layers, batch_first=True, bidirectional=both, dropout=drop)
        self.out = nn.Linear(WIDTH * (2 if both else 1), WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.cell(self.norm(x))
        return x + self.out(y)


class Windows(nn.Module):
    """Attention inside windows of a grid that is rolled, with a bias by relative place and a mask."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift, self.side, self.cut = shift, 8, 4
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.zeros((2 * self.cut - 1) ** 2, HEADS))
        size = self.cut ** 2
        self.register_buffer("places", (torch.arange(size)[:, None] * 3 + torch.arange(size)[None]) % (2 * self.cut - 1) ** 2)
        self.register_buffer("mask", torch.zeros((self.side // self.cut) ** 2, size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, c, n = x.shape[0], self.side, self.cut, self.cut ** 2
        y = self.norm(x).view(b, s, s, WIDTH)
        y = F.pad(y, (0, 0, 0, 0, 0, 0))
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.view(b, s // c, c, s // c, c, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, n, WIDTH)
        q, k, v = self.qkv(y).reshape(-1, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = (q * 0.25) @ k.transpose(-2, -1)
        scores = scores + self.table[self.places.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        if self.shift:
            scores = scores.view(b, -1, HEADS, n, n) + self.mask.to(scores.dtype).unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, HEADS, n, n)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, n, WIDTH)
        y = self.out(y).view(b, s // c, s // c, c, c, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(b, s, s, WIDTH)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + y.reshape(b, s * s, WIDTH)


class Messages(nn.Module):
    """One round of messages over the edges of a graph."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.eps = nn.Parameter(torch.zeros(1))
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        nodes = 48
        edges = torch.stack((torch.arange(192) % nodes, (torch.arange(192) * 5 + 1) % nodes))
        self.register_buffer("edges", edges)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        sent = F.relu(flat[self.edges[0]])
        if self.form == "index_add":
            got = torch.zeros_like(flat).index_add(0, self.edges[1], sent)
        else:
            got = flat.new_zeros(flat.shape).scatter_add(0, self.edges[1].unsqueeze(-1).expand_as(sent), sent)
        return (flat + self.net((1 + self.eps) * flat + got)).view(x.shape)


class Masked(nn.Module):
    """Attention written out, its mask made from lengths in every layer."""

    def __init__(self, einsum: bool) -> None:
        super().__init__()
        self.einsum = einsum
        self.norm, self.q, self.k, self.v, self.out = nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        y = self.norm(x)
        places = torch.arange(s, device=x.device)
        mask = (places[None, :] <= places[:, None]) & (places[None, :] < s - 1)
        mask = mask[None, None].expand(b, 1, s, s)
        if self.einsum:
            q, k, v = (layer(y).view(b, s, HEADS, -1) for layer in (self.q, self.k, self.v))
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(WIDTH // HEADS)
            scores = torch.where(mask, scores, torch.full((), -1e4, dtype=scores.dtype, device=x.device))
            y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).type_as(v), v).reshape(b, s, -1)
        else:
            q, k, v = (_heads(layer(y)) for layer in (self.q, self.k, self.v))
            scores = torch.matmul(q, k.transpose(-1, -2)).masked_fill(~mask, -1e4)
            y = torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).contiguous().view(b, s, -1)
        return x + self.out(y)


class Relative(nn.Module):
    """The library's own function of attention with separate projections, and a bias that a gate scales by place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v, self.out = nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.bias = nn.Linear(WIDTH // HEADS, 8), nn.Embedding(32, HEADS)
        self.constant = nn.Parameter(torch.ones(1, HEADS, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        places = torch.arange(s, device=x.device)
        far = (places[None, :] - places[:, None]).abs().clamp(max=31)
        bias = self.bias(far).permute(2, 0, 1).unsqueeze(0).repeat(b, 1, 1, 1).view(b * HEADS, s, s)
        y = self.norm(x)
        gated = y.view(b, s, HEADS, -1).permute(0, 2, 1, 3)
        a, c = torch.sigmoid(self.gate(gated).view(b, HEADS, s, 2, 4).sum(-1)).chunk(2, dim=-1)
        bias = ((a * (c * self.constant - 1.0) + 2.0).view(b * HEADS, -1, 1) * bias).view(b * HEADS, s, s)
        y = y.transpose(0, 1)
        y, _ = F.multi_head_attention_forward(
            y, y, y, WIDTH, HEADS, torch.empty([0]), torch.cat((self.q.bias, self.k.bias, self.v.bias)), None, None, False, 0.1, self.out.weight,
            self.out.bias, True, None, False, bias.to(y.dtype), use_separate_proj_weight=True, q_proj_weight=self.q.weight,
            k_proj_weight=self.k.weight, v_proj_weight=self.v.weight)
        return x + y.transpose(0, 1)


class Routed(nn.Module):
    """Experts that take the tokens a gate sends them, a loop in Python, added back by index."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(4))
        self.register_buffer("rows", torch.arange(BATCH * TOKENS // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.norm(x).reshape(-1, WIDTH)
        weights, chosen = torch.topk(F.softmax(self.gate(flat), dim=-1, dtype=torch.float32), 2, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(flat.dtype)
        hot = F.one_hot(chosen, 4).permute(2, 1, 0)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            y = expert(flat[self.rows]) * weights[self.rows, 0, None] * (hot[index].sum() * 0 + 1).to(flat.dtype)
            out = out.index_add(0, self.rows, y.to(out.dtype))
        return x + out.view(x.shape)


class OverTime(nn.Module):
    """Convolutions over time: gated, depthwise, with batch norm; with `normed`, a weight norm and a group norm."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        mix = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=8 if normed else WIDTH)
        self.mix = nn.utils.parametrizations.weight_norm(mix, dim=2) if normed else mix
        self.after = nn.GroupNorm(8, WIDTH) if normed else nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.glu(self.up(self.norm(x).transpose(1, 2)), dim=1)
        y = F.gelu(self.after(self.mix(y)))
        return x + self.down(y).transpose(1, 2)


class Selective(nn.Module):
    """A state that decays, as running sums of logarithms; chunks, stacks and unbinds on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, step, gate = self.up(self.norm(x)).chunk(3, dim=-1)
        step = F.softplus(step.float()) * -torch.exp(self.decay.float())
        along = torch.cumsum(step, dim=1)
        weights = torch.exp((along[:, -1:] - along).clamp(max=0))
        state = torch.cumsum(weights * value, dim=1).to(x.dtype)
        first, second = torch.stack((state, state.flip(1)), dim=0).unbind(0)
        return x + self.out((first + second) * F.silu(gate))


class Distances(nn.Module):
    """Normalised vectors, their products, clamps and logarithms: what contrastive and regression losses are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.scale = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(self.left(x), dim=-1), F.normalize(self.right(x), dim=-1)
        near = torch.matmul(a, b.transpose(1, 2)) * self.scale.exp().clamp(max=10.0)
        near = F.logsigmoid(near) - near.logsumexp(-1, keepdim=True)
        return x + torch.matmul(near, x) / near.norm(dim=-1, keepdim=True).clamp_min(1e-3)


class Crossed(nn.Module):
    """Many tables and products of features with themselves, as recommenders have."""

    def __init__(self, tables: int, depth: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(tables))
        self.cross = nn.ModuleList(nn.Linear(8 * tables, 8 * tables) for _ in range(depth))
        self.deep = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(8 * tables, 8 * tables), nn.ReLU(), nn.Dropout(0.1))))
        self.head = nn.Linear(16 * tables, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=-1)
        x = first
        for layer in self.cross:
            x = first * layer(x) + x
        return self.head(torch.cat((x, self.deep(first)), dim=-1)).squeeze(-1)


class Branches(nn.Module):
    """Two resolutions that exchange: strided and resized convolutions, added and concatenated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        make = lambda: nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.fine, self.coarse = make(), make()
        self.down = nn.Sequential(nn.Conv2d(channels, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels))
        self.up = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.merge, self.grow = nn.Conv2d(2 * channels, channels, 1), nn.ConvTranspose2d(channels, channels, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = F.avg_pool2d(x, 2)
        fine, coarse = self.fine(x), self.coarse(small)
        lifted = F.interpolate(self.up(coarse), size=fine.shape[-2:], mode="bilinear", align_corners=False)
        mixed = F.relu(fine + lifted)
        coarse = F.relu(coarse + self.down(fine))
        return x + self.merge(torch.cat((mixed, self.grow(coarse)), dim=1))


class Layers(nn.Module):
    """Blocks between an embedding and a head, or between a stem and a pool."""

    def __init__(self, blocks: list[nn.Module], image: bool, tokens: int) -> None:
        super().__init__()
        self.image, self.layers = image, nn.ModuleList(blocks)
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1) if image else nn.Embedding(64, WIDTH)
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = self.stem(given)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)) if self.image else x)


def _tokens(device: str, tokens: int) -> dict[str, torch.Tensor]:
    ids = (torch.arange(BATCH * tokens).view(BATCH, tokens) * 7 + 1) % 61 + 1
    return {"given": ids.to(device), "target": (ids % 32).to(device)}


def _images(device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"given": torch.randn(BATCH, 3, 16, 16, generator=generator).to(device), "target": torch.arange(BATCH).to(device)}


def _features(device: str, tables: int) -> dict[str, torch.Tensor]:
    ids = (torch.arange(32 * tables).view(32, tables) * 7) % 50
    return {"given": ids.to(device), "target": (ids[:, 0] % 2).to(device)}


def _classes(model: Any, data: dict[str, torch.Tensor]) -> torch.Tensor:
    out = model(data["given"])
    return F.cross_entropy(out.view(-1, out.shape[-1]), data["target"].view(-1))


def _regression(model: Any, data: dict[str, torch.Tensor]) -> torch.Tensor:
    out = model(data["given"]).float()
    return F.smooth_l1_loss(out, torch.zeros_like(out)) + 0.5 * F.mse_loss(out.sigmoid(), torch.ones_like(out)) + F.l1_loss(out.mean(-1), out.amax(-1).detach())


def _clicks(model: Any, data: dict[str, torch.Tensor]) -> torch.Tensor:
    out = model(data["given"])
    return F.binary_cross_entropy_with_logits(out, data["target"].to(out.dtype))


def more_stacks(make: Callable[..., Any]) -> list[Any]:
    """`make` is host_stacks.Stack."""
    out: list[Any] = []

    def tokens(name: str, depth: int, *blocks: Block, count: int = TOKENS, loss: Callable[..., torch.Tensor] = _classes, **recipe: Any) -> None:
        build = lambda: Layers([blocks[i % len(blocks)]() for i in range(depth)], False, count)
        out.append(make(name, "more", build, lambda device: _tokens(device, count), loss, **recipe))

    tokens("lstm-both-ways", 3, lambda: Recurrent("LSTM", 2, True, 0.1))
    tokens("lstm", 4, lambda: Recurrent("LSTM", 2, False, 0.0))
    tokens("gru", 3, lambda: Recurrent("GRU", 3, False, 0.1))
    tokens("gru-both-ways", 5, lambda: Recurrent("GRU", 1, True, 0.0))
    tokens("windows", 6, lambda: Windows(0), lambda: Windows(2), count=64)
    tokens("messages", 8, lambda: Messages("index_add"), lambda: Messages("scatter_add"))
    tokens("masked", 7, lambda: Masked(False))
    tokens("einsum", 7, lambda: Masked(True))
    tokens("relative", 5, lambda: Relative())
    tokens("routed", 4, lambda: Routed())
    tokens("over-time", 9, lambda: OverTime(False))
    tokens("over-time-normed", 7, lambda: OverTime(True))
    tokens("selective", 7, lambda: Selective())
    tokens("distances", 6, lambda: Distances(), loss=_regression)
    tokens("mixed", 8, lambda: Masked(False), lambda: OverTime(False), lambda: Selective(), lambda: Messages("index_add"), optimizer="sgd-momentum")
    tokens("library-layers", 5, lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.1, batch_first=True, norm_first=True))
    out.append(make("crossed", "more", lambda: Crossed(20, 6), lambda device: _features(device, 20), _clicks))
    out.append(make("crossed-fused", "more", lambda: Crossed(30, 3), lambda device: _features(device, 30), _clicks, implementation="fused"))
    for name, channels, depth in (("branches", WIDTH, 5), ("branches-deep", WIDTH, 9)):
        build = lambda channels=channels, depth=depth: Layers([Branches(channels) for _ in range(depth)], True, 0)
        out.append(make(name, "more", build, _images, _classes))
    return out
