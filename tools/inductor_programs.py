#!/usr/bin/env python3
"""What memory a compiled training step takes, from the programs that Inductor writes for it, on a machine without a GPU.

  python3 tools/inductor_programs.py vit-base-hf fp32 112 --out peaks.jsonl
  python3 tools/inductor_programs.py minilm-l6 amp-fp16 128 128 --out peaks.jsonl --programs DIR

A model of python/garden is built of fake CUDA tensors (torch._subclasses: sizes, strides and types without data) and compiled by torch.compile for a device
with an H200's properties. The programs that Inductor writes are executed as they stand, but their kernels do nothing: what is left of a step is its
allocations, in order. Everything around the programs is PyTorch's own: what forward keeps for backward, the gradient of returned scores, a loss outside the
graph, gradients, the loss scaler, the foreach optimizer. Each storage is written down when it appears and when it goes, over three steps as
tools/gpu/compiled_steps.py takes them; tools/program_memory.py replays them through the caching allocator, and the third one's peak is the answer.

It is no measurement. It does not know what a library asks for inside a call (cuDNN's workspaces, sorts), nor whether Inductor pads the operands of a
product whose extents no wide load can read, which it decides by timing both: here it does not, or with --pad always does, and a row says of how many
products that was asked. cuBLAS's 32 MiB are counted for each thread that multiplies, forward's and autograd's. The programs of fp32 are those of TF32.
Nothing of precog's own predictions enters.

Needs torch with CUDA's libraries, triton, the garden's packages, and a C compiler for tools/no_gpu.c (tools/no_gpu.py says what is pretended). A row takes
half a minute to some minutes of one core. A model whose Python looks at numbers between graphs cannot be run on fake tensors.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import types
import weakref
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]
import no_gpu  # noqa: E402

if __name__ == "__main__":
    os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    no_gpu.begin_again()
import torch  # noqa: E402
import torch._functorch.config  # noqa: E402
import torch._inductor.async_compile  # noqa: E402
import torch._inductor.compile_fx  # noqa: E402
import torch._inductor.fx_passes.pad_mm  # noqa: E402
from torch._subclasses import fake_tensor  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import garden  # noqa: E402
import program_memory  # noqa: E402
from precog.gpu.trainer import DTYPES, Trainer  # noqa: E402

GPU = torch.device("cuda", 0)
WORKSPACE = 32 << 20  # CublasHandlePool.cpp, parseChosenWorkspaceSize: of each handle, from Hopper on
PRODUCTS = tuple("extern_kernels.%s(" % name for name in ("mm", "addmm", "bmm", "baddbmm"))


class Written(fake_tensor.FakeTensorMode):
    """Fake tensors; while `on`, the storages of those on the GPU are written down when they appear, and when they go."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.trace: list[tuple[int, int]] = []  # block, bytes; 0 bytes: given back
        self.marks: list[tuple[int, str]] = []  # place in the trace, the phase that ends there
        self.blocks = 0
        self.alive: dict[int, Any] = {}
        self.on = False

    def take(self, nbytes: int) -> int:
        self.blocks += 1
        self.trace.append((self.blocks, nbytes))
        return self.blocks

    def note(self, tensor: Any) -> None:
        if not isinstance(tensor, fake_tensor.FakeTensor) or tensor.fake_device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive or not storage.nbytes():
            return
        block = self.take(storage.nbytes())

        def gone(_: Any) -> None:
            del self.alive[key]
            self.trace.append((block, 0))
        self.alive[key] = weakref.ref(storage, gone)

    def dispatch(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().dispatch(func, types_, args, kwargs)
        if self.on:
            for tensor in tree_leaves(result):
                self.note(tensor)
        return result


class Idle:
    """A kernel, and the libraries' products (extern_kernels): what they write into is there already."""

    def __init__(self, library: Any = None) -> None:
        self.library = library

    def run(self, *args: Any, **kwargs: Any) -> None:
        pass

    __call__ = run

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)  # without `out`, as of a convolution: run on fake tensors, for its result
        return lambda *args, out=None, **kwargs: function(*args, **kwargs) if out is None else out


