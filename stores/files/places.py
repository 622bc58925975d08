"""Where records can be kept: a directory, an object store, a file system of fsspec, a server's own file client.

Owns what a configured root may be. Refuses what it would have to guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from stores.files.backing import Backing
from stores.files.client import ClientFiles
from stores.files.connection import is_filesystem
from stores.files.local import LocalFiles
from task_tracker import defaults
from task_tracker.clock import Clock
from task_tracker.errors import SettingsError

__all__ = ["directory_of", "open_place"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(://|::)")
"""Of a URL, or of a chain of them; a single letter is a drive."""


def open_place(
    files: object,
    clock: Clock,
    durability: str,
    lock_timeout_seconds: float,
    *,
    prefix: str = defaults.PREFIX,
    options: Mapping[str, Any] | None = None,
) -> Backing:
    """Return the place that ``files`` means: a path, a URL, a file system of fsspec, or a client.

    ``options`` are those of the file system or the object store. Raises SettingsError, StoreUnavailable.
    """
    options = options or {}
    if isinstance(files, (str, os.PathLike)):
        scheme = _scheme_of(files)
        if scheme is not None and scheme != "file":
            return _open_url(scheme, str(files), clock, prefix, lock_timeout_seconds, options)
    if options:
        raise SettingsError(
            f"the persistent backend has no option {sorted(options)[0]!r} here; options are for roots that are URLs "
            "of object stores or file systems (s3://..., agfs://...)"
        )
    if isinstance(files, (str, os.PathLike)):
        return LocalFiles(
            directory_of(files), clock, durability=durability, lock_timeout_seconds=lock_timeout_seconds
        )
    if is_filesystem(files):
        from stores.files.filesystem import FilesystemFiles

        return FilesystemFiles.of(files, clock, prefix=prefix, lock_timeout_seconds=lock_timeout_seconds)
    return ClientFiles(files, clock, lock_timeout_seconds=lock_timeout_seconds)


def directory_of(root: str | os.PathLike[str]) -> str:
    """Return the directory that a path or a ``file://`` URL means. Raises SettingsError."""
    path = os.fspath(root)
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise SettingsError(f"root is {path!r}; give the path of a directory")
    path = os.path.expanduser(path)
    scheme, separator, rest = path.partition("://")
    if separator and (scheme != "file" or not rest.startswith("/")):
        raise SettingsError(
            f"root is {path!r}; here records are kept in local directories, give a path or file:///path"
        )
    return rest if separator else path


def _scheme_of(root: str | os.PathLike[str]) -> str | None:
    """Return the scheme of a URL; a path object is no URL."""
    match = _SCHEME.match(root) if isinstance(root, str) else None
    return None if match is None else match[1].lower()


def _open_url(
    scheme: str,
    url: str,
    clock: Clock,
    prefix: str,
    lock_timeout_seconds: float,
    options: Mapping[str, Any],
) -> Backing:
    from stores.files.objects_options import SCHEMES

    if "\0" in url:
        raise SettingsError(f"root is {url!r}; give a URL without NUL")
    if scheme in SCHEMES:
        from stores.files.objects import ObjectFiles

        return ObjectFiles.open(url, clock, options, lock_timeout_seconds=lock_timeout_seconds)
    from stores.files.filesystem import FilesystemFiles

    return FilesystemFiles.open(url, clock, options, prefix=prefix, lock_timeout_seconds=lock_timeout_seconds)
