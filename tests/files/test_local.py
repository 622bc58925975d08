"""A directory of this host: reading, publishing, and whatever lies in the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stores.files.backing import Signature
from stores.files.local import LocalFiles
from stores.files.ops import NO_ACCESS_TIME
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import CorruptRecord, SettingsError, StoreUnavailable
from tests.files.support import DIRECTORY, WatchedOps, left_over, local_files, swap

NAME = "task-1.json"


@pytest.fixture
def files(root: Path, ops: WatchedOps) -> LocalFiles:
    return local_files(root, ops)


@pytest.fixture
def path(root: Path) -> Path:
    return root / DIRECTORY.lstrip("/") / NAME


def test_unknown_durability_is_refused(root: Path) -> None:
    with pytest.raises(SettingsError, match=r"durability is 'most'; choose one of full, edges, none"):
        LocalFiles(str(root), SYSTEM_CLOCK, durability="most")


def test_a_root_is_where_it_was_when_the_store_was_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    monkeypatch.chdir(root)
    files = LocalFiles("here/", SYSTEM_CLOCK)
    monkeypatch.chdir("/")
    assert files.where("/local", "x") == f"{root}/here/local/x"


def test_the_root_may_be_that_of_the_file_system(tmp_path: Path, ops: WatchedOps) -> None:
    directory = f"{tmp_path.resolve()}/tasks/alice"
    files = local_files(Path("/"), ops, durability="edges")
    files.create(directory, NAME, b"{}")
    assert files.where(directory, NAME) == f"{directory}/{NAME}"
    assert files.read(directory, NAME).data == b"{}"
    assert "/" in {call.path for call in ops.calls if call.name == "fsync"}


def test_create_then_read(files: LocalFiles, path: Path) -> None:
    files.create(DIRECTORY, NAME, b"{}")
    read = files.read(DIRECTORY, NAME)
    assert (read.data, read.signature) == (b"{}", files.signature(DIRECTORY, NAME))
    assert path.read_bytes() == b"{}"
    assert files.exists(DIRECTORY, NAME)
    assert sorted(files.names(DIRECTORY)) == [NAME]


def test_create_never_overwrites(files: LocalFiles, root: Path) -> None:
    files.create(DIRECTORY, NAME, b"old")
    with pytest.raises(FileExistsError):
        files.create(DIRECTORY, NAME, b"new")
    assert files.read(DIRECTORY, NAME).data == b"old"
    assert left_over(root) == []


def test_replace_and_remove(files: LocalFiles, root: Path) -> None:
    files.create(DIRECTORY, NAME, b"old")
    files.replace(DIRECTORY, NAME, b"new", final=True)
    assert files.read(DIRECTORY, NAME).data == b"new"
    files.remove(DIRECTORY, NAME)
    with pytest.raises(FileNotFoundError):
        files.remove(DIRECTORY, NAME)
    assert left_over(root) == []


def test_a_deleted_record_is_not_emptied_where_others_hold_it(
    files: LocalFiles, path: Path, tmp_path: Path
) -> None:
    """[D077] Snapshots made of hard links keep what they hold, and a link's target is not ours to empty."""
    snapshot, precious = tmp_path / "snapshot", tmp_path / "precious"
    files.create(DIRECTORY, NAME, b"{}")
    snapshot.hardlink_to(path)
    files.retire(DIRECTORY, NAME)
    assert snapshot.read_bytes() == b"{}"
    precious.write_bytes(b"precious")
    path.symlink_to(precious)
    files.retire(DIRECTORY, NAME)
    assert precious.read_bytes() == b"precious"


def test_what_was_deleted_is_not_kept(files: LocalFiles, ops: WatchedOps, root: Path) -> None:
    """Only that something was deleted, and each time another mark; also where the mark cannot be emptied at once."""
    marks: list[object] = [files.deletions("/nowhere")]
    for denied in (False, True, False):
        files.create(DIRECTORY, NAME, b"the content")
        if denied:
            ops.fail(errno.ENOSPC, on=["open"], path=".tmp-")
        files.retire(DIRECTORY, NAME)
        ops.heal()
        marks.append(files.deletions(DIRECTORY)[0])
        held = b"the content" if denied else b""
        assert (root / DIRECTORY.lstrip("/") / ".deleted").read_bytes() == held
    assert len(set(marks)) == 4
    assert left_over(root) == []
    with pytest.raises(FileNotFoundError):
        files.retire(DIRECTORY, NAME)


