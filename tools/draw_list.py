#!/usr/bin/env python3
"""Draws a list of models (tools/gpu/garden_steps.py) by lot: the ninth, the tenth, the eleventh. The first eight were chosen by hand.

  python3 tools/draw_list.py --list eleventh [--next N]     the list, who was passed over and why; N more candidates of each lot

Needs torch, torchvision, timm and transformers (the populations are those of torchvision 0.26, timm 1.0.30 and transformers 5.17); nothing
is downloaded. A lot is a population, cut into families; the families are shuffled by the seed, and of each one model is drawn, so that no
family comes twice and large ones count no more than small ones:
  torchvision   convolutional networks: classification, segmentation, video; a family is a module. Detection is left out, because proposals
                depend on values, and so are optical flow and quantized networks, which are not trained this way
  convolution   timm.list_models(), the modules that are not in ATTENTION
  attention     timm.list_models(), those that are: transformers, hybrids, mixers of tokens
  causal        transformers' architectures for causal language models by model_type, less those of the next two lots
  masked        those for masked language models, less those of the next lot
  two-sided     those for sequence to sequence
  image         those for image classification
  speech        those for speech to text, CTC and classes of sound
A model of timm has its own image size and 1000 classes and at most 400 million parameters. One of transformers is its configuration class's
default; where that has more than 1.5 billion parameters, the largest number of layers that stays below. Left out before anything is drawn:
models of an earlier list, of the zoo, with a kernel trace or a row among the published ones, by name; and architectures of transformers whose
defaults, depth aside, are such a model's. The order of the list and the models that are compiled are drawn too. PASSED names those that
were drawn and could not be used; the next of the lot took their place.
"""
from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import pathlib
import random
import re
import sys
from typing import Any, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tools" / "gpu")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SEEDS = {"ninth": 9, "tenth": 10, "eleventh": 11}
LOTS = {"torchvision": 2, "convolution": 4, "attention": 4, "causal": 4, "masked": 2, "two-sided": 2, "image": 1, "speech": 1}
COMPILED = {"ninth": 7, "tenth": 10, "eleventh": 10}
TIMM = "tests/data/published_timm"  # models of timm's published benchmark: predicted and looked at since the tenth list was drawn
MOST = {"timm": 400e6, "transformers": 1.5e9}  # parameters
ATTENTION = set("""beit byoanet cait coat convit crossvit csatv2 davit deepseek_vit deit edgenext efficientformer efficientformer_v2 efficientvim
    efficientvit_mit efficientvit_msra eva fastvit gcvit gemma4_vit hiera hieradet_sam2 iformer levit lowformer maxxvit metaformer mlp_mixer
    mobilenetv5 mobilevit mvitv2 naflexvit nest nextvit pit pvt_v2 qwen3_vit repvit sequencer shvit swiftformer swin_transformer
    swin_transformer_v2 swin_transformer_v2_cr tiny_vit tnt twins visformer vision_transformer vision_transformer_hybrid
    vision_transformer_relpos vision_transformer_sam vitamin volo xcit""".split())
PASSED = {  # drawn, not usable: why
    "rwkv": "its recurrence is a loop of Python over the positions: minutes of capture",
    "fnet": "its Fourier transforms take no 16-bit numbers: it does not train in four of the six precisions",
    "data2vec-text": "the same network as xlm-roberta, which stands on the list",
    "gemma4_vit_167m_enc": "an encoder that gives a sequence of features: it has no classes to train",
    "xlstm": "its gates turn 16-bit keys into fp32 ones, which PyTorch does not multiply with 16-bit values: it does not train in two of the six precisions",
}
ENTRIES = {"apertus": "apertus-short", "gemma4_unified_text": "gemma4-text-short", "roberta-prelayernorm": "roberta-prelayernorm-base",
           "longformer": "longformer-512", "mvp": "mvp-large", "pegasus_x": "pegasus-x-large", "sew-d": "sew-d-base", "vaultgemma": "vaultgemma-short", "olmo": "olmo-short", "cpmant": "cpmant-short", "ctrl": "ctrl-short",
           "xlm-roberta-xl": "xlm-roberta-xl-short", "nllb-moe": "nllb-moe-short", "granite_swa": "granite-swa-short", "arcee": "arcee-short",
           "gemma3_text": "gemma3-text-short", "mamba2": "mamba2-short", "blenderbot": "blenderbot-short"}  # the garden's names where others


