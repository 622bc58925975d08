"""System calls that fail when a test says so: the Nth from now, once or from then on.

Owns the list of them and the count. A failing ``close`` closes all the same, as the kernel does, and ``fsync`` costs
nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Final

from stores.files.ops import FileOps

CALLS: Final = (
    *("open", "close", "read", "write", "fsync", "fstat", "stat", "lstat", "listdir", "scandir"),
    *("mkdir", "rmdir", "link", "replace", "rename", "unlink", "utime", "exchange"),
)
TROUBLES: Final = (errno.ENOSPC, errno.EIO, errno.EINTR, errno.ESTALE, errno.EACCES, errno.EMFILE)


class FailingOps(FileOps):
    """Real system calls, until one is told to fail."""

    def __init__(self) -> None:
        self.struck: list[str] = []
        """What was failed since the last :meth:`fail`, as name and path."""
        self._code = 0
        self._nth = 0
        self._forever = False
        self._calls = 0
        for name in CALLS:
            setattr(self, name, self._watched(name, getattr(FileOps, name)))

    def fail(self, code: int, *, nth: int, forever: bool) -> None:
        self._code, self._nth, self._forever, self._calls = code, nth, forever, 0
        self.struck.clear()

    def heal(self) -> None:
        self._nth = 0

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if name == "close":
                os.close(*arguments)
            self._strike(name, arguments)
            if name in ("close", "fsync"):
                return None
            return function(*arguments, **keywords)

        return call

    def _strike(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not self._nth:
            return
        self._calls += 1
        if self._calls == self._nth or (self._forever and self._calls > self._nth):
            self.struck.append(f"{name} {arguments[0]}")
            raise OSError(self._code, os.strerror(self._code), str(arguments[0]))
