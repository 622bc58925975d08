"""Ids to paths and back: reversible, portable, and never out of their place."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stores.files.layout import Layout, decode_component, encode_component, is_reserved
from task_tracker.errors import InvalidTaskId, SettingsError, TaskNotFound
from task_tracker.records import TaskKey
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.files.support import fetch, ids, local_store, path_of

PROFILE = settings(settings.get_profile("files"), max_examples=400)

SAFE = re.compile(r"[A-Za-z0-9_@%-][A-Za-z0-9_@%.-]*")
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE)
"""https://learn.microsoft.com/windows/win32/fileio/naming-a-file, as a list of its own."""

text = st.text(max_size=16) | st.text(alphabet="./\\%~:_@aA1 \n\0ä漢🎈", max_size=12)


@given(text)
@example("CON")
@example("com1.tar.gz")
@example("..")
@example("%2e%2e%2f")
@example("a.")
@PROFILE
def test_any_text_is_one_portable_component_and_back(words: str) -> None:
    """[D077] [D078] What is not refused comes back as it was, and is a plain name everywhere."""
    name = encode_component(words)
    if not words:
        assert name == ""
        return
    assert decode_component(name) == words
    assert SAFE.fullmatch(name)
    assert len(name.encode()) <= 200
    assert not name.endswith(".")
    assert not DEVICE.fullmatch(name)
    assert not DEVICE.fullmatch(f"{name}.json")


@given(st.text(alphabet=st.characters(), max_size=40))
@PROFILE
def test_a_name_that_was_not_encoded_is_nobodys(name: str) -> None:
    """[D077] One id has one name: two files never stand for the same task."""
    decoded = decode_component(name)
    assert decoded is None or encode_component(decoded) == name


@given(st.text(min_size=60, max_size=400))
@PROFILE
def test_long_text_is_refused_at_200_bytes(words: str) -> None:
    """[D079] Whatever is taken fits into 255 bytes together with every suffix."""
    with contextlib.suppress(InvalidTaskId):
        assert len(encode_component(words)) <= 200


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("0190b0a5-7c4e-7d0a-8b1e-2f3a4b5c6d7e", "0190b0a5-7c4e-7d0a-8b1e-2f3a4b5c6d7e"),
        ("alice@example.com", "alice@example.com"),
        ("a_b-c.d", "a_b-c.d"),
        ("../x", "%2E.%2Fx"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        (".hidden", "%2Ehidden"),
        ("a.", "a%2E"),
        ("a/b", "a%2Fb"),
        ("/abs", "%2Fabs"),
        ("..\\x", "%2E.%5Cx"),
        ("%2e%2e%2f", "%252e%252e%252f"),
        ("agent:main", "agent%3Amain"),
        ("a ", "a%20"),
        ("line\n", "line%0A"),
        ("CON", "%43ON"),
        ("nul.txt", "%6Eul.txt"),
        ("COM1", "%43OM1"),
        ("lpt9.x", "%6Cpt9.x"),
        ("COM¹", "COM%C2%B9"),
        ("CONIN$", "CONIN%24"),
        ("CONTROL", "CONTROL"),
        ("漢", "%E6%BC%A2"),
        ("🎈", "%F0%9F%8E%88"),
        ('x<>|?*"', "x%3C%3E%7C%3F%2A%22"),
    ],
)
def test_encoding(words: str, name: str) -> None:
    """[D077] [D078] The format as files show it: ordinary ids stay as they are."""
    assert encode_component(words) == name
    assert decode_component(name) == words


@pytest.mark.parametrize(
    "name",
    [
        *("", "%2e", "%2E%2e", "%41", "a%2", "a%zz", "%", "a b", ".x", "x.", "CON", "nul.txt", "%ff"),
        *("\udcff", "a\udcff%20", "x" * 201, "%F0%9F%8E"),
    ],
)
def test_names_in_another_spelling_are_ignored(name: str) -> None:
    """[D077] A file that encode_component would not have named belongs to no task."""
    assert decode_component(name) is None


@pytest.mark.parametrize(
    ("name", "task_id"),
    [
        ("task-1.json", "task-1"),
        ("a%2Fb.json", "a/b"),
        ("x.json.json", "x.json"),
        (".json", None),
        (".tmp-1.json", None),
        ("task-1.JSON", None),
        ("task-1", None),
        (".lock", None),
    ],
)
def test_task_id_of_a_file(name: str, task_id: str | None) -> None:
    assert Layout.task_id_of(name) == task_id


