"""Own code: LSTM and GRU language models, a bidirectional LSTM tagger, and a temporal convolution network."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from .registry import Entry, add


class RecurrentLanguageModel(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], words: int = 33278, width: int = 650, depth: int = 2) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, width)
        self.dropout = nn.Dropout(0.5)
        self.layers = cell(width, width, depth, dropout=0.5, batch_first=True)
        self.output = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.layers(self.dropout(self.embedding(ids)))
        return self.output(self.dropout(hidden))


class Tagger(nn.Module):
    def __init__(self, words: int = 30000, width: int = 256, tags: int = 17) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.layers = nn.LSTM(width, width, 2, bidirectional=True, batch_first=True, dropout=0.3)
        self.output = nn.Linear(2 * width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.layers(self.embedding(ids))[0])


class ResidualConvolution(nn.Module):
    """Two dilated causal convolutions with weight normalisation."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv1 = weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(outputs, outputs, 3, dilation=dilation))
        self.dropout = nn.Dropout(0.2)
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(F.relu(self.conv1(F.pad(x, (self.pad, 0)))))
        h = self.dropout(F.relu(self.conv2(F.pad(h, (self.pad, 0)))))
        return F.relu(h + self.skip(x))


class TemporalConvolutions(nn.Module):
    def __init__(self, channels: int = 64, width: int = 256, depth: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.words = classes
        self.blocks = nn.Sequential(*(ResidualConvolution(channels if level == 0 else width, width, 2 ** level)
                                      for level in range(depth)))
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.blocks(x)[:, :, -1])


class SpeechRecogniser(nn.Module):
    """Deep Speech 2: two strided convolutions over a spectrogram, recurrent layers in both directions, CTC."""

    def __init__(self, bands: int = 80, width: int = 512, depth: int = 5, letters: int = 29) -> None:
        super().__init__()
        self.bands, self.words = bands, letters
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=2, padding=(20, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
        self.layers = nn.GRU(32 * (bands // 4), width, depth, bidirectional=True, batch_first=True)
        self.norm, self.output = nn.LayerNorm(2 * width), nn.Linear(2 * width, letters)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(x).flatten(1, 2).transpose(1, 2)
        return self.output(self.norm(self.layers(x)[0]))


class LineReader(nn.Module):
    """CRNN: convolutions that shrink a line of text to a row of features, two recurrent layers in both directions, CTC."""

    def __init__(self, width: int = 256, letters: int = 37) -> None:
        super().__init__()
        self.words = letters
        sizes = [1, width // 4, width // 2, width, width, 2 * width, 2 * width, 2 * width]
        pools = {0: (2, 2), 1: (2, 2), 3: (2, 1), 5: (2, 1)}
        parts: list[nn.Module] = []
        for at, (before, after) in enumerate(zip(sizes, sizes[1:])):
            last = at == len(sizes) - 2
            parts += [nn.Conv2d(before, after, 2 if last else 3, padding=0 if last else 1),
                      *([nn.BatchNorm2d(after)] if at in (2, 4, 6) else []), nn.ReLU(inplace=True)]
            if at in pools:
                parts.append(nn.MaxPool2d(2, pools[at], (0, 0 if at < 2 else 1)))
        self.convolutions = nn.Sequential(*parts)
        self.layers = nn.LSTM(2 * width, width, 2, bidirectional=True, batch_first=True)
        self.output = nn.Linear(2 * width, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layers(self.convolutions(x).squeeze(2).transpose(1, 2))[0])


def _text(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    ids = torch.randint(1, model.words, (batch, (seq or 64) + 1), device=device)
    return {"ids": ids[:, :-1], "target": ids[:, 1:]}


def _tags(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"ids": torch.randint(1, model.words, (batch, seq or 64), device=device),
            "target": torch.randint(0, 17, (batch, seq or 64), device=device)}


def _signal(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"ids": torch.randn(batch, 64, seq or 256, device=device, dtype=dtype),
            "target": torch.randint(0, 10, (batch,), device=device)}


def _speech(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"x": torch.randn(batch, 1, model.bands, 400, device=device, dtype=dtype),
            "target": torch.randint(1, model.words, (batch, seq or 40), device=device)}


def _line(model: nn.Module, batch: int, seq: int | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"x": torch.randn(batch, 1, 32, 160, device=device, dtype=dtype),
            "target": torch.randint(1, model.words, (batch, seq or 12), device=device)}


def _alignment(model: nn.Module, data: dict[str, Any]) -> Tensor:
    """CTC in fp32 on full-length utterances, by PyTorch's own kernels (cuDNN's want the targets on the host)."""
    scores = F.log_softmax(model(data["x"]).float(), dim=-1).transpose(0, 1)
    batch, device = scores.shape[1], scores.device
    frames = torch.full((batch,), scores.shape[0], device=device, dtype=torch.int64)
    letters = torch.full((batch,), data["target"].shape[1], device=device, dtype=torch.int64)
    return F.ctc_loss(scores, data["target"], frames, letters)


def _next_word(model: nn.Module, data: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(data["ids"]).flatten(0, -2), data["target"].flatten())


def _language(cell: type[nn.RNNBase]) -> Any:
    def build(layers: int | None = None, tiny: bool = False) -> nn.Module:
        words, width = (500, 64) if tiny else (33278, 650)
        return RecurrentLanguageModel(cell, words, width, layers or 2).train()
    return build


_RNN_TRACE = {"batch": 8, "seq": 32}
add(Entry("lstm-language-model", "recurrent", "own", _language(nn.LSTM), _text, _next_word, 20, 64, _RNN_TRACE,
          "two layers of 650, dropout 0.5"))
add(Entry("gru-language-model", "recurrent", "own", _language(nn.GRU), _text, _next_word, 20, 64, _RNN_TRACE))
add(Entry("bilstm-tagger", "recurrent", "own", lambda layers=None, tiny=False: Tagger().train(), _tags, _next_word, 32,
          64, {"batch": 8, "seq": 32}, "both directions"))
add(Entry("tcn", "recurrent", "own", lambda layers=None, tiny=False: TemporalConvolutions().train(), _signal,
          _next_word, 16, 256, {"batch": 8, "seq": 256}, "dilated conv1d with weight normalisation"))
add(Entry("deep-speech-2", "recurrent", "own", lambda layers=None, tiny=False: SpeechRecogniser(width=64 if tiny else 512).train(),
          _speech, _alignment, 8, None, None, "five bidirectional GRUs on 400 frames; seq counts letters"))
add(Entry("crnn", "recurrent", "own", lambda layers=None, tiny=False: LineReader(32 if tiny else 256).train(), _line, _alignment, 64, None,
          None, "lines of 32 x 160 pixels"))
