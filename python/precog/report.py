"""The answers: dictionaries whose fields are attributes too, and which print as a person reads them."""

from __future__ import annotations

import html
import json
from typing import Any, Iterator

from .text import bytes_text, count_text, html_table, money_text, seconds_text, table

__all__ = ["Comparison", "Fields", "Report"]


class Fields(dict):
    """A JSON object: `x["breakdown"]["forward"]` and `x.breakdown.forward` are the same."""

    @classmethod
    def of(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return Fields({key: Fields.of(item) for key, item in value.items()})
        return [Fields.of(item) for item in value] if isinstance(value, list) else value

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            fields = ", ".join(str(key) for key in self)
            raise AttributeError(f"there is no field {name!r}; the fields are {fields}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(key for key in self if isinstance(key, str))})


class Report(Fields):
    """One prediction: every field of `precog predict --json`, as attributes and as items. Seconds, bytes and US dollars;
    None where a field does not apply. `to_json()` is the document itself, byte for byte."""

    model: str
    precision: str
    gpu: str
    gpus: int
    request: Fields
    step_s: float
    step_s_low: float
    step_s_high: float
    samples_per_s: float
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    mfu: float
    mfu_bf16: float
    tflops_per_gpu: float
    peak_bytes: int
    reserved_bytes: int
    device_bytes: int
    device_bytes_low: int
    device_bytes_high: int
    capacity_bytes: int
    fits: bool
    fits_verdict: str
    memory: Fields
    total_s: float | None
    cost_usd: float | None
    breakdown: Fields
    by_dtype: Fields
    by_op_class: Fields
    kernels: int
    gpu_busy_s: float
    host_s: float
    bound: str
    provenance: list[Fields]
    warnings: list[str]

    @classmethod
    def from_json(cls, text: str) -> "Report":
        report = cls({key: Fields.of(value) for key, value in json.loads(text).items()})
        object.__setattr__(report, "_text", text)
        return report

    def to_json(self) -> str:
        """The document as the library wrote it; after a change, written anew."""
        text = self.__dict__.get("_text")
        if text is not None and json.loads(text) == self:
            return text
        return json.dumps(self, indent=2) + "\n"

    def _title(self) -> str:
        gpus = f"{self.gpus} x {self.gpu}" if self.gpus > 1 else self.gpu
        size = f", sequence {self.seq}" if self.get("seq") else ""
        return f"{self.model} ({count_text(self.parameters)} parameters) in {self.precision} on {gpus}, batch {self.batch}{size}"

    def _rows(self) -> list[tuple[str, str]]:
        speed = f"{count_text(self.tokens_per_s)} tokens/s" if self.tokens_per_s else f"{count_text(self.samples_per_s)} samples/s"
        fits = "fits" if self.fits else "DOES NOT FIT"
        interval = f"({seconds_text(self.step_s_low)} to {seconds_text(self.step_s_high)}, 80% interval)"
        needed = f"needs {bytes_text(self.device_bytes)} of {bytes_text(self.capacity_bytes)}"
        rows = [("step", f"{seconds_text(self.step_s)}  {interval}"),
                ("speed", f"{speed}, {self.tflops_per_gpu:.1f} TFLOP/s per GPU, MFU {100 * self.mfu:.1f}%"),
                ("memory", f"{bytes_text(self.peak_bytes)} peak; {needed}: {fits}"),
                ("bound by", self.bound)]
        if self.total_s is not None:
            cost = f", {money_text(self.cost_usd)}" if self.cost_usd is not None else ""
            rows.append(("run", seconds_text(self.total_s) + cost))
        return rows

    def _parts(self) -> list[tuple[str, float]]:
        parts: list[tuple[str, float]] = []
        for name, value in self.breakdown.items():
            parts += [(f"{name} {key}", item) for key, item in value.items()] if isinstance(value, dict) else [(name, value)]
        return sorted(((name.replace("_", " "), value) for name, value in parts if value > 0), key=lambda part: -part[1])

    def __repr__(self) -> str:
        if "step_s" not in self:
            return dict.__repr__(self)
        parts = [(f"  {name}", seconds_text(value), f"{100 * value / self.step_s:.0f}%") for name, value in self._parts()]
        lines = [self._title(), *table([(f"  {name}", value) for name, value in self._rows()]), "where the step goes", *table(parts)]
        return "\n".join(lines + [f"warning: {warning}" for warning in self.warnings])

    def _repr_html_(self) -> str:
        parts = [(name, seconds_text(value), f"{100 * value / self.step_s:.0f}%") for name, value in self._parts()]
        warnings = "".join(f"<p>warning: {html.escape(warning)}</p>" for warning in self.warnings)
        title = f"<p><b>{html.escape(self._title())}</b></p>"
        return title + html_table(self._rows()) + html_table(parts, ("where the step goes", "time", "share")) + warnings


class Comparison(Fields):
    """The same job at several precisions, fastest first: iterate over it, index it by position or by precision's name.
    What could not be predicted is in `left_out`, with the reason."""

    reports: list[Report]
    left_out: list[Fields]
    baseline: str
    verdict: str

    @classmethod
    def from_json(cls, text: str) -> "Comparison":
        value = json.loads(text)
        reports = [Report({key: Fields.of(item) for key, item in report.items()}) for report in value["reports"]]
        comparison = cls({key: reports if key == "reports" else Fields.of(item) for key, item in value.items()})
        object.__setattr__(comparison, "_text", text)
        return comparison

    def to_json(self) -> str:
        text = self.__dict__.get("_text")
        return text if text is not None and json.loads(text) == self else json.dumps(self, indent=2) + "\n"

    @property
    def fastest(self) -> Report:
        """The first of `reports`: the fastest that fits, if one does."""
        return self.reports[0]

    @property
    def precisions(self) -> list[str]:
        return [report.precision for report in self.reports]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, slice)):
            return dict.__getitem__(self, "reports")[key]
        if not dict.__contains__(self, key):
            for report in dict.__getitem__(self, "reports"):
                if report.precision == key:
                    return report
        return dict.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or key in self.precisions

    def __iter__(self) -> Iterator[Report]:  # type: ignore[override]
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    _HEAD = ("precision", "step", "speed-up", "samples/s", "peak memory", "bound by")

    def _rows(self) -> list[tuple[str, ...]]:
        return [(r.precision, seconds_text(r.step_s), f"{r.speedup:.2f}x" if r.get("speedup") else "-", count_text(r.samples_per_s),
                 bytes_text(r.peak_bytes) + ("" if r.fits else " (does not fit)"), r.bound) for r in self.reports]

    def __repr__(self) -> str:
        first = self.fastest
        gpus = f"{first.gpus} x {first.gpu}" if first.gpus > 1 else first.gpu
        lines = [f"{first.model} on {gpus}, batch {first.batch}", *table([self._HEAD, *self._rows()]), self.verdict]
        return "\n".join(lines + self._left_out())

    def _left_out(self) -> list[str]:
        """One line per reason."""
        reasons: dict[str, list[str]] = {}
        for left in self.left_out:
            reasons.setdefault(left.reason, []).append(left.precision)
        return [f"left out: {', '.join(names)} ({reason})" for reason, names in reasons.items()]

    def _repr_html_(self) -> str:
        left = "".join(f"<br>{html.escape(line)}" for line in self._left_out())
        return html_table(self._rows(), self._HEAD) + f"<p>{html.escape(self.verdict)}{left}</p>"
