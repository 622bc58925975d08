"""Every order in which the requests of two creators of a kind can reach a store, and many orders of three.

The store's own code runs in greenlets on a dict in place of a server; before each request it gives way, and the test
decides who goes on. An actor that is not let on for long is one that was suspended, or has crashed.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from greenlet import getcurrent, greenlet

from stores.files.backing import Backing, Changed, ETag, FileRead, Look
from stores.files.persistent import PersistentTaskStore
from task_tracker import transitions
from task_tracker.codec import decode_record
from task_tracker.errors import InvalidTransition, StoreUnavailable, TaskNotFound
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Capabilities, Stored
from task_tracker.testing import FakeClock, RecordMaker
from task_tracker.testing.answers import fetch
from tests.contract.harnesses import place

MOST_STEPS = 200

Objects = dict[str, tuple[bytes, ETag]]


def give_way() -> None:
    current = getcurrent()
    if current.parent is not None:
        current.parent.switch()


class TableFiles(Backing):
    """One actor's view of a dict that takes conditional writes, each one at a time."""

    capabilities = Capabilities(durable=True, shared=True, exclusive_create=True, compare_and_set=True)
    atomic = remote = conditional = consistent = True

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._tags = itertools.count(len(objects))

    def where(self, directory, name):
        return f"{directory}/{name}"

    def read(self, directory, name):
        give_way()
        try:
            data, tag = self._objects[self.where(directory, name)]
        except KeyError as error:
            raise FileNotFoundError(name) from error
        return FileRead(data, tag, True)

    def signature(self, directory, name):
        return self.read(directory, name).signature

    def directory_signature(self, directory):
        return None

    def names(self, directory):
        return self.look(directory).names

    def look(self, directory):
        give_way()
        found = {
            path.rpartition("/")[2]: tag
            for path, (_, tag) in self._objects.items()
            if path.rpartition("/")[0] == directory
        }
        return Look([*found], found)

    def directories(self, directory):
        raise NotImplementedError

    def exists(self, directory, name):
        with contextlib.suppress(FileNotFoundError):
            return bool(self.read(directory, name))
        return False

    def create(self, directory, name, data):
        give_way()
        if self.where(directory, name) in self._objects:
            raise FileExistsError(name)
        return self._put(directory, name, data)

    def replace(self, directory, name, data, *, final, over=None):
        give_way()
        self._check(directory, name, over)
        return self._put(directory, name, data)

    def _check(self, directory, name, over):
        there = self._objects.get(self.where(directory, name))
        if over is not None and (there is None or there[1] != over):
            raise Changed(name)

    def _put(self, directory, name, data):
        tag = ETag(hashlib.md5(data, usedforsecurity=False).hexdigest())
        self._objects[self.where(directory, name)] = data, tag
        return tag

    def remove(self, directory, name):
        raise NotImplementedError

    def retire(self, directory, name, *, over=None):
        give_way()
        self._check(directory, name, over)
        del self._objects[self.where(directory, name)]

    def deletions(self, directory):
        return None, False

    def exclusively(self, directory, *, make=False):
        return contextlib.nullcontext()

    def sweep(self, directory, names):
        pass


class PassingClock(FakeClock):
    """Whoever waits on it lets the others go on, and six seconds have passed for him."""

    def wait(self, condition, seconds):
        self.advance(6)
        give_way()


Work = Callable[[PersistentTaskStore], object]


class World:
    """A dict, and actors that work on it."""

    def __init__(self) -> None:
        self.objects: Objects = {}
        self.make = RecordMaker()
        self.actors: list[greenlet] = []
        self.outcomes: dict[int, object] = {}

    def store(self) -> PersistentTaskStore:
        place = TableFiles(self.objects)
        with mock.patch("stores.files.persistent.open_place", return_value=place):
            store = PersistentTaskStore("", clock=PassingClock())
        store._marks._looked, store._marks._opened_at = True, 0.0
        return store

    def actor(self, work: Work) -> None:
        number, store = len(self.actors), self.store()

        def run() -> None:
            try:
                self.outcomes[number] = work(store)
            except (StoreUnavailable, InvalidTransition, TaskNotFound) as error:
                self.outcomes[number] = error

        self.actors.append(greenlet(run))

    def active(self) -> list[str]:
        found = []
        for path, (data, _) in self.objects.items():
            if path.startswith("/local/acme/tasks/alice/"):
                key = TaskKey("acme", "alice", path.rpartition("/")[2].removesuffix(".json"))
                record = decode_record(data, key, path)
                if transitions.blocks_duplicates(record.status, record.completed_at):
                    found.append(record.task_id)
        return found

    def run(self, choose: Callable[[int], int]) -> None:
        """Let actors on, one request each time, until all have ended."""
        for _ in range(MOST_STEPS):
            running = [actor for actor in self.actors if not actor.dead]
            if not running:
                return
            running[choose(len(running))].switch()
            active = self.active()
            assert len(active) <= 1, f"two of a kind are active: {active}"
        raise AssertionError("somebody never comes to an end")


