"""Stores whose leases are wrong in one way each, with the test of the contract that must catch it."""

# long: one wrong store for each rule of the contract, read side by side

import dataclasses
import threading

from stores.memory import InMemoryTaskStore
from stores.memory_holds import Evidence
from task_tracker import transitions
from task_tracker.errors import LeaseHeld, LeaseLost
from task_tracker.records import Attempt, TaskStatus
from task_tracker.store import Expired
from tests.contract.wrong_stores import caught_by, pause

# ---- whose lease it is -----------------------------------------------------------------------------------


@caught_by("test_old_holder_can_do_nothing_any_more", name="commit", count_attempt=True)
@caught_by("test_old_holder_can_do_nothing_any_more", name="renew", count_attempt=False)
@caught_by("test_old_holder_can_do_nothing_any_more", name="complete", count_attempt=True)
@caught_by("test_one_of_many_takes_over_while_the_old_holder_wakes_up")
class KnowsHoldersByName(InMemoryTaskStore):
    """The stable name of a process, and whatever lease it has now."""

    def _as_named(self, lease):
        hold = self._holds.find(lease.key)
        if hold is not None and not lease.lost.is_set():
            return dataclasses.replace(lease, token=hold.lease.token)
        return lease

    def renew(self, lease):
        super().renew(self._as_named(lease))

    def commit(self, lease, record):
        return super().commit(self._as_named(lease), record)

    def release(self, lease, record):
        return super().release(self._as_named(lease), record)

    def end(self, lease, record):
        return super().end(self._as_named(lease), record)


@caught_by("test_old_holder_can_do_nothing_any_more", name="commit", count_attempt=True)
@caught_by("test_writes_of_the_old_holder_race_the_take_over")
class CommitsAfterTheTakeOver(InMemoryTaskStore):
    """Looks at the lease, and writes when somebody else may have it."""

    def commit(self, lease, record):
        with self._lock:
            if lease.lost.is_set():
                raise LeaseLost("lost")
            old = self._records[lease.key].record
            attempt = Attempt(lease.epoch, lease.token, lease.holder, lease.attempt_count)
        pause()
        with self._lock:
            return self._write(transitions.under_intent(record, None), attempt, old)


@caught_by("test_lease_that_was_declared_lost_writes_nothing")
class IgnoresThatALeaseWasGivenUp(InMemoryTaskStore):
    def _held(self, lease):
        return super()._held(dataclasses.replace(lease, lost=threading.Event()))


@caught_by("test_released_task_is_anybody_s")
class KeepsReleasedLeases(InMemoryTaskStore):
    def release(self, lease, record):
        hold = self._holds.find(lease.key)
        stored = super().release(lease, record)
        assert hold is not None
        self._holds._holds[lease.key] = hold
        return stored


@caught_by("test_none_of_several_ends_fails_because_another_does")
class EndsAllOrNone(InMemoryTaskStore):
    def end_several(self, ends):
        return [self.end(lease, record) for lease, record in ends]


@caught_by("test_old_holder_ends_nothing_with_others")
class EndsTogetherWithoutALook(InMemoryTaskStore):
    def end_several(self, ends):
        found = []
        for lease, record in ends:
            hold = self._holds.find(lease.key)
            if hold is None:
                with self._lock:
                    found.append(self._put(record))
            else:
                found.append(super().end(dataclasses.replace(lease, token=hold.lease.token), record))
        return found


@caught_by("test_each_of_several_ends_is_what_is_stored")
class MixesUpWhatEnded(InMemoryTaskStore):
    def end_several(self, ends):
        return super().end_several(ends)[::-1]


# ---- epochs ----------------------------------------------------------------------------------------------


@caught_by("test_epoch_grows_with_every_claim_and_never_resets")
@caught_by("test_attempt_is_set_by_the_store")
class NeverRaisesTheEpoch(InMemoryTaskStore):
    def _attempt(self, record, holder, count_attempt):
        return dataclasses.replace(super()._attempt(record, holder, count_attempt), epoch=0)


@caught_by("test_taker_that_falls_silent_is_taken_over")
class ForgetsEpochsThatWereNotWritten(InMemoryTaskStore):
    def _attempt(self, record, holder, count_attempt):
        attempt = super()._attempt(record, holder, count_attempt)
        return dataclasses.replace(attempt, epoch=record.attempt.epoch + 1)


