"""The contract's tests of moving catch stores that are wrong about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.memory import InMemoryTaskStore
from task_tracker import transitions
from task_tracker.errors import CapabilityMissing, TaskExists, VersionConflict
from task_tracker.records import Attempt, TaskStatus
from task_tracker.store import LeaseStore, TaskStore
from tests.contract.harnesses import MemoryHarness
from tests.contract.test_suite import run_test
from tests.contract.wrong_stores import pause


class ListsNobody(InMemoryTaskStore):
    def owners(self):
        return iter([])


class ListsUsersOfOneAccount(InMemoryTaskStore):
    def owners(self):
        found = [*super().owners()]
        return iter([owner for owner in found if owner[0] == found[0][0]])


class ListsOwnersOncePerRecord(InMemoryTaskStore):
    def owners(self):
        return iter([key[:2] for key in self._records])


class ListsOwnersOfActiveTasks(InMemoryTaskStore):
    def owners(self):
        return iter({key[:2] for key, stored in self._records.items() if stored.record.status.is_active})


class StartsCountingAnew(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        return self.create(record) if expected is None else self.update(record, expected=expected)


class KeepsTheTokenOfElsewhere(InMemoryTaskStore):
    def _add(self, record, said=None):
        stored = super()._add(record, said)
        return stored if said is None else self._put(stored.record.changed(attempt=said))


class ForgetsTheCount(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        attempt = record.attempt and Attempt(record.attempt.epoch, "", record.attempt.holder, 0)
        return super().take_in(record.changed(attempt=attempt), expected=expected)


class OverwritesWhatIsThere(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        try:
            return super().take_in(record, expected=expected)
        except TaskExists:
            return self._replace(record, None, said=record.attempt)


class GoesBackToTheOlderEpoch(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        stored = super().take_in(record, expected=expected)
        return self._put(stored.record.changed(attempt=record.attempt)) if expected is not None else stored


class ReplacesWhatIsHeld(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        if expected is not None:
            self._holds.drop(record.key)
        return super().take_in(record, expected=expected)


class ReplacesAnyVersion(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        if expected is not None and record.key in self._records:
            expected = self._records[record.key].version
        return super().take_in(record, expected=expected)


class LooksThenReplaces(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        if expected is None:
            return super().take_in(record)
        stored = self._find(record.key)
        if stored.version != expected:
            raise VersionConflict("changed")
        pause()
        with self._lock:
            return self._write(record, transitions.next_attempt(record.attempt, "token"), stored.record)


class BelievesAnything(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        stored = super().take_in(record, expected=expected)
        if record.attempt is None or expected is not None:
            return stored
        attempt = stored.record.attempt
        assert attempt is not None
        return self._put(stored.record.changed(attempt=Attempt(record.attempt.epoch, attempt.token, "", 0)))


class NeverExpires(InMemoryTaskStore):
    def take_in(self, record, *, expected=None):
        stored = super().take_in(record, expected=expected)
        self._holds._unheld.pop(record.key, None)
        return stored


CAUGHT: list[tuple[type[InMemoryTaskStore], str, dict[str, Any]]] = [
    (ListsNobody, "test_everybody_who_has_records_is_listed", {}),
    (ListsNobody, "test_who_has_records_left_stays_listed", {}),
    (ListsUsersOfOneAccount, "test_everybody_who_has_records_is_listed", {}),
    (ListsOwnersOncePerRecord, "test_everybody_who_has_records_is_listed", {}),
    (ListsOwnersOfActiveTasks, "test_who_has_records_left_stays_listed", {}),
    (StartsCountingAnew, "test_record_that_is_taken_in_is_stored_as_it_is", {"status": TaskStatus.COMPLETED}),
    (StartsCountingAnew, "test_no_fence_is_given_out_again", {}),
    (StartsCountingAnew, "test_what_is_taken_in_again_goes_on_from_the_higher_epoch", {}),
    (
        KeepsTheTokenOfElsewhere,
        "test_record_that_is_taken_in_is_stored_as_it_is",
        {"status": TaskStatus.PENDING},
    ),
    (ForgetsTheCount, "test_no_fence_is_given_out_again", {}),
    (OverwritesWhatIsThere, "test_nothing_is_overwritten_by_what_is_taken_in", {}),
    (GoesBackToTheOlderEpoch, "test_what_is_taken_in_again_goes_on_from_the_higher_epoch", {}),
    (ReplacesWhatIsHeld, "test_what_has_changed_is_not_replaced", {}),
    (ReplacesAnyVersion, "test_what_has_changed_is_not_replaced", {}),
    (LooksThenReplaces, "test_a_claim_and_a_newer_copy_at_once", {}),
    (BelievesAnything, "test_what_was_never_claimed_is_new_here_too", {}),
    (
        NeverExpires,
        "test_any_state_follows_on_any_other",
        {"before": TaskStatus.PENDING, "after": TaskStatus.RUNNING},
    ),
]


@pytest.mark.parametrize(
    ("store", "test", "arguments"), CAUGHT, ids=[f"{store.__name__}-{test}" for store, test, _ in CAUGHT]
)
def test_wrong_store(
    store: type[InMemoryTaskStore], test: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises((Exception, pytest.fail.Exception, pytest.skip.Exception)) as caught:
        run_test(MemoryHarness(store), test, arguments, tmp_path)
    assert not isinstance(caught.value, pytest.skip.Exception)
    assert not isinstance(caught.value, (TypeError, AttributeError)), "wrong in another way than meant"


# ---- the rules on which it stands -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "said", "expected"),
    [
        (None, None, None),
        (None, Attempt(3, "s", "h", 2), "said"),
        (Attempt(3, "o", "g", 1), None, "stored"),
        (Attempt(3, "o", "g", 1), Attempt(3, "s", "h", 2), "stored"),
        (Attempt(3, "o", "g", 1), Attempt(4, "s", "h", 0), "said"),
        (Attempt(3, "o", "g", 1), Attempt(transitions.LAST_EPOCH + 1, "s", "h", 0), "stored"),
        (Attempt(3, "o", "g", 1), Attempt(9, "s", "h", -1), "stored"),
        (None, Attempt(-1, "s", "h", 0), None),
    ],
)
def test_what_is_counted_on_from(stored: Attempt | None, said: Attempt | None, expected: str | None) -> None:
    """[D023] The later one of both, unless it is somebody's joke."""
    attempts = {"stored": stored, "said": said, None: None}
    assert transitions.carried_on(stored, said) is attempts[expected]


def test_first_attempt() -> None:
    """[D023] Nobody's, or what was counted elsewhere under a token of this store's own."""
    assert transitions.first_attempt("t") == Attempt(0, "t", "", 0)
    assert transitions.first_attempt("t", Attempt(5, "secret", "h", 2)) == Attempt(5, "t", "h", 2)


def test_store_that_knows_nothing_of_it_says_so() -> None:
    """A store of somebody else's raises; nothing is counted from 0 unseen."""
    store = InMemoryTaskStore()
    with pytest.raises(CapabilityMissing, match="does not list its owners"):
        TaskStore.owners(store)
    with pytest.raises(CapabilityMissing, match="cannot go on counting"):
        LeaseStore.take_in(store, None)  # type: ignore[arg-type]  # it does not look
