"""Says what is going on, on standard error: one line rewritten on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time

_WIDTH = 24


class Progress:
    """Call it with a text, and with how much is done (0 to 1) where that is known; `done()` clears the line."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.terminal = sys.stderr.isatty()
        self.every_s = every_s
        self.started = self.last = time.monotonic()

    def __call__(self, text: str, share: float | None = None) -> None:
        now = time.monotonic()
        if now - self.last < (0.1 if self.terminal else self.every_s):
            return
        self.last = now
        bar = ""
        if share is not None:
            filled = round(_WIDTH * min(max(share, 0.0), 1.0))
            bar = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] "
        line = f"{now - self.started:6.1f} s  {bar}{text}"
        if self.terminal:
            print(f"\r\x1b[K{line[:110]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def done(self) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
