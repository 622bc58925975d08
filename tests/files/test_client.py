"""A server's own file client in place of a directory: what it must have, and the manners it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stores import PersistentTaskStore
from stores.files.client import ClientFiles
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.testing import MovingClient, PlainClient
from tests.files.support import DIRECTORY, swap

NAME = "task-1.json"
PATH = f"{DIRECTORY}/{NAME}"


def client_files(client: object, **options: Any) -> ClientFiles:
    return ClientFiles(client, SYSTEM_CLOCK, **options)


# ---- what it must be -----------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["read", "write", "ls", "mkdir"])
def test_an_object_without_the_four_calls_is_no_client(missing: str) -> None:
    client = SimpleNamespace(**{name: print for name in ("read", "write", "ls", "mkdir") if name != missing})
    with pytest.raises(SettingsError, match=rf"SimpleNamespace is no file client: it has no {missing}\(\)"):
        client_files(client)


@pytest.mark.parametrize("method", ["read", "write", "ls", "mkdir"])
def test_coroutine_functions_are_refused(method: str) -> None:
    """[D084] They would be called and never awaited, and nothing would be written."""

    async def call(*_: object) -> None:
        raise AssertionError("never to be called")

    client = PlainClient()
    setattr(client, method, call)
    with pytest.raises(
        SettingsError, match=rf"{method}\(\) is a coroutine function; give the synchronous client"
    ):
        client_files(client)


def test_answers_that_would_have_to_be_awaited_are_refused() -> None:
    """[D084] Also from a plain function: nothing is taken for written, and no coroutine is left behind."""

    async def later() -> bytes:
        raise AssertionError("never to be awaited")

    client = MovingClient()
    files = client_files(client)
    swap(client, read=lambda *_: later())
    with pytest.raises(SettingsError, match=r"MovingClient\.read\(\) returned an awaitable"):
        files.read(DIRECTORY, NAME)
    with asyncio.Runner() as runner:
        future = runner.get_loop().create_future()
        swap(client, write=lambda *_: future)
        with pytest.raises(SettingsError, match="returned an awaitable"):
            files.replace(DIRECTORY, NAME, b"{}", final=False)
        future.cancel()


# ---- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (b"{}", b"{}"),
        (bytearray(b"{}"), b"{}"),
        (memoryview(b"{}"), b"{}"),
        ('{"ä": 1}', '{"ä": 1}'.encode()),
        ("\ud800", b"\xed\xa0\x80"),
    ],
)
def test_files_come_as_bytes_or_text(answer: object, data: bytes) -> None:
    client = PlainClient()
    swap(client, read=lambda *_: answer)
    assert client_files(client).read(DIRECTORY, NAME) == (data, None, False)


@pytest.mark.parametrize("answer", [None, 7, {"content": "{}"}])
def test_a_file_that_comes_as_something_else_is_trouble(answer: object) -> None:
    client = PlainClient()
    swap(client, read=lambda *_: answer)
    with pytest.raises(StoreUnavailable, match=f"gave a {type(answer).__name__}, not bytes"):
        client_files(client).read(DIRECTORY, NAME)


def entries() -> Iterator[dict[str, Any]]:
    yield {"name": "alice", "isDir": True}
    yield {"name": "notes.txt", "isDir": False}


@pytest.mark.parametrize(
    ("answer", "names", "directories"),
    [
        (
            [{"name": "alice", "isDir": True}, {"name": "x.json", "isDir": False}],
            ["alice", "x.json"],
            ["alice"],
        ),
        (
            [{"name": "/local/acme/alice", "type": "directory"}, {"name": "f", "type": "file"}],
            ["alice", "f"],
            ["alice"],
        ),
        ([{"name": "alice", "type": "dir"}], ["alice"], ["alice"]),
        (
            [SimpleNamespace(name="alice", is_dir=True), SimpleNamespace(name="f", is_dir=False)],
            ["alice", "f"],
            ["alice"],
        ),
        ([SimpleNamespace(name="f", is_dir=lambda: False)], ["f"], []),
        (["a@example.com", "bob/"], ["a@example.com", "bob"], ["a@example.com", "bob"]),
        (("alice",), ["alice"], ["alice"]),
        (entries(), ["alice", "notes.txt"], ["alice"]),
        ([], [], []),
    ],
)
def test_forms_of_listings(answer: Any, names: list[str], directories: list[str]) -> None:
    held = list(answer)
    client = PlainClient()
    swap(client, ls=lambda *_: held)
    files = client_files(client)
    assert list(files.names(DIRECTORY)) == names
    assert list(files.directories(DIRECTORY)) == directories


@pytest.mark.parametrize("answer", [None, 7, "alice\nbob", b"alice", {"files": [{"name": "alice"}]}])
def test_a_listing_in_another_form_is_trouble_and_not_an_empty_one(answer: object) -> None:
    """[D071] An empty listing would mean that no task is running."""
    client = MovingClient()
    store = PersistentTaskStore(client)
    swap(client, ls=lambda *_: answer)
    with pytest.raises(StoreUnavailable, match=f"gave a {type(answer).__name__}; check its version"):
        store.has_active("acme", "alice", "reindex", "docs")


@pytest.mark.parametrize(("text", "outcome"), [("not found: /x", []), ("broken pipe", StoreUnavailable)])
def test_a_listing_that_fails_while_it_is_walked(text: str, outcome: Any) -> None:
    """[D071] A generator raises late; its errors mean the same."""

    def broken(_: str) -> Iterator[dict[str, Any]]:
        yield {"name": "alice"}
        raise RuntimeError(text)

    client = PlainClient()
    swap(client, ls=broken)
    files = client_files(client)
    if isinstance(outcome, list):
        assert list(files.names(DIRECTORY)) == outcome
    else:
        with pytest.raises(outcome, match=text):
            files.names(DIRECTORY)


def test_errors_keep_their_cause() -> None:
    """[D071] What the client raised is the cause, whatever it was."""
    client = MovingClient()
    files = client_files(client)
    with client.outage(), pytest.raises(StoreUnavailable, match="Connection refused") as caught:
        files.read(DIRECTORY, NAME)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(FileNotFoundError) as missed:
        files.read(DIRECTORY, NAME)
    assert isinstance(missed.value.__cause__, RuntimeError)
