"""What is copied arrives as it is, once, and is proved to be there; the source stays as it was."""

from __future__ import annotations

import orjson
import pytest

from task_tracker.codec import encode_value
from task_tracker.copies import MARK
from task_tracker.copying import Outcome
from task_tracker.records import Attempt, TaskRecord, TaskStatus
from task_tracker.testing import RecordMaker
from tests.copying.places import Pair, counts_of, read

ENDED = [TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED]
EXTRA = orjson.dumps({"auth": {"v": [1, None]}, "works": 3})


def samples(make: RecordMaker) -> list[TaskRecord]:
    """Return records of all kinds that can be moved, of several owners."""
    waiting = make(
        handler_version=3,
        payload_json=encode_value({"p": [1]}, "payload"),
        private_json=encode_value({"key": "hidden"}, "private"),
        not_before=5e9,
        priority=7,
        extra_json=EXTRA,
        meta_json=b'{"from":"here"}',
        max_attempts=3,
    )
    return [
        *(make.full(status=status) for status in ENDED),
        *(make(status=status, user_id="bob", extra_json=EXTRA) for status in ENDED),
        make(status=TaskStatus.parse("archived"), completed_at=make.clock.now()),
        make("../x", account_id="a/b", user_id="c d", status=TaskStatus.FAILED, error="é\n"),
        make("../x", account_id="a", user_id="b/c d"),
        waiting,
        make(status=TaskStatus.COMPLETED, result_json=b"12345678901234567"),
        *make.many(12, account_id="globex", status=TaskStatus.COMPLETED, result_json=b'[1.0,1,1000.0,""]'),
        make("own", created_at=1_700_000_000.123457, updated_at=1_700_000_001.0),
    ]


def moved(record: TaskRecord) -> TaskRecord:
    """Return a record without what the stores and the copying itself write."""
    extra = {} if record.extra_json is None else orjson.loads(record.extra_json)
    extra.pop(MARK, None)
    attempt = record.attempt
    if attempt is not None:
        attempt = Attempt(0, "", attempt.holder, attempt.count) if attempt.holder or attempt.count else None
    return record.changed(attempt=attempt, creation=None, extra_json=orjson.dumps(extra) if extra else None)


@pytest.mark.parametrize("page", [3, 500])
def test_all_records_arrive_as_they_are(pair: Pair, page: int) -> None:
    """[D005] [D127] Of all owners, in all states that can be moved, with every field; the source is not touched."""
    records = [pair.source.create(record).record for record in samples(pair.make())]
    before = [pair.old.peek(record.key) for record in records]
    ran = pair.run(page=page)
    assert ran.counts == counts_of(copied=len(records))
    assert ran.is_equal
    for record in records:
        there = read(pair.target, record.key)
        assert moved(there) == moved(record)
        assert there.get_private() == record.get_private()
        marks = orjson.loads(there.extra_json or b"{}")
        assert (MARK in marks) == (not record.status.is_terminal)
    assert [pair.old.peek(record.key) for record in records] == before
    assert sum(tally.source for tally in ran.tallies) == len(records)
    assert {(tally.account_id, tally.user_id) for tally in ran.tallies} == {
        (record.account_id, record.user_id) for record in records
    }


def test_copying_again_writes_nothing(pair: Pair) -> None:
    """[D127] What is there already stays, byte for byte."""
    records = [pair.source.create(record).record for record in samples(pair.make())]
    first = pair.run()
    before = [pair.new.peek(record.key) for record in records]
    second = pair.run()
    assert second.counts == counts_of(same=len(records))
    assert second.is_equal
    assert [pair.new.peek(record.key) for record in records] == before
    digests = [[tally.target_digest for tally in ran.tallies] for ran in (first, second)]
    assert digests[0] == digests[1]


def test_times_and_ends_of_what_has_ended_stay(plain: Pair) -> None:
    """[D127] Retention at the target counts from the times that the tasks had."""
    make = plain.make()
    record = plain.source.create(make.full(status=TaskStatus.FAILED)).record
    assert plain.run().is_equal
    there = read(plain.target, record.key)
    for name in (
        "created_at",
        "updated_at",
        "started_at",
        "completed_at",
        "history_json",
        "error",
        "revision",
    ):
        assert getattr(there, name) == getattr(record, name)


def test_others_tasks_at_the_target_are_left_alone(pair: Pair) -> None:
    """[D155] Those of the same owners as well; they are not counted."""
    make = pair.make()
    mine = pair.source.create(make()).record
    theirs = pair.target.create(make(status=TaskStatus.COMPLETED)).record
    before = pair.new.peek(theirs.key)
    ran = pair.run()
    assert ran.is_equal
    assert [(tally.source, tally.target) for tally in ran.tallies] == [(1, 1)]
    assert pair.new.peek(theirs.key) == before
    assert read(pair.target, mine.key).status is TaskStatus.PENDING


def test_nothing_to_copy(pair: Pair) -> None:
    ran = pair.run()
    assert ran.counts == counts_of()
    assert ran.is_equal
    assert len(ran.tallies) == len(ran.told) == 0


def test_there_and_back_again(plain: Pair) -> None:
    """Through a store with leases and back, a record has what it had, and knows how often it was claimed."""
    make = plain.make()
    records = [plain.source.create(record).record for record in samples(make)]
    plain.run()
    for record in records:
        if record.status.is_terminal:
            plain.source.delete(record.key)
    back = plain._replace(source=plain.target, target=plain.source, old=plain.new, new=plain.old)
    ran = back.run()
    assert ran.is_equal
    ended = sum(record.status.is_terminal for record in records)
    assert ran.counts[Outcome.COPIED] == ended
    for record in records:
        assert moved(read(plain.source, record.key)) == moved(record)