@pytest.mark.parametrize(
    ("path", "reserved"),
    [
        (".task_tracker", True),
        ("/.task_tracker/format", True),
        ("acme/tasks", True),
        ("/acme/tasks/alice/x.json", True),
        ("acme//tasks/", True),
        ("acme/./tasks/alice", True),
        ("./acme/tasks", True),
        ("acme/notes/../tasks/alice", True),
        ("../acme/tasks", True),
        ("", False),
        ("/", False),
        ("acme", False),
        ("tasks", False),
        ("acme/notes/tasks", False),
        ("acme/tasks.md", False),
        ("acme/tasks/../notes", False),
        ("x/.task_tracker", False),
    ],
)
def test_reserved_paths(path: str, reserved: bool) -> None:
    """An embedding file system hides what is ours, however it is written, and nothing else."""
    assert is_reserved(path) is reserved


@pytest.mark.parametrize(
    ("prefix", "directory"),
    [
        ("/local", "/local/acme/tasks/alice"),
        ("local/", "/local/acme/tasks/alice"),
        ("//srv//tasks/", "/srv/tasks/acme/tasks/alice"),
        ("", "/acme/tasks/alice"),
        ("/", "/acme/tasks/alice"),
    ],
)
def test_prefixes(prefix: str, directory: str) -> None:
    layout = Layout(prefix)
    assert layout.place(TaskKey("acme", "alice", "t")) == (directory, "t.json")
    assert layout.account_directory("acme") == directory.removesuffix("/alice")
    assert layout.control == directory.removesuffix("acme/tasks/alice") + ".task_tracker"


@pytest.mark.parametrize("prefix", ["..", "/local/../etc", "./x", "a\0b"])
def test_prefixes_that_lead_elsewhere_are_refused(prefix: str) -> None:
    with pytest.raises(SettingsError, match="prefix"):
        Layout(prefix)


NASTY = [
    *("../x", "a/b", "/abs", "..\\x", "%2e%2e%2f", "line\n", ".", "..", "CON", "agent:main", "a.", "a "),
    *(".task_tracker", "tasks"),
]


@pytest.mark.parametrize("part", ["account_id", "user_id", "task_id"])
@pytest.mark.parametrize("nasty", NASTY)
def test_nasty_ids_stay_under_the_root(root: Path, make: RecordMaker, nasty: str, part: str) -> None:
    """[D077] [D078] create, get and list agree on such an id, and every file lies below the root, three deep."""
    store = local_store(root)
    record = make("plain", **{part: nasty})
    store.create(record)
    assert fetch(store, record.key) == record
    assert [found.record for found in store.list(Query(record.account_id, record.user_id)).items] == [record]
    assert [found.record for found in store.list(Query(record.account_id)).items] == [record]
    (path,) = root.parent.rglob("*.json")
    account, tasks, user, name = path.relative_to(root / "local").parts
    assert (decode_component(account), tasks, decode_component(user), Layout.task_id_of(name)) == (
        record.account_id,
        "tasks",
        record.user_id,
        record.task_id,
    )


@pytest.mark.parametrize("part", ["account_id", "user_id", "task_id"])
@pytest.mark.parametrize("bad", ["", " ", "\t", "nul\0", "half \ud800", "x" * 201, "漢" * 67, "🎈" * 51])
def test_ids_that_cannot_be_stored(root: Path, make: RecordMaker, bad: str, part: str) -> None:
    """[D077] [D079] Refused at create, not found on read, before anything is written."""
    store = local_store(root)
    record = make("plain", **{part: bad})
    with pytest.raises(InvalidTaskId):
        store.create(record)
    with pytest.raises(TaskNotFound):
        store.get(record.key)
    assert not store.has_active(record.account_id, record.user_id, "reindex", "docs")
    assert not root.exists()


@pytest.mark.parametrize(
    ("task_id", "fits"),
    [
        ("漢" * 22, True),
        ("漢" * 100, False),
        ("🎈" * 16, True),
        ("🎈" * 80, False),
        ("x" * 200, True),
        ("x" * 201, False),
        ("x" * 255, False),
        ("x" * 256, False),
    ],
)
def test_limits_are_counted_in_bytes(root: Path, make: RecordMaker, task_id: str, fits: bool) -> None:
    """[D079] Handled or refused with a clear error; the file system's own limit is never met."""
    store = local_store(root)
    if fits:
        store.create(make(task_id))
        assert ids(store) == [task_id]
    else:
        with pytest.raises(InvalidTaskId, match=r"as a file name, 200 are possible"):
            store.create(make(task_id))


def test_ordinary_ids_give_exactly_the_documented_path(root: Path, make: RecordMaker) -> None:
    """Files are interchangeable with those of the first generation."""
    record = make("task-1")
    local_store(root).create(record)
    assert path_of(root, record.key).is_file()
    bare = root / "mounted"
    local_store(bare, prefix="").create(record)
    assert (bare / "acme" / "tasks" / "alice" / "task-1.json").is_file()
