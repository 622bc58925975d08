"""What the tests of the core share: a clock that never blocks, and a store that can be watched and hindered."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import settings

from stores import InMemoryTaskStore
from task_tracker import TaskRecord, TaskStatus, TaskTracker
from task_tracker.clock import uuid7_text
from task_tracker.errors import CapabilityMissing
from task_tracker.records import TaskKey
from task_tracker.store import Capabilities, Page, Purged, Query, Stored, TaskStore, Unchanged, Version

T = TypeVar("T")

START = 1_750_000_000.0
PATIENCE = 30.0
"""Seconds after which a test that waits for another thread gives up. Never reached when all is well."""

MOST_WAITS = 100_000

PROPERTY = settings(derandomize=True, deadline=None, database=None)
"""For tests that hypothesis feeds: the same examples in every run."""

Owner = dict[str, Any]

OWNER: Owner = {"account_id": "acme", "user_id": "alice"}
STATUSES = tuple(TaskStatus)
ACTIVE = ("pending", "running", "cancelling")
TERMINAL = ("completed", "failed", "cancelled")


class FakeClock:
    """Time that moves when it is told to. Waiting moves it and returns at once."""

    def __init__(self, now: float = START) -> None:
        self._now = now
        self._monotonic = 1000.0
        self._numbers = 0
        self._lock = threading.Lock()
        self.waited: list[float] = []
        self.during_wait: list[Callable[[], object]] = []
        """What happens during the next waits, one call each."""

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now = round(self._now + seconds, 6)
        self._monotonic += seconds

    def step_back(self, seconds: float) -> None:
        """Set the wall clock back, as an administrator does; the monotonic clock goes on."""
        self._now = round(self._now - seconds, 6)

    def new_id(self, at: float) -> str:
        return uuid7_text(int(at * 1000), 0, self._next())

    def new_token(self) -> str:
        return f"{self._next():032x}"

    def jitter(self, seconds: float) -> float:
        return seconds

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        assert condition is not None
        assert len(self.waited) < MOST_WAITS, "this wait would never end"
        self.waited.append(seconds)
        self.advance(seconds)
        if self.during_wait:
            self.during_wait.pop(0)()

    def _next(self) -> int:
        with self._lock:
            self._numbers += 1
            return self._numbers


class Gate:
    """Holds up whoever comes, until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.passed = threading.Event()
        self._opened = threading.Event()

    def wait_entered(self) -> None:
        assert self.entered.wait(PATIENCE), "nobody came to the gate"

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.entered.set()
        assert self._opened.wait(PATIENCE), "nobody opened the gate"
        self.passed.set()


