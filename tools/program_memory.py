#!/usr/bin/env python3
"""The peak of a sequence of allocations, through a model of PyTorch's caching allocator.

  python3 tools/program_memory.py TRACE.json...

What tools/inductor_programs.py wrote down (--trace: which blocks were asked for and given back, in order) is replayed: sizes in multiples of 512 bytes; up
to 1 MiB from segments of 2 MiB, below 10 MiB from segments of 20 MiB, larger ones from segments of their own, a multiple of 2 MiB; the smallest free block
that fits; a rest is split off where it can serve somebody, else it counts as allocated; free neighbours merge (c10/cuda/CUDACachingAllocator.cpp). The program has the
same rules in src/memory/allocator.cpp; they are written once more here because what judges it should not be it. No limit, no other streams, no expandable segments.
"""
from __future__ import annotations

import bisect
import json
import os
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
MiB = 1 << 20


class Allocator:
    """Bytes allocated as max_memory_allocated counts them, and reserved."""

    def __init__(self) -> None:
        self.free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (bytes, address), by "is it the small pool"
        self.begins: dict[int, int] = {}  # free blocks by their first byte ...
        self.ends: dict[int, int] = {}  # ... and by the byte after their last
        self.next = 0
        self.allocated = self.reserved = 0

    def take(self, nbytes: int) -> tuple[int, int, bool]:
        size = max(512, -(-nbytes // 512) * 512)
        small = size <= MiB
        pool = self.free[small]
        place = bisect.bisect_left(pool, (size, 0))
        if place < len(pool):
            found, address = pool[place]
            self._remove(address, found, small)
        else:
            found = 2 * MiB if small else 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB
            address = self.next
            self.next += found + 1  # no two segments are neighbours
            self.reserved += found
        rest = found - size
        if rest >= 512 if small else rest > MiB:
            self._insert(address + size, rest, small)
            found = size
        self.allocated += found
        return address, found, small

    def give(self, block: tuple[int, int, bool]) -> None:
        address, size, small = block
        self.allocated -= size
        if address in self.ends:
            before = self.ends[address]
            self._remove(address - before, before, small)
            address, size = address - before, size + before
        if address + size in self.begins:
            after = self.begins[address + size]
            self._remove(address + size, after, small)
            size += after
        self._insert(address, size, small)

    def _insert(self, address: int, size: int, small: bool) -> None:
        bisect.insort(self.free[small], (size, address))
        self.begins[address] = self.ends[address + size] = size

    def _remove(self, address: int, size: int, small: bool) -> None:
        pool = self.free[small]
        del pool[bisect.bisect_left(pool, (size, address))]
        del self.begins[address], self.ends[address + size]


def replay(account: dict[str, Any]) -> dict[str, Any]:
    """`trace` is [[block, bytes]], 0 bytes where it is given back; `marks` [[place in the trace, what ends there]], "start" where a step begins. Of the last
    step: the peak, in which phase it is, and the bytes alive then by the phase that made them ("before" the first step: weights, inputs, cuBLAS)."""
    following = {"start": "forward", "forward": "backward", "backward": "optimizer", "optimizer": "between"}
    marks = dict(account["marks"])
    last = max(place for place, phase in account["marks"] if phase == "start")
    allocator, blocks, made_in = Allocator(), {}, {}
    phase, peak, at, bytes_by_phase = "before", 0, "", {}
    for place, (block, nbytes) in enumerate(account["trace"]):
        if place in marks:
            phase = following[marks[place]]
        if not nbytes:
            allocator.give(blocks.pop(block))
            continue
        blocks[block], made_in[block] = allocator.take(nbytes), phase
        if place >= last and allocator.allocated > peak:
            peak, at = allocator.allocated, phase
            bytes_by_phase = dict.fromkeys(("before", "forward", "backward", "optimizer"), 0)
            for one, (_, size, _) in blocks.items():
                bytes_by_phase[made_in[one]] += size
    return {"peak_bytes": peak, "at": at, "made_in": bytes_by_phase}


def row(name: str, precision: str, batch: int, seq: int | None, account: dict[str, Any], torch: str, folder: str) -> dict[str, Any]:
    """A job as `precog predict` reads it, beside what its programs take; the graph's path is from `folder`, where the row is kept."""
    graphs = sorted(ROOT.glob("data/measured/*/graphs/%s.precog.json.zst" % name))
    request = {"schema": 1, "model": {"graph": os.path.relpath(graphs[0], folder) if graphs else ""}, "batch": batch, **({"seq": seq} if seq else {}),
               "precision": precision, "mode": "compile", "optimizer": "adamw", "optimizer_impl": "foreach", "cluster": {"gpu": "h200-sxm", "gpus": 1}}
    return {"id": "-".join([name, precision, "b%d%s" % (batch, "s%d" % seq if seq else "")]), "source": "computed: tools/inductor_programs.py, torch " + torch,
            "request": request, "program": replay(account)}


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(path, json.dumps(replay(json.loads(pathlib.Path(path).read_text()))))