def earlier(drawn: str) -> set[str]:
    """Names of everything that was timed, traced or published before that list was drawn, and of the zoo."""
    import compiled_steps
    import garden
    import garden_steps
    names = {name for models in before(garden_steps.HALVES, drawn) for name in models}
    names |= {model[0].removeprefix("garden:") for models in before(compiled_steps.LISTS, drawn) for model in models}
    names |= {entry.name for entry in garden.entries() if entry.trace}
    for folder in ("data/models", "tests/data/captured", "tests/data/captured_zoo", "tests/data/published", *([TIMM] if looked_at_timm(drawn) else [])):
        names |= {path.name.split(".json")[0].removesuffix(".precog") for path in (ROOT / folder).iterdir()}
    return names


def looked_at_timm(drawn: str) -> bool:
    return drawn not in ("ninth", "tenth")


def before(lists: dict[str, Any], drawn: str) -> list[Any]:
    """Lists stand in the order in which they were drawn."""
    names = list(lists)
    return [lists[name] for name in (names[:names.index(drawn)] if drawn in lists else names)]


def made_of(entry: Any) -> tuple[str, dict[str, Any]] | None:
    """Configuration class and settings of one of transformers' models."""
    known = inspect.getclosurevars(entry.build).nonlocals
    return (known["config_class"], known["settings"]) if "config_class" in known else None


def kin(module: str) -> str:
    """The module's name whichever library it is of, without a version: mvitv2 is kin of mvit."""
    return re.sub(r"_?v\d+$", "", module.rpartition(".")[2])


def module_of(entry: Any) -> str | None:
    """Its family: the module or the configuration class that it is from."""
    if entry.source == "torchvision":
        from torchvision.models import get_model_builder, list_models
        return kin(get_model_builder(entry.name).__module__) if entry.name in list_models() else None
    if entry.source == "timm":
        import timm
        return kin(timm.models.model_entrypoint(inspect.getclosurevars(entry.build).nonlocals["name"]).__module__)
    made = made_of(entry)
    return made[0] if made else None


def image_families(library: str) -> dict[str, list[str]]:
    families: dict[str, list[str]] = {}
    if library == "torchvision":
        from torchvision.models import get_model_builder, list_models
        for name in list_models():
            module = get_model_builder(name).__module__.removeprefix("torchvision.models.")
            if module.split(".")[0] not in ("detection", "quantization", "optical_flow") and module.split(".")[-1] not in (
                    "maxvit", "mvit", "swin_transformer", "vision_transformer"):
                families.setdefault(module, []).append(name)
        return families
    import timm
    for name in timm.list_models():
        module = timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
        if (module in ATTENTION) == (library == "attention"):
            families.setdefault(module, []).append(name)
    return families


def architectures(lot: str) -> dict[str, str]:
    """model_type -> class."""
    from transformers.models.auto import modeling_auto

    def mapping(kind: str) -> dict[str, str]:
        table = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
        return {key: value if isinstance(value, str) else value[0] for key, value in table.items()}
    two, masked = mapping("SEQ_TO_SEQ_CAUSAL_LM"), mapping("MASKED_LM")
    if lot == "two-sided":
        return two
    if lot == "masked":
        return {key: value for key, value in masked.items() if key not in two}
    if lot == "causal":
        return {key: value for key, value in mapping("CAUSAL_LM").items() if key not in two and key not in masked}
    if lot == "image":
        return mapping("IMAGE_CLASSIFICATION")
    return {**mapping("AUDIO_CLASSIFICATION"), **mapping("SPEECH_SEQ_2_SEQ"), **mapping("CTC")}


def parameters(build: Any) -> int:
    import torch
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def built(config: Any, model_class: str) -> int:
    import transformers
    return parameters(lambda: getattr(transformers, model_class)(config))


