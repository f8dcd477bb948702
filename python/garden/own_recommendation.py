"""Own code: click prediction (DLRM with embedding bags, wide-and-deep, two towers)."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Entry, add


def _mlp(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:]):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts)


class Dlrm(nn.Module):
    """Dense features through an MLP, sparse ones through embedding bags, their pairwise products through another."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64, dense: int = 13, bag: int = 4) -> None:
        super().__init__()
        self.tables, self.rows, self.bag, self.dense = tables, rows, bag, dense
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _mlp(dense, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(_mlp(pairs + width, 1024, 1024, 512, 256), nn.Linear(256, 1))
        places = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("places", places)

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = [x] + [bag(ids[index], offsets) for index, bag in enumerate(self.bags)]
        stacked = torch.stack(features, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        pairs = products[:, self.places[0], self.places[1]]
        return self.top(torch.cat([x, pairs], dim=1)).squeeze(1)


class TwoTowers(nn.Module):
    def __init__(self, users: int = 200_000, items: int = 50_000, width: int = 128) -> None:
        super().__init__()
        self.users, self.items = users, items
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_mlp, self.item_mlp = _mlp(width, 256, width), _mlp(width, 256, width)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        left = F.normalize(self.user_mlp(self.user(user)), dim=-1)
        right = F.normalize(self.item_mlp(self.item(item)), dim=-1)
        return left @ right.t() / 0.07


def _clicks(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"dense": torch.rand(batch, model.dense, device=device, dtype=dtype),
            "ids": torch.randint(0, model.rows, (model.tables, batch * model.bag), device=device),
            "offsets": torch.arange(0, batch * model.bag, model.bag, device=device),
            "target": torch.randint(0, 2, (batch,), device=device).to(dtype)}


def _click_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(data["dense"], data["ids"], data["offsets"]), data["target"])


def _visits(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"user": torch.randint(0, model.users, (batch,), device=device),
            "item": torch.randint(0, model.items, (batch,), device=device)}


def _in_batch(model: nn.Module, data: dict[str, Any]) -> Tensor:
    scores = model(data["user"], data["item"])
    return F.cross_entropy(scores, torch.arange(scores.shape[0], device=scores.device))


def _dlrm(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return Dlrm(tables=4 if tiny else 26, rows=1000 if tiny else 100_000).train()


add(Entry("dlrm", "recommendation", "own", _dlrm, _clicks, _click_loss, 2048, None, {"batch": 512},
          "26 embedding bags of 100,000 rows, dense gradients"))
add(Entry("two-towers", "recommendation", "own", lambda layers=None, tiny=False: TwoTowers().train(), _visits,
          _in_batch, 1024, None, {"batch": 256}, "in-batch softmax"))


class CrossNetwork(nn.Module):
    """DCN-V2: crosses of full rank beside an MLP, over one embedding per field from one table."""

    def __init__(self, fields: int = 26, rows: int = 40_000, width: int = 32, dense: int = 13, depth: int = 3,
                 inner: int = 1024) -> None:
        super().__init__()
        self.tables, self.rows, self.dense, self.bag = fields, rows, dense, 1
        self.table = nn.Embedding(fields * rows, width)
        self.register_buffer("first_rows", torch.arange(fields) * rows)
        size = fields * width + dense
        self.crosses = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        self.deep = _mlp(size, inner, inner, inner)
        self.norm, self.last = nn.BatchNorm1d(size), nn.Linear(size + inner, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        first = self.norm(torch.cat([self.table(ids + self.first_rows).flatten(1), dense], dim=1))
        x = first
        for cross in self.crosses:
            x = torch.addcmul(x, first, cross(x))
        return self.last(torch.cat([x, F.dropout(self.deep(first), 0.1, self.training)], dim=1)).squeeze(1)


def _fields(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"dense": torch.rand(batch, model.dense, device=device, dtype=dtype),
            "ids": torch.randint(0, model.rows, (batch, model.tables), device=device),
            "target": torch.randint(0, 2, (batch,), device=device).to(dtype)}


def _field_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(data["dense"], data["ids"]), data["target"])


def _dcn(layers: int | None = None, tiny: bool = False) -> nn.Module:
    return CrossNetwork(rows=100 if tiny else 40_000, inner=64 if tiny else 1024).train()


add(Entry("dcn-v2", "recommendation", "own", _dcn, _fields, _field_loss, 4096, None, None, "26 fields, three crosses"))
