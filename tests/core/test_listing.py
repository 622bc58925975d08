"""Order, pages and cursors, against sorted() of a plain list."""

from __future__ import annotations

import base64

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores import InMemoryTaskStore
from task_tracker import CorruptRecord, TaskPage, TaskRecord, TaskStatus, transitions
from task_tracker.listing import Listing, Summary, in_order
from task_tracker.store import Cursor, Query
from tests.core.support import PROPERTY, START, ids, record_of

STATUS = st.sampled_from([*TaskStatus, TaskStatus.parse("paused")])
FEW_TIMES = st.sampled_from([START, START + 1, START + 1.5])
IDS = st.sampled_from([*"abcdef", "a\0"[0] + "a", "a-b", "é"])
USERS = st.sampled_from(["alice", "bob", "carol"])
SUMMARIES = st.builds(
    lambda task_id, at, status, kind, resource, touched: Summary.of(
        record_of(
            task_id=task_id,
            created_at=at,
            updated_at=at + touched,
            status=status,
            task_type=kind,
            resource_id=resource,
        )
    ),
    IDS,
    FEW_TIMES,
    STATUS,
    st.sampled_from(["t1", "t2"]),
    st.sampled_from([None, "r"]),
    st.integers(0, 2),
)


def listing_of(*summaries: Summary) -> Listing:
    listing = Listing()
    for summary in summaries:
        listing.put(summary)
    return listing


@settings(PROPERTY, max_examples=300)
@given(
    st.lists(SUMMARIES | IDS, max_size=25),
    st.none() | STATUS.map(str),
    st.none() | st.tuples(FEW_TIMES, IDS),
)
def test_a_listing_is_what_a_sorted_list_would_be(
    steps: list[Summary | str], status: str | None, before: tuple[float, str] | None
) -> None:
    listing = Listing()
    model: dict[str, Summary] = {}
    for step in steps:
        if isinstance(step, Summary):
            listing.put(step)
            model[step.task_id] = step
        else:
            listing.remove(step)
            model.pop(step, None)
    expected = sorted(model.values(), key=lambda one: (one.created_at, one.task_id), reverse=True)
    wanted = [
        one
        for one in expected
        if status in (None, one.status) and (before is None or (one.created_at, one.task_id) < before)
    ]
    assert list(listing.newest(status=status, before=before)) == wanted
    assert len(listing) == len(model)
    assert {one.task_id: one for one in listing} == model
    assert all(listing.get(name) == model.get(name) for name in "abcdefg")
    assert sorted(listing.active_ids()) == sorted(
        one.task_id for one in expected if not one.status.is_terminal
    )
    for kind in ("t1", "t2"):
        for resource in (None, "r"):
            blocking = [one for one in expected if (one.task_type, one.resource_id) == (kind, resource)]
            assert listing.has_active(kind, resource) is any(one.blocks for one in blocking)
    counts: dict[str, dict[str, int]] = {}
    listing.count_into(counts)
    assert sum(number for by_status in counts.values() for number in by_status.values()) == len(model)
    for one in expected:
        same = [x for x in expected if (x.task_type, x.status) == (one.task_type, one.status)]
        assert counts[one.task_type][one.status] == len(same)
    assert not listing._counts.keys() - {(one.task_type, one.status) for one in expected}


def test_counts_are_added_to_what_is_there() -> None:
    counts = {"session_commit": {"running": 1}}
    listing_of(Summary.of(record_of("running")), Summary.of(record_of("failed", task_id="b"))).count_into(
        counts
    )
    assert counts == {"session_commit": {"running": 2, "failed": 1}}


def test_a_summary_knows_whether_the_task_blocks_others() -> None:
    for status in (*TaskStatus, TaskStatus.parse("paused")):
        for ended in (None, START):
            record = record_of(status, completed_at=ended)
            assert Summary.of(record).blocks is transitions.blocks_duplicates(record.status, ended)


def test_a_page_is_a_plain_list_that_knows_more() -> None:
    corrupt = CorruptRecord("broken", path="/p")
    page = TaskPage([record_of()], next_cursor="c", corrupt=[corrupt])
    assert page == [record_of()]
    assert (page.next_cursor, page.corrupt) == ("c", (corrupt,))
    empty = TaskPage()
    assert (list(empty), empty.next_cursor, empty.corrupt) == ([], None, ())


