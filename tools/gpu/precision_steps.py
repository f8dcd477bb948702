#!/usr/bin/env python3
"""Steps that say which precision is faster, and fp8 layers by hand.

  python3 tools/gpu/precision_steps.py --out results --budget 300
  python3 tools/gpu/precision_steps.py --out /tmp/dry --dry-run       tiny models on the CPU, same code, no meaning

  fp8_traces.jsonl.gz     every ATen call of a step with fp8 linear layers (precog.gpu.fp8), as part_traces.py writes them
  fp8_steps.jsonl         the same models timed, beside amp-bf16, as measured runs
  order_steps.jsonl       the settings of PLAN at six precisions. Precisions take turns, block by block: what the host does
                          meanwhile meets them all alike, so that a difference between them is one.
"""
import argparse
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402

import common  # noqa: E402
import kernels  # noqa: E402
import models  # noqa: E402
import part_steps  # noqa: E402
import part_traces  # noqa: E402
import precisions  # noqa: E402
from precog.gpu import fp8  # noqa: E402
from precog.gpu.steps import time_steps  # noqa: E402

SIX = ("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16", "fp16")
ROUNDS, SECONDS = 25, 22.0  # of turns per setting, whichever is over first; at least 7
# (model, layers or channels_last, batch, seq, src_seq): settings that no earlier campaign measured. Most are bound by the
# GPU; the last three by the host on anything but the fastest one.
PLAN = [
    ("resnet50", None, 64, None, None),
    ("resnet50", "channels_last", 192, None, None),
    ("mobilenet_v2", None, 128, None, None),
    ("bert-base", None, 32, 256, None),
    ("bert-large", None, 16, 256, None),
    ("gpt2", None, 4, 1024, None),
    ("qwen2.5-0.5b", None, 4, 1024, None),
    ("vit-b", None, 96, None, None),
    ("llama3-8b", 2, 1, 2048, None),
    ("vgg16", None, 32, None, None),
    ("t5-base", None, 32, 128, 512),
    ("resnet18", None, 128, None, None),
    ("gpt2-medium", None, 6, 1024, None),
    ("vit-l", None, 48, None, None),
    ("bert-base", None, 2, 128, None),
    ("resnet152", None, 4, None, None),
    ("gpt2", None, 1, 256, None),
]
# (model, layers, batch, seq, rowwise)
FP8 = [("bert-base", None, 16, 128, False), ("qwen2.5-0.5b", None, 2, 1024, False), ("llama3-8b", 2, 1, 2048, False),
       ("llama3-8b", 2, 1, 2048, True), ("vit-b", None, 16, None, False)]


def fp8_parts(campaign):
    device = campaign.device
    traces, steps = campaign.lines("fp8_traces.jsonl.gz"), campaign.lines("fp8_steps.jsonl")
    for name, layers, batch, seq, rowwise in FP8:
        if campaign.clock.left() < 15:
            campaign.note("budget: no fp8 rows of " + name)
            continue
        if campaign.dry_run:
            batch, seq = 16, seq and 16
        precision = "fp8-rowwise" if rowwise else "fp8"
        with campaign.survive("fp8 " + name):
            model = models.build(name, device.type, layers, tiny=campaign.dry_run)
            data = models.inputs(name, model, device.type, batch, seq, tiny=campaign.dry_run)
            precisions.switch(device, "amp-bf16")
            for chosen in ("amp-bf16", precision):
                record = part_steps._record(name, layers, False, chosen, batch, seq, None)
                record["source"] = "measured: tools/gpu/precision_steps.py"
                if chosen != "amp-bf16":
                    record["converted"] = fp8.convert(model, rowwise)
                trainer = precisions.Trainer(device, name, model, data, "amp-bf16")
                record["measured"], top = time_steps(device, trainer)
                record["measured"]["top_kernels"] = top[:40]
                steps.write(record)
                campaign.say("%s: %.2f ms, busy %.2f ms, %d kernels" % (record["id"], record["measured"]["step_s"] * 1e3,
                             record["measured"]["gpu_busy_s"] * 1e3, record["measured"]["kernels"]))
                if chosen != "amp-bf16":
                    phases = {}
                    with torch.autograd.set_multithreading_enabled(False), part_traces.Recorder() as recorder:
                        trainer.phases(lambda phase: phases.update({phase: recorder.take()}))
                    traces.write({"model": name, "layers": layers, "precision": precision, "batch": batch, "seq": seq,
                                  "optimizer": "adamw foreach", "phases": phases})
                trainer.close()
            del model, data
        device.free()
    traces.close()
    steps.close()


