#!/usr/bin/env python3
"""Takes convolutions out of a campaign's lines that may have been refused memory, and keeps them beside it.

    short_of_memory.py data/measured/2026-11-16-h200-conv-6

cuDNN's plans want room: for transformed images and filters, for copies in another layout. Where PyTorch cannot allocate it the next plan
is taken, which may be three times slower or faster. Fourteen processes that plan side by side leave little: of calls that had been timed before in one
process, those that want less than `LEAST` bytes came out as before (15 of 1,493 did not), of those that want more 130 of 1,049 in true fp32 and in TF32
came out 1.2 to 12 times slower or faster (in 16 bits, which have fewer ways, 8 of 782: they stay). A training step has the device to itself, so such rows
say nothing about it. They go to short_of_memory.jsonl.gz.
"""
from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

LEAST = 180e6
TYPES = ("fp32", "tf32")
AXES = {"conv1d": 1, "conv3d": 3}
WINOGRAD = 36 / 16  # transformed elements for each of a 4 x 4 tile
FOURIER_TILE = 32
MOST_TRANSFORMED = 256  # pixels a side


def each(value: Any, axes: int) -> list[int]:
    return list(value) if isinstance(value, list) else [value] * axes


def plane(side: int) -> int:
    """Bytes of a real square's frequencies."""
    return side * (side // 2 + 1) * 8


def space(line: dict[str, Any]) -> float:
    """The most bytes that one of the library's ways may want beside operands and result, which have 4 bytes each."""
    axes = AXES.get(line["family"], 2)
    size, kernel, stride = each(line["size"], axes), each(line["kernel"], axes), each(line["stride"], axes)
    images, cin, cout, weights = line["batch"], line["cin"], line["cout"], line["cin"] * line["cout"] // line["groups"]
    result = [s * t if line["family"] == "conv_transpose" else s / t for s, t in zip(size, stride)]
    moved = images * (cin * math.prod(size) + cout * math.prod(result))
    most = 4 * (moved + weights * math.prod(kernel))  # all of it once more, in the other layout
    if line["dtype"] != "fp32" or line["family"] == "depthwise" or axes != 2 or max(stride) > 1 or max(kernel) == 1:
        return most
    if line["op"] == "wgrad":
        return max(most, 4 * (WINOGRAD * moved + 36 * weights))
    if line["op"] == "dgrad":
        return max(most, plane(FOURIER_TILE) * (weights + 2 * images * (cin + cout)))
    side = 1 << (max(size) + max(kernel) - 2).bit_length()
    return max(most, 2 * plane(side) * (images * cin + weights)) if side <= MOST_TRANSFORMED else most


def main() -> None:
    folder = Path(sys.argv[1])
    short: list[str] = []
    for path in sorted(folder.glob("*operators.jsonl.gz")):
        kept: list[str] = []
        with gzip.open(path, "rt") as lines:
            for text in lines:
                line = json.loads(text)
                (short if line.get("dtype") in TYPES and space(line) >= LEAST else kept).append(text)
        write(path, kept)
        print("%s: %d lines kept" % (path.name, len(kept)))
    if short:  # nothing the second time
        write(folder / "short_of_memory.jsonl.gz", short)
    print("short_of_memory.jsonl.gz: %d lines" % len(short))


def write(path: Path, lines: list[str]) -> None:
    with open(path, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:  # the same bytes every time
        packed.write("".join(lines).encode())


if __name__ == "__main__":
    main()
