"""precog.measure_host: how fast this machine feeds its GPU, as a host description that a request's `host` takes.

A few of the stacks behind data/hosts/h200-vm.json (precog.gpu.host_stacks) are issued here, phase by phase, and compared with
what they took there; every figure of that host, scaled by its phase's ratio, is this machine's. Seconds, not minutes: what
differs between machines is above all how fast Python and the dispatcher run, which all operators share.
"""

from __future__ import annotations

import json
import pathlib
import re
import statistics
import time
from typing import Any, Callable

from . import _paths
from .errors import PrecogError, wrong_input
from .gpu import host_issue, host_stacks
from .gpu.device import Device, describe_machine
from .measuring import require_gpu

__all__ = ["measure_host"]

REFERENCE = "h200-vm"
# Which phase a figure belongs to; the rest are tables of their own phase.
PHASE = {"kernel_launch": "forward", "library_launch": "forward", "memset": "forward", "recurrent_parameter": "forward", "python_call": "forward", "module_call": "forward", "autocast_cast": "forward", "autocast_parameter": "forward", "synchronise": "forward",
         "parameter_gradient": "backward", "optimizer_op": "optimizer", "optimizer_tensor": "optimizer", "optimizer_tensor_fused": "optimizer",
         "optimizer_tensor_sgd": "optimizer", "loss_scaler": "optimizer", "loss_scaler_tensor": "optimizer", "step": "forward", "zero_grad_tensor": "optimizer"}
PHASES = ("forward", "backward", "optimizer")
TURN = 5  # steps of one turn; the stacks take turns because speeds wander


def measure_host(path: str | pathlib.Path, *, name: str | None = None, seconds: float = 10.0, progress: Callable[..., Any] | None = None,
                 device: Device | None = None) -> dict[str, Any]:
    """Writes a host description to `path` (.json) and returns it.

    seconds: how long to measure. name: what reports call it, the file's name by default. The result goes into a request as
    {"host": "my-host.json"}, or on the command line as --host my-host.json.
    """
    path = pathlib.Path(path)
    if path.suffix != ".json":
        raise wrong_input(str(path), "must end in .json: that is how a request tells a host's file from a host's name")
    if not path.parent.is_dir():
        raise wrong_input(str(path), f"there is no folder {path.parent}")
    if not seconds > 0:
        raise wrong_input("seconds", f"is {seconds}; a number of seconds is wanted")
    if device is None:
        require_gpu()
        device = Device(dry_run=False)
    reference = json.loads((_paths.data() / "hosts" / f"{REFERENCE}.json").read_text())
    found = ratios(device, reference["reference"], seconds, progress or (lambda *said: None))
    host = scaled(reference, found, name or path.stem, describe_machine(device.dry_run))
    path.write_text(host_text(host))
    return host


def ratios(device: Device, there: dict[str, dict[str, float]], seconds: float, progress: Callable[..., Any]) -> dict[str, float]:
    """Phase -> this machine's time over the reference's: the median over stacks of each one's median turn."""
    known = {stack.name: stack for stack in host_stacks.stacks()}
    cases = []
    for key in there:
        stack_name, precision = key.split(" ")
        progress(f"building {key}")
        case = host_issue.Case(device, known[stack_name], precision)
        for _ in range(3):
            case.step()
        cases.append((key, case))
    device.sync()
    turns: dict[str, list[dict[str, float]]] = {key: [] for key in there}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or not all(turns.values()):
        for key, case in cases:
            turns[key].append(case.turn(TURN))
            progress(f"issuing {key}", (time.perf_counter() - begun) / seconds)
    for _, case in cases:
        case.close()
    out = {}
    for phase in PHASES:
        out[phase] = statistics.median(statistics.median(turn[f"{phase}_s"] for turn in turns[key]) / there[key][phase] for key in there)
        if not 1e-3 < out[phase] < 1e3:
            raise PrecogError("bug", f"{phase} came out {out[phase]:.3g} times as long as on the reference machine")
    return out


def scaled(reference: dict[str, Any], found: dict[str, float], name: str, machine: dict[str, Any]) -> dict[str, Any]:
    source = (f"measured: {machine['date'][:10]}, PyTorch {machine['torch']}, Python {machine['python']}: stacks of small modules took "
              f"{found['forward']:.2f} (forward), {found['backward']:.2f} (backward) and {found['optimizer']:.2f} (optimizer) times as long as on "
              f"{REFERENCE}, whose figures these are times that")
    if machine["dry_run"]:
        source = "estimate: a dry run on a CPU, which means nothing"

    def times(figure: dict[str, str], ratio: float, key: str) -> dict[str, str]:
        return {"value": f"{_microseconds(figure['value']) * ratio:.3g} us", "source": key}
    out: dict[str, Any] = {"schema": 1, "name": name, "title": f"{machine.get('cpu', 'this machine')}, {machine['cpu_count']} cores", "aliases": []}
    for phase in ("forward", "backward"):
        out[phase] = {kind: times(figure, found[phase], "stacks") for kind, figure in reference[phase].items()}
    for key, phase in PHASE.items():
        if key in reference:
            out[key] = times(reference[key], found[phase], "stacks")
    def compiled(figures: dict[str, Any]) -> dict[str, Any]:
        return {key: times(figure, found["forward"], "compiled") if "value" in figure else compiled(figure) for key, figure in figures.items()}
    out["compiled"] = compiled(reference["compiled"])
    out["sources"] = {"stacks": source, "compiled": f"estimate: {REFERENCE}'s, times the ratio of forward"}
    return out


def _microseconds(text: str) -> float:
    match = re.fullmatch(r"([0-9.e+-]+) us", text)
    if match is None:
        raise PrecogError("bug", f"data/hosts/{REFERENCE}.json has '{text}', not a number of us")
    return float(match.group(1))


def host_text(host: dict[str, Any]) -> str:
    """One figure a line, as in data/hosts."""
    def lines(value: dict[str, Any], indent: int) -> str:
        pad = " " * indent
        out = []
        for key, item in value.items():
            nested = isinstance(item, dict) and "value" not in item and key != "reference" and any(isinstance(part, (dict, str)) for part in item.values())
            text = "{\n%s\n%s}" % (lines(item, indent + 2), pad) if nested else json.dumps(item)
            out.append(f"{pad}{json.dumps(key)}: {text}")
        return ",\n".join(out)
    return "{\n%s\n}\n" % lines(host, 2)
