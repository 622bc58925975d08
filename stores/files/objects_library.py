"""obstore, the client library for object stores, as this process may use it.

Owns its import, and what a forked child does: the library's threads do not survive ``fork``, and a call into it
would wait for them for ever, so a child loads a copy that has threads of its own. Refuses to know about records.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.forks import renew_after_fork

__all__ = ["LIBRARY", "check_installed", "describe"]

_EXTENSION: Final = "obstore._obstore"


class _Library:
    """The functions of obstore's compiled module, loaded at the first use. Thread-safe."""

    def __init__(self) -> None:
        self._module: Any = None
        self._pid = os.getpid()
        self._stale: list[Any] = []
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock; called in a forked child, which may inherit a module without its threads."""
        self._lock = threading.Lock()

    def get(self) -> Any:
        """Return the module. Raises SettingsError if it cannot be loaded, StoreUnavailable if it cannot be copied."""
        if self._module is None or self._pid != os.getpid():
            with self._lock:
                if self._module is None:
                    self._module, self._pid = _imported(), os.getpid()
                elif self._pid != os.getpid():
                    copy = _copy_of(self._module)
                    # Never taken apart: that would be a call into the old one.
                    self._stale.append(self._module)
                    self._module, self._pid = copy, os.getpid()
        return self._module


def check_installed() -> None:
    """Raise SettingsError if the library is not there. Does not load it."""
    with contextlib.suppress(ValueError):  # what find_spec says of a name that is blocked
        if importlib.util.find_spec("obstore") is not None:
            return
    raise SettingsError("object stores need obstore; install it with: pip install 'durable-task-tracker[s3]'")


def _imported() -> Any:
    try:
        return importlib.import_module(_EXTENSION)
    except ImportError as error:
        raise SettingsError(
            f"obstore cannot be loaded ({error}); install it again: pip install 'durable-task-tracker[s3]'"
        ) from error


def _copy_of(module: Any) -> Any:
    """Load the extension once more from another file: the same file would be the same module, with its threads."""
    try:
        with _second_file(Path(module.__file__)) as path:
            loader = importlib.machinery.ExtensionFileLoader("_obstore", path)
            spec = importlib.util.spec_from_file_location("_obstore", path, loader=loader)
            assert spec is not None
            copy = importlib.util.module_from_spec(spec)
            loader.exec_module(copy)
            copy.__file__ = module.__file__
            return copy
    except (OSError, ImportError) as error:
        raise StoreUnavailable(
            f"this process was forked after the store had been used, and obstore cannot be loaded again ({error}); "
            "start processes with 'spawn' or 'forkserver', or use the store only after the fork"
        ) from error


@contextlib.contextmanager
def _second_file(original: Path) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("obstore")
        try:
            with open(handle, "wb", closefd=False) as copy:
                copy.write(original.read_bytes())
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.TemporaryDirectory(prefix="obstore-") as directory:
        path = Path(directory, original.name)
        path.write_bytes(original.read_bytes())
        yield str(path)


def describe(error: BaseException) -> str:
    """Return what a library's error says, without the structures that it prints after it."""
    return " ".join(str(error).split("\n\nDebug source")[0].split())


LIBRARY: Final = _Library()
