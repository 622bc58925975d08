"""Numbers that the tests of faults tell at the end of a run: how much was tried.

Owns the sums. A test of faults that tried nothing would pass, too; the numbers say that it did not.
"""

from __future__ import annotations

from collections import Counter


class Figures:
    """Sums by name, and sentences."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.sentences: list[str] = []

    def add(self, name: str, number: int) -> None:
        self.sums[name] += number

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def lines(self) -> list[str]:
        return [f"{name}: {number}" for name, number in sorted(self.sums.items())] + self.sentences


FIGURES = Figures()
