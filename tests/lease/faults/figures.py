"""Numbers that the tests of faults tell at the end of a run: how much was tried.

Owns the sums. A test of faults that tried nothing would pass, too; the numbers say that it did not.
"""

from __future__ import annotations

from tests.telling import TOLD


class Figures:
    """Sums by name, and sentences."""

    def add(self, name: str, number: int) -> None:
        TOLD.setdefault("faults", []).append(f"{name}: {number}")

    def say(self, sentence: str) -> None:
        TOLD.setdefault("faults", []).append(sentence)


FIGURES = Figures()
