"""Names of entries: they can be read by people, told apart for ever, and are never too long."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.files.lease.names import (
    LEGACY,
    EntryName,
    announcement,
    announcement_of,
    kind_digest,
    life_of,
)
from task_tracker import transitions
from task_tracker.errors import InvalidTaskId, TaskNotFound
from task_tracker.records import TaskKey
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import claimed_by
from tests.lease.support import control, entries, expired_after, leftovers, open_store

IDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60
).filter(str.strip)


class TestText:
    def test_ordinary_ids_can_be_read(self, make):
        record = make("kb-7@x.y", created_at=1.5)
        name = EntryName.of(record, 3, "t0")
        assert str(name) == f"0000000001500000.acme+alice+kb-7@x.y.{LEGACY}@3-t0"

    @given(st.tuples(IDS, IDS, IDS), st.integers(0, 10**17), st.booleans())
    def test_round_trip(self, ids, epoch, settled):
        record = RecordMaker()(ids[2], account_id=ids[0], user_id=ids[1], creation="c0ffee")
        try:
            name = EntryName.of(record, epoch, "abc123")._replace(settled=settled)
        except InvalidTaskId:
            return
        assert EntryName.parse(str(name)) == name
        assert name.task in (None, TaskKey(*ids))
        assert len(str(name)) < 255
        assert "/" not in str(name)

    @pytest.mark.parametrize(
        "text", ["", "x", "format", "abc.rec", "1.a.b@c-d", "0000000001500000.a+b+c.l@1"]
    )
    def test_what_is_no_name(self, text):
        assert EntryName.parse(text) is None

    def test_next_claim_is_an_epoch_higher(self, make):
        name = EntryName.of(make(), 4, "t0")
        assert name.claimed("t1").epoch == 5
        assert name.claimed("t1", above=9).epoch == 10
        assert name.claimed("t1").settled

    def test_odd_creation_counts_as_legacy(self, make):
        """Whatever somebody wrote there is no part of a path."""
        for creation in ("../x", "UPPER", "", "ü", "a.b"):
            assert life_of(make(creation=creation)) == LEGACY

    def test_announcement_round_trip(self, make):
        record = make("a.b%c", creation="c0ffee")
        kind = kind_digest("acme", "alice", record.task_type, record.resource_id)
        assert announcement_of(announcement(record)) == (kind, "a.b%c", "c0ffee")
        assert announcement_of("nonsense") is None


class TestLongIds:
    """Ids that do not fit into the name of an entry lie in it. [D079]"""

    @pytest.mark.parametrize("task_id", ["x" * 200, "漢" * 22, "a" * 120])
    def test_whole_life(self, tmp_path, store, make, task_id):
        record = make(task_id, account_id="a" * 100, user_id="u" * 100)
        store.create(record)
        (entry,) = control(tmp_path).glob("idle/*/*")
        assert "=" in entry.name
        assert os.listdir(entry) == ["key"]
        lease, stored = claimed_by(store, record.key)
        store.release(lease, transitions.released(stored.record, 2.0))
        assert [found.record.task_id for found in store.unclaimed(limit=5)] == [task_id]
        lease, stored = claimed_by(store, record.key)
        store.end(lease, transitions.completed(stored.record, 3.0, b"1"))
        assert leftovers(tmp_path) == []

    def test_next_one_is_named_by_its_file(self, tmp_path, store, make):
        """One whose file is gone is nobody's, and in nobody's way."""
        records = make.many(2, user_id="u" * 160, handler_version=1)
        for record in records:
            store.create(record)
        kinds = [("reindex", 1)]
        assert store.claimable(task_types=kinds, limit=2) == [record.key for record in records]
        first = min(control(tmp_path).glob("ready/*/*/*/*/*/key"))
        first.unlink()
        assert store.claimable(task_types=kinds, limit=1) == [records[1].key]

    def test_expired_one_is_found_by_its_file(self, tmp_path, store, make):
        record = make("x" * 200, user_id="u" * 100)
        store.create(record)
        claimed_by(store, record.key)
        (expired,) = expired_after(store, tmp_path)
        assert expired.record.key == record.key

    @pytest.mark.parametrize("task_id", ["x" * 201, "漢" * 100, "🎈" * 80, "x" * 256])
    def test_too_long_is_refused_before_anything_is_written(self, tmp_path, store, make, task_id):
        with pytest.raises(InvalidTaskId, match="bytes"):
            store.create(make(task_id))
        assert leftovers(tmp_path) == []
        for call in (
            store.get,
            store.delete,
            store.request_cancel,
            lambda key: store.claim(key, holder="me"),
        ):
            with pytest.raises(TaskNotFound):
                call(make.key(task_id))


class TestHostileIds:
    """No id reaches a path of its own choice. [D077]"""

    @pytest.mark.parametrize(
        "task_id",
        ["../x", "a/b", "/abs", "..\\x", "%2e%2e%2f", "new\nline", ".", "..", "a+b", "a@1-t", "~", "=x"],
    )
    def test_whole_life(self, tmp_path, make, task_id):
        root = tmp_path / "root"
        root.mkdir()
        store = open_store(root)
        record = make(task_id, user_id=task_id)
        store.create(record)
        lease, stored = claimed_by(store, record.key)
        assert stored.record.task_id == task_id
        assert entries(root) == ["leases@1"]
        store.request_cancel(record.key)
        store.renew(lease)
        assert lease.cancel_requested.is_set()
        store.end(lease, transitions.cancelled(stored.record, 3.0))
        store.delete(record.key)
        assert leftovers(root) == []
        assert os.listdir(tmp_path) == ["root"]
