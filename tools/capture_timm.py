#!/usr/bin/env python3
"""Draws models of timm's published training benchmark by lot and captures them into tests/data/published_timm.

  PRECOG_REFERENCE_DATA=DIR python3 tools/capture_timm.py [--draw] [NAME...]

--draw writes list.json: of each of timm's modules at most three models of different size, drawn by a seed; whole modules are for looking or
for judging (`half`), by turns of the draw. Models that today's timm has with another number of parameters than the row gives are left out.
Without --draw what the list names is captured, or the NAMEs. Needs torch, timm 1.0 and the built library (PRECOG_LIBRARY); no GPU, no network.
tools/published_timm.py predicts them.

Attention is written out (TIMM_FUSED_ATTN=0), as it was in 2022. The batch is symbolic, the images are as large as the row's.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tools")]
os.environ["TIMM_FUSED_ATTN"] = "0"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

FOLDER = ROOT / "tests" / "data" / "published_timm"
SEED, OF_A_MODULE = 2022, 3
OTHER_MODELS = {"tresnet": "of as many parameters, but in 2022 with InplaceABN, a package's norm and activation in one, for which today's timm has ordinary ones"}


def draw() -> None:
    import timm
    import torch

    import published_timm
    rows: dict[str, dict[str, str]] = {}
    for row in published_timm.read_rows():
        rows.setdefault(row["model"], row)
    lot = random.Random(SEED)
    modules: dict[str, list[str]] = {}
    for name in sorted(rows):
        if timm.is_model(name):
            modules.setdefault(timm.models.model_entrypoint(name).__module__.rpartition(".")[2], []).append(name)
    chosen, passed = [], {}
    for turn, module in enumerate(lot.sample(sorted(modules), len(modules))):
        sizes: set[str] = set()
        for name in lot.sample(modules[module], len(modules[module])):
            told = re.search(r"params ([\d.]+)M", rows[name]["notes"])
            if len(sizes) == OF_A_MODULE or not told or told.group(1) in sizes:
                continue
            with torch.device("meta"):
                own = sum(parameter.numel() for parameter in timm.create_model(name).parameters()) / 1e6
            if abs(own - float(told.group(1))) > 0.006:
                passed[name] = f"{told.group(1)} million parameters then, {own:.2f} now"
                continue
            sizes.add(told.group(1))
            chosen.append({"name": name, "module": module, "size": int(rows[name]["input_shape_or_seq_len"].split("x")[0]), "half": "looking" if turn % 2 == 0 else "judging"})
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "list.json").write_text(json.dumps({"seed": SEED, "timm": timm.__version__, "passed": passed, "other_models": OTHER_MODELS, "models": chosen}, indent=1) + "\n")
    print(len(rows), "models published,", len(chosen), "drawn from", len(modules), "modules,", len(passed), "passed over")


def capture_one(name: str, size: int) -> None:
    import timm
    import torch
    import torch.nn.functional as F

    from precog.capturing import capture
    begin = time.monotonic()
    with torch.device("meta"):
        model = timm.create_model(name).train()

    def build(batch: int = 8):
        image, target = torch.randn(batch, 3, size, size), torch.randint(0, model.num_classes, (batch,))

        def loss(one):
            out = one(image)
            return F.cross_entropy(out[0] if isinstance(out, tuple) else out, target)
        return loss, model

    graph = capture(None, None, build=build, name=name)
    path = FOLDER / f"{name}.precog.json.zst"
    graph.save(path)
    print(f"{name:36} {graph.operators:6} operators {graph.parameters / 1e6:8.2f} M parameters {time.monotonic() - begin:6.1f} s"
          f" {path.stat().st_size / 1e3:6.1f} kB  {'; '.join(graph.notes)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.draw:
        draw()
        return 0
    for entry in json.loads((FOLDER / "list.json").read_text())["models"]:
        if entry["name"] in arguments.names or (not arguments.names and not (FOLDER / f"{entry['name']}.precog.json.zst").exists()):
            try:
                capture_one(entry["name"], entry["size"])
            except Exception as error:  # noqa: BLE001: the others are captured all the same
                print(f"{entry['name']}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
