#!/usr/bin/env python3
"""Captures the architectures that precog also knows by itself, for tests/captured_test.py to compare the two.

  python3 tools/capture_zoo.py [--out tests/data/captured_zoo] [NAME...]

Each case is one model of torchvision or transformers on the meta device, with the loss that a user would write. For
those of transformers the configuration (an entry of tests/data/hf_configs.json, shortened) is written beside the
capture. Needs torch, torchvision and transformers; no GPU, no weights.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from precog.capturing import capture  # noqa: E402

# name of the case: (name in tests/data/hf_configs.json, layers or None = all)
HUGGING_FACE: dict[str, tuple[str, int | None]] = {
    "bert-base": ("google-bert/bert-base-uncased", None),
    "bert-large": ("google-bert/bert-large-uncased, its pre-training", 2),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", 4),
    "gemma-2b": ("google/gemma-2b", 2),
    "gpt-neox-20b": ("EleutherAI/gpt-neox-20b", 2),
    "gpt2": ("openai-community/gpt2", None),
    "llama3-8b": ("meta-llama/Llama-3.1-8B", 2),
    "mistral-7b": ("mistralai/Mistral-7B-v0.1", 2),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1", 2),
    "moonlight": ("moonshotai/Moonlight-16B-A3B", 3),
    "opt-125m": ("facebook/opt-125m", 2),
    "phi-2": ("microsoft/phi-2", 2),
    "pythia-160m": ("EleutherAI/pythia-160m", 2),
    "qwen1.5-moe": ("Qwen/Qwen1.5-MoE-A2.7B", 2),
    "qwen2.5-0.5b": ("Qwen/Qwen2.5-0.5B", 4),
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B", 2),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", 2),
    "roberta-base": ("FacebookAI/roberta-base", 2),
    "t5-base": ("google-t5/t5-base", 4),
    "t5-v1_1-base": ("google/t5-v1_1-base", 2),
    "vit-base-hf": ("google/vit-base-patch16-224", 2),
}
TORCHVISION = {"mobilenet_v2": "mobilenet_v2", "resnet18": "resnet18", "resnet50": "resnet50", "vgg16": "vgg16",
               "vit-b": "vit_b_16", "vit-l": "vit_l_16"}
CHANGED = {"gpt-neox-20b": {"hidden_act": "gelu"}}  # as the zoo has it and the recorded steps ran it; published: gelu_fast
DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
BATCH, SEQ, SRC_SEQ = 4, 128, 192  # any: the graphs keep them symbolic


def configuration(name: str) -> dict[str, Any]:
    wanted, layers = HUGGING_FACE[name]
    known = {entry["name"]: entry["config"] for entry in json.loads((ROOT / "tests/data/hf_configs.json").read_text())}
    config = dict(known[wanted])
    if layers is not None:
        config.update({key: layers for key in DEPTH if key in config})
    return {**config, **CHANGED.get(name, {})}


def from_transformers(config: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
    import transformers
    transformers.logging.set_verbosity_error()
    kind = getattr(transformers, config["architectures"][0])
    values = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    if config["model_type"] == "t5":
        values.update(decoder_start_token_id=0, pad_token_id=0)  # of the published file; changes no operator
    with torch.device("meta"):
        model = kind(kind.config_class(**values, use_cache=False)).train()
    if config["model_type"] == "vit":
        return model, {"pixel_values": torch.randn(BATCH, 3, 224, 224), "labels": torch.zeros(BATCH, dtype=torch.int64)}
    ids = torch.randint(3, 1000, (BATCH, SEQ))
    data = {"input_ids": ids, "labels": ids}
    if config["model_type"] == "t5":
        data = {"input_ids": torch.randint(3, 1000, (BATCH, SRC_SEQ)), "labels": ids}
    if config["architectures"][0] == "BertForPreTraining":
        data["next_sentence_label"] = torch.zeros(BATCH, dtype=torch.int64)
    return model, data


def one(name: str, out: pathlib.Path) -> None:
    begin = time.monotonic()
    if name in TORCHVISION:
        import torchvision
        with torch.device("meta"):
            network = getattr(torchvision.models, TORCHVISION[name])(weights=None).train()
        images, labels = torch.randn(BATCH, 3, 224, 224), torch.zeros(BATCH, dtype=torch.int64)
        graph = capture(lambda model: F.cross_entropy(model(images), labels), network, name=name)
    else:
        config = configuration(name)
        network, data = from_transformers(config)
        graph = capture(lambda model: model(**data).loss, network, name=name)
        (out / f"{name}.config.json").write_text(json.dumps(config, indent=1) + "\n")
    path = out / f"{name}.precog.json.zst"
    graph.save(path)
    print(f"{name:14} {graph.operators:5} operators {', '.join(graph.symbols):24} {path.stat().st_size:6} bytes "
          f"{time.monotonic() - begin:5.1f} s {'; '.join(graph.notes)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "data" / "captured_zoo")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or [*TORCHVISION, *HUGGING_FACE]:
        one(name, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
