"""More stores that are wrong in one way each: in what they list, delete and count."""

import dataclasses
from typing import Any

from stores.files.persistent import PersistentTaskStore
from stores.memory import InMemoryTaskStore
from task_tracker import transitions
from task_tracker.records import TaskStatus
from task_tracker.store import Cursor, Page, Purged, Query
from tests.contract.wrong_stores import caught_by, pause

# ---- listing ---------------------------------------------------------------------------------------------


@caught_by("test_filters_apply_before_the_cut")
@caught_by("test_filters_go_through_all_pages", user_id="alice")
class FiltersAfterTheCut(InMemoryTaskStore):
    def list(self, query):
        page = super().list(Query(query.account_id, query.user_id, limit=query.limit, before=query.before))
        fitting = [
            stored
            for stored in page.items
            if query.matches(stored.record.task_type, stored.record.status, stored.record.resource_id)
        ]
        return Page(fitting, page.next_cursor)


@caught_by("test_newest_first")
class ListsOldestFirst(InMemoryTaskStore):
    def list(self, query):
        page = super().list(query)
        return Page(page.items[::-1], page.next_cursor)


@caught_by("test_ties_are_neither_lost_nor_doubled_at_the_cut", limit=2)
class LosesTiesAtTheCut(InMemoryTaskStore):
    def list(self, query):
        if query.before is not None:
            query = dataclasses.replace(query, before=Cursor(query.before.created_at, "", ""))
        return super().list(query)


@caught_by("test_pages_give_every_record_once", limit=7, user_id="alice")
class NeverSaysThatAPageIsTheLast(InMemoryTaskStore):
    def list(self, query):
        page = super().list(query)
        return Page(page.items, Cursor.of(page.items[-1].record) if page.items else None)


@caught_by("test_listing_skips_and_reports_it")
class FailsForOneDamagedFile(PersistentTaskStore):
    def list(self, query):
        page = super().list(query)
        for error in page.corrupt:
            raise error
        return page


@caught_by("test_listing_skips_and_reports_it")
class SkipsDamagedFilesInSilence(PersistentTaskStore):
    def list(self, query):
        return super().list(query)._replace(corrupt=())


@caught_by("test_listing_follows_every_change")
class BelievesItsFirstLook(PersistentTaskStore):
    def list(self, query):
        seen = self.__dict__.setdefault("seen", {})
        if query not in seen:
            seen[query] = super().list(query)
        return seen[query]


@caught_by("test_page_does_not_read_everything")
class ReadsEverythingEachTime(PersistentTaskStore):
    def list(self, query):
        for stored in super().list(dataclasses.replace(query, limit=None, before=None)).items:
            self._load(stored.record.key)
        return super().list(query)


# ---- deleting and upkeep ---------------------------------------------------------------------------------


@caught_by("test_delete_of_nothing")
class DeletesNothingGladly(InMemoryTaskStore):
    def delete(self, key, *, expected=None):
        if key in self._records:
            super().delete(key, expected=expected)


@caught_by("test_task_that_has_not_ended_is_not_deleted", status=TaskStatus.CANCELLING)
class DeletesActiveTasks(InMemoryTaskStore):
    def delete(self, key, *, expected=None):
        with self._lock:
            self._find(key)
            self._drop(key)


@caught_by("test_delete_of_another_version")
@caught_by("test_delete_never_takes_a_record_of_a_later_life")
class DeletesAnyVersion(InMemoryTaskStore):
    def delete(self, key, *, expected=None):
        super().delete(key)


@caught_by("test_nothing_is_deleted_while_a_task_has_not_ended", status=TaskStatus.PENDING)
class DeletesWhatHasEndedBeforeItRefuses(InMemoryTaskStore):
    def delete_owner(self, account_id, user_id):
        for stored in self.list(Query(account_id, user_id, limit=None)).items:
            if stored.record.status.is_terminal:
                self.delete(stored.record.key)
        return super().delete_owner(account_id, user_id)


@caught_by("test_no_task_is_lost_that_races_it", conditional=False)
class DeletesOwnersAtLeisure(InMemoryTaskStore):
    def delete_owner(self, account_id, user_id):
        found = self.list(Query(account_id, user_id, limit=None)).items
        active = [stored.record.task_id for stored in found if not stored.record.status.is_terminal]
        transitions.check_owner_deletable(account_id, user_id, active)
        pause()
        with self._lock:
            keys = [key for key in self._records if key[:2] == (account_id, user_id)]
            for key in keys:
                self._drop(key)
        return len(keys)


@caught_by("test_task_that_has_not_ended_is_never_purged", status=TaskStatus.RUNNING)
class PurgesByAgeAlone(InMemoryTaskStore):
    def purge(self, cutoffs, *, limit):
        with self._lock:
            old = [
                key
                for key, (record, _) in self._records.items()
                if record.updated_at <= cutoffs.get(record.status, 0.0)
            ]
            for key in old[:limit]:
                self._drop(key)
        return Purged(old[:limit], 0, len(old) > limit)


@caught_by("test_purge_goes_in_batches")
class PurgesWithoutLimit(InMemoryTaskStore):
    def purge(self, cutoffs, *, limit):
        return super().purge(cutoffs, limit=10_000)


@caught_by("test_history_from_before_the_first_opening_is_safe")
class PurgesHistory(PersistentTaskStore):
    def purge(self, cutoffs, *, limit):
        self._marks._opened_at = 0.0
        return super().purge(cutoffs, limit=limit)


@caught_by("test_purge_reaches_all_owners_and_what_it_never_saw")
class PurgesWhatItCreated(PersistentTaskStore):
    def purge(self, cutoffs, *, limit):
        return Purged((), 0, False)


@caught_by("test_count_tells_types_and_states_apart")
class CountsOtherUsers(InMemoryTaskStore):
    def count(self, account_id, user_id):
        return super().count(account_id, None)


@caught_by("test_has_active_follows_every_change")
class RemembersWhatWasActive(InMemoryTaskStore):
    def has_active(self, account_id, user_id, task_type, resource_id):
        remembered: set[Any] = self.__dict__.setdefault("remembered", set())
        if super().has_active(account_id, user_id, task_type, resource_id):
            remembered.add((account_id, user_id, task_type, resource_id))
        return (account_id, user_id, task_type, resource_id) in remembered