def test_nothing_there_is_file_not_found_and_nothing_else(files: LocalFiles) -> None:
    """[D071] Absence has one face."""
    for ask in (files.read, files.signature):
        with pytest.raises(FileNotFoundError):
            ask(DIRECTORY, NAME)
    with pytest.raises(FileNotFoundError):
        files.directory_signature(DIRECTORY)
    assert list(files.names(DIRECTORY)) == []
    assert list(files.directories(DIRECTORY)) == []
    assert not files.exists(DIRECTORY, NAME)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENAMETOOLONG])
def test_trouble_is_unavailable_and_nothing_else(files: LocalFiles, ops: WatchedOps, code: int) -> None:
    """[D071] Everything but absence is StoreUnavailable, with the system's error as the cause."""
    files.create(DIRECTORY, NAME, b"{}")
    fresh = local_files(Path(files.where("", "")), ops)
    asks = [
        lambda: fresh.read(DIRECTORY, NAME),
        lambda: fresh.signature(DIRECTORY, NAME),
        lambda: fresh.directory_signature(DIRECTORY),
        lambda: fresh.names(DIRECTORY),
        lambda: fresh.directories("/local"),
        lambda: fresh.exists(DIRECTORY, NAME),
        lambda: fresh.remove(DIRECTORY, NAME),
    ]
    ops.fail(code, forever=True)
    for ask in asks:
        with pytest.raises(StoreUnavailable, match=os.strerror(code)) as caught:
            ask()
        assert isinstance(caught.value.__cause__, OSError)
    ops.heal()
    assert files.read(DIRECTORY, NAME).data == b"{}"


def test_a_directory_in_the_place_of_a_record_is_corrupt(files: LocalFiles, path: Path) -> None:
    """[D069] It is there, it is no record, and no restart will mend it."""
    path.mkdir(parents=True)
    with pytest.raises(CorruptRecord) as caught:
        files.read(DIRECTORY, NAME)
    assert caught.value.path == str(path)


def test_a_file_in_the_place_of_a_directory_is_unavailable(files: LocalFiles, root: Path) -> None:
    (root / "local").mkdir(parents=True)
    (root / "local" / "acme").write_text("not a directory")
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        files.read(DIRECTORY, NAME)
    with pytest.raises(StoreUnavailable, match="Not a directory"), files.exclusively(DIRECTORY):
        pass
    assert (root / "local" / "acme").read_text() == "not a directory"


def test_directories_are_told_from_files(files: LocalFiles, root: Path) -> None:
    """A link to one counts: what is left out without a word is not there for whoever asks about the account."""
    (root / "local" / "acme").mkdir(parents=True)
    (root / "local" / "notes.txt").write_text("")
    (root / "local" / "elsewhere").symlink_to("/tmp")
    assert sorted(files.directories("/local")) == ["acme", "elsewhere"]


@pytest.mark.parametrize(
    "size", [0, 1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, (1 << 20) + (1 << 14), 3 << 20]
)
def test_any_size_is_read_whole(files: LocalFiles, size: int) -> None:
    data = os.urandom(size)  # noqa: TID251  # bytes to recognise
    files.create(DIRECTORY, NAME, data)
    assert files.read(DIRECTORY, NAME).data == data


def test_short_writes_and_reads_are_gone_on_with(files: LocalFiles, ops: WatchedOps) -> None:
    """[D073] The kernel may take or give less than it was asked for; nothing may be cut off."""
    swap(ops, write=lambda handle, data: os.write(handle, data[:7]))
    swap(ops, read=lambda handle, size: os.read(handle, min(size, 5)))
    data = bytes(range(256)) * 4
    files.create(DIRECTORY, NAME, data)
    assert files.read(DIRECTORY, NAME).data == data


def test_a_file_cut_short_while_it_is_read_ends_the_read(
    files: LocalFiles, ops: WatchedOps, path: Path
) -> None:
    """Somebody truncates in place: what is left is given back, and it is nobody's proof of anything."""
    files.create(DIRECTORY, NAME, b"x" * 100)
    swap(ops, read=lambda handle, size: os.read(handle, size)[:0])
    read = files.read(DIRECTORY, NAME)
    assert (read.data, read.settled) == (b"", False)


