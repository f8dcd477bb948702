"""Own code: the speech synthesisers of published benchmarks: Tacotron 2 (Shen et al. 2018) and FastSpeech (Ren et al. 2019).

Tacotron 2's decoder is a loop over frames of small operators, and a clip of LJSpeech has some 600 of them. Here a clip has 96
frames and a proportional text: the loop is the step either way, and one frame costs what any other does.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Location(nn.Module):
    """Attention that also looks at where it looked before."""

    def __init__(self, query: int = 1024, width: int = 128) -> None:
        super().__init__()
        self.query, self.score = nn.Linear(query, width, bias=False), nn.Linear(width, 1, bias=False)
        self.conv, self.dense = nn.Conv1d(2, 32, 31, padding=15, bias=False), nn.Linear(32, width, bias=False)

    def forward(self, state: Tensor, memory: Tensor, keys: Tensor, before: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        places = self.dense(self.conv(before).transpose(1, 2))
        energy = self.score(torch.tanh(self.query(state[:, None]) + places + keys)).squeeze(-1)
        shares = F.softmax(energy.masked_fill_(hidden, float("-inf")), dim=1)
        return torch.bmm(shares[:, None], memory).squeeze(1), shares


def _conv_norm(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(inputs, outputs, 5, padding=2), nn.BatchNorm1d(outputs))


class Tacotron2(nn.Module):
    def __init__(self, symbols: int = 148, mels: int = 80) -> None:
        super().__init__()
        self.symbols, self.mels = symbols, mels
        self.token = nn.Embedding(symbols, 512)
        self.convs = nn.ModuleList(_conv_norm(512, 512) for _ in range(3))
        self.encoder = nn.LSTM(512, 256, 1, batch_first=True, bidirectional=True)
        self.prenet = nn.ModuleList([nn.Linear(mels, 256, bias=False), nn.Linear(256, 256, bias=False)])
        self.attention_cell, self.decoder_cell = nn.LSTMCell(256 + 512, 1024), nn.LSTMCell(1024 + 512, 1024)
        self.keys, self.attention = nn.Linear(512, 128, bias=False), Location()
        self.frame, self.gate = nn.Linear(1024 + 512, mels), nn.Linear(1024 + 512, 1)
        sizes = [mels, 512, 512, 512, 512, mels]
        self.postnet = nn.ModuleList(_conv_norm(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, ids: Tensor, mels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.token(ids).transpose(1, 2)
        for conv in self.convs:
            x = F.dropout(F.relu(conv(x)), 0.5, True)
        memory, _ = self.encoder(x.transpose(1, 2))
        keys, hidden = self.keys(memory), torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
        batch = ids.shape[0]
        seen = mels.permute(2, 0, 1)
        for layer in self.prenet:
            seen = F.dropout(F.relu(layer(seen)), 0.5, True)
        state = [torch.zeros(batch, 1024, device=ids.device, dtype=memory.dtype) for _ in range(4)]
        shares, total = (torch.zeros(batch, ids.shape[1], device=ids.device, dtype=memory.dtype) for _ in range(2))
        context = torch.zeros(batch, 512, device=ids.device, dtype=memory.dtype)
        frames, gates = [], []
        for step in range(mels.shape[2]):
            state[0], state[1] = self.attention_cell(torch.cat([seen[step], context], dim=-1), (state[0], state[1]))
            state[0] = F.dropout(state[0], 0.1, True)
            context, shares = self.attention(state[0], memory, keys, torch.stack([shares, total], dim=1), hidden)
            total = total + shares
            state[2], state[3] = self.decoder_cell(torch.cat([state[0], context], dim=-1), (state[2], state[3]))
            state[2] = F.dropout(state[2], 0.1, True)
            out = torch.cat([state[2], context], dim=1)
            frames.append(self.frame(out))
            gates.append(self.gate(out))
        spectrum = torch.stack(frames, dim=2)
        fine = spectrum
        for index, conv in enumerate(self.postnet):
            fine = conv(fine)
            fine = F.dropout(torch.tanh(fine) if index < 4 else fine, 0.5, True)
        return spectrum, spectrum + fine, torch.cat(gates, dim=1)


def clips(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    frames = seq or 96
    return {"ids": torch.randint(0, model.symbols, (batch, frames // 6), device=device),
            "mels": torch.randn(batch, model.mels, frames, device=device, dtype=dtype),
            "ends": torch.zeros(batch, frames, device=device, dtype=dtype)}


def spectrum_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    coarse, fine, gates = model(data["ids"], data["mels"])
    return F.mse_loss(coarse, data["mels"]) + F.mse_loss(fine, data["mels"]) + F.binary_cross_entropy_with_logits(gates, data["ends"])


def tacotron2() -> nn.Module:
    return Tacotron2().train()


class FeedForwardBlock(nn.Module):
    def __init__(self, width: int = 384, heads: int = 1, inner: int = 1536) -> None:
        super().__init__()
        self.heads, self.size = heads, 64
        self.qkv, self.out = nn.Linear(width, 3 * heads * 64), nn.Linear(heads * 64, width)
        self.conv1, self.conv2 = nn.Conv1d(width, inner, 3, padding=1), nn.Conv1d(inner, width, 3, padding=1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        shares = F.dropout(F.softmax(torch.bmm(q, k.transpose(1, 2)) / 8, dim=-1), 0.1, True)
        x = self.norm1(x + F.dropout(self.out(torch.bmm(shares, v)), 0.1, True))
        h = self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + F.dropout(h, 0.1, True))


class FastSpeech(nn.Module):
    """Six blocks over the text, repeated to the frames' length, six over the frames; the durations' teacher is left out."""

    def __init__(self, symbols: int = 148, mels: int = 80, width: int = 384) -> None:
        super().__init__()
        self.symbols, self.mels = symbols, mels
        self.token = nn.Embedding(symbols, width)
        self.encoder = nn.ModuleList(FeedForwardBlock(width) for _ in range(6))
        self.decoder = nn.ModuleList(FeedForwardBlock(width) for _ in range(6))
        self.duration = nn.ModuleList([nn.Conv1d(width, 256, 3, padding=1), nn.Conv1d(256, 256, 3, padding=1)])
        self.norms, self.length = nn.ModuleList(nn.LayerNorm(256) for _ in range(2)), nn.Linear(256, 1)
        self.output = nn.Linear(width, mels)

    def forward(self, ids: Tensor, frames: int) -> tuple[Tensor, Tensor]:
        x = self.token(ids)
        for block in self.encoder:
            x = block(x)
        h = x
        for conv, norm in zip(self.duration, self.norms):
            h = F.dropout(norm(F.relu(conv(h.transpose(1, 2))).transpose(1, 2)), 0.1, True)
        lengths = self.length(h).squeeze(-1)
        x = x.repeat_interleave(frames // ids.shape[1], dim=1)
        for block in self.decoder:
            x = block(x)
        return self.output(x), lengths


def sentences(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"ids": torch.randint(0, model.symbols, (batch, 110), device=device),
            "mels": torch.randn(batch, 660, model.mels, device=device, dtype=dtype),
            "lengths": torch.rand(batch, 110, device=device, dtype=dtype)}


def frame_loss(model: nn.Module, data: dict[str, Any]) -> Tensor:
    mels, lengths = model(data["ids"], data["mels"].shape[1])
    return F.mse_loss(mels, data["mels"]) + F.mse_loss(lengths, data["lengths"])


def fast_speech() -> nn.Module:
    return FastSpeech().train()
