"""What a directory must be able to do, and what is said where it cannot."""

import errno
import json
import os

import pytest

from stores.files.lease.store import LeaseTaskStore, open_lease
from task_tracker.errors import CapabilityMissing, SettingsError, StoreUnavailable
from task_tracker.store import StoreOptions
from task_tracker.testing import MovingClient
from tests.lease.support import control, leftovers, open_store, ops_with


def copying_rename(source: str, target: str) -> None:
    """A server on which a rename is a copy: the source stays."""
    if os.path.isfile(source):
        os.link(source, target + "~")
        os.replace(target + "~", target)
    else:
        os.rename(source, target)


def overwriting_link(source: str, target: str) -> None:
    """A server that links over what is there."""
    if os.path.exists(target):
        os.unlink(target)
    os.link(source, target)


def no_link(source: str, target: str) -> None:
    """FAT, and some network mounts."""
    raise OSError(errno.EPERM, "Operation not permitted", source)


def forgiving_rmdir(path: str) -> None:
    """A server that removes a directory with all that is in it."""
    for name in os.listdir(path):
        inner = os.path.join(path, name)
        os.rmdir(inner) if os.path.isdir(inner) else os.unlink(inner)
    os.rmdir(path)


def idle_utime(path: str) -> None:
    """A server that does not stamp what is touched."""
    os.stat(path)


def split_stat(path: str) -> os.stat_result:
    """A control directory that is a mount of its own."""
    found = os.stat(path)
    if not path.endswith(".task_tracker"):
        return found
    return os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])


class TestProbe:
    @pytest.mark.parametrize(
        ("calls", "reason"),
        [
            ({"rename": copying_rename}, "consume its source"),
            ({"link": overwriting_link}, "link to a name that is taken"),
            ({"link": no_link}, "link"),
            ({"rmdir": forgiving_rmdir}, "rmdir"),
            ({"utime": idle_utime, "pause": lambda seconds: None}, "time stamps"),
            ({"stat": split_stat}, "one device"),
        ],
    )
    def test_what_cannot_be_promised_is_refused_with_the_reason(self, tmp_path, calls, reason):
        """A backend that ignores what it is asked for is found out at the start. [D090]"""
        with pytest.raises(CapabilityMissing, match=reason):
            open_store(tmp_path, ops_with(**calls))
        assert not (control(tmp_path) / "format").exists(), "a root that is refused is not marked"
        assert [name for name in os.listdir(control(tmp_path)) if name.startswith("probe")] == []

    def test_full_disk_is_not_a_missing_promise(self, tmp_path):
        def full(handle: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(StoreUnavailable, match="No space"):
            open_store(tmp_path, ops_with(write=full))
        assert open_store(tmp_path).recover() == 0

    def test_probe_leaves_nothing(self, tmp_path):
        open_store(tmp_path)
        open_store(tmp_path)
        assert leftovers(tmp_path) == []


class TestMark:
    def test_mark_is_whole_and_says_its_version(self, tmp_path):
        open_store(tmp_path, shards=256)
        assert json.loads((control(tmp_path) / "format").read_text()) == {"format": 1, "shards": 256}

    def test_shards_are_those_of_the_root(self, tmp_path, make):
        """Whatever the code would choose for a new one."""
        small = open_store(tmp_path, shards=1)
        record = make()
        small.create(record)
        assert open_store(tmp_path, shards=256).claim(record.key, holder="me") is not None

    @pytest.mark.parametrize(
        ("mark", "error", "words"),
        [
            ('{"format": 2, "shards": 256}', SettingsError, "upgrade"),
            ('{"format": 1, "shards": 7}', SettingsError, "7 shards"),
            ("", StoreUnavailable, "understood"),
            ("[]", StoreUnavailable, "understood"),
        ],
    )
    def test_mark_of_somebody_else_is_refused(self, tmp_path, mark, error, words):
        open_store(tmp_path)
        (control(tmp_path) / "format").write_text(mark)
        with pytest.raises(error, match=words):
            open_store(tmp_path)

    def test_root_with_another_prefix(self, tmp_path, make):
        store = open_store(tmp_path, prefix="")
        record = make()
        store.create(record)
        assert (tmp_path / "acme/tasks/alice" / f"{record.task_id}.json").exists()
        assert (tmp_path / ".task_tracker/format").exists()


class TestConfiguration:
    def test_root_is_needed(self):
        with pytest.raises(SettingsError, match="root"):
            open_lease(StoreOptions())

    def test_file_client_is_refused(self):
        with pytest.raises(SettingsError, match="atomic rename"):
            open_lease(StoreOptions(client=MovingClient()))

    def test_object_store_is_refused(self):
        with pytest.raises(SettingsError, match="local directories"):
            open_lease(StoreOptions(root="s3://bucket/prefix"))

    def test_index_is_no_option(self, tmp_path):
        """There is no side-index that a network disk could corrupt. [D105]"""
        with pytest.raises(SettingsError, match="index"):
            open_lease(StoreOptions(root=str(tmp_path), options={"index": "sqlite"}))

    def test_three_heartbeats_per_lease_are_the_least(self, tmp_path):
        """A heartbeat as long as the lease loses it. [D019]"""
        with pytest.raises(SettingsError, match="heartbeat_seconds"):
            LeaseTaskStore(tmp_path, lease_seconds=6, heartbeat_seconds=3)
        store = LeaseTaskStore(tmp_path, lease_seconds=6)
        assert store.heartbeat_seconds == 2

    def test_file_locks_are_not_needed(self, tmp_path, make, monkeypatch):
        """A network mount without them is as good: exclusion stands on renames alone. [D102]"""

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("stores.files.locks.lock_descriptor", refuse)
        monkeypatch.setattr("fcntl.flock", refuse)
        monkeypatch.setattr("fcntl.lockf", refuse)
        store = open_store(tmp_path, durability="edges")
        record = make()
        store.create(record)
        found = store.claim(record.key, holder="me")
        assert found is not None
        store.purge({}, limit=10)