def order_part(campaign):
    device = campaign.device
    lines = campaign.lines("order_steps.jsonl")
    for name, layers, batch, seq, src_seq in PLAN:
        if campaign.only and name not in campaign.only:
            continue
        if campaign.clock.left() < 35:
            campaign.note("budget: not measured: %s batch %s" % (name, batch))
            continue
        with campaign.survive("order %s b%s" % (name, batch)):
            _setting(campaign, lines, name, layers, batch, seq, src_seq)
        device.free()
    lines.close()


def _setting(campaign, lines, name, layers, batch, seq, src_seq):
    device, started = campaign.device, time.perf_counter()
    channels_last = layers == "channels_last"
    layers = layers if isinstance(layers, int) else None
    if campaign.dry_run:
        batch, seq, src_seq = 2, seq and 16, src_seq and 32
    trainers, guesses, blocks, records = {}, {}, {}, {}
    for precision in SIX:
        if campaign.dry_run and "fp16" in precision and name in models.CONVOLUTIONAL:
            continue
        model = models.build(name, device.type, layers, tiny=campaign.dry_run)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        dtype = precisions.DTYPES.get(precision, torch.float32)
        model = model.to(dtype)
        data = models.inputs(name, model, device.type, batch, seq, src_seq, dtype, channels_last, tiny=campaign.dry_run)
        trainers[precision] = precisions.Trainer(device, name, model, data, precision)
        blocks[precision] = []
        precisions.switch(device, precision)
        for index in range(4):
            if index == 2:
                device.sync()
                begun = time.perf_counter()
            trainers[precision].step()
        device.sync()
        guesses[precision] = (time.perf_counter() - begun) / 2
    turning = time.perf_counter()
    for turn in range(2 if campaign.dry_run else ROUNDS):
        if turn >= 7 and time.perf_counter() - turning > SECONDS:
            break
        for precision, trainer in trainers.items():
            precisions.switch(device, precision)
            steps = 1 if campaign.dry_run else int(min(max(0.08 / guesses[precision], 1), 6))
            trainer.step()
            device.sync()
            begun = time.perf_counter()
            for _ in range(steps):
                trainer.step()
            device.sync()
            blocks[precision].append((time.perf_counter() - begun) / steps)
    for precision, trainer in trainers.items():
        precisions.switch(device, precision)
        record = part_steps._record(name, layers, channels_last, precision, batch, seq, src_seq)
        record["source"] = "measured: tools/gpu/precision_steps.py"
        summary, top = kernels.summarise(kernels.record(device, trainer.step))
        means = blocks[precision]
        record["measured"] = {"step_s": statistics.median(means), "step_s_min": min(means), "step_s_max": max(means),
                              "blocks": len(means), "block_means_s": means, **summary, "top_kernels": top[:30]}
        records[precision] = record
        lines.write(record)
        trainer.close()
    campaign.say("%-14s b%-4s %s (%.0f s)" % (name, batch, "  ".join(
        "%s %.2f" % (precision, record["measured"]["step_s"] * 1e3) for precision, record in records.items()),
        time.perf_counter() - started))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--budget", type=float, default=300, help="seconds after which no new measurement is started")
    parser.add_argument("--parts", default="fp8,order")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these models")
    parser.add_argument("--held-out", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("no CUDA device; --dry-run goes through the same code on a CPU")
    campaign = common.Campaign(args, ["order"])
    for part, run in (("fp8", fp8_parts), ("order", order_part)):
        if part in args.parts.split(","):
            with campaign.survive(part):
                run(campaign)
    for note in campaign.notes[:25]:
        print("note:", note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
