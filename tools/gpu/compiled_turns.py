"""Compiled cases in fresh processes that take turns, each with a compiler's cache of its own, a line for whatever one tells."""
from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from typing import Any, Callable, Iterable

import turns


def coordinate(args: argparse.Namespace, script: str, cases: Iterable[tuple[str, dict[str, Any]]], threads: int) -> int:
    """`cases`: a label and what the process is told. Writes OUT/NAME.jsonl, named as the script."""
    import common
    started = time.perf_counter()
    os.makedirs(args.out, exist_ok=True)
    name = os.path.splitext(os.path.basename(script))[0]
    scratch = tempfile.mkdtemp(prefix=name + "_")
    lines = common.Lines(os.path.join(args.out, name + ".jsonl"), {"script": name + ".py", "host": common.HOST, "dry_run": args.dry_run})
    jobs = []
    for label, facts in cases:
        cache = os.path.join(scratch, label.replace(" ", "-"))  # compilers trip over a space
        jobs.append(turns.Job(label, [os.path.abspath(script), "--worker", json.dumps({**facts, "dry_run": args.dry_run})],
                              {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": os.path.join(cache, "triton"),
                               "TORCHINDUCTOR_COMPILE_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}))

    def say(text: str) -> None:
        print("%6.1fs %s" % (time.perf_counter() - started, text), flush=True)

    def take(job: turns.Job, message: dict[str, Any]) -> None:
        lines.write(message)
        if "error" in message or "compile_s" in message:
            say("%s: %s" % (job.label, message.get("error", "compiled in %s s" % message.get("compile_s"))))
    turns.run(jobs, args.budget, args.processes, take, say)
    lines.close()
    shutil.rmtree(scratch, ignore_errors=True)
    say("done, %d not started" % len(jobs))
    return 0


def work(job: dict[str, Any], measure: Callable[[dict[str, Any], turns.Worker], None], names: dict[str, Any]) -> int:
    """The process of one case; `names` say which it is where it fails."""
    worker = turns.Worker()
    try:
        measure(job, worker)
    except Exception as error:  # noqa: BLE001: the line says what happened
        worker.tell(**names, error="%s: %s" % (type(error).__name__, str(error)[:300]))
    worker.tell(done=True)
    os._exit(0)  # the driver and the compile workers take their time otherwise
