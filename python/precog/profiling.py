"""precog.profile: operators and host dispatch of the local GPU, into one file that cost models are fitted from.

The file is JSON lines. A line {"meta": ...} names machine and versions of what follows it; lines with "family" are operators
(precog.gpu.operators), lines with "group" the host (precog.gpu.host). Every line is on the disk before the next measurement
starts; the same call on an unfinished file goes on where it stopped. Nothing here needs precog's C++ library.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Callable

from .compression import compress, decompress
from .errors import PrecogError, wrong_input
from .gpu import host, operators
from .gpu.device import Device, describe_machine
from .gpu.names import gpu_name
from .gpu.session import Session, identity
from .measuring import require_gpu
from .progress import Progress

__all__ = ["profile"]

FORMAT = 1
SAME = ("gpu", "torch", "cuda", "driver", "dry_run")  # a file holds one machine's figures


class _File:
    """Lines in PATH, or, for a compressed file, in PATH.part until it is closed."""

    def __init__(self, path: pathlib.Path, meta: dict[str, Any]) -> None:
        self.path = path
        self.packed = path.suffix == ".zst"
        self.plain = path.with_name(path.name + ".part") if self.packed else path
        if self.packed:
            compress(b"")  # rather now than after ten minutes of measuring
            if not self.plain.exists() and path.exists():
                self.plain.write_bytes(decompress(path.read_bytes()))
        self.measured: set[str] = set()
        self.count = self.new = 0
        self._read(meta)
        try:
            self.file = open(self.plain, "ab")
        except OSError as error:
            raise wrong_input(str(path), f"cannot be written: {error.strerror}") from error
        self._append({"meta": meta})

    def _read(self, meta: dict[str, Any]) -> None:
        """What an earlier sitting measured; a line that it was cut off in is dropped."""
        if not self.plain.exists():
            return
        content = self.plain.read_bytes()
        whole = content[:content.rfind(b"\n") + 1]
        if len(whole) != len(content):
            self.plain.write_bytes(whole)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                earlier = record.get("meta")
            except (ValueError, AttributeError) as error:
                raise wrong_input(f"{self.path}, line {number}", "is no measurement; choose another file name") from error
            for key in SAME if earlier is not None else ():
                if earlier.get(key) != meta.get(key):
                    raise wrong_input(str(self.path), f"was measured with another {key} ({earlier.get(key)}, now {meta.get(key)}): "
                                      "choose another file name")
            if "family" in record or "group" in record:
                self.measured.add(identity(record))
                self.count += 1

    def _append(self, record: dict[str, Any]) -> None:
        self.file.write((json.dumps(record, separators=(",", ":")) + "\n").encode())
        self.file.flush()

    def write(self, record: dict[str, Any]) -> None:
        self._append(record)
        if "family" in record or "group" in record:
            self.count += 1
            self.new += 1

    def close(self) -> None:
        """Parts close the file after themselves; there is one for all of them."""

    def finish(self) -> None:
        self.file.close()
        if self.packed:
            unfinished = self.path.with_name(self.path.name + ".new")
            unfinished.write_bytes(compress(self.plain.read_bytes()))
            unfinished.replace(self.path)
            self.plain.unlink()


class _Profile(Session):
    verbose = False

    def __init__(self, device: Device, budget_s: float, file: _File, quick: bool, only: list[str] | None,
                 progress: Callable[..., Any]) -> None:
        super().__init__(device, budget_s)
        self.file, self.quick, self.only, self.measured = file, quick, only, file.measured
        self.progress = lambda text: progress(f"{file.count} measured; {text}", self.clock.elapsed() / budget_s)

    def lines(self, name: str) -> _File:
        return self.file


def profile(path: str | os.PathLike[str], quick: bool = False, budget_s: float = 600, *, only: list[str] | None = None,
            progress: Callable[..., Any] | None = None, device: Device | None = None) -> dict[str, Any]:
    """Measures the local GPU's operators (GEMM, convolution, attention, norms, softmax, pointwise, casts, copies, reductions,
    embedding, losses, optimizers) and what dispatching them costs the host.

    path: .jsonl, or .jsonl.zst to compress it. An unfinished file is continued. quick: a fraction of the shapes.
    budget_s: no measurement is started after this. only: families of operators ("gemm", "conv", ...) and "host".
    Returns {"path", "measurements", "new", "complete", "gpu", "notes"}.
    """
    if budget_s <= 0:
        raise wrong_input("budget_s", f"is {budget_s}; a number of seconds is wanted")
    known = [*operators.FAMILIES, "host"]
    unknown = [name for name in only or [] if name not in known]
    if unknown:
        raise wrong_input("only", f"has {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
    if device is None:
        require_gpu()
        device = Device(dry_run=False)
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise wrong_input(str(path), f"there is no folder {path.parent}")
    name = gpu_name(device.name()) or device.name()
    file = _File(path, {"format": FORMAT, "gpu_name": name, **describe_machine(device.dry_run)})
    shown = progress if progress is not None else Progress()
    session = _Profile(device, budget_s, file, quick, only, shown)
    try:
        for part, wanted in ((host.run, only is None or "host" in only), (operators.run, only is None or set(only) != {"host"})):
            if wanted:
                with session.survive(part.__module__):
                    part(session)
    finally:
        file.finish()
        if isinstance(shown, Progress):
            shown.done()
    failed = [note for note in session.notes if not note.startswith("budget")]
    if not file.count:
        raise PrecogError("bug", "nothing could be measured: " + ("; ".join(failed[:3]) or "the budget was spent at once"))
    return {"path": str(path), "measurements": file.count, "new": file.new, "gpu": name, "notes": session.notes,
            "complete": not any(note.startswith("budget") for note in session.notes)}
