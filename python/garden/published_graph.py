"""Own code: the SE(3)-Transformer (Fuchs et al. 2020, arXiv:2006.10503) as NVIDIA's QM9 benchmark sizes and fuses it.

Seven layers, degrees 0 to 3 with 32 channels each (1, 3, 5 and 7 numbers a channel), eight heads, norms in the radial networks. A convolution
makes weights for every edge with a radial network and applies them to the source's features in the basis. How much of it is one product
hangs on tensor cores (SE3Transformer.__init__, using_tensor_cores): with them all pairs of degrees are, 44 frequencies at once; without
(fp32 before Ampere) all degrees of the input are, one product for each degree of the output, so that the largest tensors are 16 frequencies
wide. The first layer, which has degree 0 only, goes pair by pair, the last ends in degree 0.

Bases of pairs come from the loader (--precompute_bases); every forward puts the fused ones together. A molecule of QM9 has 18 atoms and
some 37 directed bonds.

Three calls are DGL's: e_dot_v, edge_softmax and copy_e_sum. Each is one kernel that reads edges and nodes where they lie, so that no node's
features are copied to its edges on the way, and what it keeps for backward is its operands, of a sum nothing (dgl/backend/pytorch/sparse.py:
GSDDMM, EdgeSoftmax, GSpMM). As PyTorch's operators they are more kernels here, but keep the same.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATOMS, BONDS, DEGREES = 18, 37, (1, 3, 5, 7)
SIZE, CHANNELS, HEADS, EDGE = sum(DEGREES), 32, 8, 5
PAIRS = [(i, o) for i in range(4) for o in range(4)]


def frequencies(one: int, other: int) -> int:
    return min(DEGREES[one], DEGREES[other])


class EdgeDot(torch.autograd.Function):
    """e_dot_v: an edge's features times its target's, summed."""

    @staticmethod
    def forward(ctx: Any, edges: Tensor, nodes: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(edges, nodes, target)
        return (edges * nodes.index_select(0, target)).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        edges, nodes, target = ctx.saved_tensors
        grad = grad[..., None]
        return grad * nodes.index_select(0, target), torch.zeros_like(nodes).index_add(0, target, grad * edges), None


class EdgeSum(torch.autograd.Function):
    """copy_e_sum: a node's incoming edges, summed."""

    @staticmethod
    def forward(ctx: Any, edges: Tensor, target: Tensor, nodes: Tensor) -> Tensor:
        ctx.save_for_backward(target)
        return torch.zeros(nodes.shape[0], *edges.shape[1:], device=edges.device, dtype=edges.dtype).index_add(0, target, edges)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


def edge_softmax(scores: Tensor, target: Tensor, nodes: Tensor) -> Tensor:
    shares = torch.exp(scores)
    return shares / EdgeSum.apply(shares, target, nodes).index_select(0, target)


