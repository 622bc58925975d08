"""Publishing through a server's own file client: directories, moves, crashes and sweeps."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stores import PersistentTaskStore
from stores.files.client import ClientFiles
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import CapabilityMissing, StoreUnavailable
from task_tracker.testing import MovingClient, PlainClient, RecordMaker, RemovingClient
from tests.files.support import DIRECTORY, PATIENCE, StepClock, in_thread, swap

NAME = "task-1.json"
PATH = f"{DIRECTORY}/{NAME}"


def client_files(client: object, **options: Any) -> ClientFiles:
    return ClientFiles(client, SYSTEM_CLOCK, **options)


CLIENTS = [PlainClient, RemovingClient, MovingClient]


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    "manners", [{}, {"typed_errors": True}, {"mkdir_refuses_existing": False}, {"write_makes_parents": True}]
)
def test_create_replace_and_remove(kind: type[PlainClient], manners: dict[str, bool]) -> None:
    files = client_files(kind(**manners))
    files.create(DIRECTORY, NAME, b"1")
    with pytest.raises(FileExistsError):
        files.create(DIRECTORY, NAME, b"2")
    assert files.read(DIRECTORY, NAME).data == b"1"
    files.replace(DIRECTORY, NAME, b"3", final=True)
    assert files.read(DIRECTORY, NAME).data == b"3"
    assert list(files.names(DIRECTORY)) == [NAME]
    assert files.exists(DIRECTORY, NAME)
    if files.can_remove:
        files.remove(DIRECTORY, NAME)
        assert not files.exists(DIRECTORY, NAME)
    else:
        with pytest.raises(CapabilityMissing, match=r"PlainClient has no rm\(\)"):
            files.remove(DIRECTORY, NAME)


def test_directories_are_made_once() -> None:
    client = MovingClient()
    files = client_files(client)
    for number in range(3):
        files.create(DIRECTORY, f"{number}.json", b"{}")
    assert [path for name, path in client.calls if name == "mkdir"] == [
        "/local",
        "/local/acme",
        "/local/acme/tasks",
        "/local/acme/tasks/alice",
    ]


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_directory_that_could_not_be_made_is_made_at_the_next_try(
    kind: type[PlainClient], nth: int
) -> None:
    """mkdir may say anything of a directory that is there, so its errors prove nothing; the write decides."""
    client = kind()
    make, calls = client.mkdir, 0

    def mkdir(path: str) -> object:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise RuntimeError("timeout")
        return make(path)

    swap(client, mkdir=mkdir)
    files = client_files(client)
    files.create(DIRECTORY, NAME, b"{}")
    assert files.read(DIRECTORY, NAME).data == b"{}"


@pytest.mark.parametrize("kind", [RemovingClient, MovingClient])
def test_a_directory_removed_behind_our_back_is_made_again(kind: type[RemovingClient]) -> None:
    client = kind()
    files = client_files(client)
    files.create(DIRECTORY, NAME, b"1")
    client.rm("/local/acme", recursive=True)
    with pytest.raises(StoreUnavailable, match="its directory is gone"):
        files.replace(DIRECTORY, NAME, b"2", final=False)
    files.create(DIRECTORY, NAME, b"3")
    assert files.read(DIRECTORY, NAME).data == b"3"


def test_a_place_without_directories_is_unavailable() -> None:
    """[D071] A mount that is missing: mkdir fails, the write fails, and nobody is told "not found"."""
    client = MovingClient()

    def refuse(*_: object) -> None:
        raise RuntimeError("no such file or directory: /local")

    swap(client, mkdir=refuse, write=refuse)
    store = PersistentTaskStore(client)
    with pytest.raises(StoreUnavailable, match="its directory is gone; look at the client's mounts"):
        store.create(RecordMaker()())


def test_many_directories_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """[D096]"""
    monkeypatch.setattr("stores.files.client._MAX_KNOWN_DIRECTORIES", 10)
    files = client_files(MovingClient())
    for number in range(50):
        files.create(f"/local/acme/tasks/user-{number}", NAME, b"{}")
    assert len(files._made) <= 14


@pytest.mark.parametrize("call", ["write", "mv"])
def test_a_failed_publication_leaves_the_old_record_and_no_temporary_file(call: str) -> None:
    """[D073]"""
    client = MovingClient()
    files = client_files(client)
    files.create(DIRECTORY, NAME, b"old")
    working = getattr(client, call)

    def full(*_: object) -> None:
        raise RuntimeError("no space left on device")

    setattr(client, call, full)
    with pytest.raises(StoreUnavailable, match="no space left on device"):
        files.replace(DIRECTORY, NAME, b"new", final=False)
    setattr(client, call, working)
    assert list(files.names(DIRECTORY)) == [NAME]
    assert files.read(DIRECTORY, NAME).data == b"old"
    files.replace(DIRECTORY, NAME, b"new", final=False)
    assert files.read(DIRECTORY, NAME).data == b"new"


class MoverThatCannotRemove(PlainClient):
    def mv(self, *_: str) -> None:
        raise RuntimeError("no space left on device")


def test_a_client_that_moves_and_cannot_remove_leaves_its_temporary_files() -> None:
    """[D073] Nothing else can be done; listings ignore them."""
    files = client_files(MoverThatCannotRemove())
    with pytest.raises(StoreUnavailable, match="no space left on device"):
        files.create(DIRECTORY, NAME, b"{}")
    assert all(name.startswith(".tmp-") for name in files.names(DIRECTORY))
    assert files.signature(DIRECTORY, NAME) is None


def test_a_moving_client_that_reads_text() -> None:
    client = MovingClient()
    read = client.read
    swap(client, read=lambda *arguments: read(*arguments).decode())
    files = client_files(client)
    files.create(DIRECTORY, NAME, b"1")
    files.replace(DIRECTORY, NAME, b"2", final=False)
    assert files.atomic
    assert files.read(DIRECTORY, NAME).data == b"2"
    assert list(files.names(DIRECTORY)) == [NAME]


def test_threads_that_write_first_at_once_probe_once() -> None:
    client = MovingClient()
    files = client_files(client)

    class Taken:
        """A lock that another thread had, who has probed meanwhile."""

        def __enter__(self) -> None:
            swap(files, _probed=True)

        def __exit__(self, *_: object) -> None:
            pass

    swap(files, _probing=Taken())
    files.create(DIRECTORY, NAME, b"{}")
    assert [name for name, _ in client.calls].count("mv") == 1


def test_a_temporary_file_that_cannot_be_removed_does_not_hide_the_error() -> None:
    client = MovingClient()
    files = client_files(client)
    files.create(DIRECTORY, NAME, b"old")

    def refuse(*_: object) -> None:
        raise RuntimeError("permission denied")

    swap(client, mv=refuse, rm=refuse)
    with pytest.raises(StoreUnavailable, match=r"cannot mv .*permission denied"):
        files.replace(DIRECTORY, NAME, b"new", final=False)


def test_a_move_that_does_not_replace_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    """AGFS's memfs: from then on records are written in place, and it is said once."""
    client = MovingClient(mv_refuses_existing=True)
    files = client_files(client)
    files.create(DIRECTORY, NAME, b"1")
    with caplog.at_level(logging.WARNING, "task_tracker"):
        files.replace(DIRECTORY, NAME, b"2", final=False)
        files.replace(DIRECTORY, NAME, b"3", final=False)
    assert not files.atomic
    assert [getattr(entry, "event", None) for entry in caplog.records] == ["client_mv_refused"]
    assert files.read(DIRECTORY, NAME).data == b"3"
    assert list(files.names(DIRECTORY)) == [NAME]


