"""Part A: whole training steps, the truth that predictions are held against.

Rows come model by model (one build serves every precision), the most telling models first, so that what a short
budget drops is what is missed least. Output: steps.jsonl (measured runs), steps_kernels.jsonl (kernel names).
"""
import time

import torch

import kernels
import models
import precisions
from common import clocks_now
from precog.gpu.steps import time_steps

# (model, layers, [(batch, seq, src_seq)], precisions or None for all). The first shape of a pair is meant to be
# bound by the host, the second by the GPU; sizes keep an fp32 step under about half a second.
SIXTEEN = ["tf32", "amp-bf16", "amp-fp16", "bf16", "fp16"]
PLAN = [
    ("resnet50", None, [(8, None, None), (128, None, None)], None),
    ("bert-base", None, [(4, 128, None), (64, 128, None)], None),
    ("gpt2", None, [(1, 1024, None), (8, 1024, None)], None),
    ("mobilenet_v2", None, [(8, None, None), (256, None, None)], None),
    ("qwen2.5-0.5b", None, [(1, 1024, None), (2, 2048, None)], None),
    ("vit-b", None, [(4, None, None), (64, None, None)], None),
    ("t5-base", None, [(2, 128, 512), (16, 128, 512)], None),
    ("bert-large", None, [(4, 128, None), (32, 128, None)], None),
    ("resnet18", None, [(8, None, None), (256, None, None)], None),
    ("llama3-8b", 2, [(1, 1024, None), (2, 2048, None)], None),
    ("vgg16", None, [(4, None, None), (64, None, None)], None),
    ("resnet152", None, [(8, None, None), (64, None, None)], None),
    ("gpt2-medium", None, [(1, 1024, None), (4, 1024, None)], None),
    ("bert-base", None, [(2, 512, None), (16, 512, None)], None),
    ("resnet50", "channels_last", [(8, None, None), (128, None, None)], None),
    ("vit-l", None, [(2, None, None), (32, None, None)], None),
    ("qwen2.5-1.5b", None, [(1, 1024, None)], None),
    ("qwen2.5-1.5b", None, [(2, 2048, None)], SIXTEEN),
    ("bert-large", None, [(1, 512, None), (8, 512, None)], None),
    ("gpt2-large", None, [(1, 1024, None), (4, 1024, None)], None),
    ("llama3-8b", 4, [(1, 2048, None)], SIXTEEN),
]
# Models that nothing had been looked at on when the profile they judge was committed.
HELD_OUT = [
    ("resnet101", None, [(16, None, None), (96, None, None)], None),
    ("resnet34", None, [(16, None, None), (192, None, None)], None),
    ("llama2-7b", 4, [(1, 1024, None), (2, 2048, None)], None),
    ("gpt2-xl", None, [(2, 1024, None)], None),
    ("qwen2.5-3b", None, [(1, 2048, None)], SIXTEEN),
    ("mistral-7b", 4, [(1, 3072, None)], None),
    ("gpt-neox-20b", 2, [(2, 2048, None)], None),
    ("vgg16", None, [(24, None, None)], None),
    ("bert-large", None, [(24, 256, None)], None),
    ("vit-b", None, [(128, None, None)], None),
    ("gpt2", None, [(16, 512, None)], None),
]


def run(campaign):
    steps, names = campaign.lines("steps.jsonl"), campaign.lines("steps_kernels.jsonl")
    table = []
    with campaign.survive("profiler warm-up"):  # the first session loads the tracing library: seconds
        kernels.record(campaign.device, lambda: torch.ones(8, device=campaign.device.type).add_(1))
    for name, layers, shapes, wanted in HELD_OUT if campaign.held_out else PLAN:
        if campaign.only and name not in campaign.only:
            continue
        if campaign.clock.left() < 12:
            campaign.note("budget: stopped before %s %s" % (name, layers or ""))
            break
        _model_rows(campaign, steps, names, table, name, layers, shapes, wanted or precisions.of_model(name))
    steps.close()
    names.close()
    _print(table)


