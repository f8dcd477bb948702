"""Processes that prepare side by side and measure one at a time.

Building a model, loading kernels and compiling take longer than timing does, need all the cores and hardly the GPU; timing must be
alone. `run` starts a process per job, several at once. One that is ready says so and waits; when its turn comes everybody else is
stopped (SIGSTOP) until it has measured. It knows nothing of what is measured.

A process is told "go SECONDS\n" on its standard input: what is left, shared out over the turns that have not been had, by their weights. It writes
JSON objects, one a line, to its standard output: {"ready": true} asks for a turn, {"done": true} ends it, all others are handed to `take`. Who asks again
waits until all others that run have had as many: a machine that wanders over minutes is then seen at more than one moment.
"""
from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterator

LOCK = "PRECOG_TURNS_LOCK"  # an environment variable: the file that Worker.alone locks
DRAIN_S = 0.25  # what the others had queued on the GPU when they were stopped
PATIENCE = 2.0  # a turn of more than so many times its share, and some seconds, is ended
SOME_S = 20.0


@dataclasses.dataclass
class Job:
    label: str
    arguments: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)  # the caller's own
    turns: tuple[float, ...] = (1.0,)  # those that it will ask for, each with the weight of its share


_LOCKED = tempfile.NamedTemporaryFile(prefix="turns-")


class _Running:
    def __init__(self, job: Job) -> None:
        self.job, self.said, self.turns, self._begun = job, tempfile.TemporaryFile(), list(job.turns), b""
        self.process = subprocess.Popen([sys.executable, *job.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
                                        start_new_session=True, env={**os.environ, LOCK: _LOCKED.name, **job.environment})

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)  # its own session: it and its compile workers

    def go(self, seconds: float) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(b"go %.3f\n" % seconds)
            self.process.stdin.flush()
        except OSError:  # it has died; the end of its output says so next
            pass

    def heard(self) -> list[bytes] | None:
        """The whole lines that have come, None at the end."""
        assert self.process.stdout
        got = os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self._begun = (self._begun + got).split(b"\n")
        return lines if got else None

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        for file in (self.said, self.process.stdout, self.process.stdin):
            try:
                file.close()
            except OSError:  # what it was told and never read
                pass

    def last_words(self) -> str:
        self.said.seek(0, os.SEEK_END)
        self.said.seek(max(0, self.said.tell() - 2000))
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else ""


def _message(text: bytes) -> dict[str, Any]:
    """{} for what a library printed."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def run(waiting: list[Job], budget_s: float, processes: int, take: Callable[[Job, dict[str, Any]], None], say: Callable[[str], None],
        ended: Callable[[Job], None] = lambda job: None) -> None:
    """Ends when all jobs have, or after `budget_s` seconds. `waiting` then holds those that were not started."""
    started = time.perf_counter()
    running: dict[_Running, None] = {}
    ready: list[_Running] = []
    measuring: _Running | None = None
    deadline = 0.0
    selector = selectors.DefaultSelector()

    def left() -> float:
        return budget_s - (time.perf_counter() - started)

    def release() -> None:
        nonlocal measuring
        measuring = None
        for one in running:
            one.signal(signal.SIGCONT)

    while (waiting or running) and left() > 0:
        while waiting and len(running) < processes and measuring is None:
            one = _Running(waiting.pop(0))
            running[one] = None
            selector.register(one.process.stdout, selectors.EVENT_READ, one)  # type: ignore[arg-type]
        next_one = max(ready, key=lambda one: len(one.turns), default=None)
        if measuring is None and next_one and all(len(one.turns) <= len(next_one.turns) for one in running):
            measuring = next_one
            ready.remove(measuring)
            for one in running:
                if one is not measuring:
                    one.signal(signal.SIGSTOP)
            time.sleep(DRAIN_S)
            weight = measuring.turns.pop(0) if measuring.turns else 1.0
            share = left() * weight / (weight + sum(sum(job.turns) for job in waiting) + sum(sum(one.turns) for one in running))
            deadline = time.perf_counter() + PATIENCE * share + SOME_S
            measuring.go(share)
        if measuring is not None and time.perf_counter() > deadline:
            say("%s took too long and was ended" % measuring.job.label)
            measuring.signal(signal.SIGKILL)
        for key, _ in selector.select(timeout=0.5):
            one = key.data
            lines = one.heard()
            if lines is None:  # it has ended
                selector.unregister(key.fileobj)
                running.pop(one)
                if one.process.wait() or one.turns:
                    say("%s ended with %s: %s" % (one.job.label, one.process.returncode, one.last_words()))
                if one in ready:
                    ready.remove(one)
                if one is measuring:
                    release()
                one.close()
                ended(one.job)
            for message in map(_message, lines or ()):
                if message.get("ready"):
                    ready.append(one)
                elif message.get("done"):
                    if one is measuring:
                        release()
                elif message:
                    take(one.job, message)
    for one in running:
        one.signal(signal.SIGCONT)
        one.signal(signal.SIGKILL)
        one.process.wait()
        say("budget: %s ended" % one.job.label)
        one.close()
        ended(one.job)


class Worker:
    """The process's side: messages out, its turn in."""

    def __init__(self) -> None:
        self._out, self._measuring = os.fdopen(os.dup(1), "w"), False
        os.dup2(2, 1)  # whatever libraries print does not mix with what is said

    def tell(self, **message: Any) -> None:
        self._out.write(json.dumps(message, separators=(",", ":")) + "\n")
        self._out.flush()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While preparing, or in a job without a turn: what takes so much memory that only one process may do it at a time. cuDNN remembers the kernel that it chose for a call, also one that it
        chose because it was refused memory."""
        with open(os.environ[LOCK], "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def turn(self) -> float:
        """Waits until the GPU is this process's alone, again where it was before; returns its share of the time."""
        if self._measuring:
            self.tell(done=True)
        self._measuring = True
        self.tell(ready=True)
        words = sys.stdin.readline().split()
        if not words:
            sys.exit(1)  # nobody is there any more
        return float(words[1])
