"""Temporary files: names that tell whose they are, and which ones nobody will ever finish.

Owns the names. Refuses to remove what a live writer may still need.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import socket
from collections.abc import Sequence
from typing import Final

from stores.files.ops import FileOps
from task_tracker.clock import Clock, wall_ns

__all__ = ["Temporaries"]

PREFIX: Final = ".tmp-"
ORPHAN_SECONDS: Final = 60
"""A dead process of this host will not go on; the minute is for clocks that step."""
FOREIGN_SECONDS: Final = 86_400
"""Whether a process of another host (or with a pid that was used again) lives cannot be told: a day."""

_NAME: Final = re.compile(r"\.tmp-([0-9a-f]{8})-([0-9]+)-([0-9]+)-[0-9a-f]{8}-[0-9]+")


class Temporaries:
    """Names like ``.tmp-<host>-<pid>-<second>-<instance>-<number>``: unique, never ending in ``.json``."""

    def __init__(self, clock: Clock, ops: FileOps) -> None:
        self._clock = clock
        self._ops = ops
        self._host = hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
        self._instance = clock.new_token()[:8]
        self._numbers = itertools.count()

    def new_name(self) -> str:
        """Return a name that nobody has used."""
        second = int(self._clock.now())
        return f"{PREFIX}{self._host}-{os.getpid()}-{second}-{self._instance}-{next(self._numbers)}"

    def stale(self, name: str) -> bool:
        """Tell whether ``name`` says that it was given more than a day ago: nobody writes that long."""
        match = _NAME.fullmatch(name)
        return match is not None and self._clock.now() - int(match[3]) > FOREIGN_SECONDS

    def abandoned(self, path: str, name: str) -> bool:
        """Tell whether the temporary file ``name`` at ``path`` belongs to nobody who could go on."""
        match = _NAME.fullmatch(name)
        if match is None:
            return False
        try:
            age_seconds = (wall_ns() - self._ops.stat(path).st_mtime_ns) / 1e9
        except OSError:
            return False  # finished meanwhile, or not to be looked at now
        if age_seconds > FOREIGN_SECONDS:
            return True
        return match[1] == self._host and age_seconds > ORPHAN_SECONDS and not _alive(int(match[2]))

    def sweep(self, directory: str, names: Sequence[str]) -> None:
        """Remove the abandoned ones among ``names`` of ``directory`` (a full path)."""
        for name in names:
            if name.startswith(PREFIX) and self.abandoned(path := f"{directory}/{name}", name):
                with contextlib.suppress(OSError):  # the next sweep tries again
                    self._ops.unlink(path)


def _alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # signal 0 means something else there; age decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # it exists, or it cannot be told
    return True