class Draw:
    def __init__(self, drawn: str) -> None:
        import garden
        import transformers
        logging.getLogger("transformers").setLevel(logging.CRITICAL)
        self.seed, self.names = SEEDS[drawn], earlier(drawn)
        known = [entry for entry in garden.entries() if entry.name in self.names]
        self.families = {module_of(entry) for entry in known} - {None}
        if looked_at_timm(drawn):
            self.families |= {kin(model["module"]) for model in json.loads((ROOT / TIMM / "list.json").read_text())["models"]}
        self.defaults = set()  # configuration classes whose defaults, depth aside, were looked at
        for made in filter(None, map(made_of, known)):
            kind = getattr(transformers, made[0])
            own, theirs = kind().to_dict(), kind(**made[1]).to_dict()
            if all(theirs.get(key) == value for key, value in own.items() if key in ("hidden_size", "d_model", "n_embd", "vocab_size", "intermediate_size",
                                                                                        "d_ff", "dim", "num_attention_heads", "hidden_sizes", "embed_dim")):
                self.defaults.add(made[0])

    def candidates(self, lot: str) -> Iterator[dict[str, Any]]:
        """One of each family, in the order of the lot; `why` says that it was drawn for nothing."""
        order = random.Random(f"{self.seed} {lot}")
        if lot in ("torchvision", "convolution", "attention"):
            families = image_families(lot)
            for family in order.sample(sorted(families), len(families)):
                left = sorted(name for name in families[family] if name not in self.names)
                order.shuffle(left)
                if left:
                    yield from self.image_model(lot, family, left)
            return
        kinds = architectures(lot)
        for kind in order.sample(sorted(kinds), len(kinds)):
            yield from self.architecture(lot, kind, kinds[kind])

    def image_model(self, lot: str, family: str, left: list[str]) -> Iterator[dict[str, Any]]:
        library = "torchvision" if lot == "torchvision" else "timm"
        for name in left:  # of the family, until one can be used
            found = {"lot": lot, "name": name, "family": family, "seen": kin(family) in self.families}
            if name in PASSED:
                yield {**found, "why": PASSED[name]}
                continue
            if library == "timm":
                import timm
                found["size"] = timm.models.get_pretrained_cfg(name).input_size[-1]
                found["parameters"] = parameters(lambda: timm.create_model(name, pretrained=False, num_classes=1000))
                if found["parameters"] > MOST["timm"]:
                    yield {**found, "why": "more than 400 million parameters"}
                    continue
            yield found
            return

    def architecture(self, lot: str, kind: str, model_class: str) -> Iterator[dict[str, Any]]:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from garden.hugging_face import _depths
        found = {"lot": lot, "name": kind, "class": model_class}
        if kind in PASSED:
            yield {**found, "why": PASSED[kind]}
            return
        config_class = CONFIG_MAPPING[kind]
        found.update(family=config_class.__name__, seen=config_class.__name__ in self.families)
        if config_class.__name__ in self.defaults:
            return  # not in the population
        try:
            config = config_class()
            if any(hasattr(config, f"{tower}_config") for tower in ("vision", "audio", "text", "thinker", "encoder")) and lot in ("causal", "masked", "two-sided"):
                yield {**found, "why": "not of text alone"}
                return
            found["parameters"] = built(config, model_class)
        except Exception as error:  # noqa: BLE001: the reason is told
            yield {**found, "why": f"does not build from its defaults: {type(error).__name__}"}
            return
        if found["parameters"] > MOST["transformers"]:
            try:
                depths = _depths(config_class, {})
                low, high = 0, max(getattr(config, key) for key in depths)
                while low + 1 < high:  # layers that fit, layers that do not
                    middle = (low + high) // 2
                    count = built(config_class(**{key: middle for key in depths}), model_class)
                    low, high = (middle, high) if count <= MOST["transformers"] else (low, middle)
            except Exception as error:  # noqa: BLE001
                yield {**found, "why": f"cannot be cut: {type(error).__name__}"}
                return
            if low < 2:
                yield {**found, "why": "two layers have more than 1.5 billion parameters"}
                return
            found.update(layers=low, parameters=built(config_class(**{key: low for key in depths}), model_class))
        yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", choices=sorted(SEEDS), default="eleventh")
    parser.add_argument("--next", type=int, default=0, help="so many more candidates of each lot")
    parser.add_argument("--lots", type=lambda text: text.split(","), default=list(LOTS), help="these lots")
    arguments = parser.parse_args()
    draw, drawn = Draw(arguments.list), []
    for lot in arguments.lots:
        left = LOTS[lot] + arguments.next
        for found in draw.candidates(lot):
            extra = "" if left > arguments.next else "next: "
            if "why" in found:
                print(f"{lot:12} {extra}{found['name']}: passed over: {found['why']}", flush=True)
                continue
            print(f"{lot:12} {extra}{found['name']}" + "".join(f", {key} {found[key]}" for key in ("class", "size", "layers", "parameters") if key in found)
                  + (", a family seen before" if found["seen"] else ""), flush=True)
            if not extra:
                drawn.append(found)
            left -= 1
            if not left:
                break
    print(f"{len(drawn)} drawn, {sum(found['seen'] for found in drawn)} of families seen before")
    if arguments.lots == list(LOTS):
        names = [ENTRIES.get(found["name"], found["name"]) for found in drawn]
        compiled = random.Random(f"{draw.seed} compiled").sample(names, COMPILED[arguments.list])
        random.Random(f"{draw.seed} order").shuffle(names)
        print("in the order", ", ".join(names))
        print("compiled", ", ".join(compiled))
    return 0


if __name__ == "__main__":
    sys.exit(main())
