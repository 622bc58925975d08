"""What the demo says: a story in lines, and bars that move where a terminal can show them."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

Task = Mapping[str, Any]

WIDEST: Final = 100
COLOURS: Final = {
    "pending": "2",
    "running": "36",
    "cancelling": "33",
    "cancelled": "33",
    "completed": "32",
    "failed": "31",
}


class Screen:
    """Writes to ``out``. Bars are redrawn in place on a terminal; elsewhere each change is one plain line."""

    def __init__(self, out: TextIO | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        environment = os.environ if environment is None else environment
        terminal = self._out.isatty() and environment.get("TERM", "dumb") != "dumb"
        self._redraws = terminal
        self._colours = terminal and not environment.get("NO_COLOR")
        self._full, self._empty = ("━", "─") if _can_encode(self._out, "━─…") else ("#", ".")
        self._drawn = 0
        self._told: dict[str, tuple[str, bool]] = {}

    def step(self, title: str) -> None:
        """Begin a part of the story."""
        self._leave_bars()
        self._write("")
        for line in self._wrapped(title):
            self._write(self._coloured(line, "1"))

    def say(self, text: str) -> None:
        """Tell what is going on."""
        self._leave_bars()
        for line in self._wrapped(text, "   "):
            self._write(line)

    def fact(self, text: str) -> None:
        """Tell what was checked and is so."""
        self._leave_bars()
        for number, line in enumerate(self._wrapped(f"ok {text}", "   ", "      ")):
            self._write(line if number else line.replace("ok", self._coloured("ok", "32"), 1))

    def problem(self, text: str) -> None:
        """Tell what went wrong."""
        self._leave_bars()
        self._write(self._coloured(text, "31"))

    def show(self, tasks: Sequence[Task]) -> None:
        """Show how far tasks have got, oldest first."""
        columns, rows = self._size()
        if self._redraws and len(tasks) + 2 <= rows:
            lines = [self._bar(task, columns) for task in tasks]
            up = f"\x1b[{self._drawn}A" if self._drawn else ""
            self._out.write(up + "".join(f"\x1b[2K{line}\n" for line in lines))
            self._drawn = len(lines)
            self._out.flush()
            return
        for task in tasks:
            half = (task.get("progress") or 0) >= 50
            if self._told.get(task["task_id"]) != (task["status"], half):
                self._told[task["task_id"]] = (task["status"], half)
                self._write(f"   {task['resource_id']} {percent(task):>4} {task['status']}")

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Show rows in columns; what does not fit is cut off."""
        self._leave_bars()
        columns, _ = self._size()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self._write(f"   {'  '.join(cells)}".rstrip()[:columns])

    def _leave_bars(self) -> None:
        """Let the bars stand as they are; the next ones begin below."""
        self._drawn = 0

    def _bar(self, task: Task, columns: int) -> str:
        status = str(task["status"])
        # Drawn from left to right as far as the width goes, the least important last.
        name, stage = f"   {task['resource_id']} ", str(task.get("stage") or "")
        tail = f" {percent(task):>4} {status:<10}"
        room = columns - len(name) - len(tail)
        width = max(0, min(30, room - (14 if room > 30 else 0)))
        done = round(width * float(task.get("progress") or 0) / 100)
        bar = self._coloured(self._full * done, COLOURS.get(status, "0")) + self._empty * (width - done)
        rest = f" {stage}" if status == "running" else ""
        line_length = len(name) + width + len(tail)
        return f"{name}{bar}{tail}"[: None if line_length <= columns else columns] + _cut(
            rest, columns - line_length
        )

    def _wrapped(self, text: str, first: str = "", other: str | None = None) -> list[str]:
        columns, _ = self._size()
        return textwrap.wrap(
            text,
            max(20, columns),
            initial_indent=first,
            subsequent_indent=first if other is None else other,
            break_on_hyphens=False,
        )

    def _write(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()

    def _coloured(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours and text else text

    def _size(self) -> tuple[int, int]:
        size = shutil.get_terminal_size()  # asked anew: windows change
        # The last column stays free: some terminals wrap as soon as it is written to.
        return min(WIDEST, size.columns - 1), size.lines


def percent(task: Task) -> str:
    return f"{task.get('progress') or 0:.0f}%"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else ""


def _can_encode(out: TextIO, text: str) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
