#!/usr/bin/env python3
"""Captures the architectures of published benchmarks (python/garden/published_models.py) into tests/data/published.

  python3 tools/capture_published.py [NAME...]      all of them without names

Needs torch and the built library (PRECOG_LIBRARY); no GPU, no network. tools/published_speedups.py predicts them.
"""
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))


def capture_one(name, model, out):
    import torch

    from precog.capturing import capture
    begin = time.monotonic()
    with torch.device("meta"):
        built = model.build()

    def build(batch: int = model.batch):  # the batch stays symbolic, all else is as the benchmark ran it
        data = model.inputs(built, batch, model.seq, torch.device("cpu"), torch.float32)
        return (lambda one: model.loss(one, data)), built

    graph = capture(None, None, build=build, name=name)
    path = out / f"{name}.precog.json.zst"
    graph.save(path)
    print(f"{name:24} {graph.operators:6} operators {graph.parameters / 1e6:8.1f} M parameters {time.monotonic() - begin:6.1f} s"
          f" {path.stat().st_size / 1e3:6.1f} kB  {graph.symbols} {'; '.join(graph.notes)}", flush=True)


def main():
    from garden.published_models import MODELS
    names = sys.argv[1:] or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(MODELS)}")
    out = ROOT / "tests" / "data" / "published"
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        capture_one(name, MODELS[name], out)


if __name__ == "__main__":
    main()