def test_threads_of_this_process_take_turns() -> None:
    client = MovingClient()
    files = client_files(client, lock_timeout_seconds=0.01)

    def write() -> str:
        with files.exclusively(DIRECTORY):
            return "two writers at once"

    with files.exclusively(DIRECTORY):
        with in_thread(write) as answers:
            pass
        assert isinstance(answers[0], StoreUnavailable)
        assert "by another thread for 0.01 seconds" in str(answers[0])
        with files.exclusively(f"{DIRECTORY}x"):
            pass  # another user's
    with client_files(client, lock_timeout_seconds=PATIENCE).exclusively(DIRECTORY):
        pass


def test_old_temporary_files_are_told_by_their_names() -> None:
    """[D074] A client does not tell how old a file is; the name says when it was given. A day must have passed."""
    client, clock = MovingClient(), StepClock()
    files = ClientFiles(client, clock)
    files.create(DIRECTORY, NAME, b"{}")
    mv, rm = client.mv, client.rm
    swap(client, mv=refuse, rm=refuse)
    with pytest.raises(StoreUnavailable):
        files.replace(DIRECTORY, NAME, b"{}", final=False)
    swap(client, mv=mv, rm=rm)
    client.write(f"{DIRECTORY}/.tmp-mine", b"")
    (left,) = [name for name in files.names(DIRECTORY) if name not in (NAME, ".tmp-mine")]
    for seconds, kept in [(0, True), (86_400, True), (1, False)]:
        clock.advance(seconds)
        files.sweep(DIRECTORY, files.names(DIRECTORY))
        assert (left in files.names(DIRECTORY)) is kept
    assert sorted(files.names(DIRECTORY)) == [".tmp-mine", NAME]


def refuse(*_: object) -> None:
    raise RuntimeError("permission denied")


def test_a_client_that_cannot_remove_sweeps_nothing() -> None:
    files = client_files(PlainClient())
    files.create(DIRECTORY, NAME, b"{}")
    files.sweep(DIRECTORY, [NAME, ".tmp-00000000-1-1-00000000-0"])
    assert list(files.names(DIRECTORY)) == [NAME]


def test_each_deletion_leaves_another_mark() -> None:
    """An id may come again; who remembers the record that had it looks again then."""
    files = client_files(MovingClient())
    marks = [files.deletions(DIRECTORY)]
    for _ in range(2):
        files.create(DIRECTORY, NAME, b"{}")
        files.retire(DIRECTORY, NAME)
        marks.append(files.deletions(DIRECTORY))
    assert len(set(marks)) == 3
    with pytest.raises(FileNotFoundError):
        files.retire(DIRECTORY, NAME)


class CopyingClient(MovingClient):
    """Its ``mv`` is copy and delete, and forgets the second half."""

    def mv(self, source: str, target: str) -> Any:
        return self.write(target, self.read(source))


class UnmovingClient(MovingClient):
    """It has an ``mv`` that only says that there is none."""

    def mv(self, source: str, target: str) -> Any:
        raise RuntimeError("HTTP 501: not supported by this file system")


@pytest.mark.parametrize(
    "client", [CopyingClient(), UnmovingClient()], ids=lambda client: type(client).__name__
)
def test_a_move_that_does_not_move_is_found_out_before_it_matters(client: MovingClient) -> None:
    """What a client can do is tried, not believed by the name of a method."""
    files = client_files(client)
    files.create(DIRECTORY, NAME, b"{}")
    files.replace(DIRECTORY, NAME, b'{"a":1}', final=False)
    assert client.read(f"{DIRECTORY}/{NAME}") == b'{"a":1}'
    assert not files.atomic
    assert [entry["name"] for entry in client.ls(DIRECTORY)] == [NAME]
