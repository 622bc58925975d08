"""Stores that are wrong about pausing, facts of workers or places, with the test of the contract that must catch it."""

import math
import threading

from stores.memory import InMemoryTaskStore
from stores.memory_holds import Notices
from task_tracker.errors import LeaseHeld
from task_tracker.store import WorkerFact
from tests.contract.wrong_stores import WRONG, caught_by, pause

__all__ = ["WRONG"]

# ---- pausing ---------------------------------------------------------------------------------------------


@caught_by("test_paused_type_is_claimed_by_nobody")
@caught_by("test_any_number_of_types_is_paused_each_by_itself")
class ClaimsWhatIsPaused(InMemoryTaskStore):
    def _next(self, task_types, max_running):
        paused, self._notices.paused = self._notices.paused, set()
        try:
            return super()._next(task_types, max_running)
        finally:
            self._notices.paused = paused


@caught_by("test_paused_type_is_claimed_by_nobody")
class PausesEverything(InMemoryTaskStore):
    def _next(self, task_types, max_running):
        return None if self._notices.paused else super()._next(task_types, max_running)


@caught_by("test_pausing_leaves_alone_what_runs")
class PausesClaimsOfAKey(InMemoryTaskStore):
    def claim(self, key=None, **asked):
        if key is not None and self._find(key).record.task_type in self._notices.paused:
            raise LeaseHeld("paused")
        return super().claim(key, **asked)


@caught_by("test_any_number_of_types_is_paused_each_by_itself")
class ResumesEverything(InMemoryTaskStore):
    def unpause(self, task_type):
        self._notices.paused.clear()


@caught_by("test_any_number_of_types_is_paused_each_by_itself")
class CountsPauses(InMemoryTaskStore):
    """Paused twice, it has to be resumed twice."""

    def pause(self, task_type):
        with self._lock:
            self._notices.paused.add(f"{task_type} again" if task_type in self._notices.paused else task_type)


@caught_by("test_what_cannot_be_a_type_is_not_paused", task_type="")
@caught_by("test_what_cannot_be_a_type_is_not_paused", task_type="a\0b")
class PausesAnything(InMemoryTaskStore):
    def pause(self, task_type):
        self._notices.paused.add(task_type)


@caught_by("test_no_claim_begins_after_a_pause_and_takes_a_task")
class HearsOfPausesLater(InMemoryTaskStore):
    """From a thread that brings them in when it comes to it."""

    def pause(self, task_type):
        threading.Timer(0.02, super().pause, [task_type]).start()


# ---- what workers say --------------------------------------------------------------------------------------


@caught_by("test_what_a_worker_says_is_read_by_all")
class KeepsTheFirstWord(InMemoryTaskStore):
    def publish(self, fact):
        if fact.name not in {known.name for known in self.facts()}:
            super().publish(fact)


@caught_by("test_what_a_worker_says_is_read_by_all")
class KeepsWhatItWasGiven(InMemoryTaskStore):
    """The very object, which its owner goes on with."""

    def publish(self, fact):
        super().publish(fact)
        self.__dict__.setdefault("given", {})[fact.name] = fact.data

    def facts(self):
        return [fact._replace(data=self.__dict__["given"][fact.name]) for fact in super().facts()]


@caught_by("test_what_a_worker_says_is_read_by_all")
class BelievesWhatCallersSayOfAges(InMemoryTaskStore):
    def publish(self, fact):
        with self._lock:
            self._notices.publish(fact, self._clock.monotonic() - fact.age_seconds)


@caught_by("test_fact_holds_for_its_life")
@caught_by("test_clock_of_a_host_that_is_wrong_ends_no_life", seconds=3600.0)
class LetsNobodyDie(InMemoryTaskStore):
    def facts(self):
        with self._lock:
            return [
                *self._notices.facts(self._clock.monotonic(), living=True),
                *self._notices.facts(self._clock.monotonic(), living=False),
            ]


@caught_by("test_fact_holds_for_its_life")
class KnowsOneLife(InMemoryTaskStore):
    def publish(self, fact):
        super().publish(fact._replace(life_seconds=1e9))


@caught_by("test_clock_of_a_host_that_is_wrong_ends_no_life", seconds=3600.0)
@caught_by("test_clock_of_a_host_that_is_wrong_ends_no_life", seconds=-3600.0)
class JudgesFactsByTheWallClock(InMemoryTaskStore):
    def publish(self, fact):
        with self._lock:
            self._notices.publish(fact, self._clock.now())

    def facts(self):
        with self._lock:
            return self._notices.facts(self._clock.now(), living=True)


@caught_by("test_worker_that_died_is_named")
class ForgetsTheDeadAtOnce(InMemoryTaskStore):
    def recover(self, *, limit=1000):
        with self._lock:
            for fact in self._notices.facts(self._clock.monotonic(), living=False):
                self._notices.withdraw(fact.name)
        return 0


@caught_by("test_worker_that_died_is_named")
class DoesNotMissAnybody(InMemoryTaskStore):
    def examine(self, *, fix=False):
        return []


@caught_by("test_the_long_dead_are_forgotten")
class NeverForgets(InMemoryTaskStore):
    def recover(self, *, limit=1000):
        return 0


@caught_by("test_nonsense_is_not_published", name="w", data={}, life_seconds=math.inf)
@caught_by("test_nonsense_is_not_published", name="", data={}, life_seconds=1.0)
class PublishesAnything(InMemoryTaskStore):
    def publish(self, fact):
        with self._lock:
            self._notices._facts[fact.name] = b"{}", fact.life_seconds, self._clock.monotonic()


class _Torn(Notices):
    """Drops what was said before it keeps what is said now."""

    def publish(self, fact: WorkerFact, now: float) -> None:
        self.withdraw(fact.name)
        pause()
        super().publish(fact, now)


@caught_by("test_facts_are_whole")
class DropsBeforeItKeeps(InMemoryTaskStore):
    def __init__(self, **options):
        super().__init__(**options)
        self._notices = _Torn()

    def publish(self, fact):
        self._notices.publish(fact, self._clock.monotonic())


# ---- who gets a place --------------------------------------------------------------------------------------


@caught_by("test_never_more_run_than_are_allowed_however_many_come", most=1)
@caught_by("test_never_more_run_than_are_allowed_however_many_come", most=3)
class CountsThenClaims(InMemoryTaskStore):
    def claim(self, key=None, *, holder, task_types=(), max_running=None, count_attempt=True):
        if key is None and max_running:
            with self._lock:
                if self._next(task_types, max_running) is None:
                    return None
            pause()
        return super().claim(key, holder=holder, task_types=task_types, count_attempt=count_attempt)

    def commit(self, lease, record):
        pause()
        return super().commit(lease, record)


@caught_by("test_where_there_is_room_somebody_gets_it")
class GivesBackForEachOther(InMemoryTaskStore):
    """Two that come at once both see that there is one too many."""

    def claim(self, key=None, *, holder, task_types=(), max_running=None, count_attempt=True):
        if key is not None or not max_running:
            return super().claim(key, holder=holder, task_types=task_types, count_attempt=count_attempt)
        (most,) = max_running.values()
        running = self.workload().running
        claimed = None
        if running < most:
            pause()
            claimed = super().claim(holder=holder, task_types=task_types)
            pause()
        if claimed is not None and self.workload().running > most:
            self.release(claimed[0], claimed[1].record.changed(status="pending"))
            return None
        return claimed
