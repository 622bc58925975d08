"""Whether a root is still the directory that it was.

Owns the memory of which one that is. It exists because a volume that went away looks like a root without tasks.
"""

from __future__ import annotations

import contextlib
import os

from stores.files.backing import unavailable
from stores.files.ops import FileOps
from task_tracker.errors import StoreUnavailable

__all__ = ["Root"]


class Root:
    """A root, and which directory it was when it was first seen."""

    def __init__(self, path: str, ops: FileOps) -> None:
        self._path = path or "/"
        self._ops = ops
        self._identity: tuple[int, int] | None = None
        self.note()

    def note(self) -> None:
        """Remember which directory it is, once it is there."""
        if self._identity is None:
            with contextlib.suppress(OSError):
                found = self._ops.stat(self._path)
                self._identity = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raise StoreUnavailable if it is not the directory that it was: nothing is known of its tasks then."""
        if self._identity is None and not os.path.islink(self._path):
            return  # it may never have been there
        try:
            found = self._ops.stat(self._path)
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"{self._path} is gone; mount it again, or restart if it was removed on purpose"
            ) from error
        except OSError as error:
            raise unavailable("look at", self._path, error) from error
        if self._identity not in (None, (found.st_dev, found.st_ino)):
            raise StoreUnavailable(
                f"{self._path} is another directory than before; mount the right one again, or restart if it was "
                "replaced on purpose"
            )