def execute(mode: Written, programs: list[tuple[str, str]], timed: list[Any], pad: bool) -> None:
    """What Inductor writes is kept in `programs` and becomes a module whose kernels are idle; the products that it would time are listed in `timed`."""
    def padded(match: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> bool:
        m, k, n = one.shape[-2], one.shape[-1], other.shape[-1]
        if not torch._inductor.fx_passes.pad_mm.is_mm_compute_bound(m, k, n, one.dtype):
            return False
        timed.append((m, k, n))
        return pad

    def empty(size: Any, stride: Any, dtype: Any) -> Any:
        return torch.empty_strided(size, stride, dtype=dtype, device=GPU)

    def reinterpreted(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    def to_module(graph: Any) -> Any:
        text = graph.codegen()[0].value
        programs.append(("backward" if graph.is_backward else "forward", text))
        module = types.ModuleType("program")
        module.__file__ = os.devnull
        exec(compile(text, "program %d" % len(programs), "exec"), vars(module))
        vars(module).update(empty_strided_cuda=empty, reinterpret_tensor=reinterpreted, assert_size_stride=Idle(), assert_alignment=Idle(),
                            get_raw_stream=Idle(), extern_kernels=Idle(module.extern_kernels))
        written = module.call

        def call(args: Any) -> Any:
            with mode, torch.no_grad():
                return written(args)
        module.call = call
        graph.cache_key, graph.cache_path, graph.cache_linemap = "", os.devnull, []
        return module
    torch._inductor.graph.GraphLowering._compile_to_module = to_module
    for name in ("triton", "multi_kernel", "cpp", "cpp_pybinding"):
        setattr(torch._inductor.async_compile.AsyncCompile, name, lambda *args, **kwargs: Idle())
    torch._inductor.async_compile.AsyncCompile.wait = lambda *args: None
    for module in (torch._inductor.compile_fx, torch._inductor.utils, torch._inductor.output_code):
        module.align_inputs_from_check_idxs = lambda model, *args, **kwargs: model  # fake tensors have no address to be misaligned
    torch._inductor.fx_passes.pad_mm._should_pad = padded
    torch._functorch.config.force_non_lazy_backward_lowering = True


def moved(model: Any, dtype: Any) -> Any:
    """`model.to(GPU, dtype)`, which fake parameters do not take; tied ones stay tied."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for place in (module._parameters, module._buffers):
            for name, old in [(name, old) for name, old in place.items() if old is not None]:
                if id(old) not in made:
                    new = torch.empty_like(old, dtype=dtype if old.is_floating_point() else old.dtype, device=GPU)
                    made[id(old)] = torch.nn.Parameter(new, requires_grad=old.requires_grad) if place is module._parameters else new
                place[name] = made[id(old)]
    return model


def steps(name: str, precision: str, batch: int, seq: int | None, programs: list[tuple[str, str]], timed: list[Any], pad: bool) -> Written:
    entry, dtype = garden.find(name), DTYPES.get(precision, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    mode = Written()
    execute(mode, programs, timed, pad)
    try:
        with mode, GPU:
            model = entry.build()
    except Exception:  # noqa: BLE001: its constructor looks at numbers, which fake tensors do not have
        model = entry.build()
    with mode:
        model = moved(model, dtype)
        data = entry.inputs(model, batch, seq, GPU, dtype)
        for tensor in [*model.parameters(), *model.buffers(), *tree_leaves(data)]:
            mode.note(tensor)
        compiled = torch.compile(model, dynamic=False)
        trainer = Trainer(types.SimpleNamespace(type="cuda", dry_run=True), lambda one: entry.loss(one, data), compiled, precision)  # type: ignore[arg-type]
        with trainer.autocast():
            loss = trainer.loss_fn(compiled)
        loss.backward()
        loss = None
        model.zero_grad(set_to_none=True)
        if trainer.scaler:  # it asks whether a gradient overflowed, which nobody knows here
            trainer.scaler._maybe_opt_step = lambda optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs)
        torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
        for kind in ("forward", "backward"):
            if any(product in text for made, text in programs if made == kind for product in PRODUCTS):
                mode.take(WORKSPACE)
        mode.on = True
        for _ in range(3):
            mode.marks.append((len(mode.trace), "start"))
            trainer.phases(lambda phase: mode.marks.append((len(mode.trace), phase)))
        mode.on = False
    return mode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("precision")
    parser.add_argument("batch", type=int)
    parser.add_argument("seq", type=int, nargs="?")
    parser.add_argument("--out", default="peaks.jsonl", help="a row is added to it")
    parser.add_argument("--pad", action="store_true", help="as if padding paid wherever it is a question")
    parser.add_argument("--programs", help="a folder for the programs' text")
    parser.add_argument("--trace", help="a file for the allocations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    no_gpu.pretend()
    programs: list[tuple[str, str]] = []
    timed: list[Any] = []
    mode = steps(args.name, args.precision, args.batch, args.seq, programs, timed, args.pad)
    account = {"trace": mode.trace, "marks": mode.marks}
    if args.trace:
        pathlib.Path(args.trace).write_text(json.dumps(account))
    for number, (kind, text) in enumerate(programs if args.programs else []):
        pathlib.Path(args.programs, "%s-%s-%d-%s.py" % (args.name, args.precision, number, kind)).write_text(text)
    row = program_memory.row(args.name, args.precision, args.batch, args.seq, account, torch.__version__, os.path.dirname(os.path.abspath(args.out)))
    row["program"].update(products_timed=len(timed), padded=args.pad)
    row["id"] += "-padded" * args.pad
    with open(args.out, "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    os._exit(0)  # a device that is not there cannot be shut down


if __name__ == "__main__":
    sys.exit(main())
