"""The tools of task_tracker.testing do what they say."""

# long: one class for each tool, most of them a few lines

import math
import sys
import threading
from functools import partial

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import task_tracker.testing
from stores.files.lease.store import LeaseTaskStore
from stores.files.persistent import PersistentTaskStore
from stores.memory import InMemoryTaskStore
from task_tracker import transitions
from task_tracker.clock import Clock, is_generated_id, time_of_id
from task_tracker.errors import (
    LeaseHeld,
    LeaseLost,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    VersionConflict,
)
from task_tracker.records import TaskStatus
from task_tracker.store import Expired, HasEffects, LeaseStore, Query, WorkerFact
from task_tracker.testing import (
    FakeClock,
    FaultyStore,
    LeaseStoreContract,
    MovingClient,
    PlainClient,
    RecordMaker,
    RemovingClient,
    state_machine_for,
)
from task_tracker.testing.answers import claimed_by, is_stored, listed, said
from task_tracker.testing.faulty import (
    EFFECTS_OPERATIONS,
    LEASE_OPERATIONS,
    OPERATIONS,
    FaultyEffectsStore,
    FaultyLeaseStore,
)
from task_tracker.testing.racing import Crew, race
from task_tracker.tracker import TaskTracker
from tests.contract import wrong_jobs
from tests.contract.harnesses import MemoryHarness


def test_public_names_are_there():
    for name in task_tracker.testing.__all__:
        assert getattr(task_tracker.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_tool"):
        task_tracker.testing.no_such_tool  # noqa: B018


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "task_tracker.testing.model")
    with pytest.raises(ImportError, match="state_machine_for needs pytest and hypothesis"):
        task_tracker.testing.state_machine_for  # noqa: B018


