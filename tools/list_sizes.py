#!/usr/bin/env python3
"""The two sizes of each model of a list (tools/gpu/garden_steps.py), by predictions: the rule by which the tenth list's were chosen and those after it are.

  python3 tools/list_sizes.py data/measured/2026-11-19-h200-eleventh/graphs NAME...

The second size is the largest batch of 1, 2, 3, 4, 6, 8, 12, ... 512 with at most 200 ms of the GPU and 30 GB in fp32 and 100 ms in amp-bf16, 1 at the least, at 1024 (causal) or 256 tokens (masked, two-sided).
The first is 16 images (4 clips or scenes), 2 x 256 tokens (causal), 8 x 128 (masked), 4 x 128 (two-sided) or 4 clips of sound, its batch halved while the fp32 step is more than 125 ms
of the GPU or it has more than a third of the second size's samples times length. A model whose graph has one length only, or whose defaults have fewer positions (POSITIONS), has the first's in both; where
that leaves one size of the two, it has one.

Needs torch, for the garden; PRECOG names the program (build/release/precog by default).
"""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
PROGRAM = os.environ.get("PRECOG", str(ROOT / "build" / "release" / "precog"))
MOST_S, MOST_AMP_S, MOST_BYTES, FIRST_S = 0.2, 0.1, 30e9, 0.125
BATCHES = sorted([1 << power for power in range(10)] + [3 << power for power in range(8)])
POSITIONS = {"ctrl-short": 256, "blenderbot-short": 128}
START = {"own_labels": (2, 256, 1024), "masked_labels": (8, 128, 256), "two_sides": (4, 128, 256)}  # kind of inputs: first batch, first length, second length


def start(entry: Any) -> tuple[int, int | None, int | None]:
    if entry.inputs.__name__ in START:
        return START[entry.inputs.__name__]
    few = entry.family in ("audio", "segmentation") or entry.note.startswith("video")
    return 4 if few else 16, entry.seq, entry.seq


def predicted(graph: pathlib.Path, batch: int, seq: int | None, two_sides: bool, precision: str) -> tuple[float, int]:
    """Seconds of the GPU, bytes at the peak."""
    request: dict[str, Any] = {"schema": 1, "model": {"graph": str(graph.resolve())}, "batch": batch, "precision": precision, "mode": "eager", "optimizer": "adamw",
                               "optimizer_impl": "foreach", "cluster": {"gpu": "h200-sxm", "gpus": 1}, "host": "h200-vm-clean"}
    if seq:
        request.update({"seq": seq // 2, "src_seq": seq} if two_sides else {"seq": seq})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as job:
        json.dump(request, job)
        job.flush()
        done = subprocess.run([PROGRAM, "predict", job.name, "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise ValueError(done.stderr.strip())
    answer = json.loads(done.stdout)
    return answer["gpu_busy_s"], answer["peak_bytes"]


def sizes(entry: Any, graph: pathlib.Path) -> tuple[tuple[int, int | None], ...]:
    from precog._library import decompress
    captured = json.loads(decompress(graph.read_bytes()))
    two_sides = entry.inputs.__name__ == "two_sides"
    first, short, long = start(entry)
    if short and (("src_seq" if two_sides else "seq") in captured.get("fixed", {}) or POSITIONS.get(entry.name, long) < long):
        long = short = POSITIONS.get(entry.name, short)

    def seconds(batch: int, seq: int | None, precision: str = "fp32") -> float:
        return predicted(graph, batch, seq, two_sides, precision)[0]
    second = 1
    for batch in BATCHES[1:]:
        busy_s, peak = predicted(graph, batch, long, two_sides, "fp32")
        if busy_s > MOST_S or peak > MOST_BYTES or seconds(batch, long, "amp-bf16") > MOST_AMP_S:
            break
        second = batch
    while first > 1 and (seconds(first, short) > FIRST_S or 3 * first * (short or 1) > second * (long or 1)):
        first //= 2
    return ((first, short), (second, long))[(first, short) == (second, long):]


def main() -> int:
    import garden
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for name in sys.argv[2:]:
        chosen = sizes(garden.find(name), pathlib.Path(sys.argv[1]) / f"{name}.precog.json.zst")
        print(f'    "{name}": ({", ".join(map(str, chosen))}{"," if len(chosen) == 1 else ""}),', flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
