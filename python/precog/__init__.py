"""precog: how long a training step takes, what memory it needs and where the time goes, without running it.

    import precog
    r = precog.predict(model="bert-large", batch=32, seq=128, precision="amp-bf16", gpu="h100-sxm")
    r.step_s, r.peak_bytes, r["breakdown"]
    precog.compare(r.request)                 # every precision the GPU has, fastest first

    g = precog.capture(loss_fn, model)        # any PyTorch model; no GPU, no weights in memory
    precog.predict({"model": g, "precision": "amp-bf16", "cluster": {"gpu": "h200-sxm", "gpus": 1}})
    precog.measure(loss_fn, model, precision="amp-bf16")     # real steps on the local GPU
    precog.profile("h200.measurements.jsonl.zst")            # operators and host of the local GPU

`predict`, `compare` and `validate` need nothing but this package; `capture`, `measure`, `measure_host` and `profile` import torch when
they are called. Everything that goes wrong is a PrecogError.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Callable, Mapping

from .errors import PrecogError, Problem
from .predicting import compare, known, predict, validate
from .report import Comparison, Fields, Report

if TYPE_CHECKING:
    from .capturing import CapturedGraph
    from .measuring import MeasuredRun

__all__ = ["Comparison", "Fields", "PrecogError", "Problem", "Report", "capture", "compare", "known", "measure", "measure_host",
           "predict", "profile", "validate"]
__version__ = "0.1.0"


def capture(loss_fn: Callable[..., Any] | None = None, model: Any = None, *, batch: int | None = None, seq: int | None = None,
            src_seq: int | None = None, name: str | None = None, progress: Callable[[str], Any] | None = None,
            build: Callable[..., Any] | None = None) -> "CapturedGraph":
    """The forward graph of one training step: `loss_fn(model)` returns the scalar loss.

    Nothing is computed: no GPU is needed and weights take no memory. The graph has no precision in it, so one capture
    serves every precision, mode and GPU. Instead of the two, `build` may be a function that takes `batch`, `seq` or
    `src_seq` and returns (loss_fn, model). precog.capturing.capture says how the batch and the sequence are found.
    """
    from .torch_import import import_torch
    import_torch("precog.capture")
    from .capturing import capture as work
    from .capturing.recorder import CaptureError
    noise = logging.getLogger("torch._subclasses.fake_tensor")  # logs a page for what the error says in a line
    level = noise.level
    noise.setLevel(logging.CRITICAL + 1)
    try:
        return work(loss_fn, model, batch=batch, seq=seq, src_seq=src_seq, name=name, progress=progress, build=build)
    except CaptureError as error:
        raise PrecogError("capture", str(error)) from error
    except TypeError as error:
        if not str(error).startswith(("capture(", "build()")):
            raise
        raise PrecogError("wrong_input", str(error)) from error
    finally:
        noise.setLevel(level)


def measure(loss_fn: Callable[[Any], Any], model: Any, precision: str = "fp32", optimizer: str = "adamw",
            **options: Any) -> "MeasuredRun":
    """Runs real training steps on the local GPU and returns them as a measured run; see precog.measuring.measure."""
    from .torch_import import import_torch
    import_torch("precog.measure")
    from .measuring import measure as work
    return work(loss_fn, model, precision, optimizer, **options)


def measure_host(path: str | os.PathLike[str], *, name: str | None = None, seconds: float = 10.0,
                 progress: Callable[..., Any] | None = None) -> dict[str, Any]:
    """How fast this machine feeds its GPU: writes a host description that a request takes as {"host": "my-host.json"}."""
    from .torch_import import import_torch
    import_torch("precog.measure_host")
    from .hosting import measure_host as work
    return work(os.fspath(path), name=name, seconds=seconds, progress=progress)


def profile(path: str | os.PathLike[str], quick: bool = False, budget_s: float | None = None, **options: Any) -> Mapping[str, Any]:
    """Measures operators and host dispatch on the local GPU into a file; see precog.profiling.profile."""
    from .torch_import import import_torch
    import_torch("precog.profile")
    from .profiling import profile as work
    return work(path, quick=quick, budget_s=budget_s, **options)
