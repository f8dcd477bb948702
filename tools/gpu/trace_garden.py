#!/usr/bin/env python3
"""Every ATen call of one real training step of the garden's models: the oracle for capture, precision and training.

  python3 tools/gpu/trace_garden.py --out RAW --seconds 430
  python3 tools/gpu/trace_garden.py --out /tmp/dry --dry-run         tiny models on the CPU, same code, no meaning

Output: garden_traces.jsonl.gz. The first line is {"meta": ...}; then one line per model and precision, written as it
is recorded:
  {"model", "family", "source", "precision", "batch", "seq", "layers", "optimizer", "parameters", "trainable",
   "tensors", "loss", "skipped", "peak_bytes", "versions", "gpu",
   "phases": {"forward": [call...], "backward": [...], "optimizer": [...]},
   "reads": [[phase, index of the call, op, where], ...], "sync_warnings": {phase: n}}
or the same head with "error" (or "oom") in place of what was not recorded. A call is as in part_traces.py:
[op, inputs, outputs] or [op, inputs, outputs, other arguments]. `layers` is null where the model has its published
depth. `reads` are the calls that make the host wait for a value or a data-dependent shape, `where` the line of the
model's (or the library's) Python that asked; `sync_warnings` is how often CUDA itself reported a wait, which also
counts copies from pageable memory.

The recorded step follows one that trained: lazy state (optimizer moments, cuDNN's choices) exists. Published
dropouts, training mode, random data without attention masks unless the entry has one. A step of amp-fp16 that
overflows is repeated.
"""
import argparse
import os
import sys
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "python")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402

import common  # noqa: E402
import part_traces  # noqa: E402

import garden  # noqa: E402
from precog.gpu import trainer  # noqa: E402

PRECISIONS = ("fp32", "amp-fp16", "amp-bf16", "bf16")  # bf16 last: it casts the model for good
# What must not be missing if the time runs out comes first; the other entries with a trace follow in their order.
FIRST = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "swin_t", "vit_b_16", "mixer_b16_224",
    "diffusion-unet-ddpm", "deeplabv3_resnet50", "bert-base", "roberta-base", "deberta-v3-base", "gpt2", "pythia-410m",
    "opt-125m", "llama3.2-1b", "mistral-7b", "qwen3-0.6b", "gemma-2b", "phi-2", "mixtral-8x7b", "olmoe-1b-7b",
    "t5-base", "bart-base", "whisper-small", "wav2vec2-base", "clip-vit-b-32", "lstm-language-model",
    "gru-language-model", "dlrm", "gcn", "einsum-transformer", "resnet50-frozen", "bert-base-frozen", "llama3.2-1b-lora",
    "gpt2-lora",
    "resnet50-channels-last", "diffusion-unet-latent", "llama3-8b", "gat", "graphsage", "pytorch-encoder")
DRY = ("resnet18", "mlp", "bert-base", "gpt2", "llama3.2-1b", "olmoe-1b-7b", "t5-base", "lstm-language-model", "dlrm",
       "gcn", "gat", "graphsage", "einsum-transformer", "llama3.2-1b-lora", "gpt2-lora", "bert-base-frozen",
       "diffusion-unet-ddpm")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim",
           "unique_consecutive", "bincount", "repeat_interleave", "_assert_async")


class Recorder(part_traces.Recorder):
    """Also notes the calls that make the host wait for the device, and who asked."""

    def __init__(self, device_type):
        super().__init__()
        self.device_type = device_type
        self.reads = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = len(self.calls)
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if len(self.calls) > before and self._waits(function, args, kwargs or {}, result):
            self.reads.append([before, str(function), _asked_by()])
        return result

    def _waits(self, function, args, kwargs, result):
        name = function._schema.name.split("::")[-1]
        given = [value for value in list(args) + list(kwargs.values()) if isinstance(value, torch.Tensor)]
        if not any(value.device.type == self.device_type for value in given):
            return False
        if name in WAITING:
            return True
        if name in ("index", "index_put", "index_put_", "_unsafe_index"):  # a mask is turned into positions
            lists = [value for value in args if isinstance(value, (list, tuple))]
            return any(item is not None and item.dtype in (torch.bool, torch.uint8) for value in lists for item in value
                       if isinstance(item, torch.Tensor))
        if name == "_to_copy":
            return result.device.type != given[0].device.type
        if name == "copy_":
            return args[0].device.type != args[1].device.type
        return False

    def take_all(self):
        reads, self.reads = self.reads, []
        return self.take(), reads