@caught_by("test_claim_on_behalf_counts_no_attempt_and_leaves_the_state")
@caught_by("test_who_only_settles_counts_no_attempt")
class CountsEveryClaim(InMemoryTaskStore):
    def _attempt(self, record, holder, count_attempt):
        return super()._attempt(record, holder, True)


@caught_by("test_what_callers_say_of_attempts_is_replaced")
class BelievesWhatCallersSayOfAttempts(InMemoryTaskStore):
    def _write(self, record, attempt, old):
        return self._put(record)


# ---- claims ----------------------------------------------------------------------------------------------


@caught_by("test_one_of_many_threads_claims", count_attempt=True)
@caught_by("test_each_task_is_claimed_once")
class LooksThenClaims(InMemoryTaskStore):
    def claim(self, key=None, *, holder, task_types=(), max_running=None, count_attempt=True):
        with self._lock:
            if key is None:
                key = self._next(task_types, max_running)
                if key is None:
                    return None
            record = self._find(key).record
            self._holds.check_free(record, 0.0, claim=True)
        pause()
        with self._lock:
            attempt = self._attempt(record, holder, True)
            return self._take(transitions.claimed(record, self._clock.now(), attempt), attempt)


@caught_by("test_task_that_is_held_is_not_updated", silent=False)
@caught_by("test_record_that_has_ended_is_not_updated", status=TaskStatus.FAILED, made_by="create")
class LetsAnybodyUpdate(InMemoryTaskStore):
    def update(self, record, *, expected):
        with self._lock:
            old = self._find(record.key).record
            return self._write(record, transitions.next_attempt(old.attempt, self._clock.new_token()), old)


@caught_by("test_task_that_is_held_is_not_claimed", silent=False, count_attempt=True)
class DoesNotSayWhoHoldsIt(InMemoryTaskStore):
    def claim(self, key=None, **asked):
        try:
            return super().claim(key, **asked)
        except LeaseHeld as error:
            raise LeaseHeld("held") from error


@caught_by("test_next_is_the_highest_priority_then_the_oldest")
class IgnoresPriorities(InMemoryTaskStore):
    def create(self, record):
        return super().create(record.changed(priority=None))


@caught_by("test_no_more_run_than_are_allowed")
class HasNoLimits(InMemoryTaskStore):
    def _next(self, task_types, max_running):
        return super()._next(task_types, None)


# ---- who could be next -----------------------------------------------------------------------------------


class _LooksItself(InMemoryTaskStore):
    """Looks through all that waits; ``_suits`` and ``_place`` say what is claimable, and in which order."""

    def claimable(self, *, task_types, limit):
        waiting = [stored.record for stored in super().unclaimed(task_types=task_types, limit=99)]
        found = [record for record in waiting if self._suits(record)]
        return [record.key for record in sorted(found, key=self._place)[:limit]]

    def _suits(self, record):
        is_due = record.not_before is None or record.not_before <= self._clock.now()
        return is_due and record.task_type not in self.paused()

    def _place(self, record):
        return transitions.claim_order(record)


@caught_by("test_claimable_are_named_in_the_order_of_claims")
@caught_by("test_claimable_are_found_behind_any_number_of_others")
class NamesTheOldest(_LooksItself):
    def _place(self, record):
        return record.created_at


@caught_by("test_claimable_are_named_in_the_order_of_claims")
class NamesOneKindAfterTheOther(_LooksItself):
    def _place(self, record):
        return record.task_type, record.handler_version, transitions.claim_order(record)


@caught_by("test_claimable_are_named_in_the_order_of_claims")
class NamesAll(InMemoryTaskStore):
    def claimable(self, *, task_types, limit):
        return super().claimable(task_types=task_types, limit=99)


@caught_by("test_claimable_are_named_in_the_order_of_claims")
class NamesWhatItTakes(InMemoryTaskStore):
    def claimable(self, *, task_types, limit):
        claimed = self.claim_several(limit, holder="w", task_types=task_types)
        return [lease.key for lease, _ in claimed]


@caught_by("test_claimable_is_what_a_claim_could_take")
@caught_by("test_claimable_are_found_behind_any_number_of_others")
class NamesWhatIsForLater(_LooksItself):
    def _suits(self, record):
        return record.task_type not in self.paused()


