"""File clients as embedding servers have them: a tree of dicts behind read, write, ls and mkdir.

Owns files in memory and the bad manners of real servers, each of them a switch. The texts of the errors are
those of AGFS (https://github.com/c4pt0r/agfs, plugins/memfs), where everything that goes wrong is an HTTP 500
whose text is all that tells what it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

__all__ = ["MovingClient", "PlainClient", "RemovingClient"]

_Directory = dict[str, Any]
"""Name to bytes (a file) or to another directory."""


class PlainClient:
    """The least that a client has: ``read``, ``write``, ``ls``, ``mkdir``. Thread-safe.

    ``typed_errors``: not found and existing raise FileNotFoundError and FileExistsError instead of a
    RuntimeError with AGFS's text. ``mkdir_refuses_existing``: as AGFS does. ``write_makes_parents``: as the
    client that OpenViking ships does. ``missing_ls_is_empty``: as object stores do.

    ``calls`` lists what was called, as (name, path). ``half_written(path)`` is called while a file holds half
    of what is being written to it, as servers that truncate in place show it to readers.
    """

    def __init__(
        self,
        *,
        typed_errors: bool = False,
        mkdir_refuses_existing: bool = True,
        write_makes_parents: bool = False,
        missing_ls_is_empty: bool = False,
    ) -> None:
        self.calls: list[tuple[str, str]] = []
        self.half_written: Callable[[str], None] | None = None
        self._typed_errors = typed_errors
        self._mkdir_refuses_existing = mkdir_refuses_existing
        self._write_makes_parents = write_makes_parents
        self._missing_ls_is_empty = missing_ls_is_empty
        self.unreadable: set[str] = set()
        """Paths that cannot be read, though they are there."""
        self._lock = threading.RLock()
        self._root: _Directory = {}
        self._down = False

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        """Return a file's bytes."""
        with self._call("read", path):
            if path in self.unreadable:
                raise RuntimeError(f"read: {path}: input/output error")
            data = self._directory_of(path).get(_name(path))
            if isinstance(data, dict):
                raise RuntimeError(f"is a directory: {path}")
            if data is None:
                self._no_such(path)
            end = None if size < 0 else offset + size
            return bytes(data)[offset:end]

    def write(self, path: str, data: bytes) -> str:
        """Create a file or replace its bytes."""
        if not isinstance(data, bytes):
            raise TypeError(f"write takes bytes, not {type(data).__name__}")
        with self._call("write", path):
            directory = self._directory_of(path, make=self._write_makes_parents)
            if isinstance(directory.get(_name(path)), dict):
                raise RuntimeError(f"is a directory: {path}")
            if self.half_written is not None:
                directory[_name(path)] = data[: len(data) // 2]
                self.half_written(path)
            directory[_name(path)] = data
        return f"Written {len(data)} bytes"

    def ls(self, path: str = "/") -> list[dict[str, Any]]:
        """Return what is in a directory, in no particular order."""
        with self._call("ls", path):
            directory = self._find(path)
            if directory is None and self._missing_ls_is_empty:
                return []
            if directory is None:
                self._no_such(path)
            if not isinstance(directory, dict):
                raise RuntimeError(f"not a directory: {path}")
            return [
                {
                    "name": name,
                    "size": 0 if isinstance(entry, dict) else len(entry),
                    "isDir": isinstance(entry, dict),
                    "mode": 0o755 if isinstance(entry, dict) else 0o644,
                    "modTime": "2026-01-01T00:00:00Z",
                }
                for name, entry in sorted(directory.items(), reverse=True)
            ]

    def mkdir(self, path: str, mode: str = "755") -> dict[str, Any]:
        """Make a directory; its parent must exist."""
        with self._call("mkdir", path):
            directory = self._directory_of(path, make=self._write_makes_parents)
            if not _parts(path) or _name(path) in directory:
                if self._mkdir_refuses_existing:
                    self._exists("directory", path)
                return {"message": "directory exists", "mode": mode}
            directory[_name(path)] = {}
        return {"message": "directory created", "mode": mode}

    @contextmanager
    def outage(self) -> Iterator[None]:
        """While this lasts, no call is answered."""
        self._down = True
        try:
            yield
        finally:
            self._down = False

    # ---- the tree ------------------------------------------------------------------------------------

    @contextmanager
    def _call(self, name: str, path: str) -> Iterator[None]:
        with self._lock:
            self.calls.append((name, path))
            if self._down:
                raise RuntimeError("Connection refused - server not running at localhost:8080")
            yield

    def _find(self, path: str) -> Any:
        node: Any = self._root
        for part in _parts(path):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _directory_of(self, path: str, *, make: bool = False) -> _Directory:
        node: Any = self._root
        for part in _parts(path)[:-1]:
            if part not in node:
                if not make:
                    self._no_such(path)
                node[part] = {}
            node = node[part]
            if not isinstance(node, dict):
                raise RuntimeError(f"not a directory: {path}")
        return node  # type: ignore[no-any-return]

    def _no_such(self, path: str) -> NoReturn:
        text = f"no such file or directory: {path}"
        raise FileNotFoundError(text) if self._typed_errors else RuntimeError(text)

    def _exists(self, kind: str, path: str) -> NoReturn:
        text = f"{kind} already exists: {path}"
        raise FileExistsError(text) if self._typed_errors else RuntimeError(text)


class RemovingClient(PlainClient):
    """A client that also has ``rm``. ``undeletable`` holds paths that it refuses to remove."""

    def __init__(self, **manners: Any) -> None:
        super().__init__(**manners)
        self.undeletable: set[str] = set()

    def rm(self, path: str, recursive: bool = False) -> dict[str, Any]:
        """Remove a file or an empty directory, a full one if ``recursive``."""
        with self._call("rm", path):
            self._refuse_undeletable(path)
            directory = self._directory_of(path)
            if _name(path) not in directory:
                self._no_such(path)
            if directory[_name(path)] and isinstance(directory[_name(path)], dict) and not recursive:
                raise RuntimeError(f"directory not empty: {path}")
            del directory[_name(path)]
        return {"message": "deleted"}

    def _refuse_undeletable(self, path: str) -> None:
        if path in self.undeletable:
            raise RuntimeError(f"rm: {path}: permission denied")


class MovingClient(RemovingClient):
    """A client that also has ``mv``, which replaces its target in one step.

    ``mv_refuses_existing``: it does not replace but fails, as AGFS's memory file system does.
    """

    def __init__(self, *, mv_refuses_existing: bool = False, **manners: Any) -> None:
        super().__init__(**manners)
        self._mv_refuses_existing = mv_refuses_existing

    def mv(self, old_path: str, new_path: str) -> dict[str, Any]:
        """Move a file or a directory."""
        with self._call("mv", old_path):
            self._refuse_undeletable(old_path)
            source, target = self._directory_of(old_path), self._directory_of(new_path)
            if _name(old_path) not in source:
                self._no_such(old_path)
            if _name(new_path) in target and self._mv_refuses_existing:
                self._exists("file", new_path)
            target[_name(new_path)] = source.pop(_name(old_path))
        return {"message": "renamed"}


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _name(path: str) -> str:
    return _parts(path)[-1]