# ---- cursors ---------------------------------------------------------------------------------------


@PROPERTY
@given(st.floats(allow_nan=False, allow_infinity=False), st.text(), st.text())
def test_a_cursor_survives_the_way_to_the_caller_and_back(at: float, task_id: str, user_id: str) -> None:
    cursor = Cursor(at, task_id, user_id)
    text = cursor.encode()
    assert Cursor.decode(text) == cursor
    assert text.isascii()
    assert not set(text) & set("+/= &?#"), "fits into a URL as it is"


@PROPERTY
@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_other_text_is_refused_in_one_way(text: str) -> None:
    try:
        cursor = Cursor.decode(text)
    except ValueError as refused:
        assert "is not a cursor; pass the next_cursor of an earlier page" in str(refused)  # noqa: PT017
    else:
        assert isinstance(cursor.created_at, float)


@pytest.mark.parametrize(
    "content",
    [
        [START, "a"],
        [START, "a", "alice", 1],
        [START, 5, "alice"],
        [START, "a", None],
        ["nan", "a", "alice"],
        ["1.5", "a", "alice"],
        [True, "a", "alice"],
        [None, "a", "alice"],
        {"a": 1},
        "abc",
        5,
    ],
)
def test_what_no_listing_gave_out_is_refused(content: object) -> None:
    text = base64.urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")
    with pytest.raises(ValueError, match="is not a cursor"):
        Cursor.decode(text)


@pytest.mark.parametrize("text", [None, 5, b"abc"])
def test_what_is_not_even_text_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a cursor"):
        Cursor.decode(text)  # type: ignore[arg-type]


# ---- pages -----------------------------------------------------------------------------------------

RECORDS = st.builds(
    lambda task_id, user_id, at, status: record_of(
        status, task_id=task_id, user_id=user_id, created_at=at, updated_at=at
    ),
    IDS,
    USERS,
    FEW_TIMES,
    st.sampled_from(TaskStatus),
)


@settings(PROPERTY, max_examples=200)
@given(
    st.lists(RECORDS, max_size=20, unique_by=lambda record: record.key),
    st.integers(1, 5),
    st.none() | USERS,
    st.none() | st.sampled_from(TaskStatus),
)
def test_pages_put_together_are_the_whole_list(
    records: list[TaskRecord], limit: int, user_id: str | None, status: TaskStatus | None
) -> None:
    """The order that the seam promises: (created_at, task_id, user_id), newest first; no page cuts wrongly."""
    store = InMemoryTaskStore()
    created = [store.create(record).record for record in records]
    expected = sorted(
        (r for r in created if user_id in (None, r.user_id) and status in (None, r.status)),
        key=lambda r: (r.created_at, r.task_id, r.user_id),
        reverse=True,
    )
    found: list[TaskRecord] = []
    cursor = None
    for _ in range(len(records) + 1):
        page = store.list(Query("acme", user_id, status=status, limit=limit, before=cursor))
        found += [stored.record for stored in page.items]
        if page.next_cursor is None:
            break
        assert len(page.items) == limit
        cursor = Cursor.decode(page.next_cursor.encode())
    assert found == expected
    assert ids(
        [stored.record for stored in store.list(Query("acme", user_id, status=status, limit=None)).items]
    ) == (ids(expected))


def test_filters_are_exact() -> None:
    query = Query("acme", task_type="t", status="running", resource_id="r")
    assert query.matches("t", "running", "r")
    assert not query.matches("tt", "running", "r")
    assert not query.matches("t", "failed", "r")
    assert not query.matches("t", "running", None)
    assert Query("acme").matches("t", "running", None)


def test_counts_in_order_do_not_tell_how_they_were_found() -> None:
    found = {"b": {"stalled": 1, "failed": 1, "pending": 2}, "a": {"cancelled": 1, "running": 3}}
    ordered = in_order(found)
    assert ordered == found
    assert [*ordered] == ["a", "b"]
    assert [[*states] for states in ordered.values()] == [
        ["running", "cancelled"],
        ["pending", "failed", "stalled"],
    ]
