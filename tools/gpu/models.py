"""The measured models: built from their configuration classes with random weights, and the loss a user would write.

`build(name, device)` returns a model in fp32 on the device; `inputs(...)` returns random data resident there;
`loss(...)` runs the forward pass. Names are precog's zoo names. A dry run builds the same classes, tiny.
"""
import torch
import torch.nn.functional as F

VISION = {"resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50", "resnet101": "resnet101", "resnet152": "resnet152",
          "vgg16": "vgg16", "mobilenet_v2": "mobilenet_v2", "vit-b": "vit_b_16", "vit-l": "vit_l_16"}
CONVOLUTIONAL = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg16", "mobilenet_v2")


def _gpt2(layers, hidden, heads):
    return "GPT2LMHeadModel", "GPT2Config", dict(n_layer=layers, n_embd=hidden, n_head=heads)


def _bert(layers, hidden, heads, inner):
    return "BertForMaskedLM", "BertConfig", dict(num_hidden_layers=layers, hidden_size=hidden,
                                                 num_attention_heads=heads, intermediate_size=inner)


def _qwen2(layers, hidden, heads, kv_heads, inner):
    return "Qwen2ForCausalLM", "Qwen2Config", dict(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=inner, vocab_size=151936, max_position_embeddings=32768, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


# Shapes are those of the published checkpoints' own config.json files.
TEXT = {
    "bert-base": _bert(12, 768, 12, 3072),
    "bert-large": _bert(24, 1024, 16, 4096),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "t5-base": ("T5ForConditionalGeneration", "T5Config", dict(
        d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_decoder_layers=12, num_heads=12, vocab_size=32128,
        decoder_start_token_id=0, pad_token_id=0)),
    "qwen2.5-0.5b": _qwen2(24, 896, 14, 2, 4864),
    "qwen2.5-1.5b": _qwen2(28, 1536, 12, 2, 8960),
    "qwen2.5-3b": _qwen2(36, 2048, 16, 2, 11008),
    "llama2-7b": ("LlamaForCausalLM", "LlamaConfig", dict(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=32,
        intermediate_size=11008, vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-5,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e4})),
    "mistral-7b": ("MistralForCausalLM", "MistralConfig", dict(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, vocab_size=32000, max_position_embeddings=32768, sliding_window=4096, rms_norm_eps=1e-5,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e4})),
    "gpt-neox-20b": ("GPTNeoXForCausalLM", "GPTNeoXConfig", dict(
        num_hidden_layers=44, hidden_size=6144, num_attention_heads=64, intermediate_size=24576, vocab_size=50432)),
    "llama3-8b": ("LlamaForCausalLM", "LlamaConfig", dict(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
}
# What a dry run changes so that a step takes milliseconds on a CPU.
TINY = {"n_layer": 2, "n_embd": 64, "n_head": 2, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 512, "d_model": 64, "d_kv": 32, "d_ff": 128,
        "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}


def build(name, device, layers=None, tiny=False):
    """The model in fp32, in training mode, on the device. `layers` shortens a language model (not T5)."""
    torch.manual_seed(0)
    with torch.device(device):
        if name in VISION:
            import torchvision
            if tiny and name.startswith("vit"):
                model = torchvision.models.VisionTransformer(image_size=32, patch_size=16, num_layers=2, num_heads=2,
                                                             hidden_dim=64, mlp_dim=128)
            else:
                model = getattr(torchvision.models, VISION[name])(weights=None)
            if tiny and name == "vgg16":
                model.classifier = torch.nn.Linear(25088, 1000)
        else:
            import transformers
            model_class, config_class, settings = TEXT[name]
            settings = dict(settings)
            if layers:
                settings["n_layer" if "n_layer" in settings else "num_hidden_layers"] = layers
            if tiny:
                settings.update({key: value for key, value in TINY.items() if key in settings})
                settings["vocab_size"] = 512
            config = getattr(transformers, config_class)(**settings)
            config.use_cache = False
            model = getattr(transformers, model_class)(config)
    return model.to(device=device, dtype=torch.float32).train()


def input_names(name):
    return ["image", "target"] if name in VISION else ["input_ids", "labels"]


def inputs(name, model, device, batch, seq=None, src_seq=None, dtype=torch.float32, channels_last=False, tiny=False):
    """Random data on the device. No attention mask: full sequences, as in packed pre-training data."""
    if name in VISION:
        size = 32 if tiny else 224
        image = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
        if channels_last:
            image = image.to(memory_format=torch.channels_last)
        return {"image": image, "target": torch.randint(0, 1000, (batch,), device=device)}
    vocabulary = model.config.vocab_size
    tokens = lambda length: torch.randint(1, vocabulary, (batch, length), device=device)
    labels = tokens(seq)
    if name.startswith("bert") or src_seq:
        return {"input_ids": tokens(src_seq or seq), "labels": labels}
    return {"input_ids": labels, "labels": labels}  # causal models shift the labels themselves


def loss(name, model, data):
    if name in VISION:
        return F.cross_entropy(model(data["image"]), data["target"])
    return model(**data, use_cache=False).loss if not name.startswith("bert") else model(**data).loss
