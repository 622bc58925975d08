"""Stores that are wrong in one way each, with the test of the contract that must catch it."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from stores.files.persistent import PersistentTaskStore
from stores.memory import InMemoryTaskStore
from task_tracker.errors import CorruptRecord, StoreUnavailable, TaskExists, TaskNotFound, VersionConflict
from task_tracker.records import TaskStatus
from task_tracker.store import Query, TaskStore, Unchanged


class Wrong(NamedTuple):
    store: type[TaskStore]
    test: str
    arguments: dict[str, Any]


WRONG: list[Wrong] = []


def caught_by(test: str, **arguments: Any) -> Callable[[type[TaskStore]], type[TaskStore]]:
    """Note that ``test``, called with these parameters, must fail on the decorated store."""

    def note(store: type[TaskStore]) -> type[TaskStore]:
        WRONG.append(Wrong(store, test, arguments))
        return store

    return note


def pause() -> None:
    """Let other threads come in between: the window that a wrong store has is open for long here."""
    threading.Event().wait(0.005)


# ---- creating --------------------------------------------------------------------------------------------


@caught_by("test_create_never_overwrites", own_id=True)
@caught_by("test_create_never_overwrites", own_id=False)
class Overwrites(InMemoryTaskStore):
    def create(self, record):
        with self._lock:
            return self._put(record)


@caught_by("test_create_never_overwrites_bytes_that_are_no_record")
class OverwritesDamagedFiles(PersistentTaskStore):
    def _create(self, directory, name, record, data):
        try:
            self._load(record.key)
        except CorruptRecord:
            self._files.remove(directory, name)
        except FileNotFoundError:
            pass
        return super()._create(directory, name, record, data)


@caught_by("test_only_one_of_many_threads_creates_an_id")
class LooksThenCreates(InMemoryTaskStore):
    def create(self, record):
        if record.key in self._records:
            raise TaskExists("taken")
        pause()
        with self._lock:
            return self._put(record)


@caught_by("test_only_one_of_many_threads_creates_a_kind")
class AsksThenCreates(InMemoryTaskStore):
    def create_if_no_active(self, record):
        if self.has_active(record.account_id, record.user_id, record.task_type, record.resource_id):
            return None
        pause()
        return self.create(record)


@caught_by("test_active_task_keeps_its_like_from_being_created", status=TaskStatus.RUNNING)
class IsBlockedByWaitingTasksOnly(InMemoryTaskStore):
    def create_if_no_active(self, record):
        query = Query(record.account_id, record.user_id, record.task_type, "pending", record.resource_id)
        return None if self.list(query).items else self.create(record)


@caught_by("test_owners_do_not_block_each_other")
class IsBlockedByOtherTenants(InMemoryTaskStore):
    def create_if_no_active(self, record):
        if self.has_active(record.account_id, None, record.task_type, record.resource_id):
            return None
        return self.create(record)


@caught_by("test_id_that_cannot_be_stored", part="task_id", bad="")
@caught_by("test_id_that_cannot_be_stored", part="user_id", bad=" ")
class TakesAnyId(InMemoryTaskStore):
    def create(self, record):
        with self._lock:
            if record.key in self._records:
                raise TaskExists("taken")
            return self._put(record)

    create_if_no_active = create


# ---- updating --------------------------------------------------------------------------------------------


@caught_by("test_update_never_recreates_a_deleted_record")
@caught_by("test_update_that_races_a_delete_never_recreates")
class Recreates(InMemoryTaskStore):
    def update(self, record, *, expected):
        if expected is not None:
            return super().update(record, expected=expected)
        with self._lock:
            return self._put(record)


@caught_by("test_stale_version_conflicts_and_nothing_is_written")
@caught_by("test_first_end_wins", first="cancel", second="complete")
class ClaimsToCompare(InMemoryTaskStore):
    def update(self, record, *, expected):
        return super().update(record, expected=None)


@caught_by("test_one_of_many_threads_wins_with_the_same_version")
@caught_by("test_no_update_is_lost_between_threads")
class ComparesThenSets(InMemoryTaskStore):
    def update(self, record, *, expected):
        if expected is not None and self.get(record.key).version != expected:
            raise VersionConflict("stale")
        pause()
        return super().update(record, expected=None)


@caught_by("test_without_compare_and_set_an_expected_version_is_refused")
class PretendsToCompare(InMemoryTaskStore):
    capabilities = dataclasses.replace(InMemoryTaskStore.capabilities, compare_and_set=False)


@caught_by("test_update_replaces_the_record_whole")
class Merges(InMemoryTaskStore):
    def update(self, record, *, expected):
        old = self._find(record.key).record
        names = [field.name for field in dataclasses.fields(record)]
        kept = {name: getattr(old, name) for name in names if getattr(record, name) is None}
        return super().update(dataclasses.replace(record, **kept), expected=expected)


# ---- reading ---------------------------------------------------------------------------------------------


@caught_by("test_known_version_that_is_not_stored_any_more")
class IsAlwaysUnchanged(InMemoryTaskStore):
    def get(self, key, *, known=None):
        return super().get(key) if known is None else Unchanged(known)


@caught_by("test_task_of_another_owner_looks_like_no_task")
@caught_by("test_update_touches_no_other_record")
class FindsByIdAlone(InMemoryTaskStore):
    def _find(self, key):
        for stored in self._records.values():
            if stored.record.task_id == key.task_id:
                return stored
        return super()._find(key)


@caught_by("test_get_says_corrupt_and_where", data=b"[]")
class HidesDamage(PersistentTaskStore):
    def get(self, key, *, known=None):
        try:
            return super().get(key, known=known)
        except CorruptRecord as error:
            raise TaskNotFound("no such task") from error


@caught_by("test_store_that_does_not_answer", call=lambda store, there, _: store.get(there.key), warm=True)
class HidesOutages(PersistentTaskStore):
    def get(self, key, *, known=None):
        try:
            return super().get(key, known=known)
        except StoreUnavailable as error:
            raise TaskNotFound("no such task") from error


@caught_by(
    "test_store_that_does_not_answer",
    call=lambda store, _, __: store.has_active("acme", "alice", "reindex", "docs"),
    warm=False,
)
class SaysNothingRunsWhenItIsDown(PersistentTaskStore):
    def has_active(self, account_id, user_id, task_type, resource_id):
        try:
            return super().has_active(account_id, user_id, task_type, resource_id)
        except StoreUnavailable:
            return False


@caught_by("test_unknown_task")
class RaisesWhatItsDriverRaises(InMemoryTaskStore):
    def get(self, key, *, known=None):
        try:
            return super().get(key, known=known)
        except TaskNotFound:
            raise KeyError(key) from None


# ---- values ----------------------------------------------------------------------------------------------


@caught_by("test_every_field_comes_back")
@caught_by("test_fields_of_a_newer_version_survive")
class DropsWhatItDoesNotKnow(InMemoryTaskStore):
    def _put(self, record):
        return super()._put(dataclasses.replace(record, extra_json=None))


@caught_by("test_times_keep_their_microseconds", moment=4_000_000_000.000001)
class RoundsTimes(InMemoryTaskStore):
    def _put(self, record):
        return super()._put(dataclasses.replace(record, created_at=round(record.created_at, 3)))


@caught_by("test_results_that_look_like_nothing", result={})
class TakesEmptyForNothing(InMemoryTaskStore):
    def _put(self, record):
        return super()._put(record if record.result else dataclasses.replace(record, result_json=b"null"))


# ---- promises --------------------------------------------------------------------------------------------


@caught_by("test_durable_store_keeps_records_when_it_is_closed")
class ForgetsWhenItIsClosed(InMemoryTaskStore):
    capabilities = dataclasses.replace(InMemoryTaskStore.capabilities, durable=True)

    def close(self):
        self._records.clear()


@caught_by("test_leases_are_claimed_by_lease_stores_alone")
class ClaimsLeases(PersistentTaskStore):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.capabilities = dataclasses.replace(self.capabilities, leases=True)


@caught_by("test_leases_are_claimed_by_lease_stores_alone")
class HidesItsLeases(InMemoryTaskStore):
    capabilities = dataclasses.replace(InMemoryTaskStore.capabilities, leases=False)