def test_a_read_is_settled_twenty_milliseconds_after_the_last_write(files: LocalFiles, path: Path) -> None:
    files.create(DIRECTORY, NAME, b"{}")
    now = files.read_time_ns()
    for age_ms, settled in [(0, False), (10, False), (30, True), (-60_000, False)]:
        os.utime(path, ns=(now, now - age_ms * 1_000_000))
        swap(files, read_time_ns=lambda: now)
        read = files.read(DIRECTORY, NAME)
        assert (read.settled, read.signature) == (settled, files.signature(DIRECTORY, NAME))


def test_directory_signature_changes_with_every_publication(files: LocalFiles, root: Path) -> None:
    """[D136] What the index relies on."""
    seen: list[Signature | None] = []

    def look() -> None:
        os.utime(root / DIRECTORY.lstrip("/"), ns=(0, 0))  # so that no two changes fall into one tick
        seen.append(files.directory_signature(DIRECTORY))

    files.create(DIRECTORY, NAME, b"1")
    directory = root / DIRECTORY.lstrip("/")
    for change in (
        lambda: files.create(DIRECTORY, "b.json", b"1"),
        lambda: files.replace(DIRECTORY, NAME, b"2", final=False),
        lambda: files.remove(DIRECTORY, NAME),
    ):
        look()
        change()
        assert files.directory_signature(DIRECTORY) != seen[-1]
    assert directory.is_dir()


# ---- links that lead elsewhere ---------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["local", "local/acme", "local/acme/tasks", "local/acme/tasks/alice"])
def test_links_below_the_root_are_not_followed(root: Path, tmp_path: Path, below: str) -> None:
    """[D077] Neither to read nor to write nor to make directories, wherever on the way the link is."""
    outside = tmp_path / "outside"
    place = outside / DIRECTORY.lstrip("/")[len(below) :].lstrip("/")
    link = root / below
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    outside.mkdir()
    files = local_files(root)
    with pytest.raises(StoreUnavailable, match="symbolic link"), files.exclusively(DIRECTORY):
        pass
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        files.create(DIRECTORY, NAME, b"{}")
    assert list(outside.iterdir()) == []

    place.mkdir(parents=True, exist_ok=True)
    (place / NAME).write_bytes(b"{}")
    for ask in (files.names, files.directories, files.directory_signature):
        with pytest.raises(StoreUnavailable, match="symbolic link"):
            ask(DIRECTORY)
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        files.read(DIRECTORY, NAME)
    assert sorted(place.iterdir()) == [place / NAME]


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    root.symlink_to(tmp_path / "disk")
    files = local_files(root)
    files.create(DIRECTORY, NAME, b"{}")
    assert files.read(DIRECTORY, NAME).data == b"{}"


