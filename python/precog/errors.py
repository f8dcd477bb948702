"""What goes wrong, as one exception: which kind it is (`code`) and every problem found, each with its place."""

from __future__ import annotations

from typing import NamedTuple, Sequence

__all__ = ["PrecogError", "Problem"]


class Problem(NamedTuple):
    """One thing that is wrong: `where` (a field, a file, a module; may be empty) and what would be right."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class PrecogError(Exception):
    """Raised by every function of this package.

    `code` is "wrong_input" (the request, a file, an argument: the problems say what would be right), "capture" (a model
    that cannot be captured), "script" (a user's function failed), "no_device" (no GPU to measure on), "not_installed" (a
    library is missing) or "bug" (ours).
    """

    def __init__(self, code: str, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.problems = tuple(problems) or (Problem("", message),)

    def __reduce__(self):  # an exception that crosses processes keeps its fields
        return type(self), (self.code, self.message, self.problems)


def wrong_input(where: str, message: str) -> PrecogError:
    """The error for one wrong argument."""
    problem = Problem(where, message)
    return PrecogError("wrong_input", str(problem), [problem])
