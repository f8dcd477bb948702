"""precog.profile: operators and host dispatch of the local GPU, into one file that cost models are fitted from.

The file is JSON lines. A line {"meta": ...} names machine and versions of what follows it; lines with "family" are operators
(precog.gpu.operators), lines with "group" the host (precog.gpu.host). Every line is on the disk before the next measurement
starts; the same call on an unfinished file goes on where it stopped. Nothing here needs precog's C++ library.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
from typing import Any, Callable, Iterable

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
FULL_S, QUICK_S = 600.0, 120.0
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
        self.families: dict[str, dict[str, int]] = {}
        self._read(meta)
        try:
            self.file = open(self.plain, "ab")
        except OSError as error:
            raise wrong_input(str(path), f"cannot be written: {error.strerror}") from error
        self._append({"meta": meta})
        self.mark = path.with_name(path.name + ".trying")
        self._give_up_what_killed_us()

    def _give_up_what_killed_us(self) -> None:
        """A case that an earlier process began and did not outlive is not tried again."""
        try:
            begun = json.loads(self.mark.read_text())
        except (OSError, ValueError):
            return
        for record in begun:
            if identity(record) not in self.measured:
                self.measured.add(identity(record))
                self.write({**record, "error": "the process ended while this was measured"})

    def trying(self, records: list[dict[str, Any]]) -> None:
        self.mark.write_text(json.dumps(records))

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
            if self._counted(record):
                self.measured.add(identity(record))

    def _counted(self, record: dict[str, Any]) -> bool:
        if "family" not in record and "group" not in record:
            return False
        self.count += 1
        if "error" not in record and "oom" not in record:
            of_type = self.families.setdefault(record.get("family", "host"), {})
            of_type[record.get("dtype", "lines")] = of_type.get(record.get("dtype", "lines"), 0) + 1
        return True

    def _append(self, record: dict[str, Any]) -> None:
        self.file.write((json.dumps(record, separators=(",", ":")) + "\n").encode())
        self.file.flush()

    def write(self, record: dict[str, Any]) -> None:
        self._append(record)
        self.new += self._counted(record)

    def close(self) -> None:
        """Parts close the file after themselves; there is one for all of them."""

    def finish(self) -> None:
        self.file.close()
        self.mark.unlink(missing_ok=True)
        if self.packed:
            unfinished = self.path.with_name(self.path.name + ".new")
            unfinished.write_bytes(compress(self.plain.read_bytes()))
            unfinished.replace(self.path)
            self.plain.unlink()


def _identities(path: pathlib.Path) -> set[str]:
    """What the lines of a file measured; failures count, they would fail again."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise wrong_input(str(path), f"cannot be read: {error.strerror}") from error
    content = gzip.decompress(content) if path.suffix == ".gz" else decompress(content) if path.suffix == ".zst" else content
    try:
        records = [json.loads(line) for line in content.splitlines() if line.strip()]
        return {identity(record) for record in records if "family" in record or "group" in record}
    except (ValueError, AttributeError, TypeError) as error:
        raise wrong_input(str(path), "holds no measurements: a line of it is no JSON object") from error


class _Profile(Session):
    verbose = False

    def __init__(self, device: Device, budget_s: float, file: _File, quick: bool, only: list[str] | None,
                 progress: Callable[..., Any]) -> None:
        super().__init__(device, budget_s)
        self.file, self.quick, self.only, self.measured = file, quick, only, file.measured
        self.progress = lambda text: progress(f"{file.count} measured; {text}", self.clock.elapsed() / budget_s)

    def lines(self, name: str) -> _File:
        return self.file

    def trying(self, records: list[dict[str, Any]]) -> None:
        self.file.trying(records)


def profile(path: str | os.PathLike[str], quick: bool = False, budget_s: float | None = None, *, only: list[str] | None = None,
            known: Iterable[str | os.PathLike[str]] = (), progress: Callable[..., Any] | None = None,
            device: Device | None = None) -> dict[str, Any]:
    """Measures what dispatching operators costs the host, and the operators of the local GPU: products, convolutions,
    attention, recurrent layers, norms, softmax, losses, pointwise, casts, copies, reductions, indexing, sorting, pooling,
    optimizers, transfers, and what the clock does under load. The order is balanced: stopped at any time, the file is as good as the time it had.

    path: .jsonl, or .jsonl.zst to compress it. An unfinished file is continued. quick: a balanced quarter of the cases.
    budget_s: no measurement is started after this; 600, or 120 if quick. only: parts ("host", "operators") and families of operators
    ("gemm", "conv", ...). known: files of such lines (.jsonl, .gz, .zst) whose measurements need not be repeated.
    Returns {"path", "measurements", "new", "failed", "families", "lost", "complete", "gpu", "notes"}; lost: the GPU stopped answering.
    """
    budget_s = (QUICK_S if quick else FULL_S) if budget_s is None else budget_s
    if budget_s <= 0:
        raise wrong_input("budget_s", f"is {budget_s}; a number of seconds is wanted")
    parts = ["host", "operators", *operators.FAMILIES]
    unknown = [name for name in only or [] if name not in parts]
    if unknown:
        raise wrong_input("only", f"has {', '.join(map(repr, unknown))}; known are {', '.join(parts)}")
    if device is None:
        require_gpu()
        device = Device(dry_run=False)
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise wrong_input(str(path), f"there is no folder {path.parent}")
    elsewhere = set().union(*(_identities(pathlib.Path(other)) for other in known))
    name = gpu_name(device.name()) or device.name()
    file = _File(path, {"format": FORMAT, "gpu_name": name, **describe_machine(device.dry_run)})
    file.measured |= elsewhere
    shown = progress if progress is not None else Progress()
    chosen = None if only is None or "operators" in only else [name for name in only if name != "host"]
    session = _Profile(device, budget_s, file, quick, chosen, shown)
    try:
        for part, wanted in ((host.run, only is None or "host" in only), (operators.run, chosen is None or bool(chosen))):
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
    return {"path": str(path), "measurements": file.count, "new": file.new, "failed": session.failures, "families": file.families,
            "gpu": name, "notes": session.notes, "lost": session.lost, "complete": not session.lost and not any(note.startswith("budget") for note in session.notes)}
