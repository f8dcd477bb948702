"""The commands that need Python: capture, host, measure, profile. Thin: arguments to a call, the result to a file or the screen."""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import time
from typing import Any, Sequence

from .errors import PrecogError, wrong_input
from .progress import Progress
from .script import Script
from .text import bytes_text, seconds_text

PRECISIONS = ("fp32", "tf32", "fp32-default", "fp16", "bf16", "amp-fp16", "amp-bf16")
_SCRIPT = "a Python file and a function in it that returns (loss_fn, model); the function is build where it is not named"


def run(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    return {"capture": _capture, "host": _host, "measure": _measure, "profile": _profile}[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="precog", description="Commands of precog that run in Python.")
    commands = parser.add_subparsers(dest="command", required=True)
    sizes = argparse.ArgumentParser(add_help=False)
    sizes.add_argument("script", metavar="SCRIPT.py[:FUNCTION]", help=_SCRIPT)
    for flag, help_text in (("--batch", "samples"), ("--seq", "sequence length"), ("--src-seq", "the encoder's sequence length")):
        sizes.add_argument(flag, type=_positive, metavar="N", help=help_text + ": handed to the function")
    capture = commands.add_parser("capture", parents=[sizes], help="a PyTorch model to a graph that precog predicts",
                                  epilog="Example: precog capture my_model.py:build -o m.precog.json.zst --batch 8")
    capture.add_argument("-o", "--output", required=True, metavar="FILE", help="where the graph goes (.precog.json.zst)")
    capture.add_argument("--name", help="what reports call the model")
    capture.add_argument("--real", action="store_true", help="build the model with real weights at once, not on the meta device")
    measure = commands.add_parser("measure", parents=[sizes], help="real training steps on the local GPU",
                                  epilog="Example: precog measure my_model.py:build --precision amp-bf16 -o runs.jsonl")
    measure.add_argument("--precision", default="fp32", choices=PRECISIONS)
    measure.add_argument("--optimizer", default="adamw", choices=("adamw", "adam", "sgd", "sgd-momentum"))
    measure.add_argument("--optimizer-impl", default="foreach", choices=("foreach", "fused", "for-loop"))
    measure.add_argument("--mode", default="eager", choices=("eager", "compile"))
    measure.add_argument("--model", metavar="NAME|FILE", help="what the run's request calls the model: a zoo name or a captured graph")
    measure.add_argument("-o", "--output", metavar="RUNS.jsonl", help="append the run to this file")
    profile = commands.add_parser("profile", help="operators and host dispatch of the local GPU",
                                  epilog="Example: precog profile h200.measurements.jsonl.zst (interrupted, it goes on)")
    profile.add_argument("output", metavar="FILE", help=".jsonl, or .jsonl.zst to compress it")
    profile.add_argument("--quick", action="store_true", help="a balanced quarter of the cases, in two minutes")
    profile.add_argument("--budget", type=float, metavar="SECONDS", help="start no measurement after this (600; 120 with --quick)")
    profile.add_argument("--only", type=lambda text: text.split(","), metavar="A,B", help="host, operators, or families of operators")
    profile.add_argument("--known", action="append", default=[], metavar="FILE", help="do not repeat what this file has measured")
    host = commands.add_parser("host", help="how fast this machine feeds its GPU, as a host description",
                               epilog="Example: precog host -o my-host.json, then precog predict --host my-host.json ...")
    host.add_argument("-o", "--out", required=True, metavar="FILE.json", help="where the description goes")
    host.add_argument("--name", help="what reports call the host (the file's name)")
    host.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long to measure (10)")
    return parser


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return value


def _sizes(options: argparse.Namespace) -> dict[str, int]:
    return {key: value for key in ("batch", "seq", "src_seq") if (value := getattr(options, key)) is not None}


def _capture(options: argparse.Namespace) -> int:
    import precog

    from .torch_import import import_torch
    import_torch("precog capture")
    output = pathlib.Path(options.output)
    if not output.parent.is_dir():
        raise wrong_input("--output", f"there is no folder {output.parent}")
    if output.suffix == ".zst":
        from ._library import compress
        compress(b"")  # a library that is not there shows before the work, not after
    script, progress, sizes = Script(options.script), Progress(), _sizes(options)
    started = time.monotonic()

    def attempt(device: str | None) -> Any:
        given: dict[str, Any] = dict(sizes)
        if script.takes_sizes():  # the sizes stay symbolic: capture builds the model at several
            @functools.wraps(script.function)
            def build(**chosen: int) -> Any:
                return script.build({**sizes, **chosen}, device)
            return precog.capture(build=build, name=options.name, progress=progress, **given)
        loss_fn, model = script.build(sizes, device)
        return precog.capture(loss_fn, model, name=options.name, progress=progress)
    try:
        graph = attempt(None) if options.real else attempt("meta")
    except Exception as error:  # noqa: BLE001: whatever a model's code does on tensors without values
        if options.real or isinstance(error, PrecogError) and error.code in ("wrong_input", "not_installed"):
            raise
        progress("needs real values; building it with real weights")
        graph = attempt(None)
    progress.done()
    graph.save(output)
    print(f"wrote {output} ({bytes_text(output.stat().st_size)}, {seconds_text(time.monotonic() - started)})")
    print(f"next: precog compare --model {output} --gpu a100-sxm-80gb")
    return 0


def _measure(options: argparse.Namespace) -> int:
    import precog

    from .torch_import import import_torch
    import_torch("precog measure")
    from .measuring import require_gpu
    require_gpu()
    script, progress, sizes = Script(options.script), Progress(), _sizes(options)
    request: dict[str, Any] = dict(sizes)
    if options.model:
        request["model"] = {"graph": options.model} if pathlib.Path(options.model).exists() else options.model
    loss_fn, model = script.build(sizes, "cuda")
    run = precog.measure(loss_fn, model, precision=options.precision, optimizer=options.optimizer, mode=options.mode,
                         optimizer_impl=options.optimizer_impl, request=request, progress=progress)
    progress.done()
    if options.output:
        run.save(options.output)
        print(f"{run}\nadded to {options.output}")
    else:
        print(json.dumps(run))
    return 0


def _host(options: argparse.Namespace) -> int:
    import precog
    progress = Progress()
    host = precog.measure_host(options.out, name=options.name, seconds=options.seconds, progress=progress)
    progress.done()
    print(f"wrote {options.out}: {host['title']}\n{host['sources']['stacks']}\nnext: precog predict --host {options.out} ...")
    return 0


def _profile(options: argparse.Namespace) -> int:
    import precog
    summary = precog.profile(options.output, quick=options.quick, budget_s=options.budget, only=options.only, known=options.known,
                             progress=Progress())
    for family, counts in summary["families"].items():
        print(f"{family:24}" + "  ".join(f"{dtype} {count}" for dtype, count in counts.items()))
    rest = "" if summary["complete"] else "; not all: the same command goes on"
    failed = f", {summary['failed']} cases failed" if summary["failed"] else ""
    print(f"{summary['measurements']} measurements in {options.output}{failed}{rest}")
    if summary["lost"]:
        raise PrecogError("no_device", f"{summary['notes'][-1]}")
    return 0
