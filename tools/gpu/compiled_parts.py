#!/usr/bin/env python3
"""What the parts of a compiled step cost the host: stacks of one kind of layer each, shallow and deep, through torch.compile.

  python3 tools/gpu/compiled_parts.py --out RAW --budget 180            three minutes on a GPU with 16 cores
  python3 tools/gpu/compiled_parts.py --out /tmp/dry --budget 200 --only mlp-6 --processes 1 --dry-run

Products alone, with one weight or with one each, reductions without a parameter, parameters without a product, convolutions with batch norm, attention, and
blocks of Hugging Face: so that kernels, library calls, parameters and buffers do not go together. A process per case compiles it beside the others, then has
the machine to itself (turns.py) and is timed from an idle GPU, phase by phase, and inside the generated programs apart (graph_clock.py); nothing is ever
profiled. Written as they come, compiled_parts.jsonl: per case what its programs call, per turn the seconds.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from typing import Any, Callable, Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import compiled_turns  # noqa: E402
import turns  # noqa: E402

# (kind, layers, precision): those that compile slowly first.
CASES = (("llama", 16, "bf16"), ("mlp", 64, "bf16"), ("convs", 40, "bf16"), ("attention", 24, "bf16"), ("mlp", 64, "amp-bf16"), ("gpt2", 12, "amp-bf16"), ("norms", 120, "fp32"),
         ("products", 150, "bf16"), ("attention", 12, "amp-bf16"), ("convs", 20, "amp-bf16"), ("shared", 120, "bf16"), ("scales", 240, "fp32"), ("electra", 8, "bf16"),
         ("mlp", 24, "bf16"), ("mlp", 24, "amp-bf16"), ("mlp", 24, "fp32"), ("wide", 24, "bf16"), ("convs", 20, "fp32"), ("attention", 12, "bf16"), ("norms", 30, "fp32"),
         ("products", 50, "amp-bf16"), ("products", 50, "fp32"), ("shared", 40, "fp32"), ("scales", 80, "fp32"), ("biased", 24, "bf16"), ("mlp", 6, "bf16"), ("products", 12, "bf16"),
         ("convs", 6, "bf16"), ("norms", 8, "fp32"), ("attention", 4, "bf16"), ("biased", 24, "amp-bf16"), ("llama", 8, "amp-bf16"), ("gpt2", 6, "bf16"), ("mlp", 6, "amp-bf16"))
# What the first did not have: layers inside many modules, parameters that do not train, graphs that break, a GPU that has work to do, Hugging Face's models under autocast; beside
# the anchors of lists of steps (host_speed.py), so that the figures stand at the speed that a list's host is told by.
SECOND = (("electra", 12, "bf16"), ("gpt2", 6, "amp-bf16"), ("llama", 6, "bf16"), ("electra", 6, "amp-bf16"), ("convs", 24, "bf16"), ("busy", 12, "bf16"), ("mlp", 12, "amp-bf16"), ("attention", 12, "bf16"),
          ("nested", 12, "bf16"), ("convs", 12, "amp-bf16"), ("broken", 12, "bf16"), ("mlp", 12, "bf16"), ("dropped", 12, "bf16"), ("frozen", 12, "bf16"), ("shared", 60, "bf16"),
          ("products", 100, "bf16"), ("busy", 12, "amp-bf16"), ("nested", 12, "amp-bf16"))
LISTS = {"first": CASES, "second": SECOND}
TURNS, STEPS = 4, 5
FRESH = 4  # of every so many processes one is timed before it compiles, too


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--budget", type=float, default=180, help="seconds after which everything is ended")
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--list", choices=sorted(LISTS), default="first", help="which cases; the second beside the anchors of lists of steps")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these cases, as mlp-6")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU; the figures mean nothing")
    parser.add_argument("--worker", type=json.loads, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return compiled_turns.work(args.worker, measure, {"stack": "%s-%d" % (args.worker["kind"], args.worker["layers"]), "precision": args.worker["precision"]})
    return compiled_turns.coordinate(args, __file__, cases(args.list, args.only), threads=2)


def cases(chosen: str, only: list[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, (kind, layers, precision) in enumerate(LISTS[chosen]):
        name = "%s-%d" % (kind, layers)
        if not only or name in only:
            yield name + " " + precision, {"kind": kind, "layers": layers, "precision": precision, "fresh": chosen == "first" and number % FRESH == 0, "of_lists": chosen != "first"}


# --- the stacks

def stack_of(kind: str, layers: int) -> Any:
    import torch
    import torch.nn.functional as F
    from torch import nn

    from precog.gpu import host_stacks

    def weight(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)

    class Layers(nn.Module):
        """One function over a list of parameters, layer by layer."""

        def __init__(self, parameters: list[nn.Parameter], forward: Callable[..., torch.Tensor], times: int = 1) -> None:
            super().__init__()
            self.own, self.one, self.times = nn.ParameterList(parameters), forward, times

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for own in self.own:
                for _ in range(self.times):
                    x = self.one(x, own)
            return x

    class Mlp(nn.Module):
        def __init__(self, width: int, trained: bool = True, dropout: float = 0.0) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            self.up.requires_grad_(trained)
            self.down.requires_grad_(trained)
            self.dropout = nn.Dropout(dropout)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))

    class Attention(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.packed, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.packed(self.norm(x)).chunk(3, -1))
            return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    class Inside(nn.Module):
        """Modules around modules, as libraries nest them."""

        def __init__(self, inner: nn.Module, levels: int) -> None:
            super().__init__()
            self.inner = Inside(inner, levels - 1) if levels > 1 else inner
            self.idle, self.number = nn.Identity(), levels

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.idle(self.inner(x))

    class Broken(nn.Module):
        def __init__(self, parts: list[nn.Module]) -> None:
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, part in enumerate(self.parts):
                if number:
                    torch._dynamo.graph_break()
                x = part(x)
            return x

    class Conv(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.norm(self.conv(x)))

    width = {"wide": 512, "busy": 1024}.get(kind, 64)
    rows = {"wide": (8, 256), "busy": (24, 512)}.get(kind, (2, 32))

    def mlps(number: int, **settings: Any) -> nn.Sequential:
        return nn.Sequential(*(Mlp(width, **settings) for _ in range(number)))
    softmaxes = lambda x, own: F.softmax(F.softmax(x + own[0], 0), 1)  # noqa: E731
    makers: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: mlps(layers), "wide": lambda: mlps(layers), "busy": lambda: mlps(layers), "dropped": lambda: mlps(layers, dropout=0.1), "frozen": lambda: mlps(layers, trained=False),
        "nested": lambda: Inside(nn.Sequential(*(Inside(Mlp(width), 3) for _ in range(layers))), 3), "broken": lambda: Broken([mlps(layers // 4) for _ in range(4)]),
        "attention": lambda: nn.Sequential(*(Attention(width) for _ in range(layers))),
        "convs": lambda: nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(Conv(32) for _ in range(layers))),
        "biased": lambda: nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))),
        "products": lambda: Layers([weight(width, width) for _ in range(layers)], lambda x, own: x @ own),
        "shared": lambda: Layers([weight(width, width)], lambda x, own: torch.tanh(x @ own), layers),
        "norms": lambda: Layers([weight(1, width)], softmaxes, layers),
        "scales": lambda: Layers([nn.Parameter(torch.rand(width) + 0.5) for _ in range(layers)], lambda x, own: torch.sin(x * own)),
    }
    if kind in makers:
        def inputs(device: str) -> dict[str, torch.Tensor]:
            generator = torch.Generator().manual_seed(0)
            shape = (2, 3, 16, 16) if kind == "convs" else (width, width) if kind == "norms" else (*rows, width) if kind in ("mlp", "wide", "busy", "dropped", "frozen", "nested", "broken", "attention") else (width, width)
            return {"x": torch.randn(*shape, generator=generator).to(device)}
        return host_stacks.Stack("%s-%d" % (kind, layers), "parts", makers[kind], inputs, lambda model, data: model(data["x"]).float().square().mean())
    text = dict(vocab_size=64, hidden_size=64, num_attention_heads=4, intermediate_size=160, max_position_embeddings=64)
    classes: dict[str, tuple[str, str, dict[str, Any], str]] = {
        "llama": ("LlamaForCausalLM", "LlamaConfig", dict(text, num_key_value_heads=2, pad_token_id=0), "num_hidden_layers"),
        "gpt2": ("GPT2LMHeadModel", "GPT2Config", dict(vocab_size=64, n_embd=64, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0), "n_layer"),
        "electra": ("ElectraModel", "ElectraConfig", dict(text, embedding_size=48), "num_hidden_layers")}
    model_class, config_class, settings, key = classes[kind]
    return host_stacks._hugging_face(0, model_class, config_class, (layers,), settings, key)[0]


# --- one process: one case

def measure(job: dict[str, Any], worker: turns.Worker) -> None:
    import torch
    from torch._dynamo.utils import counters

    import common
    import host_speed
    from graph_clock import GraphClock
    from precog.gpu import trainer
    from precog.gpu.host_issue import Case, make_anchor
    device, clock = common.Device(job["dry_run"]), GraphClock()
    stack = stack_of(job["kind"], job["layers"])
    anchor = host_speed.Anchor(device) if job["of_lists"] else make_anchor(device)
    rounds = (3, 0) if job["of_lists"] else (TURNS, 2)
    named = {"stack": "%s-%d" % (job["kind"], job["layers"]), "precision": job["precision"]}

    def anchors(times: int) -> list[float]:
        for _ in range(1 if job["of_lists"] else 3):
            anchor()
        return [anchor() for _ in range(times)]

    if job["fresh"]:
        eager = Case(device, stack, job["precision"])
        for _ in range(3):
            eager.step()
        worker.turn()
        fresh = anchors(4)
        worker.tell(**named, fresh=True, **eager.turn(STEPS), anchor_s=[fresh[-1], anchor()], anchors_s=fresh)
        worker.tell(done=True)
        eager.close()
    begun = time.perf_counter()
    case = Case(device, stack, job["precision"], compiled=True)
    for _ in range(4):
        case.step()
    device.sync()
    compile_s = round(time.perf_counter() - begun, 1)
    worker.turn()
    worker.tell(meta=common._device.describe_machine(job["dry_run"]))
    now = anchors(2)[-1]
    trainer.switch(device, job["precision"])  # the anchor's stacks have their own
    for turn in range(sum(rounds)):
        if turn == rounds[0]:  # what Python's collector adds
            gc.collect()
            gc.disable()
        row = {"round": turn, "collected": turn < rounds[0], "steps": STEPS, **issued(device, case, clock)}
        after = anchor()
        trainer.switch(device, job["precision"])
        worker.tell(**named, **row, anchor_s=[now, after])
        now = after
    gc.enable()
    whole, steps = time.perf_counter(), 10
    for _ in range(steps):  # one after the other, as in training
        case.trainer.step()
    device.sync()
    whole = (time.perf_counter() - whole) / steps
    worker.tell(**named, back_to_back_s=whole, anchor_s=[now, anchor()])
    worker.tell(**named, compile_s=compile_s, programs=clock.counts(), graphs=counters["stats"].get("unique_graphs", 0), graph_breaks=sum(counters["graph_break"].values()),
                tensors=sum(1 for p in case.model.parameters() if p.requires_grad), buffers=sum(1 for _ in case.model.buffers()),
                modules=sum(1 for _ in case.model.modules()), objects=len(gc.get_objects()), torch=torch.__version__)


def issued(device: Any, case: Any, clock: Any) -> dict[str, float]:
    """host_issue.Case.turn, with the seconds inside the generated programs beside those of forward and backward."""
    t = case.trainer
    taken: dict[str, list[float]] = {}
    for _ in range(STEPS):
        device.sync()
        clock.take()
        marks = [("", time.perf_counter())]
        t.optimizer.zero_grad(set_to_none=True)
        marks.append(("zero_grad", time.perf_counter()))
        with t.autocast():
            loss = t.loss_fn(t.model)
        marks.append(("forward", time.perf_counter()))
        inside = {"forward_before": clock.first - marks[-2][1], "forward_after": marks[-1][1] - clock.last, "forward_program": clock.take()}
        loss.backward()
        marks.append(("backward", time.perf_counter()))
        inside.update({"backward_before": clock.first - marks[-2][1], "backward_after": marks[-1][1] - clock.last, "backward_program": clock.take()})
        t.optimizer.step()
        marks.append(("optimizer", time.perf_counter()))
        for (_, before), (phase, end) in zip(marks, marks[1:]):
            inside[phase] = end - before
        device.sync()
        inside["finished"] = time.perf_counter() - marks[0][1]
        for phase, value in inside.items():
            taken.setdefault(phase, []).append(value)
    return {"%s_s" % phase: round(statistics.median(values), 7) for phase, values in taken.items()}


if __name__ == "__main__":
    sys.exit(main())
