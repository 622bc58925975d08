"""Upkeep: retention, users that are deleted, rows that a foreign hand wrote, what workers and operators tell.

Owns everything that is done in batches. Refuses to lock more than a batch: nothing here keeps a worker waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson
import psycopg

from stores.postgres.database import Database, Session
from stores.postgres.rows import check_long, is_storable
from stores.postgres.trouble import is_conflict, is_lost
from task_tracker import transitions
from task_tracker.records import TERMINAL, TaskKey, TaskStatus
from task_tracker.store import FORGOTTEN_SECONDS, Purged, WorkerFact, check_fact

__all__ = ["Upkeep"]

_BATCH: Final = 1000
_LONGEST_NAME: Final = "a worker's name"


class Upkeep:
    """The operations of upkeep."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._database = database
        self._lease_seconds = lease_seconds

    # ---- retention -----------------------------------------------------------------------------------

    def purge(self, cutoffs: Mapping[TaskStatus, float], limit: int) -> Purged:
        """See :meth:`TaskStore.purge`."""
        states = sorted(status for status in TERMINAL if status in cutoffs)
        params = {
            "states": [status.value for status in states],
            "cutoffs": [float(cutoffs[status]) for status in states],
            "limit": limit,
        }
        if not states:
            return Purged([], 0, False)

        def work(session: Session) -> Purged:
            try:
                rows = session.all("purge", params)
            except psycopg.Error as error:
                if is_conflict(error) or is_lost(error, session.connection) or error.sqlstate is None:
                    raise
                return self._purge_one_by_one(session, params, limit)
            return Purged([TaskKey(*row[:3]) for row in rows], 0, any(row[3] for row in rows))

        # Run again it would not know what the lost try has deleted.
        return self._database.write("delete old tasks", work, repeats=False)

    def _purge_one_by_one(self, session: Session, params: Mapping[str, object], limit: int) -> Purged:
        """The same where one of them cannot be deleted (somebody's table refers to it): it stops no other."""
        deleted: list[TaskKey] = []
        failed = 0
        keys = [TaskKey(*row) for row in session.all("purgeable", {**params, "limit": limit + _BATCH})]
        for key in keys:
            if len(deleted) == limit:
                return Purged(deleted, failed, True)
            try:
                deleted += [key] * session.run("delete", key._asdict())
            except psycopg.Error as error:
                if is_lost(error, session.connection) or error.sqlstate is None:
                    raise
                failed += 1
        return Purged(deleted, failed, len(keys) > limit + _BATCH)

    # ---- users ---------------------------------------------------------------------------------------

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """See :meth:`TaskStore.delete_owner`."""
        if not is_storable(account_id, user_id):
            return 0
        owner = {"account_id": account_id, "user_id": user_id}

        def fence(session: Session) -> list[str]:
            with session.transaction():
                # Waits for creations that are under way, and keeps others from beginning before the fence stands.
                session.all("lock_owner", owner)
                in_the_way: list[str] = [task_id for (task_id,) in session.all("not_ended", owner)]
                session.run("unfence" if in_the_way else "fence", owner)
            return in_the_way

        in_the_way = self._database.write("begin to delete a user's tasks", fence)
        transitions.check_owner_deletable(account_id, user_id, in_the_way)
        deleted = 0
        while True:
            found = self._database.write(
                "delete a user's tasks (call delete_owner again to go on)",
                lambda session: session.one("delete_some", {**owner, "limit": _BATCH}),
                repeats=False,
            )
            number = 0 if found is None else found[0]
            deleted += number
            if number < _BATCH:
                break
        self._database.write(
            "end the deletion of a user's tasks (call delete_owner again)",
            lambda session: session.run("unfence", owner),
        )
        return deleted

    # ---- recovery ------------------------------------------------------------------------------------

    def recover(self, limit: int) -> int:
        """See :meth:`LeaseStore.recover`."""

        def work(session: Session) -> int:
            session.run("forget", {"limit": limit, "forgotten_seconds": FORGOTTEN_SECONDS})
            return session.run("stamp", {"limit": limit, "lease_seconds": self._lease_seconds})

        return self._database.write("look for what crashes left", work)

    # ---- telling -------------------------------------------------------------------------------------

    def pause(self, task_type: str) -> None:
        """See :meth:`LeaseStore.pause`."""
        check_long(task_type, "task_type")

        def work(session: Session) -> None:
            with session.transaction():
                session.all("lock_claims")
                session.run("pause", {"task_type": task_type})

        self._database.write(f"pause {task_type}", work)

    def unpause(self, task_type: str) -> None:
        """See :meth:`LeaseStore.unpause`."""
        check_long(task_type, "task_type")
        self._database.write(
            f"resume {task_type}", lambda session: session.run("unpause", {"task_type": task_type})
        )

    def paused(self) -> Sequence[str]:
        """See :meth:`LeaseStore.paused`."""
        rows = self._database.read("read what is paused", lambda session: session.all("paused"))
        return [task_type for (task_type,) in rows]

    def publish(self, fact: WorkerFact) -> None:
        """See :meth:`LeaseStore.publish`."""
        check_long(fact.name, _LONGEST_NAME)
        params = {
            "name": fact.name,
            "data": check_fact(fact).decode(),
            "life_seconds": float(fact.life_seconds),
        }
        self._database.write("note a worker", lambda session: session.run("publish", params))

    def withdraw(self, name: str) -> None:
        """See :meth:`LeaseStore.withdraw`."""
        if is_storable(name):
            self._database.write("forget a worker", lambda session: session.run("withdraw", {"name": name}))

    def facts(self, *, living: bool = True) -> list[WorkerFact]:
        """Return the facts that hold, or else those whose life has ended; see :meth:`LeaseStore.facts`."""
        rows = self._database.read(
            "read what workers say", lambda session: session.all("facts", {"living": living})
        )
        facts = []
        for name, data, life_seconds, age_seconds in rows:
            said = orjson.loads(data)
            if isinstance(said, dict):
                facts.append(WorkerFact(name, said, life_seconds, max(0.0, age_seconds)))
        return facts
