"""The kernels of a call without running it: it is captured into a CUDA graph, whose nodes say which kernels they are.

Libraries plan in a call's first time, and capturing does that too: the GPU has nothing to do meanwhile, so another process may
time its own. Takes the driver's word for the names (cuFuncGetName, CUDA 12.3 and later), through ctypes.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
from typing import Any, Callable

KERNEL, MEMSET = 0, 2
LONGEST_NAME = 400
MOST_FAILURES = 20  # in a row: then it is no use
MOST_CACHED = 3 << 30  # bytes: then what captured calls have left is given back


class _Kernel(ctypes.Structure):  # CUDA_KERNEL_NODE_PARAMS_v2
    _fields_ = [("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p)]


Launch = tuple[str, list[int], int, int]  # name, blocks, threads, bytes of shared memory


class Capture:
    def __init__(self) -> None:
        import torch
        self.torch = torch
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.stream = torch.cuda.Stream()
        self.one = torch.ones(1024, device="cuda")
        self.unread = ""  # why names cannot be read
        self.space = 0    # bytes that the last call took and gave back
        self.short = False  # whether memory was refused to it: then it went another way
        self.begin()

    def begin(self) -> None:
        self.pool = self.torch.cuda.graph_pool_handle()
        self.kept, _ = self._graph(lambda: self.one + self.one, self.pool)  # while a graph lives, its memory serves the others
        self.cached = self.torch.cuda.memory_reserved() + MOST_CACHED

    def give_back(self) -> None:
        self.kept.reset()
        self.torch.cuda.empty_cache()
        self.begin()

    def _graph(self, call: Callable[[], Any], pool: Any) -> tuple[Any, Any]:
        graph = self.torch.cuda.CUDAGraph(keep_graph=True)
        with self.torch.cuda.stream(self.stream):
            graph.capture_begin(pool=pool, capture_error_mode="relaxed")
            try:
                result = call()
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph, result

    def launches(self, call: Callable[[], Any], apart: bool = False) -> list[Launch]:
        """Nothing where the names cannot be read: the call is planned all the same. `apart`: its memory goes back at once."""
        cuda = self.torch.cuda
        refused, before = cuda.memory_stats().get("num_ooms", 0), cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        graph, result = self._graph(call, None if apart else self.pool)
        self.short = cuda.memory_stats().get("num_ooms", 0) > refused
        made = [one for one in (result if isinstance(result, tuple) else (result,)) if one is not None]
        self.space = cuda.max_memory_allocated() - before - sum(one.nbytes for one in made)
        found: list[Launch] = []
        try:
            if not self.unread:
                found = self._read(ctypes.c_void_p(graph.raw_cuda_graph()))
        except Exception as error:  # noqa: BLE001
            self.unread = str(error)[:200]
        graph.reset()
        del result, made
        if apart:
            cuda.empty_cache()
        elif cuda.memory_reserved() > self.cached:
            self.give_back()
        return found

    def _asked(self, function: str, *arguments: Any) -> None:
        status = getattr(self.driver, function)(*arguments)
        if status:
            raise RuntimeError("%s: error %d" % (function, status))

    def _name(self, node: _Kernel) -> str:
        name = ctypes.c_char_p()
        if node.function:
            self._asked("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(node.function))
        else:
            self._asked("cuKernelGetName", ctypes.byref(name), ctypes.c_void_p(node.kernel))
        return (name.value or b"?").decode(errors="replace")

    def _read(self, graph: ctypes.c_void_p) -> list[Launch]:
        count = ctypes.c_size_t(0)
        self._asked("cuGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        self._asked("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
        found: list[Launch] = []
        for node in nodes:
            kind = ctypes.c_int(-1)
            self._asked("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            if kind.value == KERNEL:
                params = _Kernel()
                self._asked("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(params))
                threads = params.block[0] * params.block[1] * params.block[2]
                found.append((self._name(params), list(params.grid), threads, params.shared))
            else:
                found.append(("memset" if kind.value == MEMSET else "node of kind %d" % kind.value, [0, 0, 0], 0, 0))
        return found


class Choices:
    """Kernels of cases, written as kernel_choices.py does, but for what only the launch says: "launches": [[number of the name,
    blocks, threads, bytes of shared memory], ...], "space": the bytes that the call took beside its result, with a kilobyte or so that
    capturing takes; "short": memory was refused to it. Where capturing fails nothing is written and the case is timed all the same."""

    def __init__(self, device: Any, path: str) -> None:
        import torch
        self.device, self.lines = device, open(path, "a")
        self.numbers: dict[str, int] = {}
        self.rows = self.failed = self.in_a_row = 0
        self.first = ""
        self.capture: Capture | None = None
        try:
            for dtype in (torch.float32, torch.float16):  # the library itself wants to be loaded outside of a capture
                x, w = torch.randn(4, 64, 16, 16, device="cuda", dtype=dtype), torch.randn(64, 64, 3, 3, device="cuda", dtype=dtype)
                y = torch.conv2d(x, w)
                torch.ops.aten.convolution_backward(torch.ones_like(y), x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
            torch.cuda.synchronize()
            self.capture = Capture()
        except Exception as error:  # noqa: BLE001: names are a present, times are what was asked for
            self.first = str(error)[:200]

    def note(self, case: Any, made: dict[str, Any], apart: bool = False) -> bool:
        """Whether memory was refused to one of them, whose plan is kept all the same."""
        short = False
        self.device.tf32(case.dtype == "tf32", case.dtype == "tf32")
        for op in case.ops:
            if self.capture is None:
                return short
            try:
                launches = self.capture.launches(made[op].call, apart)
            except Exception as error:  # noqa: BLE001
                self.first = self.first or str(error)[:200]
                self.failed += 1
                self.in_a_row += 1
                if self.in_a_row >= MOST_FAILURES:
                    self.capture = None
                continue
            self.in_a_row = 0
            short = short or self.capture.short
            if not launches:
                continue
            for name, *_ in launches:
                if name not in self.numbers:
                    self.numbers[name] = len(self.numbers)
                    self.lines.write(json.dumps({"name": self.numbers[name], "is": name[:LONGEST_NAME]}, separators=(",", ":")) + "\n")
            line = {**case.line(op), "launches": [[self.numbers[name], *rest] for name, *rest in launches], "space": self.capture.space}
            if self.capture.short:
                line["short"] = True
            self.lines.write(json.dumps(line, separators=(",", ":")) + "\n")
            self.rows += 1
        return short

    def said(self) -> str:
        return "kernels of %d calls, %d failed; %s %s" % (self.rows, self.failed, self.first, self.capture.unread if self.capture else "gave up")

    def close(self) -> None:
        self.lines.close()