def test_a_link_in_the_place_of_the_lock_is_not_followed(
    files: LocalFiles, path: Path, tmp_path: Path
) -> None:
    """[D077] The pid is written into the lock file: through a link that would destroy another file."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    path.parent.mkdir(parents=True)
    (path.parent / ".lock").symlink_to(precious)
    with pytest.raises(StoreUnavailable, match="cannot lock"), files.exclusively(DIRECTORY):
        pass
    assert precious.read_text() == "precious"


def test_a_link_in_the_place_of_a_record_is_replaced_not_written_through(
    files: LocalFiles, path: Path
) -> None:
    """[D077]"""
    target = path.parent / "elsewhere"
    path.parent.mkdir(parents=True)
    target.write_bytes(b"theirs")
    path.symlink_to(target)
    with pytest.raises(FileExistsError):
        files.create(DIRECTORY, NAME, b"ours")
    files.replace(DIRECTORY, NAME, b"ours", final=False)
    assert (target.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"theirs", b"ours", False)


# ---- file systems without hard links ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links_a_file_is_renamed_into_its_place(
    files: LocalFiles, ops: WatchedOps, root: Path, code: int
) -> None:
    """FAT and some network mounts; under the lock, looking first is exclusive."""
    ops.fail(code, on=["link"], forever=True)
    files.create(DIRECTORY, NAME, b"old")
    with pytest.raises(FileExistsError):
        files.create(DIRECTORY, NAME, b"new")
    assert files.read(DIRECTORY, NAME).data == b"old"
    assert left_over(root) == []


def test_a_refused_link_for_another_reason_is_trouble(files: LocalFiles, ops: WatchedOps, root: Path) -> None:
    ops.fail(errno.EACCES, on=["link"])
    with pytest.raises(StoreUnavailable, match="cannot create"):
        files.create(DIRECTORY, NAME, b"{}")
    assert left_over(root) == []


# ---- a file that is open elsewhere (Windows) ---------------------------------------------------------------


@pytest.mark.parametrize(("denials", "works"), [(1, True), (19, True), (20, False), (100, False)])
def test_denied_replacements_are_tried_for_a_moment(
    root: Path, ops: WatchedOps, denials: int, works: bool
) -> None:
    """[D076] Below the limit the write lands; above it the old content stays, the error is clear, no temp is left."""
    files = local_files(root, ops, retry_denied=True)
    files.create(DIRECTORY, NAME, b"old")
    left = denials

    def deny(_: object) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise PermissionError(errno.EACCES, "the file is open elsewhere")

    ops.before = lambda call: deny(call) if call.name == "replace" else None
    if works:
        files.replace(DIRECTORY, NAME, b"new", final=False)
    else:
        with pytest.raises(StoreUnavailable, match="the file is open elsewhere"):
            files.replace(DIRECTORY, NAME, b"new", final=False)
    ops.heal()
    assert files.read(DIRECTORY, NAME).data == (b"new" if works else b"old")
    assert len(ops.pauses) == min(denials, 19)
    assert sum(ops.pauses) < 0.25
    assert left_over(root) == []


@pytest.mark.parametrize(("denials", "works"), [(3, True), (20, False)])
def test_denied_reads_are_tried_for_a_moment(root: Path, ops: WatchedOps, denials: int, works: bool) -> None:
    """[D076] The reader's side of the same moment."""
    files = local_files(root, ops, retry_denied=True)
    files.create(DIRECTORY, NAME, b"old")
    left = denials

    def deny(_: object) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise PermissionError(errno.EACCES, "the file is being replaced")

    ops.before = lambda call: deny(call) if call.name == "open" else None
    if works:
        assert files.read(DIRECTORY, NAME).data == b"old"
    else:
        with pytest.raises(StoreUnavailable, match="the file is being replaced"):
            files.read(DIRECTORY, NAME)
    assert len(ops.pauses) == min(denials, 19)


def test_elsewhere_a_denial_is_final(files: LocalFiles, ops: WatchedOps) -> None:
    """[D076] On POSIX a denied call stays denied; nobody waits for it."""
    files.create(DIRECTORY, NAME, b"old")
    ops.fail(errno.EACCES, on=["replace", "open"], forever=True)
    with pytest.raises(StoreUnavailable):
        files.read(DIRECTORY, NAME)
    with pytest.raises(StoreUnavailable):
        files.replace(DIRECTORY, NAME, b"new", final=False)
    assert ops.pauses == []


def test_where_directories_cannot_be_opened_names_are_not_synced(
    root: Path, ops: WatchedOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows: the file system's journal keeps them."""
    files = local_files(root, ops, durability="full")
    monkeypatch.setattr(os, "name", "nt")
    files.create(DIRECTORY, NAME, b"{}")
    monkeypatch.undo()
    assert [".tmp-" in call.path for call in ops.calls if call.name == "fsync"] == [True]


@pytest.mark.skipif(not NO_ACCESS_TIME, reason="this system has no O_NOATIME")
def test_files_of_others_are_read_as_well(files: LocalFiles, ops: WatchedOps) -> None:
    """The time of access is left alone, which only the owner of a file may ask for."""
    files.create(DIRECTORY, NAME, b"{}")
    asked = []

    def refuse(path: str, flags: int, *mode: int) -> int:
        asked.append(flags & NO_ACCESS_TIME)
        if flags & NO_ACCESS_TIME:
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        return os.open(path, flags, *mode)

    swap(ops, open=refuse)
    assert [files.read(DIRECTORY, NAME).data for _ in range(2)] == [b"{}", b"{}"]
    assert [bool(flag) for flag in asked] == [True, False, False]
