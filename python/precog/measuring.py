"""precog.measure: real training steps on the local GPU, as a measured run that `precog validate` reads.

The model, its gradients, its modes, the loss function's tensors, random states and PyTorch's switches are as before when it
returns, however it returns. Nothing here needs precog's C++ library.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
from typing import Any, Callable, Iterator, Mapping

import torch
from torch import nn

from .capturing.substitute import Undo, modules_of, replace_tensors
from .errors import PrecogError, wrong_input
from .gpu.device import Device, describe_machine
from .gpu.names import gpu_name
from .gpu.steps import time_steps
from .gpu.trainer import DTYPES, IMPLEMENTATIONS, OPTIMIZERS, PRECISIONS, Trainer, switch
from .text import bytes_text, seconds_text

__all__ = ["MeasuredRun", "measure", "require_gpu"]


class MeasuredRun(dict):
    """{"id", "source", "request", "measured", "setup"}: the form of a line in a file of measured runs."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Adds the run to a file of runs, one per line. A captured graph in the request is written beside it."""
        path = pathlib.Path(path)
        line = dict(self)
        model = self["request"].get("model")
        graph = model.get("graph") if isinstance(model, Mapping) else model
        if graph is not None and hasattr(graph, "to_bytes"):
            from .graph_files import name_of
            name = name_of(graph)
            (path.parent / name).write_bytes(graph.to_bytes())
            line["request"] = {**self["request"], "model": {"graph": name}}
        elif isinstance(model, Mapping) and isinstance(graph, (str, os.PathLike)):
            line["request"] = {**self["request"], "model": {**model, "graph": os.path.relpath(graph, path.parent)}}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def __repr__(self) -> str:
        measured = self["measured"]
        if measured.get("oom"):
            return f"{self['id']}: out of memory"
        peak = f", peak {bytes_text(measured['peak_bytes'])}" if "peak_bytes" in measured else ""
        return (f"{self['id']}: step {seconds_text(measured['step_s'])}, GPU busy {seconds_text(measured['gpu_busy_s'])}, "
                f"{measured['kernels']} kernels{peak}")


def require_gpu() -> None:
    if not torch.cuda.is_available():
        raise PrecogError("no_device", "there is no GPU here that PyTorch can use: measure and profile run on the machine whose GPU "
                          "is meant (predict, compare and capture need none)")


def measure(loss_fn: Callable[[Any], torch.Tensor], model: nn.Module, precision: str = "fp32", optimizer: str = "adamw", *,
            steps: int | None = None, warmup: int | None = None, blocks: int | None = None, mode: str = "eager",
            optimizer_impl: str = "foreach", request: Mapping[str, Any] | None = None, gpu: str | None = None,
            progress: Callable[[str], Any] | None = None, device: Device | None = None) -> MeasuredRun:
    """Runs real training steps and returns a measured run.

    loss_fn: takes the model and returns the scalar loss. Its tensors and the model may be on the CPU: they are moved to the
        GPU for the measurement (those in its closure, defaults and globals; it should not make new ones on the CPU).
    precision: fp32, tf32, fp32-default, fp16, bf16 (the whole model), amp-fp16 or amp-bf16 (autocast).
    optimizer: adamw, adam, sgd, sgd-momentum; optimizer_impl: foreach, fused, for-loop; mode: eager or compile.
    steps, blocks, warmup: chosen from the step's time when not given; the result is the median over blocks of the mean step.
    request: what else the run's request says: model (a zoo name, a graph's file, what precog.capture returned), batch, seq ...
    gpu: precog's name of the GPU, where it is not recognised.

    A run out of memory is a result too: measured is then {"oom": true}.
    """
    _check(loss_fn, model, precision, optimizer, optimizer_impl, mode)
    if device is None:
        require_gpu()
        device = Device(dry_run=False)
    say = progress or (lambda text: None)
    named = gpu or gpu_name(device.name()) or device.name()
    job: dict[str, Any] = {"schema": 1, "model": type(model).__name__, **(request or {})}
    job.update({"precision": precision, "mode": mode, "optimizer": optimizer, "optimizer_impl": optimizer_impl})
    job.setdefault("cluster", {"gpu": named, "gpus": 1})
    run = MeasuredRun(id=_id(named, job), source="measured: precog.measure", request=job)
    setup: dict[str, Any] = {**describe_machine(device.dry_run), "cudnn_benchmark": torch.backends.cudnn.benchmark,
                             "parameters": sum(parameter.numel() for parameter in model.parameters())}
    if device.dry_run:
        run["source"] = "dry run on a CPU: the figures mean nothing"
    with _prepared(loss_fn, model, precision, device):
        setup.update(switch(device, precision))
        trainer = None
        try:
            _try_once(loss_fn, model, precision, device)
            trained = torch.compile(model) if mode == "compile" else model
            trainer = Trainer(device, loss_fn, trained, precision, optimizer, optimizer_impl)
            setup["eps"] = trainer.eps
            run["measured"], _ = time_steps(device, trainer, warmup or (6 if mode == "compile" else 4), steps, blocks, say)
            if device.dry_run:  # a CPU counts no memory: rather nothing than zero
                run["measured"] = {key: value for key, value in run["measured"].items() if not key.endswith("_bytes")}
        except torch.cuda.OutOfMemoryError:
            run["measured"] = {"oom": True}
        finally:
            if trainer is not None:
                trainer.close()
            if mode == "compile":
                torch._dynamo.reset()
    run["setup"] = setup
    return run


