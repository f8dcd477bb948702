"""Sizes as expressions: the same extent seen at several batch sizes and sequence lengths becomes `12*batch*seq+1`."""
from __future__ import annotations

import itertools
from fractions import Fraction


class NotSymbolic(Exception):
    """A size that grows in a way no expression here describes."""


class Extents:
    """Finds expressions for values seen at the given points; each point maps symbols to sizes."""

    def __init__(self, points: list[dict[str, int]], symbols: list[str]) -> None:
        self.points = points
        monomials: list[tuple[str, ...]] = []
        for degree in range(1, 4):
            monomials += [combo for combo in itertools.combinations_with_replacement(symbols, degree) if degree < 3 or len(set(combo)) > 1]
        self._monomials = monomials
        self._values = {combo: [self._evaluate(combo, point) for point in points] for combo in monomials}
        self._known: dict[tuple[int, ...], int | str] = {}

    @staticmethod
    def _evaluate(combo: tuple[str, ...], point: dict[str, int]) -> int:
        product = 1
        for symbol in combo:
            product *= point[symbol]
        return product

    def of(self, seen: tuple[int, ...]) -> int | str:
        if seen not in self._known:
            self._known[seen] = self._solve(seen)
        return self._known[seen]

    def _solve(self, seen: tuple[int, ...]) -> int | str:
        if len(set(seen)) == 1:
            return seen[0]
        for combo in self._monomials:
            values = self._values[combo]
            if seen[0] % values[0] == 0 and all(seen[0] // values[0] * v == s for v, s in zip(values, seen)):
                return _text([(seen[0] // values[0], combo)])
        terms: list[tuple[str, ...]] = [(), *self._monomials]
        for first, second in itertools.combinations(terms, 2):
            found = self._two_terms(seen, first, second)
            if found is not None:
                return found
        raise NotSymbolic(f"a size takes the values {list(seen)}")

    def _two_terms(self, seen: tuple[int, ...], first: tuple[str, ...], second: tuple[str, ...]) -> str | None:
        a = self._values.get(first, [1] * len(seen))
        b = self._values.get(second, [1] * len(seen))
        for i in range(1, len(seen)):
            determinant = a[0] * b[i] - a[i] * b[0]
            if determinant == 0:
                continue
            x = Fraction(seen[0] * b[i] - seen[i] * b[0], determinant)
            y = Fraction(a[0] * seen[i] - a[i] * seen[0], determinant)
            if x.denominator == y.denominator == 1 and all(x * p + y * q == s for p, q, s in zip(a, b, seen)):
                return _text([(int(y), second), (int(x), first)])
            return None
        return None


def _text(terms: list[tuple[int, tuple[str, ...]]]) -> str:
    out = ""
    for factor, combo in terms:
        if factor == 0:
            continue
        sign = "-" if factor < 0 else "+" if out else ""
        parts = ([str(abs(factor))] if abs(factor) != 1 or not combo else []) + list(combo)
        out += sign + "*".join(parts)
    if out.startswith("-"):
        raise NotSymbolic(f"{out} would be negative for small sizes")
    return out
