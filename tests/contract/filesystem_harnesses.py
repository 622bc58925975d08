"""The harnesses of the persistent store on file systems of fsspec."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stores.files import filesystem
from stores.files.connection import Connection
from stores.files.persistent import PersistentTaskStore
from stores.files.probing import Limits
from task_tracker.records import TaskKey
from task_tracker.testing import StoreHarness
from tests.contract.harnesses import OPENED, TOO_LONG, place
from tests.filesystems.servers import AgfsServer

BRIEF = Limits(rounds=2, racers=2)
"""For tests that do not ask what the trial finds out."""

At = Callable[[str], tuple[str, str]]
"""The URL of a root below the harness's, and the path of the same for ``raw``."""


class FilesystemHarness(StoreHarness):
    """A root that is a URL; ``raw`` is a file system that reaches the same files behind the store's back."""

    unstorable_ids = TOO_LONG

    def __init__(self, at: At, raw: Any, *, below: str = "", spec: bool = True) -> None:
        self._at, self._raw, self._below = at, raw, below
        self._url, self._base = at(below)
        self._numbers = itertools.count()
        self._reads = 0
        self.spec = ("persistent", {"root": self._url}) if spec else None

    def open(self) -> PersistentTaskStore:
        # The first one makes the long trial; those of other processes find its mark.
        with mock.patch.object(filesystem, "Limits", return_value=BRIEF):
            return PersistentTaskStore(self._url)

    def _full(self, key: TaskKey) -> str:
        return self._base + place(key)

    def plant(self, key: TaskKey, data: bytes) -> None:
        path = self._full(key)
        self._raw.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._raw.pipe_file(path, data)

    def peek(self, key: TaskKey) -> bytes | None:
        try:
            data: bytes = self._raw.cat_file(self._full(key))
        except FileNotFoundError:
            return None
        return data

    def remove(self, key: TaskKey) -> None:
        self._raw.rm_file(self._full(key))

    def fresh(self) -> "FilesystemHarness":
        return FilesystemHarness(self._at, self._raw, below=f"{self._below}/fresh-{next(self._numbers)}")

    def age(self, seconds: float) -> None:
        path = self._base + OPENED
        opened_at = json.loads(self._raw.cat_file(path))["opened_at"]
        self._raw.pipe_file(path, json.dumps({"opened_at": opened_at - seconds}).encode())

    @contextlib.contextmanager
    def _watched(self, watch: Callable[[str, str], object]) -> Iterator[None]:
        """Have ``watch`` called with the verb and the path of every call of every store."""
        call = Connection._call

        def watched(connection: Connection, verb: str, path: str, function: Any) -> Any:
            def asked(fs: Any, full: str) -> Any:
                watch(verb, path)
                return function(fs, full)

            return call(connection, verb, path, asked)

        with mock.patch.object(Connection, "_call", watched):
            yield

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        def fail(verb: str, path: str) -> None:
            raise ConnectionResetError(f"{verb} {path}: connection reset by peer")

        with self._watched(fail):
            yield

    @contextlib.contextmanager
    def _failing(self, verb: str, key: TaskKey) -> Iterator[None]:
        def fail(called: str, path: str) -> None:
            if called == verb and path == place(key):
                raise OSError(f"{verb} {path}: input/output error")

        with self._watched(fail):
            yield

    def unreachable(self, key: TaskKey) -> contextlib.AbstractContextManager[None]:
        return self._failing("read", key)

    def undeletable(self, key: TaskKey) -> contextlib.AbstractContextManager[None]:
        return self._failing("remove", key)

    @contextlib.contextmanager
    def counting(self) -> Iterator["FilesystemHarness"]:
        def count(verb: str, path: str) -> None:
            self._reads += verb == "read" and path.endswith(".json")

        with self._watched(count):
            yield self

    def reads(self) -> int:
        return self._reads


class SlowHarness(FilesystemHarness):
    """A root that takes time to open: the state machine, which needs hundreds of them, takes minutes there."""

    def fresh(self) -> NoReturn:
        pytest.skip("takes minutes here")


@contextlib.contextmanager
def memory(number: int) -> Iterator[FilesystemHarness]:
    """Files in this process's memory."""
    base = f"/contract-{number}"
    raw = MemoryFileSystem()
    try:
        yield FilesystemHarness(lambda below: (f"memory:/{base}{below}", base + below), raw, spec=False)
    finally:
        if raw.exists(base):
            raw.rm(base, recursive=True)


def directory(root: Path) -> FilesystemHarness:
    """Files in a directory, by fsspec's ways rather than our own, and through a wrapper."""
    return SlowHarness(
        lambda below: (f"dir://records::file://{root}{below}", f"{root}{below}/records"),
        fsspec.filesystem("file"),
    )


def agfs(server: AgfsServer, number: int) -> FilesystemHarness:
    """Files behind an AGFS server."""
    base = f"/contract-{number}"
    return SlowHarness(
        lambda below: (server.url + base + below, f"{server.root}{base}{below}"), fsspec.filesystem("file")
    )