def _check(loss_fn: Any, model: Any, precision: str, optimizer: str, implementation: str, mode: str) -> None:
    if not isinstance(model, nn.Module):
        raise wrong_input("model", f"is a {type(model).__name__}; a torch.nn.Module is wanted")
    if not callable(loss_fn):
        raise wrong_input("loss_fn", f"is a {type(loss_fn).__name__}; a function of the model that returns the loss is wanted")
    for what, value, known in (("precision", precision, PRECISIONS), ("optimizer", optimizer, OPTIMIZERS),
                               ("optimizer_impl", implementation, IMPLEMENTATIONS), ("mode", mode, ("eager", "compile"))):
        if value not in known:
            raise wrong_input(what, f"is {value!r}; measured can be {', '.join(known)}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise wrong_input("model", "has no parameter that is trained (requires_grad)")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise wrong_input(f"model.{name}", "has no values (meta device): to measure, build the model on the GPU or the CPU")


def _id(gpu: str, job: Mapping[str, Any]) -> str:
    model = job["model"]
    if isinstance(model, Mapping):
        model = model.get("name") or model.get("graph")
    name = getattr(model, "name", None) or pathlib.Path(str(model)).name.split(".precog")[0]
    sizes = "".join(f"-{short}{job[key]}" for key, short in (("batch", "b"), ("seq", "s"), ("src_seq", "src")) if key in job)
    return f"{gpu}-{name}-{job['precision']}{sizes}" + ("-compile" if job["mode"] == "compile" else "")


@contextlib.contextmanager
def _prepared(loss_fn: Callable[..., Any], model: nn.Module, precision: str, device: Device) -> Iterator[None]:
    """The model and the loss function's tensors on the device, in the precision's type, in training mode; and all back."""
    undo = Undo()
    dtype = DTYPES.get(precision)
    switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        with torch.random.fork_rng(devices=[] if device.dry_run else None, enabled=True):
            modules = modules_of(model, loss_fn)
            _move_weights(modules, dtype, device, undo)
            replace_tensors(loss_fn, lambda name, tensor: _moved(tensor, dtype, device), undo)
            for module in model.modules():
                undo.add(functools.partial(setattr, module, "training", module.training))
            model.train()
            if dtype is not None:
                hook = model.register_forward_pre_hook(functools.partial(_cast_inputs, dtype), with_kwargs=True)
                undo.add(hook.remove)
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches
        undo.run()
        device.free()


def _moved(tensor: torch.Tensor, dtype: torch.dtype | None, device: Device) -> torch.Tensor:
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(device=device.type, dtype=wanted).requires_grad_(tensor.requires_grad)


def _move_weights(modules: Mapping[str, nn.Module], dtype: torch.dtype | None, device: Device, undo: Undo) -> None:
    """Swaps the data under each parameter and buffer, so that whoever else holds one sees the same. What was on the GPU waits on
    the CPU: it must not count as memory of the step."""
    seen: set[int] = set()
    for root in modules.values():
        for tensor in [*root.parameters(), *root.buffers()]:
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            original, grad = tensor.data, tensor.grad
            wanted = dtype if dtype is not None and original.is_floating_point() else original.dtype
            on_gpu = original.device.type == "cuda"
            kept = original.cpu() if on_gpu else original
            storage = original if on_gpu and wanted == original.dtype else None
            undo.add(functools.partial(_put_back, tensor, kept, original.device, grad, storage))
            tensor.grad = None
            tensor.data = original.to(device=device.type, dtype=wanted, copy=not on_gpu)
            del original, storage
        for module in root.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # cuDNN wants the weights in one piece, as .to(device) leaves them


def _put_back(tensor: torch.Tensor, kept: torch.Tensor, home: torch.device, grad: torch.Tensor | None,
              storage: torch.Tensor | None) -> None:
    tensor.grad = None
    if storage is not None:  # trained in place: the same memory gets its old values, for whoever else looks at it
        storage.copy_(kept)
    tensor.data = kept.to(home) if storage is None else storage
    tensor.grad = grad


def _cast_inputs(dtype: torch.dtype, module: nn.Module, arguments: Any, keywords: Any) -> Any:
    """Inputs that the loss function makes anew in each step, as a 16-bit model needs them."""
    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    return tuple(cast(value) for value in arguments), {key: cast(value) for key, value in keywords.items()}


def _try_once(loss_fn: Callable[..., Any], model: nn.Module, precision: str, device: Device) -> None:
    """One forward pass, for errors that name what is wrong."""
    from .gpu.trainer import AUTOCAST
    amp = AUTOCAST.get(precision)
    try:
        with torch.no_grad(), torch.autocast(device.type, dtype=amp) if amp else contextlib.nullcontext():
            loss = loss_fn(model)
    except RuntimeError as error:
        if "same device" in str(error) or "device type" in str(error):
            raise wrong_input("loss_fn", f"uses tensors on another device than the model's: make its inputs before, on {device.type} "
                              f"or the CPU, and only use them inside ({str(error).splitlines()[0][:200]})") from error
        raise
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise wrong_input("loss_fn", f"returned {shape}; the scalar loss is wanted")