def _model_rows(campaign, steps, names, table, name, layers, shapes, wanted):
    device = campaign.device
    channels_last = layers == "channels_last"
    layers = layers if isinstance(layers, int) else None
    model = None
    with campaign.survive("build " + name):
        started = time.perf_counter()
        model = models.build(name, device.type, layers, tiny=campaign.dry_run)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        device.sync()
        campaign.say("%s%s built in %.1f s" % (name, "" if layers is None else " x%d" % layers,
                                               time.perf_counter() - started))
    for precision in wanted if model is not None else ():
        dtype = precisions.DTYPES.get(precision, torch.float32)
        model = model.to(dtype)  # fp32 rows come first in ALL, so the weights are rounded only for what follows
        if campaign.dry_run:  # one shape; CPU convolutions in fp16 take minutes, so one model stands for all
            shapes = shapes[:1]
            if "fp16" in precision and name in models.CONVOLUTIONAL and name != "resnet18":
                continue
        for batch, seq, src_seq in shapes:
            if campaign.clock.left() < 8:
                campaign.note("budget: dropped %s %s batch %s" % (name, precision, batch))
                continue
            if campaign.dry_run:
                batch, seq, src_seq = 2, seq and 16, src_seq and 32
            record = _record(name, layers, channels_last, precision, batch, seq, src_seq)
            with campaign.survive(record["id"], steps, record):
                data = models.inputs(name, model, device.type, batch, seq, src_seq, dtype, channels_last,
                                     tiny=campaign.dry_run)
                top = _measure(device, name, model, data, precision, record)
                steps.write(record)
                names.write({"id": record["id"], "kernels": top})
                table.append(record)
                if not record["measured"]["finite"]:
                    _refresh(model)
            data = None
            for parameter in model.parameters():  # what a row that failed half way may have left
                parameter.grad = None
            device.free(sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]))
        if precision == "amp-bf16" and not campaign.dry_run:  # once a model: asking costs a process
            steps.write({"clocks": clocks_now(), "after": name})
    del model
    device.free()


def _record(name, layers, channels_last, precision, batch, seq, src_seq):
    request = {"schema": 1, "model": {"name": name, "layers": layers} if layers else name, "batch": batch,
               "precision": precision, "mode": "eager", "optimizer": "adamw", "optimizer_impl": "foreach",
               "cluster": {"gpu": "h200-sxm", "gpus": 1}, "host": "h200-vm"}
    parts = [name + ("-%dl" % layers if layers else ""), precision, "b%d" % batch]
    for key, value in (("seq", seq), ("src_seq", src_seq)):
        if value:
            request[key] = value
            parts.append("%s%d" % ("s" if key == "seq" else "src", value))
    if channels_last:
        request["memory_format"] = "channels_last"
        parts.append("nhwc")
    return {"id": "h200-" + "-".join(parts), "source": "measured: tools/gpu/first_steps.py part A", "host": "h200-vm",
            "request": request}


def _measure(device, name, model, data, precision, record):
    switches = precisions.switch(device, precision)
    trainer = precisions.Trainer(device, name, model, data, precision)
    measured, top = time_steps(device, trainer)
    record["measured"] = measured
    record["setup"] = {"parameters": sum(p.numel() for p in model.parameters()), "eps": trainer.eps, "lr": 1e-4,
                       "inputs": models.input_names(name),
                       "attention": getattr(getattr(model, "config", None), "_attn_implementation", "sdpa"),
                       "cudnn_benchmark": False, **switches}
    trainer.close()
    return top


def _refresh(model):
    """Random weights again, after a row that ended in NaN: arithmetic on NaN draws less power than on numbers."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
        for key, buffer in model.named_buffers():
            if key.endswith(("running_mean", "running_var")):
                buffer.fill_(1.0 if key.endswith("var") else 0.0)


def _print(table):
    """One line per job, milliseconds by precision; * marks a GPU busy under 70% of the step (host-bound)."""
    jobs = {}
    for row in table:
        request, m = row["request"], row["measured"]
        job = row["id"][5:].replace("-%s-b" % request["precision"], " b").replace("-s", " s")
        mark = "*" if m["gpu_busy_s"] < 0.7 * m["step_s"] else "" if m["finite"] else "!"
        jobs.setdefault(job, {})[request["precision"]] = "%.1f%s" % (m["step_s"] * 1e3, mark)
    print("\n%-30s" % "step ms (* host-bound)" + "".join("%13s" % precision for precision in precisions.ALL))
    for job, cells in jobs.items():
        print("%-30s" % job + "".join("%13s" % cells.get(precision, "") for precision in precisions.ALL))
