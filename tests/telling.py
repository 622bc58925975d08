"""Sentences and sums that tests want to be read: how many schedules, injections, kills.

A test that tried nothing would pass, too; the numbers say that it did not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["TOLD", "merge", "section_lines"]

TOLD: Final[dict[str, list[str]]] = {}
"""Lines by section. Those that end in ``: <number>`` are added up."""

_SUM: Final = re.compile(r"(.*): (\d+)")


def merge(others: Mapping[str, list[str]]) -> None:
    """Take over what another process has to tell."""
    for title, lines in others.items():
        TOLD.setdefault(title, []).extend(lines)


def section_lines() -> Iterator[tuple[str, list[str]]]:
    """Iterate over sections and their lines, sums first."""
    for title, lines in sorted(TOLD.items()):
        sums: Counter[str] = Counter()
        sentences = []
        for line in lines:
            match = _SUM.fullmatch(line)
            if match is None:
                sentences.append(line)
            else:
                sums[match[1]] += int(match[2])
        yield title, [f"{name}: {number}" for name, number in sorted(sums.items())] + sentences