class WatchedStore(TaskStore):
    """Another store whose calls are counted, and can be failed or held up. It has no leases, as many have not."""

    blocking = True

    def __init__(self, inner: TaskStore | None = None) -> None:
        self.inner = inner if inner is not None else InMemoryTaskStore()
        self.capabilities = dataclasses.replace(self.inner.capabilities, leases=False)
        self.calls: builtins.list[tuple[str, object]] = []
        self.errors: dict[str, BaseException] = {}
        """What an operation raises before it does anything."""
        self.errors_of: dict[object, BaseException] = {}
        """What any operation on a task id raises."""
        self.errors_after: dict[str, BaseException] = {}
        """What an operation raises once it has taken effect: the reply was lost."""
        self.closed = 0
        self._gates: dict[tuple[str, object], Gate] = {}
        self._before: dict[str, builtins.list[Callable[[], object]]] = {}

    def gate(self, operation: str, subject: object) -> Gate:
        """Hold up ``operation`` on a task id (or an account) until the gate is opened."""
        return self._gates.setdefault((operation, subject), Gate())

    def before(self, operation: str, action: Callable[[], object]) -> None:
        """Do something once, right before the next call of ``operation`` takes effect."""
        self._before.setdefault(operation, []).append(action)

    def go_down(self, error: BaseException, *operations: str) -> None:
        """Have operations (all of them, if none is named) raise ``error``."""
        for operation in operations or OPERATIONS:
            self.errors[operation] = error

    def come_back(self) -> None:
        self.errors.clear()
        self.errors_of.clear()
        self.errors_after.clear()

    def count_of(self, operation: str) -> int:
        return sum(called == operation for called, _ in self.calls)

    def _call(self, operation: str, subject: object, call: Callable[[], T]) -> T:
        self.calls.append((operation, subject))
        gate = self._gates.get((operation, subject))
        if gate is not None:
            gate.pass_through()
        actions = self._before.get(operation)
        if actions:
            actions.pop(0)()
        error = self.errors.get(operation) or self.errors_of.get(subject)
        if error is not None:
            raise error
        answer = call()
        if operation in self.errors_after:
            raise self.errors_after[operation]
        return answer

    def create(self, record: TaskRecord) -> Stored:
        return self._call("create", record.task_id, lambda: self.inner.create(record))

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        return self._call(
            "create_if_no_active", record.task_id, lambda: self.inner.create_if_no_active(record)
        )

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        return self._call("update", record.task_id, lambda: self.inner.update(record, expected=expected))

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        return self._call("get", key.task_id, lambda: self.inner.get(key, known=known))

    def list(self, query: Query) -> Page:
        return self._call("list", query.account_id, lambda: self.inner.list(query))

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        self._call("delete", key.task_id, lambda: self.inner.delete(key, expected=expected))

    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        return self._call(
            "has_active",
            account_id,
            lambda: self.inner.has_active(account_id, user_id, task_type, resource_id),
        )

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        return self._call("count", account_id, lambda: self.inner.count(account_id, user_id))

    def delete_owner(self, account_id: str, user_id: str) -> int:
        return self._call("delete_owner", account_id, lambda: self.inner.delete_owner(account_id, user_id))

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        return self._call("purge", None, lambda: self.inner.purge(cutoffs, limit=limit))

    def close(self) -> None:
        self.closed += 1
        self.inner.close()


OPERATIONS = (
    "create",
    "create_if_no_active",
    "update",
    "get",
    "list",
    "delete",
    "has_active",
    "count",
    "delete_owner",
    "purge",
)


class LastWriteWinsStore(WatchedStore):
    """A store that cannot compare and set, as one on a plain file client."""

    def __init__(self, inner: TaskStore | None = None) -> None:
        super().__init__(inner)
        self.capabilities = Capabilities()

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        if expected is not None:
            raise CapabilityMissing("this store cannot compare; pass expected=None")
        return super().update(record, expected=None)


def record_of(status: str = "pending", **fields: Any) -> TaskRecord:
    """A record in some state, of acme/alice unless ``fields`` say otherwise."""
    values: dict[str, Any] = {
        "task_id": "task-1",
        "task_type": "session_commit",
        "status": TaskStatus.parse(status),
        "created_at": START,
        "updated_at": START,
        **OWNER,
    }
    return TaskRecord(**(values | fields))


def drive_to(tracker: TaskTracker, task_id: str, status: str, owner: Mapping[str, str] | None = None) -> None:
    """Bring an active task into ``status`` by calls that users make."""
    who: Owner = dict(owner or {})
    if status in ("running", "cancelling"):
        tracker.start(task_id, **who)
    if status == "cancelling":
        tracker.cancel(task_id, **who)
    if status == "cancelled":
        tracker.mark_cancelled(task_id, **who)
    if status == "completed":
        tracker.complete(task_id, {"n": 1}, **who)
    if status == "failed":
        tracker.fail(task_id, "it broke", **who)


def in_threads(*calls: Callable[[], T]) -> builtins.list[T | BaseException]:
    """Make all calls at once, each on a thread of its own; return what each gave or raised."""
    barrier = threading.Barrier(len(calls))
    answers: builtins.list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            answers[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001  # handed to the caller
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    return answers


def join(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), f"{thread.name} does not end"


@contextmanager
def background(call: Callable[[], object]) -> Iterator[builtins.list[object]]:
    """Run ``call`` on a thread during the block; the list holds its answer or error after the block."""
    answers: builtins.list[object] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001  # handed to the caller
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield answers
    join(thread)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # nothing tells us
            await asyncio.sleep(0)


def own_threads() -> set[threading.Thread]:
    """The threads alive that the library has started."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("task_tracker ")}


def ids(records: Sequence[TaskRecord]) -> builtins.list[str]:
    return [record.task_id for record in records]
