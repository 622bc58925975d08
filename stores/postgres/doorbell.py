"""A bell that wakes a thread which waits for a connection.

Owns a pipe. It exists because a thread that waits for what the server may say must hear its own process too: that it is
to stop, or that something else is wanted now.
"""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["Doorbell"]

_MOST_AT_ONCE = 4096


class Doorbell:
    """Rung by any thread, waited for by one."""

    def __init__(self) -> None:
        self._hear, self._pull = os.pipe()
        for end in (self._hear, self._pull):
            os.set_blocking(end, False)

    def ring(self) -> None:
        """Have the wait that goes on, or else the next one, end."""
        with contextlib.suppress(BlockingIOError):  # it has been rung many times already
            os.write(self._pull, b"!")

    def wait(self, descriptor: int, seconds: float) -> None:
        """Return when something has come on ``descriptor``, at a ring, or after ``seconds``."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLPRI)
        poll.register(self._hear, select.POLLIN)
        poll.poll(seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._hear, _MOST_AT_ONCE)

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._hear)
        os.close(self._pull)
