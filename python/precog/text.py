"""Numbers and tables as people read them."""

from __future__ import annotations

import html
from typing import Iterable, Sequence


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    for size, unit in units:
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}".rstrip()
    size, unit = units[-1]
    return f"{value / size:.4g} {unit}".rstrip()


def seconds_text(value: float) -> str:
    return _scaled(value, ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us")))


def bytes_text(value: float) -> str:
    return _scaled(value, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def count_text(value: float) -> str:
    return _scaled(value, ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))) if value >= 1e4 else f"{value:.4g}"


def money_text(value: float) -> str:
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; the first to the left, the others as well: they hold text and units."""
    rows = [tuple(row) for row in rows]
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    line = lambda tag, cells: "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
    return "<table>" + (line("th", head) if head else "") + "".join(line("td", row) for row in rows) + "</table>"