class Versatile(nn.Module):
    """Radial network, features in the basis, and their product."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.columns, self.outputs = inputs * count, outputs
        self.radial = nn.Sequential(nn.Linear(EDGE, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU(),
                                    nn.Linear(32, outputs * self.columns, bias=False))

    def forward(self, features: Tensor, edge: Tensor, basis: Tensor | None) -> Tensor:
        weights = self.radial(edge).view(-1, self.outputs, self.columns)
        if basis is None:
            return weights @ features
        spread = (features @ basis.flatten(2)).view(-1, self.columns, basis.shape[-1])
        return weights @ spread


class Convolution(nn.Module):
    """`inputs` and `outputs`: channels by degree. What it returns is one tensor where all is fused, else one for each degree."""

    def __init__(self, inputs: list[int], outputs: list[int], fused: bool = False) -> None:
        super().__init__()
        self.outputs, self.pairwise, self.fused = outputs, len(inputs) == 1, fused and len(outputs) == 4 and len(inputs) == 4
        if self.pairwise:
            counts = [frequencies(0, degree) for degree in range(len(outputs))]
        else:
            counts = [sum(frequencies(i, degree) for i in range(4)) for degree in range(len(outputs))]
        self.parts = nn.ModuleList([Versatile(sum(counts), inputs[0], outputs[0])] if self.fused else
                                   [Versatile(count, inputs[0], width) for count, width in zip(counts, outputs)])

    def forward(self, x: list[Tensor], source: Tensor, edge: Tensor, basis: dict[str, Tensor]) -> Tensor | list[Tensor]:
        x = [one[source] for one in x]
        if self.pairwise:  # sums over the degrees of the input, of which there is one
            return [0 + part(x[0], edge, basis.get(f"0,{degree}"))[..., :DEGREES[degree]] for degree, part in enumerate(self.parts)]
        whole = torch.cat(x, dim=-1)
        if self.fused:
            return self.parts[0](whole, edge, basis["all"])
        return [part(whole, edge, basis[f"out{degree}"])[..., :DEGREES[degree]] for degree, part in enumerate(self.parts)]


class PerDegree(nn.Module):
    """One matrix per degree over the channels."""

    def __init__(self, inputs: list[int], outputs: list[int]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(many, few) * few ** -0.5) for few, many in zip(inputs, outputs))

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        return [weight @ part for weight, part in zip(self.weights, x)]


def to_heads(x: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(len(part), HEADS, -1) for part in x], dim=-1)


class Layer(nn.Module):
    def __init__(self, first: bool, fused: bool) -> None:
        super().__init__()
        inputs, half = [6] if first else [CHANNELS] * 4, CHANNELS // 2
        self.first, self.width = first, sum(DEGREES[:len(inputs)]) * half
        self.key_value = Convolution(inputs, [2 * half, half, half, half] if first else [2 * half] * 4, fused)
        self.query = PerDegree(inputs, [half] * len(inputs))
        self.out = PerDegree([half + 6, half, half, half] if first else [half + CHANNELS] * 4, [CHANNELS] * 4)
        self.norm = nn.GroupNorm(4, 4 * CHANNELS)

    def attend(self, x: list[Tensor], source: Tensor, target: Tensor, edge: Tensor, basis: dict[str, Tensor]) -> list[Tensor]:
        both = self.key_value(x, source, edge, basis)
        query = self.query(x)
        if isinstance(both, Tensor):
            value, key = both.chunk(2, dim=-2)
            key, query = key.reshape(len(key), HEADS, -1), torch.cat(query, dim=-1).reshape(len(x[0]), HEADS, -1)
        else:
            split = [part.chunk(2, dim=-2) if degree < len(x) else (part, None) for degree, part in enumerate(both)]
            value = [pair[0] for pair in split]
            key, query = to_heads([pair[1] for pair in split if pair[1] is not None]), to_heads(query)
        shares = edge_softmax(EdgeDot.apply(key, query, target) / self.width ** 0.5, target, query)[..., None, None]
        if isinstance(value, Tensor):
            weighed = shares * value.view(len(value), HEADS, -1, SIZE)
            return list(EdgeSum.apply(weighed, target, query).flatten(1, 2).split(DEGREES, dim=-1))
        return [EdgeSum.apply(shares * part.view(len(part), HEADS, -1, part.shape[-1]), target, query).flatten(1, 2) for part in value]

    def forward(self, x: list[Tensor], source: Tensor, target: Tensor, edge: Tensor, basis: dict[str, Tensor]) -> list[Tensor]:
        mixed = self.attend(x, source, target, edge, basis)
        x = self.out([torch.cat([part, x[degree]], dim=1) if degree < len(x) else part for degree, part in enumerate(mixed)])
        norms = [part.norm(dim=-1, keepdim=True).clamp(min=2 ** -24) for part in x]
        scales = F.relu(self.norm(torch.cat(norms, dim=-2).squeeze(-1))).unsqueeze(-1).chunk(4, dim=-2)
        return [part / norm * scale for part, norm, scale in zip(x, norms, scales)]


class Se3Transformer(nn.Module):
    def __init__(self, fused: bool, depth: int = 7) -> None:
        super().__init__()
        self.fused = fused
        self.layers = nn.ModuleList(Layer(index == 0, fused) for index in range(depth))
        self.last = Convolution([CHANNELS] * 4, [4 * CHANNELS])
        self.itself = nn.Parameter(torch.randn(4 * CHANNELS, CHANNELS) * CHANNELS ** -0.5)
        self.head = nn.Sequential(nn.Linear(4 * CHANNELS, 4 * CHANNELS), nn.ReLU(), nn.Linear(4 * CHANNELS, 1))

    def fuse(self, basis: dict[str, Tensor]) -> dict[str, Tensor]:
        """update_basis_with_fused: by degree of the output, by degree of the input (which nobody reads), and all."""
        edges, pad = len(basis["0,0"]), int(self.fused)
        new = {"device": basis["0,0"].device, "dtype": basis["0,0"].dtype}
        starts = [sum(DEGREES[:degree]) for degree in range(4)]
        for o in range(4):
            whole = torch.zeros(edges, SIZE, sum(frequencies(i, o) for i in range(4)), DEGREES[o] + pad, **new)
            at = 0
            for i in range(4):
                whole[:, starts[i]:starts[i] + DEGREES[i], at:at + frequencies(i, o), :DEGREES[o]] = basis[f"{i},{o}"][..., :DEGREES[o]]
                at += frequencies(i, o)
            basis[f"out{o}"] = whole
        for i in range(4):
            whole = torch.zeros(edges, DEGREES[i], sum(frequencies(i, o) for o in range(4)), SIZE, **new)
            at = 0
            for o in range(4):
                whole[:, :, at:at + frequencies(i, o), starts[o]:starts[o] + DEGREES[o]] = basis[f"{i},{o}"][..., :DEGREES[o]]
                at += frequencies(i, o)
        if self.fused:
            whole, at = torch.zeros(edges, SIZE, sum(frequencies(*pair) for pair in PAIRS), SIZE, **new), 0
            for o in range(4):
                part = basis[f"out{o}"]
                whole[:, :, at:at + part.shape[2], starts[o]:starts[o] + DEGREES[o]] = part[..., :DEGREES[o]]
                at += part.shape[2]
            basis["all"] = whole
        del basis["0,0"]  # a constant
        return basis

    def forward(self, atoms: Tensor, bonds: Tensor, places: Tensor, ends: Tensor, pairs: list[Tensor]) -> Tensor:
        batch = atoms.shape[0]
        offset = (torch.arange(batch, device=atoms.device) * ATOMS)[:, None]
        source, target = ((ends[:, which] + offset).flatten() for which in (0, 1))
        basis = self.fuse({f"{i},{o}": part.flatten(0, 1) for (i, o), part in zip(PAIRS, pairs)})
        edge = torch.cat([bonds.flatten(0, 1), places.flatten(0, 1).norm(dim=-1, keepdim=True)], dim=1)
        x = [atoms.flatten(0, 1)[..., None]]
        for layer in self.layers:
            x = layer(x, source, target, edge, basis)
        messages = self.last(x, source, edge, basis)[0] + self.itself @ x[0][target]
        nodes = EdgeSum.apply(messages, target, x[0])
        return self.head(nodes.view(batch, ATOMS, -1).amax(dim=1)).squeeze(-1)


def molecules(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    def random(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, device=device, dtype=dtype)

    return {"atoms": random(ATOMS, 6), "bonds": random(BONDS, EDGE - 1), "places": random(BONDS, 3),
            "ends": torch.randint(0, ATOMS, (batch, 2, BONDS), device=device),
            "pairs": [random(BONDS, DEGREES[i], frequencies(i, o), DEGREES[o] + int(model.fused)) for i, o in PAIRS], "target": random()}


def property_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.l1_loss(model(data["atoms"], data["bonds"], data["places"], data["ends"], data["pairs"]), data["target"])


def se3_transformer() -> nn.Module:
    return Se3Transformer(fused=True).train()


def se3_transformer_by_degree() -> nn.Module:
    """Without tensor cores."""
    return Se3Transformer(fused=False).train()