class TestFaultyStoreKeepsTheContractOfLeases(LeaseStoreContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness(lambda **options: FaultyStore(InMemoryTaskStore(**options)))


class TestFaultyStore:
    @pytest.fixture
    def store(self):
        return FaultyStore(InMemoryTaskStore())

    @pytest.fixture
    def make(self):
        return RecordMaker()

    def test_without_faults_it_keeps_the_contract(self):
        harness = MemoryHarness(lambda **options: FaultyStore(InMemoryTaskStore(**options)))
        run_state_machine_as_test(
            state_machine_for(harness.fresh),
            settings=settings(derandomize=True, database=None, deadline=None, max_examples=20),
        )

    def test_it_shows_what_it_wraps(self, store):
        assert store.capabilities == store.inner.capabilities
        assert store.blocking is False

    def test_calls_are_counted(self, store, make):
        record = make()
        store.create(record)
        store.create_if_no_active(make())
        store.update(make.changed(record, status=TaskStatus.COMPLETED), expected=None)
        store.get(record.key)
        store.list(Query("acme"))
        store.has_active("acme", None, "reindex", "docs")
        store.count("acme", None)
        assert [*store.owners()] == [("acme", "alice")]
        store.delete(record.key)
        store.delete_owner("acme", "nobody")
        store.purge({}, limit=1)
        store.examine()
        store.close()
        assert store.calls == dict.fromkeys(OPERATIONS, 1)

    def test_operations_on_leases_reach_a_store_that_has_them(self, store, make):
        assert isinstance(store, FaultyLeaseStore)
        assert (store.lease_seconds, store.heartbeat_seconds) == (math.inf, math.inf)
        first, second = store.create(make()).record, store.create(make()).record
        store.calls.clear()
        lease, claimed = claimed_by(store, first.key, "h")
        store.renew(lease)
        store.commit(lease, claimed.record)
        assert store.workload()[:2] == (1, 1)
        assert [stored.record for stored in store.unclaimed(limit=9)] == [second]
        assert [*store.claimable(task_types=[("reindex", 1)], limit=9)] == []
        assert store.next_due_seconds(task_types=[("reindex", 1)]) is None
        assert store.request_cancel(second.key).record.status is TaskStatus.CANCELLED
        assert store.release(lease, transitions.released(claimed.record, 1)).record.status == "pending"
        with pytest.raises(LeaseLost):
            store.end(lease, transitions.cancelled(first, 1))
        assert store.expired() == []
        assert store.take_over(Expired(first, "h", 1, None), holder="i") is None
        assert store.recover() == 0
        assert store.take_in(make()).record.status is TaskStatus.PENDING
        store.pause("reindex")
        assert store.paused() == ["reindex"]
        store.unpause("reindex")
        store.publish(WorkerFact("w", {}, 1.0))
        assert [fact.name for fact in store.facts()] == ["w"]
        store.withdraw("w")
        assert store.calls == dict.fromkeys(LEASE_OPERATIONS, 1)
        store.fail(on="claim", after=True)
        with pytest.raises(StoreUnavailable):
            store.claim(first.key, holder="h")
        with pytest.raises(LeaseHeld):
            store.claim(first.key, holder="h")

    def test_places_for_files_are_passed_on_where_there_are_some(self, store, tmp_path, make):
        assert not isinstance(store, HasEffects)
        files = FaultyStore(LeaseTaskStore(tmp_path, durability="none"))
        assert isinstance(files, FaultyEffectsStore)
        lease, claimed = claimed_by(files, files.create(make()).record.key, "h")
        files.calls.clear()
        place = files.effects(lease)
        assert place is not None
        assert files.effects_path(claimed.record) is None
        assert files.calls == dict.fromkeys(EFFECTS_OPERATIONS, 1)
        files.fail(on="effects")
        with pytest.raises(StoreUnavailable):
            files.effects(lease)
        assert files.effects(lease) == place
        files.close()

    def test_without_leases_none_are_claimed(self, tmp_path, make):
        store = FaultyStore(PersistentTaskStore(tmp_path))
        assert not isinstance(store, LeaseStore)
        assert store.capabilities == store.inner.capabilities

    def test_a_kind_of_its_own_claims_no_more_than_it_has(self):
        class Own(FaultyStore):
            pass

        assert not Own(InMemoryTaskStore()).capabilities.leases

    def test_nth_call_fails_once(self, store, make):
        store.fail(on="create", nth=2)
        first, second, third = make.many(3)
        store.create(first)
        with pytest.raises(StoreUnavailable):
            store.create(second)
        store.create(third)
        assert listed(store) == [third, first]
        assert store.calls["create"] == 3

    def test_other_operations_do_not_count(self, store, make):
        store.fail(on={"update", "delete"}, nth=1)
        record = store.create(make()).record
        assert is_stored(store, record.key)
        with pytest.raises(StoreUnavailable):
            store.delete(record.key)
        store.update(record, expected=None)

    def test_from_then_on_until_healed(self, store, make):
        store.fail(nth=2, forever=True)
        record = store.create(make()).record
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                store.get(record.key)
        store.heal()
        assert is_stored(store, record.key)

    def test_given_error_is_raised(self, store, make):
        error = VersionConflict("somebody came first")
        store.fail(error, on="update")
        record = store.create(make()).record
        with pytest.raises(VersionConflict) as raised:
            store.update(record, expected=None)
        assert raised.value is error

    def test_reply_is_lost_after_the_call_took_effect(self, store, make):
        store.fail(on="create", after=True)
        record = make()
        with pytest.raises(StoreUnavailable):
            store.create(record)
        assert is_stored(store, record.key)
        with pytest.raises(TaskExists):
            store.create(record)

    def test_somebody_else_comes_in_between(self, store, make):
        created = store.create(make())
        theirs = make.changed(created.record, stage="theirs")
        store.interrupt(lambda: store.inner.update(theirs, expected=None), on="update")
        with pytest.raises(VersionConflict):
            store.update(make.changed(created.record, stage="mine"), expected=created.version)
        assert listed(store) == [said(theirs)]

    def test_several_faults_count_each_for_itself(self, store, make):
        store.fail(TaskNotFound("a"), on="get", nth=1)
        store.fail(VersionConflict("b"), on="get", nth=3)
        key = store.create(make()).record.key
        with pytest.raises(TaskNotFound):
            store.get(key)
        store.get(key)
        with pytest.raises(VersionConflict):
            store.get(key)
        store.get(key)

    @pytest.mark.parametrize("wrong", [{"on": "updaet"}, {"on": ["get", "put"]}, {"nth": 0}])
    def test_mistakes_are_refused(self, store, wrong):
        with pytest.raises(ValueError, match=r"no operation|counts from 1"):
            store.fail(**wrong)


class TestFakeClock:
    def test_it_is_a_clock_that_stands_still(self):
        clock: Clock = FakeClock(1_700_000_000.5)
        assert (clock.now(), clock.monotonic()) == (1_700_000_000.5, 0.0)
        assert (clock.now(), clock.monotonic()) == (1_700_000_000.5, 0.0)

    def test_advance_moves_both_and_step_moves_the_wall_clock_alone(self):
        clock = FakeClock(1000.0)
        clock.advance(5)
        assert (clock.now(), clock.monotonic()) == (1005.0, 5.0)
        clock.step(-3600)
        assert (clock.now(), clock.monotonic()) == (-2595.0, 5.0)
        with pytest.raises(ValueError, match="backwards"):
            clock.advance(-1)

    def test_ids_are_uuid7_that_sort_and_are_unique(self):
        first, second = FakeClock(), FakeClock()
        ids = [clock.new_id(1_700_000_000.25) for _ in range(100) for clock in (first, second)]
        assert len(set(ids)) == 200
        assert all(is_generated_id(task_id) and time_of_id(task_id) == 1_700_000_000.25 for task_id in ids)
        assert ids[::2] == sorted(ids[::2])
        assert first.new_id(1_700_000_000.251) > max(ids[::2])

    def test_tokens_and_jitter(self):
        clock = FakeClock()
        tokens = {clock.new_token() for _ in range(10)}
        assert len(tokens) == 10
        assert {len(token) for token in tokens} == {32}
        assert clock.jitter(4.0) == 4.0

    def test_advancing_wakes_those_whose_time_has_come(self):
        clock, condition, woken = FakeClock(), threading.Condition(), []

        def sleep(seconds):
            with condition:
                clock.wait(condition, seconds)
            woken.append(seconds)

        threads = [threading.Thread(target=sleep, args=(seconds,)) for seconds in (10, 20)]
        for thread in threads:
            thread.start()
        clock.until_waiting(2)
        clock.advance(9.5)
        assert clock.waiting == 2
        clock.advance(0.5)
        assert clock.waiting == 1
        clock.advance(100)
        assert clock.waiting == 0
        for thread in threads:
            thread.join(30)
        assert sorted(woken) == [10, 20]

    def test_notifying_wakes_without_any_time(self):
        clock, condition = FakeClock(), threading.Condition()

        def sleep():
            with condition:
                clock.wait(condition, 3600)

        thread = threading.Thread(target=sleep)
        thread.start()
        clock.until_waiting()
        with condition:
            condition.notify_all()
        thread.join(30)
        assert not thread.is_alive()
        assert (clock.waiting, clock.monotonic()) == (0, 0.0)

    def test_no_wait_for_no_time(self):
        condition = threading.Condition()
        with condition:
            FakeClock().wait(condition, 0)

    def test_a_test_that_forgets_to_advance_does_not_hang(self):
        clock, condition = FakeClock(patience_seconds=0.01), threading.Condition()
        with condition, pytest.raises(AssertionError, match="call advance"):
            clock.wait(condition, 1)
        with pytest.raises(AssertionError, match="0 threads wait"):
            clock.until_waiting()

    def test_a_duty_runs_when_its_time_comes(self):
        clock, store = FakeClock(), FaultyStore(InMemoryTaskStore())
        tracker = TaskTracker(store, clock=clock, sweep_seconds=300)
        tracker.start_cleanup_loop()
        clock.until_waiting()
        sweeps = store.calls["purge"]
        for number in range(1, 4):
            clock.advance(300)
            clock.until_waiting()
            assert store.calls["purge"] == sweeps + number
        tracker.close()


class TestClients:
    def test_files_and_directories(self):
        client = MovingClient()
        assert client.ls("/") == []
        client.mkdir("/a")
        client.mkdir("/a/b")
        assert client.write("/a/x.json", b"12345") == "Written 5 bytes"
        assert client.read("/a/x.json") == b"12345"
        assert client.read("/a/x.json", 1, 3) == b"234"
        assert [(entry["name"], entry["isDir"], entry["size"]) for entry in client.ls("/a/")] == [
            ("x.json", False, 5),
            ("b", True, 0),
        ]
        assert client.ls("/a")[0].keys() == {"name", "size", "isDir", "mode", "modTime"}
        client.mv("/a/x.json", "/a/b/y.json")
        client.write("/a/b/y.json", b"")
        assert client.read("/a/b/y.json") == b""
        client.rm("/a/b/y.json")
        client.rm("/a/b")
        assert client.ls("/a") == []
        assert client.calls[0] == ("ls", "/")
        assert client.calls[-1] == ("ls", "/a")

    def test_errors_have_the_texts_of_agfs(self):
        client = MovingClient(mv_refuses_existing=True)
        client.mkdir("/a")
        client.write("/a/x", b"x")
        client.write("/a/y", b"y")
        for call, text in [
            (lambda: client.read("/a/z"), "no such file or directory: /a/z"),
            (lambda: client.read("/b/z"), "no such file or directory: /b/z"),
            (lambda: client.read("/a"), "is a directory: /a"),
            (lambda: client.read("/a/x/z"), "not a directory: /a/x/z"),
            (lambda: client.write("/b/z", b""), "no such file or directory: /b/z"),
            (lambda: client.write("/a", b""), "is a directory: /a"),
            (lambda: client.ls("/b"), "no such file or directory: /b"),
            (lambda: client.ls("/a/x"), "not a directory: /a/x"),
            (lambda: client.mkdir("/a"), "directory already exists: /a"),
            (lambda: client.mkdir("/b/c"), "no such file or directory: /b/c"),
            (lambda: client.rm("/a/z"), "no such file or directory: /a/z"),
            (lambda: client.rm("/a"), "directory not empty: /a"),
            (lambda: client.mv("/a/z", "/a/q"), "no such file or directory: /a/z"),
            (lambda: client.mv("/a/x", "/a/y"), "file already exists: /a/y"),
        ]:
            with pytest.raises(RuntimeError) as raised:
                call()
            assert str(raised.value) == text
        client.rm("/a", recursive=True)
        with pytest.raises(TypeError):
            client.write("/x", "text")  # type: ignore[arg-type]

    def test_other_manners(self):
        client = MovingClient(
            typed_errors=True,
            mkdir_refuses_existing=False,
            write_makes_parents=True,
            missing_ls_is_empty=True,
        )
        client.write("/a/b/c", b"1")
        client.write("/a/b/d", b"2")
        client.mkdir("/a")
        client.mv("/a/b/c", "/a/b/d")
        assert client.read("/a/b/d") == b"1"
        assert client.ls("/nowhere") == []
        with pytest.raises(FileNotFoundError):
            client.read("/a/b/c")
        with pytest.raises(FileExistsError):
            MovingClient(typed_errors=True, write_makes_parents=True).mkdir("/")

    def test_what_a_client_does_not_have_is_not_there(self):
        assert not hasattr(PlainClient(), "rm")
        assert not hasattr(RemovingClient(), "mv")

    def test_outage_and_undeletable_files(self):
        client = RemovingClient()
        client.write("/x", b"1")
        client.undeletable.add("/x")
        with pytest.raises(RuntimeError, match="permission denied"):
            client.rm("/x")
        client.unreadable.add("/x")
        with pytest.raises(RuntimeError, match="input/output error"):
            client.read("/x")
        client.unreadable.clear()
        with client.outage(), pytest.raises(RuntimeError, match="Connection refused"):
            client.read("/x")
        assert client.read("/x") == b"1"


class TestRacing:
    def test_outcomes_come_back_in_order(self):
        barrier = threading.Barrier(3)

        def meet(answer):
            barrier.wait(30)  # none returns before all have begun
            if answer is None:
                raise ValueError("no")
            return answer

        first, second, third = race(*(partial(meet, answer) for answer in (1, None, 3)))
        assert (first, type(second), third) == (1, ValueError, 3)

    @pytest.fixture
    def crew(self):
        crew = Crew()
        yield crew
        crew.dismiss()

    def test_jobs_answer_in_order(self, crew):
        assert crew.run(("memory", {}), wrong_jobs.succeed, [("a",), ("b",)]) == ["a", "b"]

    def test_job_that_fails_fails_the_test_with_its_traceback(self, crew):
        with pytest.raises(AssertionError, match=r"(?s)in process 1 of 2:.*Traceback.*this one fails"):
            crew.run(("memory", {}), wrong_jobs.fail_alone, [(False,), (True,)])
        assert crew.run(("memory", {}), wrong_jobs.succeed, [("a",), ("b",)]) == ["a", "b"]

    def test_process_that_dies_fails_the_test(self, crew):
        with pytest.raises(AssertionError, match="ended without an answer"):
            crew.run(("memory", {}), wrong_jobs.die, [()])
        assert crew.run(("memory", {}), wrong_jobs.succeed, [("a",)]) == ["a"]

    def test_store_that_cannot_be_opened_fails_the_test(self, crew):
        with pytest.raises(AssertionError, match="unknown backend"):
            crew.run(("no such backend", {}), wrong_jobs.succeed, [("a",)])
