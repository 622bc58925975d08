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

__all__ = ["open_place"]


def open_place(files: object, clock: Clock, durability: str, lock_timeout_seconds: float) -> Backing:
    """Return the place that ``files`` means: a path, a ``file://`` URL, or a client. Raises SettingsError."""
    if not isinstance(files, (str, os.PathLike)):
        return ClientFiles(files, clock, lock_timeout_seconds=lock_timeout_seconds)
    root = os.fspath(files)
    if not isinstance(root, str) or not root.strip() or "\0" in root:
        raise SettingsError(f"root is {root!r}; give the path of a directory")
    root = os.path.expanduser(root)
    scheme, separator, rest = root.partition("://")
    if separator and (scheme != "file" or not rest.startswith("/")):
        raise SettingsError(f"root is {root!r}; this version keeps records in local directories, give a path")
    return LocalFiles(
        rest if separator else root, clock, durability=durability, lock_timeout_seconds=lock_timeout_seconds
    )
