"""``agfs://``: what a server's sentences mean, and requests that are not answered in time."""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from fsspec import filesystem

from stores.files.agfs import AgfsFileSystem
from stores.files.persistent import PersistentTaskStore
from stores.files.probing import Findings
from task_tracker.errors import SettingsError, StoreUnavailable, TaskNotFound
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.files.support import PROJECT, fetch, has_active, ids
from tests.files.test_breakage_forks import fork
from tests.filesystems.servers import AgfsServer
from tests.filesystems.support import opened

SHORT_SECONDS = 0.2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgfsServer]:
    with AgfsServer(tmp_path_factory.mktemp("agfs")) as server:
        yield server


@pytest.fixture
def fs(server: AgfsServer, request: pytest.FixtureRequest) -> AgfsFileSystem:
    fs = AgfsFileSystem("127.0.0.1", server.port, skip_instance_cache=True)
    fs.makedirs(place(request), exist_ok=True)
    return fs


def place(request: pytest.FixtureRequest) -> str:
    """A directory of each test's own."""
    return "/" + "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def here(request: pytest.FixtureRequest) -> str:
    return place(request)


# ---- the file system -----------------------------------------------------------------------------------


def test_files_and_directories(fs: AgfsFileSystem, here: str) -> None:
    fs.makedirs(f"{here}/a/b", exist_ok=True)
    fs.makedirs(f"{here}/a/b", exist_ok=True)
    fs.pipe_file(f"{here}/a/x", b"one")
    with fs.open(f"{here}/a/y", "wb") as file:
        file.write(b"two")
    assert fs.open(f"{here}/a/y").read() == b"two"
    assert fs.cat_file(f"agfs://host:1{here}/a/x", 1, 3) == b"ne"
    assert sorted(fs.ls(f"{here}/a", detail=False)) == [f"{here}/a/b", f"{here}/a/x", f"{here}/a/y"]
    assert {entry["name"]: entry["type"] for entry in fs.ls(f"{here}/a")}[f"{here}/a/b"] == "directory"
    assert fs.ls(f"{here}/a/x", detail=False) == [f"{here}/a/x"]
    assert fs.info(f"{here}/a/x")["size"] == 3
    fs.mv(f"{here}/a/x", f"{here}/a/y")
    fs.copy(f"{here}/a/y", f"{here}/z")
    assert fs.cat_file(f"{here}/z") == b"one"
    assert fs.ls(f"{here}/a/b") == []
    fs.mkdir(f"{here}/c/d")
    fs.rm_file(f"{here}/z")
    assert not fs.exists(f"{here}/z")


def test_what_is_left_in_the_middle_is_not_written(fs: AgfsFileSystem, here: str) -> None:

    def write() -> None:
        with fs.open(f"{here}/x", "wb") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert not fs.exists(f"{here}/x")


def test_sentences_mean_what_they_say(fs: AgfsFileSystem, here: str) -> None:
    fs.pipe_file(f"{here}/file", b"x")
    missing: list[Any] = [
        lambda: fs.cat_file(f"{here}/no"),
        lambda: fs.ls(f"{here}/no"),
        lambda: fs.info(f"{here}/no"),
        lambda: fs.rm_file(f"{here}/no"),
        lambda: fs.mv(f"{here}/no", f"{here}/file"),
        lambda: fs.pipe_file(f"{here}/no/file", b"x"),
        lambda: fs.mkdir(f"{here}/no/directory", create_parents=False),
    ]
    for ask in missing:
        with pytest.raises(FileNotFoundError):
            ask()
    with pytest.raises(FileExistsError):
        fs.mkdir(here)
    with pytest.raises(FileExistsError):
        fs.makedirs(here)
    with pytest.raises(IsADirectoryError):
        fs.cat_file(here)


@pytest.mark.parametrize(
    "sentence",
    [
        "mount point not found: /local",
        "permission denied: /local",
        "failed to open file: too many open files",
        "plugin s3fs not found",
        "page",
    ],
)
def test_other_sentences_are_trouble(
    server: AgfsServer, fs: AgfsFileSystem, here: str, sentence: str
) -> None:
    """[D071] Above all the page of a proxy, which says 404 as well."""
    store = opened(server.url + here)
    server.fail(sentence)
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011  # of no kind in particular: that is the point
            fs.cat_file(f"{here}/x")
        assert not isinstance(caught.value, (FileNotFoundError, FileExistsError))
        with pytest.raises(StoreUnavailable):
            has_active(store)
        with pytest.raises(StoreUnavailable):
            store.list(Query("acme"))
        with pytest.raises(StoreUnavailable):
            PersistentTaskStore(server.url + here)
    finally:
        server.heal()


def test_nothing_is_exclusive_and_that_is_said(fs: AgfsFileSystem, here: str) -> None:
    """[D090] The server looks first and writes then."""
    with pytest.raises(NotImplementedError, match="no exclusive create"):
        fs.pipe_file(f"{here}/x", b"x", mode="create")
    with pytest.raises(NotImplementedError, match="'xb'"):
        fs.open(f"{here}/x", "xb")


