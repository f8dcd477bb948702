"""Small random stacks of modules, for measuring what the host pays inside a model: definitions only, nothing is timed here.

`stacks()` is a fixed list: each entry says how to build its model and its inputs on a device, small enough that the host is
always the bottleneck. The blocks are written here as models write them (residuals, norms, attention with its views, gates,
rotary positions, inverted bottlenecks, modules nested inside modules); which, how wide and how deep was drawn once from a
seeded generator. Some are blocks of the libraries themselves at sizes of no published model: their Python between operators
is part of what a host pays. `tools/gpu/host_models.py` times them all, `tools/gpu/host_fit.py` captures them and fits the costs; `precog host` times a few of them
on another machine and compares.
"""
from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

from . import host_stacks_more

BATCH, TOKENS, CLASSES = 2, 24, 32


@dataclass(frozen=True)
class Stack:
    name: str
    family: str                                    # which generator made it: "tokens", "images", "library" or "more"
    build: Callable[[], nn.Module]
    inputs: Callable[[str], dict[str, torch.Tensor]]  # device -> tensors; fp32 images, int64 ids
    loss: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor]
    optimizer: str = "adamw"
    implementation: str = "foreach"
    frozen: tuple[str, ...] = field(default=())    # parameters whose name has one of these inside are not trained


# --- token blocks ---------------------------------------------------------------------------------------------------------

class RmsByHand(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(kind)


class GeluByHand(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))


class Within(nn.Module):
    """One level of nesting: keyword arguments pass through and a tuple comes back, as in larger code bases."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, **settings: Any) -> torch.Tensor:
        out = self.inner(x, **settings)
        return out[0] if isinstance(out, tuple) else out


NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "rms-by-hand": RmsByHand}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "gelu-by-hand": GeluByHand}


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int, norm: str, activation: str, gated: bool, bias: bool, drop: float) -> None:
        super().__init__()
        self.norm, self.act = NORMS[norm](width), ACTIVATIONS[activation]()
        self.up, self.down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.drop = nn.Dropout(drop) if drop else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = self.act(self.up(y)) if self.gate is None else self.act(self.gate(y)) * self.up(y)
        y = self.down(y)
        return x + (y if self.drop is None else self.drop(y))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, form: str, packed: bool, rotary: bool, norm: str, bias: bool, drop: float) -> None:
        super().__init__()
        self.heads, self.groups, self.form, self.rotary, self.p, self.size = heads, groups, form, rotary, drop, width // heads
        self.norm, self.out = NORMS[norm](width), nn.Linear(width, width, bias=bias)
        self.packed = nn.Linear(width, 3 * width, bias=bias) if packed else None
        if not packed:
            self.q = nn.Linear(width, width, bias=bias)
            self.k, self.v = (nn.Linear(width, width // groups, bias=bias) for _ in range(2))
        self.drop = nn.Dropout(drop) if drop else None
        self.register_buffer("angles", torch.arange(TOKENS, dtype=torch.float32)[:, None] / (1.0 + torch.arange(self.size)[None, :]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        y = self.norm(x)
        if self.packed is not None:
            q, k, v = (t.view(b, s, self.heads, self.size).transpose(1, 2) for t in self.packed(y).split(w, dim=-1))
        else:
            q = self.q(y).view(b, s, -1, self.size).transpose(1, 2)
            k, v = (layer(y).view(b, s, -1, self.size).transpose(1, 2) for layer in (self.k, self.v))
        if self.rotary:
            cos, sin = self.angles.cos().to(q.dtype), self.angles.sin().to(q.dtype)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if k.shape[1] != q.shape[1]:
            k, v = (t[:, :, None].expand(b, -1, self.groups, s, self.size).reshape(b, self.heads, s, self.size) for t in (k, v))
        if self.form == "eager":
            scores = torch.matmul(q, k.transpose(-1, -2)) * self.size ** -0.5
            weights = F.dropout(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), self.p, self.training)
            y = torch.matmul(weights, v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.form == "causal", dropout_p=self.p)
        y = self.out(y.transpose(1, 2).reshape(b, s, w))
        return x + (y if self.drop is None else self.drop(y))


class TokenModel(nn.Module):
    def __init__(self, blocks: list[nn.Module], width: int, norm: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(64, width), nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(blocks)
        self.norm, self.head = NORMS[norm](width), nn.Linear(width, CLASSES, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))[None]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


# --- image blocks ---------------------------------------------------------------------------------------------------------

def conv(i: int, o: int, size: int, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(i, o, size, padding=size // 2, groups=groups, bias=bias)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.after = nn.Sequential(*layers), after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.body(x)
        return y if self.after is None else self.after(y)


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool, self.down, self.up = nn.AdaptiveAvgPool2d(1), conv(channels, 8, 1, bias=True), conv(8, channels, 1, bias=True)
        self.act, self.gate = nn.ReLU(inplace=True), nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(self.up(self.act(self.down(self.pool(x)))))


class Dense(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm, self.act, self.conv, self.back = nn.BatchNorm2d(channels), nn.ReLU(inplace=True), conv(channels, growth, 3), conv(channels + growth, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(torch.cat([x, self.conv(self.act(self.norm(x)))], 1))


class ChannelsInside(nn.Module):
    """A depthwise convolution, then linear layers over the channels between two permutations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix, self.norm = conv(channels, channels, 7, channels, True), nn.LayerNorm(channels)
        self.up, self.act, self.down = nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(self.act(self.up(y)))).permute(0, 3, 1, 2)


