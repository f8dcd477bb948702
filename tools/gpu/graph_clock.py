"""How long the programs that Inductor writes run, and what they call: the parts of a compiled step that are not torch.compile's own.

`GraphClock()` is made before anything is compiled; it counts the seconds inside every generated program. `calls_of(source)` reads such a program: how often
its `call` launches a generated kernel, calls a library, makes a buffer. Nothing is profiled.
"""
from __future__ import annotations

import collections
import re
import time
from typing import Any

CALL = re.compile(r"(?:^|[\s=(\[,])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\(")


class GraphClock:
    def __init__(self) -> None:
        from torch._inductor.output_code import CompiledFxGraph
        self.seconds, self.runs = 0.0, 0
        self.first, self.last = 0.0, 0.0  # when the first program since the last `take` began, when the last ended
        self.graphs: dict[int, Any] = {}  # those that have run
        inside = CompiledFxGraph.__call__

        def timed(graph: Any, inputs: Any) -> Any:
            started = time.perf_counter()
            self.first = self.first or started
            try:
                return inside(graph, inputs)
            finally:
                self.last = time.perf_counter()
                self.seconds += self.last - started
                self.runs += 1
                self.graphs[id(graph)] = graph
        CompiledFxGraph.__call__ = timed  # type: ignore[method-assign]

    def take(self) -> float:
        """Seconds inside since the last time."""
        taken, self.seconds, self.first = self.seconds, 0.0, 0.0
        return taken

    def counts(self) -> list[dict[str, Any]]:
        """Per graph that has run, in the order of their first runs, what its program calls."""
        return [calls_of(graph.source_code) for graph in self.graphs.values()]


def calls_of(source: str) -> dict[str, Any]:
    lines = source.splitlines()
    starts = [number for number, line in enumerate(lines) if re.match(r"\s*def (call|partition_\d+)\(", line)]
    body: list[str] = []
    for start in starts:
        indent = len(lines[start]) - len(lines[start].lstrip())
        for line in lines[start + 1:]:
            if line.strip() and len(line) - len(line.lstrip()) <= indent:
                break
            body.append(line)
    counts: dict[str, int] = collections.Counter()
    inputs = outputs = 0
    for line in body:
        code = line.split("#", 1)[0]
        if re.match(r"\s*[\w, ]+ = args\s*$", code):
            inputs += len([name for name in code.split("=")[0].split(",") if name.strip()])
        if re.match(r"\s*return \(", code):
            outputs += code.count(",")
        for name in CALL.findall(code):
            counts["launch" if name.endswith(".run") else name] += 1
    return {"inputs": inputs, "outputs": outputs, "kernels": len(re.findall(r"^\w+ = async_compile\.", source, re.M)), "calls": dict(counts)}
