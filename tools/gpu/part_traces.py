"""Part B: every ATen call of a real training step, in order, with dtypes and shapes: the oracle for the precision pass.

A dispatch mode sits below autograd and autocast, so casts, backward operators, foreach calls and scalar reads all
show. Output: dispatch_traces.jsonl.gz, one line per model and precision:
  {"model", "precision", ..., "phases": {"forward": [call...], "backward": [...], "optimizer": [...]}}
  call = [op, inputs, outputs] or [op, inputs, outputs, other arguments]
  tensor = [dtype, shape] or [dtype, shape, strides] where it is not contiguous
  a list of tensors of a foreach operator = {"n", "elements", "dtypes"}
The optimizer phase holds the scaler's unscale, inf check and update.
"""
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import models
import precisions

PLAN = [  # (model, layers, batch, seq, src_seq)
    ("resnet50", None, 8, None, None),
    ("bert-base", None, 4, 128, None),
    ("gpt2", None, 2, 256, None),
    ("qwen2.5-0.5b", None, 2, 256, None),
    ("vit-b", None, 4, None, None),
    ("t5-base", None, 2, 64, 128),
    ("mobilenet_v2", None, 8, None, None),
    ("llama3-8b", 2, 1, 256, None),
]
PRECISIONS = ("fp32", "amp-bf16", "amp-fp16", "bf16")
SHORT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64", torch.int64: "i64",
         torch.int32: "i32", torch.bool: "bool", torch.uint8: "u8"}


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.namespace == "profiler":  # range markers of the optimizer's own instrumentation
            return function(*args, **kwargs)
        # Described before the call: an in-place operator may change what its arguments look like.
        inputs, others = [], []
        _describe(list(args) + list(kwargs.values()), inputs, others, _is_list_operator(function))
        result = function(*args, **kwargs)
        outputs = []
        _describe([result], outputs, [], _is_list_operator(function))
        call = [str(function), inputs, outputs]
        if others:
            call.append(others)
        self.calls.append(call)
        return result

    def take(self):
        calls, self.calls = self.calls, []
        return calls


def _is_list_operator(function):
    name = str(function)
    return "_foreach_" in name or "_fused_adam" in name


def _tensor(tensor):
    dtype = SHORT.get(tensor.dtype, str(tensor.dtype))
    described = [dtype if tensor.device.type != "cpu" else dtype + "@cpu", list(tensor.shape)]
    if not tensor.is_contiguous():
        described.append(list(tensor.stride()))
    return described


def _describe(values, tensors, others, summarise):
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(_tensor(value))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            present = [item for item in value if isinstance(item, torch.Tensor)]
            if summarise:
                dtypes = sorted({SHORT.get(item.dtype, str(item.dtype)) for item in present})
                tensors.append({"n": len(present), "elements": sum(item.numel() for item in present), "dtypes": dtypes})
            else:
                _describe(value, tensors, others, False)
        elif isinstance(value, (torch.dtype, torch.memory_format, torch.layout, torch.device)):
            others.append(str(value))
        elif isinstance(value, (bool, int, float, str, type(None))):
            others.append(repr(value) if isinstance(value, float) else value)
        elif isinstance(value, (list, tuple)) and len(value) <= 8:
            others.append([item if isinstance(item, (bool, int)) else repr(item) for item in value])
        elif isinstance(value, (list, tuple)):
            others.append("list of %d" % len(value))
        else:
            others.append(type(value).__name__)


def run(campaign):
    device = campaign.device
    lines = campaign.lines("dispatch_traces.jsonl.gz")
    print("%-16s %-9s %8s %8s %9s %6s %8s" % ("model", "precision", "forward", "backward", "optimizer", "casts", "reads"))
    for name, layers, batch, seq, src_seq in PLAN:
        if campaign.only and name not in campaign.only:
            continue
        if campaign.clock.left() < 10:
            campaign.note("budget: no trace of " + name)
            continue
        model = None
        with campaign.survive("trace build " + name):
            model = models.build(name, device.type, layers, tiny=campaign.dry_run)
        if campaign.dry_run:
            batch, seq, src_seq = 2, seq and 16, src_seq and 32
        for precision in PRECISIONS if model is not None else ():
            record = {"model": name, "layers": layers, "precision": precision, "batch": batch, "seq": seq,
                      "src_seq": src_seq, "optimizer": "adamw foreach"}
            if campaign.dry_run and precision == "amp-fp16" and name in models.CONVOLUTIONAL:
                continue  # minutes on a CPU
            with campaign.survive("trace %s %s" % (name, precision), lines, record):
                model = model.to(precisions.DTYPES.get(precision, torch.float32))
                record["phases"] = _trace(device, name, model, precision, batch, seq, src_seq, campaign.dry_run)
                lines.write(record)
                _print(name, precision, record["phases"])
            for parameter in model.parameters():
                parameter.grad = None
            device.free()
        del model
        device.free()
    lines.close()


def _trace(device, name, model, precision, batch, seq, src_seq, tiny):
    dtype = precisions.DTYPES.get(precision, torch.float32)
    precisions.switch(device, precision)
    data = models.inputs(name, model, device.type, batch, seq, src_seq, dtype, tiny=tiny)
    trainer = precisions.Trainer(device, name, model, data, precision)
    trainer.step()
    device.sync()
    phases = {}
    # One thread, so that the backward pass runs where the mode is active.
    with torch.autograd.set_multithreading_enabled(False), Recorder() as recorder:
        trainer.phases(lambda phase: phases.update({phase: recorder.take()}))
    device.sync()
    trainer.close()
    if not phases["backward"]:
        raise RuntimeError("the dispatch mode saw no backward operators")
    return phases


def _print(name, precision, phases):
    calls = [call for phase in phases.values() for call in phase]
    count = lambda word: sum(word in call[0] for call in calls)
    print("%-16s %-9s %8d %8d %9d %6d %8d" % (name, precision, len(phases["forward"]), len(phases["backward"]),
                                              len(phases["optimizer"]), count("_to_copy"),
                                              count("_local_scalar_dense")), flush=True)