@caught_by("test_claimable_is_what_a_claim_could_take")
class NamesNothingThatHasAStartTime(_LooksItself):
    def _suits(self, record):
        return record.not_before is None and record.task_type not in self.paused()


@caught_by("test_claimable_is_what_a_claim_could_take")
class NamesAllVersions(_LooksItself):
    def claimable(self, *, task_types, limit):
        kinds = [(task_type, version) for task_type, _ in task_types for version in range(3)]
        return super().claimable(task_types=kinds, limit=limit)


@caught_by("test_claimable_is_what_a_claim_could_take")
@caught_by("test_claimable_are_found_behind_any_number_of_others")
class NamesWhatIsHeld(InMemoryTaskStore):
    def claimable(self, *, task_types, limit):
        return [*super().claimable(task_types=task_types, limit=limit), *self._holds._holds][:limit]


@caught_by("test_claimable_are_found_behind_any_number_of_others")
class LeavesOutForLaterAfterTheCut(_LooksItself):
    def claimable(self, *, task_types, limit):
        waiting = super().unclaimed(task_types=task_types, limit=99)
        first = sorted((stored.record for stored in waiting), key=self._place)[:limit]
        return [record.key for record in first if self._suits(record)]


@caught_by("test_claimable_are_found_behind_any_number_of_others")
class NamesATaskForEachTimeThatItsKindIsNamed(InMemoryTaskStore):
    def claimable(self, *, task_types, limit):
        return [
            key
            for kind in task_types
            for key in super(type(self), self).claimable(task_types=[kind], limit=1)
        ][:limit]


@caught_by("test_claimable_is_nothing_of_a_paused_type")
class NamesWhatIsPaused(_LooksItself):
    def _suits(self, record):
        return record.not_before is None or record.not_before <= self._clock.now()


# ---- start times -----------------------------------------------------------------------------------------


class _LooksAtAll(InMemoryTaskStore):
    """Looks at the start times of all that waits."""

    def next_due_seconds(self, *, task_types):
        waiting = [stored.record for stored in self.unclaimed(task_types=task_types, limit=99)]
        starts = [record.not_before for record in waiting if record.not_before is not None]
        return self._first([start - self._clock.now() for start in starts])

    def _first(self, seconds):
        return min((found for found in seconds if found > 0), default=None)


@caught_by("test_next_start_time_is_known")
class KnowsTheLastStartTime(_LooksAtAll):
    def _first(self, seconds):
        return max((found for found in seconds if found > 0), default=None)


@caught_by("test_next_start_time_is_known")
class SaysWhenItIsAndNotInHowLong(_LooksAtAll):
    def _first(self, seconds):
        found = super()._first(seconds)
        return None if found is None else found + self._clock.now()


@caught_by("test_next_start_time_of_several_kinds")
class AsksForTheFirstKindOnly(_LooksAtAll):
    def next_due_seconds(self, *, task_types):
        return super().next_due_seconds(task_types=task_types[:1])


@caught_by("test_start_times_that_have_come_are_not_waited_for")
class WaitsForWhatIsDue(_LooksAtAll):
    def _first(self, seconds):
        return min((max(found, 0.0) for found in seconds), default=None)


@caught_by("test_start_time_of_what_was_given_back")
class KnowsStartTimesOfNewTasksOnly(InMemoryTaskStore):
    def release(self, lease, record):
        released = super().release(lease, record)
        self._waiting._starts.clear()
        return released


@caught_by("test_nobody_waits_for_start_times_of_what_never_waits")
@caught_by("test_start_time_of_what_was_given_back")
class KnowsStartTimesByCreations(InMemoryTaskStore):
    def __init__(self, **options):
        super().__init__(**options)
        self._starts = []

    def create(self, record):
        self._starts.append(record.not_before or 0.0)
        return super().create(record)

    def next_due_seconds(self, *, task_types):
        now = self._clock.now()
        return min((start - now for start in self._starts if start > now), default=None)


# ---- the backlog -----------------------------------------------------------------------------------------


@caught_by("test_unclaimed_but_for_some_types")
@caught_by("test_unclaimed_of_other_types_are_found_behind_any_number")
class LeavesOutAfterTheCut(InMemoryTaskStore):
    def unclaimed(self, *, except_types=(), limit, **asked):
        found = super().unclaimed(limit=limit, **asked)
        return [
            stored
            for stored in found
            if (stored.record.task_type, stored.record.handler_version) not in except_types
        ]


