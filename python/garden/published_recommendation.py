"""Own code: the recommenders of published benchmarks: DLRM (Naumov et al. 2019), VAE-CF (Liang et al. 2018), NCF (He et al. 2017).

DLRM as NVIDIA sized it for Criteo 1TB: 26 tables of width 128, pairwise products of 27 vectors, SGD. The benchmark updates only
the rows that a batch touched, with a kernel of its own; here the tables are frozen, and one more gather of those rows, written
in fp32, stands for the update: 8 of its 12 bytes an element in fp32, 10 of 10 with fp16 gradients. Its kernel for the pairwise products keeps one half of them as it writes; a slice stands for that.
VAE-CF for MovieLens-20M as its paper filters it (Liang et al. 2018, table 1): 20,108 films, of which a user has liked 73 on average.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _mlp(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:]):
        parts += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


class Dlrm(nn.Module):
    def __init__(self, tables: int = 26, rows: int = 10_000, width: int = 128, dense: int = 13) -> None:
        super().__init__()
        self.tables, self.rows, self.dense = tables, rows, dense
        self.table = nn.Embedding(tables * rows, width)  # all tables in one, as the benchmark's joint embedding
        self.table.weight.requires_grad_(False)
        self.bottom = _mlp(dense, 512, 256, width)
        self.pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(_mlp(self.pairs + width + 1, 1024, 1024, 512, 256), nn.Linear(256, 1))
        self.register_buffer("offsets", torch.arange(tables) * rows)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.cat([x[:, None], self.table(ids + self.offsets)], dim=1)
        updated = self.table(ids + self.offsets).float()
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, :self.pairs]
        return self.top(torch.cat([x, products, torch.zeros_like(x[:, :1])], dim=1)).squeeze(1) + updated[:, 0, 0]


class VaeCf(nn.Module):
    """As TensorFlow runs NVIDIA's code without XLA: a bias is a kernel of its own. Extents are filled up to eight (round_8 in its main.py)."""

    def __init__(self, items: int = 20_112, hidden: int = 600, code: int = 200) -> None:
        super().__init__()
        self.items = items
        self.first = nn.EmbeddingBag(items, hidden, mode="sum")  # a sparse row times a dense matrix
        self.code = nn.Linear(hidden, 2 * code, bias=False)
        self.decoder, self.output = nn.Linear(code, hidden, bias=False), nn.Linear(hidden, items, bias=False)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in (hidden, 2 * code, hidden, items))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = (self.code(torch.tanh(self.first(ids) + self.biases[0])) + self.biases[1]).chunk(2, dim=1)
        sample = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.output(torch.tanh(self.decoder(sample) + self.biases[2])) + self.biases[3], mean, spread


class Ncf(nn.Module):
    """NeuMF: a product of factors beside an MLP over both embeddings."""

    def __init__(self, users: int = 138_493, items: int = 26_744, factors: int = 64) -> None:
        super().__init__()
        self.users, self.items = users, items
        self.user_factors, self.item_factors = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user, self.item = nn.Embedding(users, 128), nn.Embedding(items, 128)
        self.mlp = nn.Sequential(*(part for a, b in ((256, 256), (256, 128), (128, 64))
                                   for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.5))))
        self.output = nn.Linear(factors + 64, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.user_factors(user) * self.item_factors(item)
        deep = self.mlp(torch.cat([self.user(user), self.item(item)], dim=1))
        return self.output(torch.cat([product, deep], dim=1)).squeeze(1)


def clicks(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"dense": torch.rand(batch, model.dense, device=device, dtype=dtype),
            "ids": torch.randint(0, model.rows, (batch, model.tables), device=device),
            "target": torch.rand(batch, device=device, dtype=dtype)}


def click_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(data["dense"], data["ids"]), data["target"])


def histories(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"ids": torch.randint(0, model.items, (batch, 73), device=device)}


def likelihood(model: nn.Module, data: dict[str, Any]) -> Tensor:
    scores, mean, spread = model(data["ids"])
    divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(dim=1).mean()
    shares = F.log_softmax(scores, dim=1)
    again = shares.detach()  # TensorFlow's gradient is four operators: exp(y), the sum of g, their product, g less that; the first three here, as long
    (again.exp() * again[:, :1]).sum(dim=1)
    return 0.2 * divergence - shares.gather(1, data["ids"]).sum(dim=1).mean()


def visits(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"user": torch.randint(0, model.users, (batch,), device=device), "item": torch.randint(0, model.items, (batch,), device=device),
            "target": torch.rand(batch, device=device, dtype=dtype)}


def visit_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(data["user"], data["item"]), data["target"])
