"""What everybody in the chaos writes down: lines that go through one pipe to the conductor.

A pipe, so that a full disk loses no line, and each line in one write, so that a process that is killed leaves whole
ones. Owns the form of a line. Knows nothing of what lines mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import time
from typing import Any

__all__ = ["Journal", "Line", "tell"]

Line = dict[str, Any]

CAPACITY = 1 << 20
"""Bytes that wait for a conductor who is busy; the system's own 64 KiB are soon full."""

_writing: list[int] = []
"""The descriptor of the writing end, in this process and in those that it forks; empty where nobody listens."""


def tell(what: str, **more: Any) -> None:
    """Write a line down. Does nothing where nobody listens."""
    for descriptor in _writing:
        line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **more}
        text = json.dumps(line).encode() + b"\n"
        assert len(text) <= select.PIPE_BUF, "longer ones are not written at once"
        os.write(descriptor, text)


class Journal:
    """The conductor's end. ``lines`` are all that were read."""

    def __init__(self) -> None:
        self._end, writing = os.pipe()
        _writing.append(writing)
        with contextlib.suppress(OSError):  # a small pipe makes writers wait, no more
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, CAPACITY)
        self.lines: list[Line] = []
        self._rest = b""

    def listen(self, seconds: float) -> list[Line]:
        """Read for so long; return what came."""
        before = len(self.lines)
        deadline = time.monotonic() + seconds
        while select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(self._end, CAPACITY)
            if not data:
                break
            *whole, self._rest = (self._rest + data).split(b"\n")
            self.lines += [json.loads(text) for text in whole]
            if time.monotonic() >= deadline:
                break
        return self.lines[before:]

    def finish(self) -> None:
        """Read what is left; everybody else who could write is to have ended."""
        while _writing:
            os.close(_writing.pop())
        while self.listen(1.0):
            pass
        os.close(self._end)