@caught_by("test_unclaimed_but_for_some_types")
class LeavesOutAllVersions(InMemoryTaskStore):
    def unclaimed(self, *, except_types=(), **asked):
        types = {task_type for task_type, _ in except_types}
        return [stored for stored in super().unclaimed(**asked) if stored.record.task_type not in types]


@caught_by("test_unclaimed_but_for_some_types")
class LeavesOutPlainTasks(InMemoryTaskStore):
    def unclaimed(self, *, except_types=(), handled=None, **asked):
        return super().unclaimed(
            except_types=except_types, handled=True if except_types and handled is None else handled, **asked
        )


@caught_by("test_unclaimed_but_for_some_types")
class LeavesOutNothingThatIsNamed(InMemoryTaskStore):
    def unclaimed(self, *, task_types=None, except_types=(), **asked):
        return super().unclaimed(
            task_types=task_types, except_types=except_types if task_types is None else (), **asked
        )


# ---- expiry and take-over ----------------------------------------------------------------------------------


@caught_by("test_holder_that_has_moved_is_left_alone", name="renew")
@caught_by("test_holder_that_has_moved_is_left_alone", name="release")
@caught_by("test_scan_of_another_attempt_or_life_is_void", then="claimed again")
@caught_by("test_second_reconciler_with_the_same_scan_comes_too_late")
class RescuesByIdOnly(InMemoryTaskStore):
    def take_over(self, expired, *, holder, count_attempt=True):
        stored = self._records.get(expired.record.key)
        if stored is None or stored.record.status.is_terminal:
            return None
        hold = self._holds.find(expired.record.key)
        token, beat = (hold.lease.token, hold.beat) if hold is not None else (None, 0.0)
        now = Expired(stored.record, expired.holder, 0.0, Evidence(token, beat, stored.version))
        return super().take_over(now, holder=holder, count_attempt=count_attempt)


@caught_by("test_task_that_runs_without_a_holder_expires", status=TaskStatus.RUNNING, made_by="create")
class OverlooksWhatNobodyHolds(InMemoryTaskStore):
    def expired(self, *, limit=1000):
        return [found for found in super().expired(limit=limit) if found.holder is not None]


@caught_by("test_clock_of_a_host_that_is_wrong_makes_nothing_expire", seconds=3600.0, whose="rescuer")
@caught_by("test_clock_of_a_host_that_is_wrong_makes_nothing_expire", seconds=-3600.0, whose="holder")
class JudgesByTheWallClock(InMemoryTaskStore):
    def __init__(self, **options):
        super().__init__(**options)
        self._clock.monotonic = self._clock.now  # type: ignore[method-assign]


@caught_by("test_heartbeats_keep_a_lease")
class DoesNotHearHeartbeats(InMemoryTaskStore):
    def renew(self, lease):
        with self._lock:
            self._holds.current(lease)


@caught_by("test_longest_silent_first")
class ListsTheYoungestFirst(InMemoryTaskStore):
    def expired(self, *, limit=1000):
        return super().expired()[::-1][:limit]


# ---- cancelling ------------------------------------------------------------------------------------------


@caught_by("test_commit_does_not_lose_the_wish")
class LosesTheWishAtACommit(InMemoryTaskStore):
    def commit(self, lease, record):
        transitions.check_commit(record, lease.key)
        with self._lock:
            old = self._held(lease)
            return self._write(
                record, Attempt(lease.epoch, lease.token, lease.holder, lease.attempt_count), old
            )


@caught_by("test_released_task_ends_cancelled")
@caught_by("test_wish_that_races_a_release_is_kept")
class OffersCancelledTasksAgain(InMemoryTaskStore):
    def release(self, lease, record):
        with self._lock:
            old = self._records[lease.key].record
            if old.status is TaskStatus.CANCELLING:
                self._put(old.changed(status=TaskStatus.RUNNING))
        return super().release(lease, record)


@caught_by("test_holder_is_told_at_its_next_heartbeat")
class TellsNobody(InMemoryTaskStore):
    def request_cancel(self, key):
        hold = self._holds.find(key)
        stored = super().request_cancel(key)
        if hold is not None:
            hold.lease.cancel_requested.clear()
        return stored

    def renew(self, lease):
        with self._lock:
            self._holds.current(lease).beat = self._clock.monotonic()