def _asked_by():
    """The innermost line outside PyTorch and these scripts, as package/file.py:line function."""
    frame = sys._getframe(2)
    own_torch = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
    ours = (own_torch, HERE + os.sep, os.path.join(ROOT, "python", "precog") + os.sep)
    inner = "?"
    while frame is not None:
        path = os.path.abspath(frame.f_code.co_filename)
        if not path.startswith(ours) and "<" not in frame.f_code.co_filename:
            parts = path.split(os.sep)
            roots = ("site-packages", "dist-packages", "python")
            cut = max((at for at, part in enumerate(parts) if part in roots), default=-1)
            return "%s:%d %s" % ("/".join(parts[cut + 1:][-4:]), frame.f_lineno, frame.f_code.co_name)
        inside = path[len(own_torch):]
        wrapper = inside.startswith(("utils", "_dynamo", "_compile", "_ops"))
        if inner == "?" and path.startswith(own_torch) and not wrapper:
            inner = "torch/%s:%d %s" % (inside, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return inner  # the optimizer, the scaler, autograd


class Trainer(trainer.Trainer):
    """The package's loop body over a garden entry's loss, which it keeps."""

    def __init__(self, device, entry, model, data, precision):
        def loss_of(trained):
            self.last_loss = entry.loss(trained, data)  # not detached: that would be a recorded call
            return self.last_loss
        super().__init__(device, loss_of, model, precision)


def trace(device, entry, model, precision, batch, seq):
    """One recorded step: what a line holds beside its head."""
    dtype = trainer.DTYPES.get(precision, torch.float32)
    trainer.switch(device, precision)
    data = entry.inputs(model, batch, seq, torch.device(device.type), dtype)
    loop = Trainer(device, entry, model, data, precision)
    try:
        for _ in range(12):  # a step that overflowed has not made the optimizer's state
            scale = loop.scale()
            loop.step()
            if scale is None or loop.scale() >= scale:
                break
        device.sync()
        for _ in range(8):
            device.reset_peak()
            scale = loop.scale()
            recorded = _record(device, loop)
            if scale is None or loop.scale() >= scale:
                break
        recorded["skipped"] = scale is not None and loop.scale() < scale
        recorded["peak_bytes"] = device.memory()["peak_bytes"]
        recorded["loss"] = repr(float(loop.last_loss.detach()))
        return recorded
    finally:
        loop.close()


def _record(device, loop):
    phases, reads, waits = {}, [], {}
    with warnings.catch_warnings(record=True) as seen, torch.autograd.set_multithreading_enabled(False):
        warnings.simplefilter("always")
        if not device.dry_run:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            with Recorder(device.type) as recorder:
                def after(phase):
                    phases[phase], asked = recorder.take_all()
                    reads.extend([phase, *read] for read in asked)
                    waits[phase] = sum("synchroniz" in str(warning.message) for warning in seen)
                    seen.clear()
                loop.phases(after)
        finally:
            if not device.dry_run:
                torch.cuda.set_sync_debug_mode("default")
    device.sync()
    if not phases["backward"]:
        raise RuntimeError("the dispatch mode saw no backward operators")
    return {"phases": phases, "reads": reads, "sync_warnings": waits}


def plan(args):
    """The entries to trace, most wanted first."""
    if args.only:
        return [garden.find(name) for name in args.only]
    if args.dry_run:
        return [garden.find(name) for name in DRY]
    first = [garden.find(name) for name in FIRST]
    return first + [entry for entry in garden.entries() if entry.trace is not None and entry.name not in FIRST]


def sizes(entry, dry_run):
    chosen = entry.trace or {}
    batch, seq, layers = chosen.get("batch", entry.batch), chosen.get("seq", entry.seq), chosen.get("layers")
    if dry_run:
        batch, seq = 2, seq and 16
    return batch, seq, layers


def run(campaign, args):
    device = campaign.device
    lines = campaign.lines("garden_traces.jsonl.gz")
    named = ("python", "torch", "cuda", "cudnn", "torchvision", "transformers", "timm", "driver")
    versions = {key: campaign.meta.get(key) for key in named}
    gpu = campaign.meta.get("gpu", {}).get("name", "cpu (dry run)")
    print("%-26s %-9s %8s %8s %9s %6s %6s %7s" % ("model", "precision", "forward", "backward", "optimizer", "casts",
                                                   "reads", "seconds"))
    done = failed = 0
    for entry in plan(args):
        if campaign.clock.left() < 8:
            campaign.note("budget: no trace of " + entry.name)
            continue
        batch, seq, layers = sizes(entry, campaign.dry_run)
        head = {"model": entry.name, "family": entry.family, "source": entry.source, "precision": None, "batch": batch,
                "seq": seq, "layers": layers, "optimizer": "adamw foreach", "versions": versions, "gpu": gpu}
        model = None
        with campaign.survive("build " + entry.name, lines, head):
            torch.manual_seed(0)
            with torch.device(device.type):
                model = entry.build(layers=layers, tiny=campaign.dry_run)
            model = model.to(device=device.type, dtype=torch.float32)
            parameters = list(model.parameters())
            head["parameters"] = sum(p.numel() for p in parameters)
            head["trainable"] = sum(p.numel() for p in parameters if p.requires_grad)
            head["tensors"] = len(parameters)
            del parameters
        for precision in PRECISIONS if model is not None else ():
            if campaign.dry_run and precision == "amp-fp16" and entry.family in ("cnn", "diffusion"):
                continue  # minutes on a CPU
            begin = time.perf_counter()
            record = dict(head, precision=precision)
            written = False
            with campaign.survive("trace %s %s" % (entry.name, precision), lines, record):
                model = model.to(trainer.DTYPES.get(precision, torch.float32))
                record.update(trace(device, entry, model, precision, batch, seq))
                lines.write(record)
                written = True
                _print(record, time.perf_counter() - begin)
            done, failed = done + written, failed + (not written)
            for parameter in model.parameters():
                parameter.grad = None
            device.free()
        del model
        device.free()
    lines.close()
    print("%d traces, %d failed" % (done, failed))


def _print(record, seconds):
    phases = record["phases"]
    casts = sum(call[0].startswith("aten._to_copy") for calls in phases.values() for call in calls)
    print("%-26s %-9s %8d %8d %9d %6d %6d %7.1f%s" % (
        record["model"], record["precision"], len(phases["forward"]), len(phases["backward"]), len(phases["optimizer"]),
        casts, len(record["reads"]), seconds, " skipped" if record["skipped"] else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--seconds", type=float, default=420, help="after this long no new model is started")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these entries, in this order")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("no CUDA device; --dry-run goes through the same code on a CPU")
    args.budget, args.held_out = args.seconds, False
    campaign = common.Campaign(args, ["garden"])
    try:
        campaign.meta["timm"] = __import__("timm").__version__
    except ImportError as error:
        campaign.meta["timm"] = "absent: %s" % error
    campaign.say("torch %s, %s, timm %s" % (campaign.meta["torch"], campaign.meta.get("gpu", {}).get("name", "dry run"),
                                            campaign.meta["timm"]))
    run(campaign, args)
    for note in campaign.notes[:60]:
        print("note:", note)
    campaign.say("done")
    return 1 if args.dry_run and campaign.notes else 0


if __name__ == "__main__":
    sys.exit(main())
