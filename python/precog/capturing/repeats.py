"""Layers that repeat are written once: consecutive blocks whose entries are the same but for their number."""
from __future__ import annotations

import json
from typing import Any


def folded(entries: list[dict[str, Any]], refs: list[list[int]], defined: list[int]) -> list[dict[str, Any]]:
    """`refs` holds each entry's absolute references, to which its `in` and `like` point by place; `defined` how many tensors exist
    when the entry is read. Returns entries with final references, repeated stretches folded."""
    spans = _spans(entries)
    out: list[dict[str, Any]] = []
    position = 0
    index = 0
    while index < len(spans):
        first, last = spans[index]
        while position < first:
            out.append(_final(entries[position], refs[position], defined[position]))
            position += 1
        count, relative = _run(entries, refs, defined, spans, index)
        if count >= 2:
            number = entries_block(entries, first)
            pattern = _block_path(entries, first, last, number)
            body = []
            for entry in range(first, last):
                body.append(_numberless(_final(entries[entry], refs[entry], defined[entry], relative[entry - first]), pattern, number))
            out.append({"repeat": count, "first": _label(pattern), "stream": body})
            position = spans[index + count - 1][1]
            index += count
        else:
            index += 1
    while position < len(entries):
        out.append(_final(entries[position], refs[position], defined[position]))
        position += 1
    return out


def entries_block(entries: list[dict[str, Any]], start: int) -> int:
    while "block" not in entries[start]:
        start += 1
    return entries[start]["block"]


def _spans(entries: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """[first, last) of each stretch of entries of one block; a leaf belongs to the call after it."""
    owner: list[int | None] = [None] * len(entries)
    following: int | None = None
    for index in range(len(entries) - 1, -1, -1):
        if "op" in entries[index]:
            following = entries[index].get("block")
        owner[index] = following
    spans, start = [], 0
    for index in range(1, len(entries) + 1):
        if index == len(entries) or owner[index] != owner[start]:
            if owner[start] is not None:
                spans.append((start, index))
            start = index
    return spans


def _block_path(entries: list[dict[str, Any]], first: int, last: int, number: int) -> str:
    """The common module path of a block: `model.layers.3`."""
    common: list[str] | None = None
    for entry in entries[first:last]:
        if "op" in entry and entry.get("module"):
            parts = entry["module"].split(".")
            common = parts if common is None else [a for a, b in zip(common, parts) if a == b][:_prefix(common, parts)]
    while common and not common[-1].isdigit():
        common.pop()
    return ".".join(common or [])


def _prefix(a: list[str], b: list[str]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


def _label(path: str) -> int:
    return int(path.rsplit(".", 1)[-1])


def _numberless(entry: dict[str, Any], path: str, number: int) -> dict[str, Any]:
    container = path.rsplit(".", 1)[0] if "." in path else ""
    general = f"{container}.{{}}" if container else "{}"
    changed = dict(entry)
    for key in ("module", "name"):
        text = changed.get(key)
        if text == path or (text and text.startswith(path + ".")):
            changed[key] = general + text[len(path):]
    return changed


def _run(entries, refs, defined, spans, index) -> tuple[int, list[list[bool]]]:
    """How many blocks from here on are alike, and which of their references are relative."""
    first, last = spans[index]
    number = entries_block(entries, first)
    path = _block_path(entries, first, last, number)
    if not path or "{" in path:
        return 1, []
    texts = [_text(entries[entry], path, number, number) for entry in range(first, last)]
    possible = [[(True, True)] * len(refs[entry]) for entry in range(first, last)]
    count = 1
    while index + count < len(spans):
        start, end = spans[index + count]
        if end - start != last - first or start != spans[index + count - 1][1]:
            break
        other = entries_block(entries, start)
        other_path = _block_path(entries, start, end, other)
        if other != number + count or not other_path or _label(other_path) != _label(path) + count \
                or other_path.rsplit(".", 1)[:-1] != path.rsplit(".", 1)[:-1]:
            break
        narrowed = []
        for offset in range(last - first):
            if _text(entries[start + offset], other_path, other, number) != texts[offset]:
                narrowed = None
                break
            here, there = first + offset, start + offset
            choices = []
            for (relative, absolute), a, b in zip(possible[offset], refs[here], refs[there]):
                pair = (relative and a - defined[here] == b - defined[there], absolute and a == b)
                if pair == (False, False):
                    narrowed = None
                    break
                choices.append(pair)
            if narrowed is None:
                break
            narrowed.append(choices)
        if narrowed is None:
            break
        possible = narrowed
        count += 1
    return count, [[relative for relative, _ in choices] for choices in possible]


def _text(entry: dict[str, Any], path: str, number: int, as_number: int) -> str:
    plain = _numberless(entry, path, number)
    if "block" in plain:
        plain = {**plain, "block": plain["block"] - number}
    return json.dumps(plain, sort_keys=True)


def _final(entry: dict[str, Any], refs: list[int], defined: int, relative: list[bool] | None = None) -> dict[str, Any]:
    """References by place become numbers of tensors, counted back where they are relative (or close by)."""
    if "op" not in entry:
        return entry

    def number(place):
        if place is None or isinstance(place, str):
            return place
        return refs[place] - defined if relative is None or relative[place] else refs[place]
    changed = {**entry, "in": [number(place) for place in entry["in"]]}
    if "like" in entry.get("attrs", {}):
        changed["attrs"] = {**entry["attrs"], "like": number(entry["attrs"]["like"])}
    return changed