def test_addresses(server: AgfsServer) -> None:
    for url, host, port in [
        ("agfs://h:1/x", "h", 1),
        ("agfs://h", "h", 8080),
        ("agfs:///x", "localhost", 8080),
    ]:
        fs = AgfsFileSystem(**AgfsFileSystem._get_kwargs_from_urls(url), skip_instance_cache=True)
        assert (fs.host, fs.port) == (host, port)
    for bad in ("agfs://h:x/", "agfs://me@h:1/"):
        with pytest.raises(SettingsError, match="is no AGFS server"):
            PersistentTaskStore(bad)
    assert AgfsFileSystem._strip_protocol(["agfs://h:1/a/", "a/b"]) == ["/a", "/a/b"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tiemout": 1}, "no option 'tiemout'"),
        ({"timeout": "1"}, "timeout is '1'"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        PersistentTaskStore("agfs://127.0.0.1:1/", options=options)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreUnavailable, match=r"Connection refused - server not running at 127\.0\.0\.1:1"):
        PersistentTaskStore("agfs://127.0.0.1:1/")


def test_fsspec_finds_it() -> None:
    """By the entry point, where this is installed; by ourselves where it is not."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    value = project["project"]["entry-points"]["fsspec.specs"]["agfs"]
    assert EntryPoint("agfs", value, "fsspec.specs").load() is AgfsFileSystem
    with pytest.raises(StoreUnavailable):
        PersistentTaskStore("agfs://127.0.0.1:1/")
    assert type(filesystem("agfs", host="h")) is AgfsFileSystem


# ---- the store -----------------------------------------------------------------------------------------


def test_what_is_found_out(server: AgfsServer, here: str, tmp_path: Path) -> None:
    files: Any = opened(server.url + here)._files
    assert files.found == Findings(moves=True, puts=False, exclusive=None, exclusive_whole=False)
    with AgfsServer(tmp_path / "other", replaces=False) as other:
        files = opened(other.url)._files
        assert (files.found.moves, files.found.exclusive, files.found.exclusive_whole) == (
            False,
            "move",
            True,
        )


def test_requests_of_a_task(server: AgfsServer, here: str, make: RecordMaker) -> None:
    """So that nobody adds one without noticing."""
    store = opened(server.url + here)
    store.create(make())

    def cost(call: Any) -> dict[str, int]:
        before = Counter(server.counts())
        call()
        return dict(Counter(server.counts()) - before)

    record = make()
    assert cost(lambda: store.create(record)) == {"write": 1, "mv": 1, "stat": 2}
    assert cost(lambda: store.get(record.key)) == {"read": 1}
    ended = make.changed(record, status=TaskStatus.COMPLETED)
    assert cost(lambda: store.update(ended, expected=None)) == {"read": 1, "write": 1, "mv": 1}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["write", "mv"])
def test_requests_that_are_answered_too_late(
    server: AgfsServer, here: str, make: RecordMaker, operation: str, when: str
) -> None:
    """What is there tells whether it was served; what is served after that changes nothing."""
    store = opened(server.url + here, options={"timeout": SHORT_SECONDS})
    first = make()
    store.create(first)
    changed = make.changed(first, status=TaskStatus.COMPLETED)
    server.hold(operation, when)
    try:
        if (operation, when) == ("mv", "after"):
            store.update(changed, expected=None)
            assert fetch(store, first.key) == changed
        else:
            with pytest.raises(StoreUnavailable, match="whether it was served is not known"):
                store.update(changed, expected=None)
            assert fetch(store, first.key) == first
        server.wait_until_held()
    finally:
        server.release()
    again = make.changed(first, status=TaskStatus.FAILED)
    if (operation, when) != ("mv", "after"):
        store.update(again, expected=None)
        # The late request has nothing left to work on.
        assert fetch(store, first.key) == again
    assert ids(store) == [first.task_id]


def test_a_removal_that_is_answered_too_late(server: AgfsServer, here: str, make: RecordMaker) -> None:
    store = opened(server.url + here, options={"timeout": SHORT_SECONDS})
    record = make(status=TaskStatus.COMPLETED)
    store.create(record)
    server.hold("rm", "after")
    try:
        store.delete(record.key)
    finally:
        server.release()
    with pytest.raises(TaskNotFound):
        store.get(record.key)


def test_a_read_that_is_answered_too_late_is_no_absence(
    server: AgfsServer, here: str, make: RecordMaker
) -> None:
    """[D071] And writes have the time limit that was asked for, not the client's own of ten seconds."""
    store = opened(server.url + here, options={"timeout": SHORT_SECONDS})
    record = make()
    store.create(record)
    for operation, ask in (("read", lambda: store.get(record.key)), ("ls", lambda: has_active(store))):
        server.hold(operation, "before")
        try:
            with pytest.raises(StoreUnavailable, match="timeout"):
                ask()
        finally:
            server.release()
    assert fetch(store, record.key) == record


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_does_not_talk_through_its_parents_sockets(
    server: AgfsServer, here: str, make: RecordMaker
) -> None:
    """[D091] Answers would go to whoever reads first."""
    store = opened(server.url + here)
    ours, theirs = make(), make()
    store.create(ours)

    def work() -> None:
        for _ in range(20):
            assert fetch(store, ours.key) == ours
        store.create(theirs)

    child = fork(work)
    for _ in range(20):
        assert fetch(store, ours.key) == ours
    assert os.waitpid(child, 0)[1] == 0
    assert ids(store) == [theirs.task_id, ours.task_id]
