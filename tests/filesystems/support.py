"""What the tests of file systems share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from stores.files import filesystem
from stores.files.connection import Connection
from stores.files.filesystem import FilesystemFiles
from stores.files.persistent import PersistentTaskStore
from stores.files.probing import Findings, Limits
from task_tracker.clock import SYSTEM_CLOCK

BRIEF = Limits(rounds=4, racers=3)
CONTROL = "/local/.task_tracker"


def opened(files: Any, *, limits: Limits = BRIEF, **settings: Any) -> PersistentTaskStore:
    """A store whose root was tried out briefly."""
    with mock.patch.object(filesystem, "Limits", return_value=limits):
        return PersistentTaskStore(files, **settings)


def files_on(fs: Any, clock: Any = SYSTEM_CLOCK, **settings: Any) -> FilesystemFiles:
    return FilesystemFiles.of(fs, clock, limits=BRIEF, **settings)


def found_on(fs: Any, *, limits: Limits = BRIEF) -> Findings:
    return FilesystemFiles.of(fs, SYSTEM_CLOCK, limits=limits).found


@contextmanager
def watched(watch: Any) -> Iterator[None]:
    """Have ``watch(verb, path, call)`` make every call of every connection."""
    original = Connection._call

    def call(connection: Connection, verb: str, path: str, function: Any) -> Any:
        return original(
            connection, verb, path, lambda fs, full: watch(verb, path, lambda: function(fs, full))
        )

    with mock.patch.object(Connection, "_call", call):
        yield
