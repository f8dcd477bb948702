#!/usr/bin/env python3
"""The layout copies around convolutions as lines that `precog calibrate` reads, out of the kernels that kernel_choices.py recorded.

usage: copies_from_choices.py CHOICES.jsonl.gz OUT.jsonl.gz

A line is the convolution's own with "copy": which of its copies ("first" operand, "second", "result") and that kernel's seconds.
A profiler's times have no idle time between kernels in them ("graph"), and the cache was overwritten before each call ("cold").
Which copy is whose follows from the order of cuDNN's arguments: the image (or filter) comes before the gradient. Convolutions with
another number of copies than one for each operand that needs it (groups one after the other) are left out.
"""
import gzip
import json
import sys
from typing import Any, Iterator

ORDER = {"forward": ("first", "second"), "dgrad": ("second", "first"), "wgrad": ("second", "first")}  # as they run


def is_into(name: str, layout: str) -> bool | None:
    """Whether a kernel copies an operand to the layout that it is wanted in; None: it is no layout copy."""
    if "nchwToNhwc" in name:
        return layout == "nchw"
    if "nhwcToNchw" in name:
        return layout == "nhwc"
    return None


def copies(case: dict[str, Any], names: dict[int, str]) -> Iterator[dict[str, Any]]:
    found = [(is_into(names[number], case["layout"]), microseconds) for number, microseconds in case.pop("kernels")]
    into, back = ([time for kind, time in found if kind is wanted] for wanted in (True, False))
    sides = case["kernel"] if isinstance(case["kernel"], list) else [case["kernel"]]
    filters_too = max(sides) > 1
    transposed = case["family"] == "conv_transpose"
    if transposed or len(into) != (2 if filters_too or case["op"] == "wgrad" else 1) or len(back) > 1:
        return
    for which, time in [*zip(ORDER[case["op"]] if len(into) == 2 else ("first",), into), *(("result", time) for time in back)]:
        yield {**case, "copy": which, "cold": True, "graph": True, "s": round(time * 1e-6, 9)}


def main() -> int:
    source, target = sys.argv[1:]
    names: dict[int, str] = {}
    with gzip.open(source, "rt") as lines, gzip.open(target, "wt", 9) as out:
        for text in lines:
            line = json.loads(text)
            if "name" in line:
                names[line["name"]] = line["is"]
            elif "meta" in line:
                out.write(text)
            elif "layout" in line and line["family"] != "pool":
                for copy in copies(line, names):
                    out.write(json.dumps(copy, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
