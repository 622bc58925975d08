"""The removal of a directory that may hold anything, and that somebody may still be writing into.

Owns the walk: it goes through handles and never follows a link, so that nothing outside is touched whoever swaps a
directory for one meanwhile. What cannot be removed does not keep the rest. Refuses to go on for ever: it stops after
a number of names, and whoever called it comes again.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from stores.files.ops import DIRECTORY_FLAGS, FileOps

__all__ = ["TreeRemoval"]

_FLAGS: Final = DIRECTORY_FLAGS | getattr(os, "O_NOFOLLOW", 0)
_DEEPEST: Final = 200
"""Each level takes a descriptor."""


class TreeRemoval:
    """Removes trees, ``most`` names in all."""

    def __init__(self, ops: FileOps, most: int) -> None:
        self._ops = ops
        self._left = most
        self._error: OSError | None = None

    def remove(self, path: str) -> bool:
        """Remove what is at ``path``; True once it is gone, False if there was more than was to be done.

        Raises the first OSError there was, after all else was tried.
        """
        self._error = None
        self._remove(path, path, None, 0)
        if self._error is not None:
            raise self._error
        return self._left > 0

    def _remove(self, name: str, path: str, above: int | None, depth: int) -> None:
        """Remove ``name`` in the directory that is open as ``above``; ``path`` is for messages."""
        if self._left <= 0:
            return
        try:
            self._ops.unlink(name, dir_fd=above)
        except FileNotFoundError:
            return
        except OSError as error:
            # What the kernel says of a directory: the one is Linux, the other POSIX.
            if error.errno not in (errno.EISDIR, errno.EPERM):
                self._note(error, path)
                return
            if not self._empty(name, path, above, depth, error):
                return
            self._remove_directory(name, path, above)
        self._left -= 1

    def _empty(self, name: str, path: str, above: int | None, depth: int, refused: OSError) -> bool:
        """Remove what is in a directory; False if it is none."""
        try:
            if depth >= _DEEPEST:
                raise OSError(errno.ENAMETOOLONG, "too deep to be removed; remove it by hand")
            handle = self._ops.open(name, _FLAGS, dir_fd=above)
        except FileNotFoundError:
            return False
        except OSError as error:
            # Not a directory: what was refused is that it be unlinked.
            is_other = error.errno in (errno.ENOTDIR, errno.ELOOP)
            self._note(refused if is_other else error, path)
            return False
        try:
            for inner in self._ops.listdir(handle):  # type: ignore[arg-type]  # of its overloads, a class keeps one
                self._remove(inner, f"{path}/{inner}", handle, depth + 1)
        except OSError as error:
            self._note(error, path)
        finally:
            self._ops.close(handle)
        return True

    def _remove_directory(self, name: str, path: str, above: int | None) -> None:
        if self._left <= 0:
            return
        try:
            self._ops.rmdir(name, dir_fd=above)
        except FileNotFoundError:
            return
        except OSError as error:
            self._note(error, path)

    def _note(self, error: OSError, path: str) -> None:
        if self._error is None:
            self._error = OSError(error.errno, error.strerror or str(error), path)
