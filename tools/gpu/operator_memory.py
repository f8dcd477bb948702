#!/usr/bin/env python3
"""Bytes that operators take on the GPU: what they keep for backward, and what they take while they run and give back.

  python3 tools/gpu/operator_memory.py --out DIR [--budget 60] [--only rnn,conv] [--dry-run]

No time is measured, so that a case costs two calls forward and back. Into DIR/operator_memory.jsonl.gz, a line each:
family, op, precision, shape;
  inputs, outputs           bytes of the operands and of what the call returns
  kept                      allocated after forward beyond before: results and what is saved for backward
  forward, backward         most allocated within the call beyond what there was before it
  left                      allocated after backward beyond before it: gradients, less what was saved
  forward_events, backward_events   what the caching allocator was asked for (+) and given back (-), in order, in bytes
A first line {"meta": ...} names the machine. Cases: operator_memory_cases.py.
"""
from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Callable

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common  # noqa: E402
from operator_memory_cases import FAMILIES, Case  # noqa: E402

MOST_EVENTS = 120  # in a line; a call that makes more is a loop


class Ledger:
    """The allocator's own account of a call. On a CPU there is none, and everything reads 0."""

    def __init__(self, device: common.Device) -> None:
        self.device, self.recording = device, not device.dry_run
        try:
            self.watch(lambda: None)
        except Exception as error:  # noqa: BLE001: a history is worth having, peaks are worth more
            self.recording = False
            print("no history of the allocator:", error, flush=True)

    def now(self) -> int:
        return 0 if self.device.dry_run else torch.cuda.memory_allocated()

    def most(self) -> int:
        return 0 if self.device.dry_run else torch.cuda.max_memory_allocated()

    def watch(self, call: Callable[[], Any]) -> tuple[Any, int, int, list[int]]:
        """What the call returns, bytes left by it, most bytes within it, what it asked for and gave back."""
        self.device.sync()
        self.device.reset_peak()
        before = self.now()
        self.record("all")
        try:
            result = call()
            self.device.sync()
            events = self.events()
        finally:
            self.record(None)
        return result, self.now() - before, self.most() - before, events

    def record(self, what: str | None) -> None:
        if self.recording:
            torch.cuda.memory._record_memory_history(what, context=None, stacks="python", max_entries=4000, clear_history=True)

    def events(self) -> list[int]:
        if not self.recording:
            return []
        sizes = []
        for event in torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]:
            if event["action"] == "alloc":
                sizes.append(event["size"])
            elif event["action"] == "free_requested":
                sizes.append(-event["size"])
        return sizes


def tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, torch.nn.utils.rnn.PackedSequence):
        return [result.data]
    return [t for one in result for t in tensors(one)] if isinstance(result, (tuple, list)) else []


def reserve_of(result: torch.Tensor) -> int | None:
    """cuDNN's reserve of a recurrent layer: the last tensor that its node saves."""
    node = result.grad_fn
    for _ in range(8):
        if node is None:
            return None
        if hasattr(node, "_saved_result4"):
            saved = node._saved_result4
            return None if saved is None else saved.nbytes
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def measure(ledger: Ledger, case: Case) -> dict[str, Any]:
    call, leaves = case.make(ledger.device.type)
    record = dict(family=case.family, op=case.op, precision=case.precision, shape=case.shape,
                  inputs=sum(t.nbytes for t in leaves))
    for first in (True, False):  # the first call loads kernels and makes the libraries' own buffers
        for leaf in leaves:
            leaf.grad = None
        result, kept, forward, made = ledger.watch(call)
        out = tensors(result)
        backward = left = 0
        given: list[int] = []
        if first and case.family == "product":
            record["first_events"] = made[:MOST_EVENTS]
        record["outputs"] = sum(t.nbytes for t in out)
        if out and out[0].requires_grad:
            if case.family == "rnn":
                record["reserve"] = reserve_of(out[0])
            start = out[0].abs() if out[0].is_complex() else out[0]
            gradient = torch.ones_like(start)
            # What autograd does with results that nobody reads is not the operator's, so that they are let go first.
            root = [start]
            del result, out, start
            _, left, backward, given = ledger.watch(lambda: root.pop().backward(gradient))
            del gradient
            if first and case.family == "product":
                record["first_backward_events"] = given[:MOST_EVENTS]
        result = out = None
    record.update(kept=kept, forward=forward, backward=backward, left=left, forward_events=made[:MOST_EVENTS], backward_events=given[:MOST_EVENTS])
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds")
    parser.add_argument("--only", type=lambda text: text.split(","), help="families")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU: the same lines, numbers that mean nothing")
    args = parser.parse_args()
    args.held_out = False
    campaign = common.Campaign(args, ["operator_memory"])
    ledger = Ledger(campaign.device)
    lines = campaign.lines("operator_memory.jsonl.gz")
    done = 0
    for name, cases in FAMILIES.items():
        if args.only and name not in args.only:
            continue
        begun, of_family = campaign.clock.elapsed(), 0
        for case in cases(args.dry_run):
            if campaign.clock.left() < 2:
                campaign.note("budget spent in %s" % name)
                break
            campaign.device.tf32(case.precision == "tf32", case.precision == "tf32")
            what = dict(family=case.family, op=case.op, precision=case.precision, shape=case.shape)
            with campaign.survive("%s %s %s" % (case.op, case.precision, case.shape), lines, what):
                lines.write(measure(ledger, case))
                done, of_family = done + 1, of_family + 1
        campaign.device.free()
        if not args.dry_run:
            free, total = torch.cuda.mem_get_info()
            lines.write(dict(family="context", op="after " + name, outside=total - free - torch.cuda.memory_reserved(), total=total))
        campaign.say("%s: %d cases in %.1f s" % (name, of_family, campaign.clock.elapsed() - begun))
    lines.close()
    print("%d cases, %d notes, %.1f s" % (done, len(campaign.notes), campaign.clock.elapsed()))


if __name__ == "__main__":
    main()