def every_schedule(build: Callable[[], World], check: Callable[[World], None]) -> int:
    """Run a world under every sequence of choices; return how many there were."""
    schedule: list[tuple[int, int]] = []
    for count in itertools.count(1):
        world, position = build(), itertools.count()

        def choose(running: int, position: Iterator[int] = position) -> int:
            at = next(position)
            if at == len(schedule):
                schedule.append((0, running))
            return schedule[at][0]

        world.run(choose)
        check(world)
        while schedule and schedule[-1][0] + 1 == schedule[-1][1]:
            schedule.pop()
        if not schedule:
            return count
        schedule[-1] = (schedule[-1][0] + 1, schedule[-1][1])
    raise AssertionError("unreachable")


def some_schedules(number: int, build: Callable[[], World], check: Callable[[World], None]) -> None:
    """Run a world under schedules that look random and are the same in every run."""
    for turn in range(number):
        world, steps = build(), itertools.count()

        def choose(running: int, turn: int = turn, steps: Iterator[int] = steps) -> int:
            return hashlib.blake2b(b"%d %d" % (turn, next(steps))).digest()[0] % running

        world.run(choose)
        check(world)


def create_and_end(record: TaskRecord) -> Work:
    def work(store: PersistentTaskStore) -> object:
        created = store.create_if_no_active(record)
        if created is not None:
            store.update(created.record.changed(status=TaskStatus.COMPLETED), expected=created.version)
        return created

    return work


def create(record: TaskRecord) -> Work:
    return lambda store: store.create_if_no_active(record)


def delete(key: TaskKey) -> Work:
    return lambda store: store.delete(key)


def delete_and_begin_again(record: TaskRecord) -> Work:
    def work(store: PersistentTaskStore) -> object:
        store.delete(record.key)
        return store.create_if_no_active(record)

    return work


def put(world: World, record: TaskRecord, *, settled: bool) -> None:
    """Have a task that took its kind, as a creator leaves it that has ended or that crashed before or after."""
    store = world.store()
    taken = store._conditional._kinds.take(record)
    assert taken is not None
    if record.status.is_terminal:
        store.create(record)
    if settled:
        store._conditional._kinds.settle(taken)


def check_outcomes(world: World) -> None:
    """What was said is so: what was created is there, and whoever was refused created nothing."""
    created = [outcome for outcome in world.outcomes.values() if isinstance(outcome, Stored)]
    store = world.store()
    for stored in created:
        assert fetch(store, stored.record.key).record.error_code is None
    paths = {place(stored.record.key) for stored in created}
    for path, (data, _) in world.objects.items():
        if "/tasks/" in path and b'"never_created"' not in data and b'"before"' not in data:
            assert path in paths, "created, and its creator was told otherwise"


def two(*, ending: bool, before: str | None = None) -> Callable[[], World]:
    def build() -> World:
        world = World()
        if before is not None:
            status = TaskStatus.COMPLETED if before != "crashed early" else TaskStatus.PENDING
            put(world, world.make("before", status=status), settled=before == "ended")
        for _ in range(2):
            world.actor((create_and_end if ending else create)(world.make()))
        return world

    return build


def check_that_one_was_created(world: World) -> None:
    check_outcomes(world)
    assert any(isinstance(outcome, Stored | StoreUnavailable) for outcome in world.outcomes.values())


@pytest.mark.slow
@pytest.mark.parametrize("ending", [False, True])
def test_two_creators_in_every_order(ending):
    """One is created at least; two are only if the first has ended."""
    assert every_schedule(two(ending=ending), check_that_one_was_created) > 1000


@pytest.mark.parametrize("ending", [False, True])
def test_two_creators(ending):
    """Some of these orders."""
    some_schedules(1000, two(ending=ending), check_that_one_was_created)


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("before", ["ended", "crashed late", "crashed early"])
def test_two_creators_of_a_kind_that_somebody_had(before, number):
    """A task that ended, one whose creator crashed before it said so, one that never came."""
    some_schedules(number, two(ending=True, before=before), check_outcomes)


def three(before: str | None, again: bool) -> Callable[[], World]:
    def build() -> World:
        world = two(ending=True, before=before)()
        if before is None:
            world.actor(create(world.make()))
        else:
            world.actor(delete(world.make.key("before")))
        if again:
            world.actor(delete_and_begin_again(world.make("before")))
        return world

    return build


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("before", "again"), [(None, False), ("ended", False), ("crashed late", False), ("ended", True)]
)
def test_three_at_once(before, again, number):
    """Three creators, or two and somebody who deletes the task that had the kind, and uses its id again."""
    some_schedules(number, three(before, again), check_outcomes)


def test_the_explorer_finds_what_is_wrong(monkeypatch):
    """Without the kind, two that both saw nothing both create."""
    monkeypatch.setattr(PersistentTaskStore, "create_if_no_active", check_then_create)
    with pytest.raises(AssertionError, match="two of a kind"):
        every_schedule(two(ending=False), check_outcomes)


def check_then_create(store: PersistentTaskStore, record: TaskRecord) -> Any:
    index = store._indexes.of(record.account_id, record.user_id)
    return None if index.has_active(record.task_type, record.resource_id) else store.create(record)
