"""Where records can be kept: a directory, or a server's own file client.

Owns what a configured root may be. Refuses what it would have to guess.
"""

from __future__ import annotations

import os

from stores.files.backing import Backing
from stores.files.client import ClientFiles
from stores.files.local import LocalFiles
from task_tracker.clock import Clock
from task_tracker.errors import SettingsError

__all__ = ["directory_of", "open_place"]


def open_place(files: object, clock: Clock, durability: str, lock_timeout_seconds: float) -> Backing:
    """Return the place that ``files`` means: a path, a ``file://`` URL, or a client. Raises SettingsError."""
    if not isinstance(files, (str, os.PathLike)):
        return ClientFiles(files, clock, lock_timeout_seconds=lock_timeout_seconds)
    return LocalFiles(
        directory_of(files), clock, durability=durability, lock_timeout_seconds=lock_timeout_seconds
    )


def directory_of(root: str | os.PathLike[str]) -> str:
    """Return the directory that a path or a ``file://`` URL means. Raises SettingsError."""
    path = os.fspath(root)
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise SettingsError(f"root is {path!r}; give the path of a directory")
    path = os.path.expanduser(path)
    scheme, separator, rest = path.partition("://")
    if separator and (scheme != "file" or not rest.startswith("/")):
        raise SettingsError(f"root is {path!r}; this version keeps records in local directories, give a path")
    return rest if separator else path
