"""A GPU that is not there, for programs that only need PyTorch to believe in one: an H200 whose kernels never run.

`begin_again()` first, before torch is imported: the program starts once more with tools/no_gpu.c before CUDA's driver and runtime. Then `pretend()`: what Python asks
of the device. Tensors must be fake ones (torch._subclasses.FakeTensorMode), which have no data. Inductor then writes for the GPU what it would write on one with these
properties, except where it decides by timing.
"""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import types
from importlib.util import find_spec
from typing import Any

# What Inductor's choices rest on (torch/_inductor/runtime/hints.py, DeviceProperties): as an H200 says of itself.
H200 = types.SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150 << 30, warp_size=32, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, L2_cache_size=60 << 20, shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, gcnArchName="", is_integrated=0, uuid="")
ANSWERS: dict[str, Any] = {
    "get_device_properties": H200, "get_device_capability": (9, 0), "get_device_name": H200.name, "get_compute_capability": 90, "is_available": True, "device_count": 1,
    "current_device": 0, "set_device": None, "_exchange_device": 0, "_maybe_exchange_device": 0, "_lazy_init": None, "is_bf16_supported": True,
    "is_triton_capable": True, "raise_if_triton_unavailable": None}


def begin_again() -> None:
    if "PRECOG_NO_GPU" in os.environ:
        return
    library = os.path.join(tempfile.mkdtemp(prefix="no_gpu_"), "libcuda.so.1")
    packages = [pathlib.Path(place) for name in ("nvidia", "triton") for place in find_spec(name).submodule_search_locations]  # type: ignore[union-attr]
    headers = ["-I%s" % path for package in packages for pattern in ("cu*/include", "backends/nvidia/include") for path in package.glob(pattern)]
    source = pathlib.Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", *headers, "-Wl,-soname,libcuda.so.1", "-o", library, str(source)], check=True)
    os.environ.update(PRECOG_NO_GPU=library, LD_PRELOAD=library)
    os.execv(sys.executable, [sys.executable, *sys.argv])


def pretend() -> None:
    """Python's side of the GPU; once torch's modules are imported."""
    import torch._dynamo.device_interface
    import torch._inductor.fx_passes.joint_graph
    import triton
    from torch._subclasses import fake_tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map
    from triton.backends.compiler import GPUTarget

    class OnTheCpu(TorchDispatchMode):
        """Inductor folds constants by computing them, which has to happen where there is a processor."""

        def __torch_dispatch__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
            def moved(value: Any) -> Any:
                return torch.device("cpu") if isinstance(value, torch.device) else value
            return func(*tree_map(moved, args), **tree_map(moved, kwargs or {}))

    class Driver:
        """Triton's, as Inductor asks it."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

    interface = torch._dynamo.device_interface.CudaInterface
    for name, value in ANSWERS.items():
        for place in (torch.cuda, interface, interface.Worker):
            if hasattr(place, name):
                answer = lambda *args, _value=value, **kwargs: _value  # noqa: E731
                setattr(place, name, answer if place is torch.cuda else staticmethod(answer))
    fake_tensor.init_gpu_context = lambda device: None
    for module in [module for name, module in sys.modules.items() if name.startswith("torch")]:
        for name in ("has_triton", "has_triton_package", "is_big_gpu"):
            if name in vars(module):
                setattr(module, name, lambda *args, **kwargs: True)
    triton.runtime.driver.set_active(Driver())
    for folder in (torch._inductor.constant_folding.ConstantFolder, torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder):
        if "_deduce_value" in vars(folder):
            def deduced(self: Any, node: Any, _old: Any = folder._deduce_value) -> Any:
                with OnTheCpu():
                    return _old(self, node)
            folder._deduce_value = deduced