def image_block(kind: str, c: int, inplace: bool) -> nn.Module:
    relu = nn.ReLU(inplace=inplace)
    if kind == "basic":
        return Residual(conv(c, c, 3), nn.BatchNorm2d(c), relu, conv(c, c, 3), nn.BatchNorm2d(c), after=relu)
    if kind == "bottleneck":
        return Residual(conv(c, c // 2, 1), nn.BatchNorm2d(c // 2), relu, conv(c // 2, c // 2, 3), nn.BatchNorm2d(c // 2), relu,
                        conv(c // 2, c, 1), nn.BatchNorm2d(c), after=relu)
    if kind == "inverted":
        return Residual(conv(c, 2 * c, 1), nn.BatchNorm2d(2 * c), nn.ReLU6(inplace=inplace), conv(2 * c, 2 * c, 3, 2 * c), nn.BatchNorm2d(2 * c),
                        nn.ReLU6(inplace=inplace), conv(2 * c, c, 1), nn.BatchNorm2d(c))
    if kind == "squeezed":
        return Residual(conv(c, 2 * c, 1), nn.BatchNorm2d(2 * c), nn.SiLU(inplace=inplace), conv(2 * c, 2 * c, 5, 2 * c), nn.BatchNorm2d(2 * c),
                        nn.SiLU(inplace=inplace), Squeeze(2 * c), conv(2 * c, c, 1), nn.BatchNorm2d(c))
    if kind == "grouped":
        return Residual(conv(c, c, 1), nn.BatchNorm2d(c), relu, conv(c, c, 3, 4), nn.BatchNorm2d(c), relu, conv(c, c, 1), nn.BatchNorm2d(c), after=relu)
    if kind == "group-norm":
        return Residual(nn.GroupNorm(4, c), nn.SiLU(), conv(c, c, 3, bias=True), nn.GroupNorm(4, c), nn.SiLU(), nn.Dropout(0.1), conv(c, c, 3, bias=True))
    if kind == "plain":
        return nn.Sequential(conv(c, c, 3, bias=True), relu, conv(c, c, 3, bias=True), nn.ReLU(inplace=inplace))
    return Dense(c, 16) if kind == "dense" else ChannelsInside(c)


class ImageModel(nn.Module):
    def __init__(self, blocks: list[nn.Module], channels: int) -> None:
        super().__init__()
        self.stem, self.norm, self.relu, self.pool = conv(3, channels, 7), nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.layers = nn.Sequential(*blocks)
        self.average, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.pool(self.relu(self.norm(self.stem(image)))))
        return self.head(torch.flatten(self.average(x), 1))


# --- the list -------------------------------------------------------------------------------------------------------------

def _nested(block: nn.Module, levels: int) -> nn.Module:
    for _ in range(levels):
        block = Within(block)
    return block


def _ids(device: str) -> dict[str, torch.Tensor]:
    ids = (torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) * 7 + 1) % 61 + 1
    return {"ids": ids.to(device), "target": (ids % CLASSES).to(device)}


def _image(device: str, size: int = 16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"image": torch.randn(BATCH, 3, size, size, generator=generator).to(device), "target": torch.arange(BATCH).to(device)}


def _classify_tokens(model: nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(data["ids"]).view(-1, CLASSES), data["target"].view(-1))


def _classify_image(model: nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(data["image"]), data["target"])


def _recipe(draw: random.Random, index: int) -> dict[str, Any]:
    chosen = draw.choice(["adamw foreach"] * 5 + ["adamw fused", "sgd-momentum foreach", "adam foreach"]).split()
    return {"optimizer": chosen[0], "implementation": chosen[1], "frozen": ("layers.1.", "layers.3.", "layers.4.") if index % 6 == 5 else ()}


def _token_stack(index: int) -> Stack:
    draw = random.Random(1000 + index)
    norm, width = draw.choice(list(NORMS)), draw.choice([48, 64, 96, 128])
    bias, drop, levels = draw.random() < 0.6, draw.choice([0.0, 0.0, 0.1]), draw.choice([0, 0, 1, 2, 4])
    only = draw.choice(["both", "both", "both", "mlp", "attention"])
    attention = dict(heads=4, form=draw.choice(["sdpa", "causal", "eager"]), packed=draw.random() < 0.4, rotary=draw.random() < 0.4)
    groups = 1 if attention["packed"] else draw.choice([1, 1, 2])
    mlp = dict(inner=width * draw.choice([1, 2, 4]), activation=draw.choice(list(ACTIVATIONS)), gated=draw.random() < 0.35)
    depth = draw.randint(5, 14) * (1 if only == "both" else 2)

    def build() -> nn.Module:
        blocks: list[nn.Module] = []
        for _ in range(depth):
            parts: list[nn.Module] = []
            if only != "mlp":
                parts.append(_nested(Attention(width, groups=groups, norm=norm, bias=bias, drop=drop, **attention), levels))
            if only != "attention":
                parts.append(_nested(Mlp(width, norm=norm, bias=bias, drop=drop, **mlp), levels))
            blocks.append(parts[0] if len(parts) == 1 else nn.Sequential(*parts))
        return TokenModel(blocks, width, norm)
    return Stack(f"tokens-{index:02d}", "tokens", build, _ids, _classify_tokens, **_recipe(draw, index))


IMAGE_BLOCKS = ("basic", "bottleneck", "inverted", "squeezed", "grouped", "group-norm", "plain", "dense", "channels-inside")


def _image_stack(index: int) -> Stack:
    draw = random.Random(2000 + index)
    kinds = [IMAGE_BLOCKS[index % len(IMAGE_BLOCKS)]] if index < 2 * len(IMAGE_BLOCKS) else draw.sample(IMAGE_BLOCKS, 3)
    channels, inplace, levels = draw.choice([32, 64, 64, 128]), draw.random() < 0.6, draw.choice([0, 0, 0, 1, 3])
    depth, size = draw.randint(6, 20), draw.choice([16, 28, 32])

    def build() -> nn.Module:
        return ImageModel([_nested(image_block(kinds[i % len(kinds)], channels, inplace), levels) for i in range(depth)], channels)
    return Stack(f"images-{index:02d}", "images", build, lambda device: _image(device, size), _classify_image, **_recipe(draw, index))


def _hugging_face(index: int, model_class: str, config_class: str, layers: tuple[int, ...], settings: dict[str, Any], layer_key: str = "num_hidden_layers") -> list[Stack]:
    def make(depth: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            import transformers
            config = getattr(transformers, config_class)(**{**settings, layer_key: depth, **({"decoder_layers": depth} if layer_key == "encoder_layers" else {})})
            config.use_cache = False
            return getattr(transformers, model_class)(config).float().train()
        return build

    def inputs(device: str) -> dict[str, torch.Tensor]:
        if "image_size" in settings:
            return {"pixel_values": _image(device, settings["image_size"])["image"]}
        ids = _ids(device)["ids"]
        return {"input_ids": ids, **({"labels": ids} if "For" in model_class or "LMHead" in model_class else {})}

    def loss(model: nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
        out = model(**data)
        return out.loss if "labels" in data else out.last_hidden_state.float().mean()
    return [Stack(f"{model_class}-{depth}", "library", make(depth), inputs, loss) for depth in layers]


def _library_stacks() -> list[Stack]:
    text = dict(vocab_size=64, hidden_size=64, num_attention_heads=4, intermediate_size=160, max_position_embeddings=64)
    grouped = dict(text, num_key_value_heads=2, pad_token_id=0)
    out: list[Stack] = []
    for index, (model_class, config_class, layers, settings, key) in enumerate([
            ("DistilBertModel", "DistilBertConfig", (9,), dict(vocab_size=64, dim=64, n_heads=4, hidden_dim=160, max_position_embeddings=64), "n_layers"),
            ("ElectraModel", "ElectraConfig", (5, 11), dict(text, embedding_size=48), "num_hidden_layers"),
            ("BertForMaskedLM", "BertConfig", (7,), text, "num_hidden_layers"),
            ("OPTForCausalLM", "OPTConfig", (6,), dict(vocab_size=64, hidden_size=64, ffn_dim=160, num_attention_heads=4, max_position_embeddings=64,
                                                       word_embed_proj_dim=64, pad_token_id=0), "num_hidden_layers"),
            ("GPT2LMHeadModel", "GPT2Config", (5, 10), dict(vocab_size=64, n_embd=64, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0), "n_layer"),
            ("LlamaForCausalLM", "LlamaConfig", (4, 9), grouped, "num_hidden_layers"),
            ("GemmaForCausalLM", "GemmaConfig", (5,), dict(grouped, head_dim=16), "num_hidden_layers"),
            ("Qwen3ForCausalLM", "Qwen3Config", (6,), dict(grouped, head_dim=16), "num_hidden_layers"),
            ("PhiForCausalLM", "PhiConfig", (7,), dict(text, pad_token_id=0, bos_token_id=0, eos_token_id=0), "num_hidden_layers"),
            ("ViTModel", "ViTConfig", (8,), dict(hidden_size=64, num_attention_heads=4, intermediate_size=160, image_size=32, patch_size=8), "num_hidden_layers"),
            ("BartForConditionalGeneration", "BartConfig", (4,), dict(vocab_size=64, d_model=64, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=160,
                                                                      decoder_ffn_dim=160, max_position_embeddings=64, pad_token_id=0, bos_token_id=0, eos_token_id=2,
                                                                      decoder_start_token_id=2, forced_eos_token_id=None), "encoder_layers"),
            ("T5ForConditionalGeneration", "T5Config", (4,), dict(vocab_size=64, d_model=64, d_kv=16, d_ff=160, num_heads=4, decoder_start_token_id=0, pad_token_id=0), "num_layers"),
    ]):
        out += _hugging_face(index, model_class, config_class, layers, settings, key)

    def vision(name: str, make: Callable[[], nn.Module], size: int = 64) -> None:
        out.append(Stack(name, "library", make, lambda device: _image(device, size), _classify_image))

    def models() -> Any:
        import torchvision
        return torchvision.models
    vision("ResNet-basic", lambda: models().ResNet(models().resnet.BasicBlock, [2, 4, 3, 2], num_classes=CLASSES))
    vision("ResNet-bottleneck", lambda: models().ResNet(models().resnet.Bottleneck, [2, 5, 4, 2], num_classes=CLASSES, width_per_group=32))
    vision("MobileNetV3", lambda: models().mobilenet_v3_small(num_classes=CLASSES, width_mult=0.5))
    vision("DenseNet", lambda: models().DenseNet(growth_rate=8, block_config=(3, 5, 6, 4), num_init_features=16, num_classes=CLASSES))
    vision("ConvNeXt", lambda: models().ConvNeXt([models().convnext.CNBlockConfig(48, 96, 3), models().convnext.CNBlockConfig(96, None, 5)],
                                                num_classes=CLASSES))
    vision("ShuffleNet", lambda: models().ShuffleNetV2([3, 6, 3], [24, 48, 96, 192, 256], num_classes=CLASSES))
    vision("VisionTransformer", lambda: models().VisionTransformer(image_size=32, patch_size=8, num_layers=7, num_heads=4, hidden_dim=64, mlp_dim=160,
                                                                  num_classes=CLASSES), 32)
    return out


def stacks() -> list[Stack]:
    return [_token_stack(i) for i in range(30)] + [_image_stack(i) for i in range(27)] + _library_stacks() + host_stacks_more.more_stacks(Stack)


def precisions(index: int) -> tuple[str, ...]:
    """Which precisions the stack at this place in the list is timed in: fp32 and autocast always, two of the others in turn."""
    others = (("bf16", "amp-fp16"), ("fp16",), ("tf32", "bf16"))
    return ("fp32", "amp-bf16", *others[index % 3])


def train_only(model: nn.Module, frozen: tuple[str, ...]) -> None:
    for name, parameter in model.named_parameters():
        if any(text in name for text in frozen):
            parameter.requires_grad_(False)
