"""What the columns keep: records byte for byte, and nothing that jsonb or text would refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import orjson
import psycopg
import pytest

from stores.postgres.store import PostgresTaskStore
from task_tracker import TaskTracker
from task_tracker.codec import encode_record, encode_value
from task_tracker.errors import InvalidTaskId
from task_tracker.records import TaskStatus
from task_tracker.store import Query, Stored
from task_tracker.testing import RecordMaker
from tests.core.support import OWNER
from tests.postgres.grounds import Ground
from tests.runtime.work import wait_for

EXACT = {
    "order of keys": b'{"zz":1,"a":{"bb":1,"b":2},"b":3}',
    "floats that look whole": b"[1e18,1e300,-0.0,5e-324,0.1,1.0,123456789.0]",
    "large numbers": b"[9223372036854775807,-9223372036854775808,18446744073709551615,9007199254740993]",
    "escaped backslash": b'["\\\\u0000","C:\\\\users\\\\u0000ff"]',
    "text": '"\u2028 \u0085 é 漢 🎈 \U0010ffff \x7f \\" / "'.encode(),
    "deep": b"[" * 150 + b"]" * 150,
}


@pytest.fixture
def store(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store()) as store:
        yield store


@pytest.fixture
def tracker(store: PostgresTaskStore) -> Iterator[TaskTracker]:
    with TaskTracker(store) as tracker:
        yield tracker


@pytest.mark.parametrize("value", EXACT.values(), ids=EXACT.keys())
def test_values_come_back_byte_for_byte(store: PostgresTaskStore, make: RecordMaker, value: bytes) -> None:
    """jsonb would sort keys and write numbers another way; the column is no jsonb, but takes only what it would."""
    encoded = encode_value(orjson.loads(value), "result")
    record = make(status=TaskStatus.COMPLETED, result_json=encoded, payload_json=encoded, meta_json=encoded)
    stored = store.create(record)
    found = store.get(record.key)
    assert isinstance(found, Stored)
    assert found == stored
    assert (found.record.result_json, found.record.payload_json, found.record.meta_json) == (encoded,) * 3


def test_every_record_is_one_that_jsonb_takes(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    """So operators can search in them, and index what they search for. [D113] [D114]"""
    store.create(make.full(status=TaskStatus.COMPLETED))
    assert ground.run(
        'SELECT count(*) FROM {tasks} WHERE record::jsonb @> \'{{"meta": {{"source": "crawler"}}}}\''
    ) == [(1,)]
    for foreign in (b'{"message": "\\u0000"}', b'{"message": "\\ud800"}', b'{"result": NaN}', b"{"):
        with pytest.raises(psycopg.DataError):
            ground.run("UPDATE {tasks} SET record = %s", foreign.decode())


class TestUnstorable:
    @pytest.mark.parametrize(
        "result", ["a\0b", {"a\0b": 1}, [{"deep": ["\ud800"]}], float("nan"), {"n": [float("-inf")]}]
    )
    def test_result_that_cannot_be_kept_ends_the_task_all_the_same(
        self, tracker: TaskTracker, result: Any
    ) -> None:
        """In values and in keys, at any depth: never left running. [D113] [D114]"""
        task = tracker.create("t", **OWNER)
        tracker.start(task.task_id)
        ended = tracker.complete(task.task_id, result)
        assert ended is not None
        assert (ended.status, ended.error_code) == ("failed", "unserializable_result")
        with TaskTracker(tracker.store) as other:
            assert other.get(task.task_id, **OWNER) == ended

    @pytest.mark.parametrize("text", ["a\0b", "half \ud800 a character", "\0"])
    def test_error_text_that_cannot_be_kept_is_cleaned(self, tracker: TaskTracker, text: str) -> None:
        """[D113]"""
        task = tracker.create("t", **OWNER)
        tracker.start(task.task_id)
        ended = tracker.fail(task.task_id, text)
        assert ended is not None
        assert ended.error == text.replace("\0", "\ufffd").replace("\ud800", "\ufffd")

    def test_nul_that_came_past_all_checks_is_refused_before_it_is_sent(
        self, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """In one line that says what it is; nothing is written. [D113]"""
        for record in (make(message="a\0b"), make(meta_json=b'{"a\\u0000":1}'), make(resource_id="a\0b")):
            with pytest.raises(ValueError, match="holds a NUL character, which PostgreSQL does not keep"):
                store.create(record)
        assert store.count("acme", None) == {}

    def test_questions_about_what_no_column_can_hold_have_the_empty_answer(
        self, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        store.create(make())
        for bad in ("a\0b", "\ud800"):
            assert store.list(Query("acme", task_type=bad)).items == []
            assert store.list(Query("acme", status=bad)).items == []
            assert store.list(Query(bad)).items == []
            assert not store.has_active("acme", None, "reindex", bad)
            assert store.find_active("acme", "alice", bad, None) is None
            assert store.count("acme", bad) == {}
            assert store.delete_owner("acme", bad) == 0

    def test_type_that_no_index_takes_is_refused(self, store: PostgresTaskStore, make: RecordMaker) -> None:
        """A resource may have any length: it is in no index."""
        with pytest.raises(InvalidTaskId, match="longer than 500 bytes"):
            store.create(make(task_type="x" * 501))
        long = "".join(chr(0x4E00 + number) for number in range(5000))
        record = store.create(make(resource_id=long)).record
        assert store.has_active("acme", "alice", "reindex", long)
        assert [found.record for found in store.list(Query("acme", resource_id=long)).items] == [record]

    def test_ids_are_measured_in_bytes(self, store: PostgresTaskStore, make: RecordMaker) -> None:
        for name in ("account_id", "user_id", "task_id", "task_type"):
            store.create(make(**{name: "\U00020000" * 125}))
            with pytest.raises(InvalidTaskId, match=f"^{name} .* is longer than 500 bytes"):
                store.create(make(**{name: "\U00020000" * 126}))

    def test_longest_ids_of_all_kinds_fit(self, store: PostgresTaskStore, make: RecordMaker) -> None:
        """All at once, of characters that do not compress."""
        ids = [
            "".join(chr(0x4E00 + 7 * number * step % 20000) for number in range(166))
            for step in (1, 3, 5, 11)
        ]
        record = make(ids[0], account_id=ids[1], user_id=ids[2], task_type=ids[3], handler_version=1)
        store.create(record)
        assert store.claim(holder="w", task_types=[(ids[3], 1)]) is not None


def test_size_of_a_megabyte_costs_no_more_than_it_must(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    """Heartbeats do not write the record again, and find room on the page of the row."""
    record = store.create(make(payload_json=encode_value("x" * 1_000_000, "payload"))).record
    claimed = store.claim(record.key, holder="h")
    assert claimed is not None

    def updates() -> tuple[int, int]:
        """How many there were, and how many found room there, as far as sessions have told their numbers."""
        with closing(psycopg.connect(ground.dsn, autocommit=True)) as fresh:
            found = fresh.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = %s::regclass",
                [f'"{ground.names.schema}"."{ground.names.prefix}tasks"'],
            ).fetchone()
        assert found is not None
        return found[0], found[1]

    def all_find_room() -> bool:
        before, on_the_page_before = updates()
        for _ in range(20):
            store.renew(claimed[0])
        # The session tells its numbers now and then, when it has something to do.
        wait_for(lambda: updates()[0] >= before + 20, meanwhile=lambda: store.count("acme", None))
        return updates()[1] >= on_the_page_before + 20

    # Others who work in this database may keep old versions there for a while: nobody knows what they may look at.
    wait_for(all_find_room)
    assert len(encode_record(claimed[1].record)) > 1_000_000
