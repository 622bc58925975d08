"""Waiting work: which task a worker gets next, and what can be said of the backlog.

Owns the order of the queue and its limits. The next task is locked with SKIP LOCKED, so claimers do not wait for each
other; only those of a type with a limit do, one at a time, so that the limit is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stores.postgres.database import Database, Session
from stores.postgres.names import Names
from stores.postgres.ownership import Ownership
from stores.postgres.rows import Row, Rows, array
from task_tracker.clock import Clock
from task_tracker.errors import CorruptRecord
from task_tracker.records import TaskKey
from task_tracker.store import Lease, Stored, Workload

__all__ = ["Queue"]

_DEPTH: Final = 16
"""Heads of the queue among which one is looked for that nobody has locked."""
_DEEPEST: Final = 16 * _DEPTH
_MOST_PROMOTED: Final = 500
_MOST_DEFERRED: Final = 1000
"""That are looked at for those of other kinds: there is no index of the kinds of tasks for later."""
_MOST_FOR_LATER: Final = 100
"""The same, where the first one is looked for."""

_Kinds = Sequence[tuple[str, int]]


class Queue:
    """What waits for a handler."""

    def __init__(
        self, database: Database, rows: Rows, ownership: Ownership, names: Names, clock: Clock
    ) -> None:
        self._database = database
        self._rows = rows
        self._ownership = ownership
        self._names = names
        self._clock = clock
        self._has_found = False
        self._claiming = (
            # The server would plan each claim anew, for the limit that it is given, and find the same plan.
            "SET LOCAL plan_cache_mode = force_generic_plan",
            # Whoever pauses a type waits for the claims that are under way.
            f"SELECT pg_advisory_xact_lock_shared({names.lock_key('claims_lock')})",
        )

    def claim(
        self, kinds: _Kinds, max_running: Mapping[str, int] | None, holder: str, *, most: int
    ) -> Sequence[tuple[Lease, Stored]]:
        """Claim the next tasks of these kinds, ``most`` of them; see :meth:`LeaseStore.claim`."""
        if not kinds:
            return []
        if max_running and any(task_type in max_running for task_type, _ in kinds):
            most = 1  # of a type with a limit each one counts for the next
        tokens = [self._clock.new_token() for _ in range(most)]

        def work(session: Session) -> Sequence[tuple[Lease, Stored]]:
            if session.again:
                found = session.all("of_tokens", {"tokens": array(tokens)})
                if found:
                    return [self._ownership.mine(Row(*row)) for row in found]
            # Most of those who ask find nothing: that costs no lock and no transaction. Where there was something a
            # moment ago there may be more, so it is tried at once.
            look = not self._has_found
            while True:
                if look and not self._waits(session, kinds):
                    claimed: Sequence[tuple[Lease, Stored]] | None = []
                else:
                    claimed = self._claim_next(session, kinds, max_running, tokens, holder, heed_due=not look)
                if claimed or (look and claimed is not None):
                    self._has_found = bool(claimed)
                    return claimed
                look = True

        return self._database.write("claim a task", work)

    def _waits(self, session: Session, kinds: _Kinds) -> bool:
        """Tell whether something may wait, after what has become due was moved into the queue."""
        while True:
            waits, due = session.one("waiting", _asked(kinds)) or (False, False)
            if not due or not session.run("promote", {"limit": _MOST_PROMOTED}):
                return bool(waits)

    def _claim_next(
        self,
        session: Session,
        kinds: _Kinds,
        max_running: Mapping[str, int] | None,
        tokens: Sequence[str],
        holder: str,
        *,
        heed_due: bool,
    ) -> Sequence[tuple[Lease, Stored]] | None:
        """Do that in one transaction; None if it has to be looked again, if ``heed_due`` also for what is due."""
        with session.transaction(*self._claiming):
            found, due = self._next(session, self._allowed(session, kinds, max_running), len(tokens))
            if due and heed_due:
                return None  # it may come before these
            if not found:
                return []
            readable = []
            for row in found:
                try:
                    readable.append((row, self._rows.record(row)))
                except CorruptRecord:
                    self._ownership.set_aside(session, row)
            if not readable:
                return None
            return self._ownership.take_all(session, readable, tokens, holder)

    def _allowed(self, session: Session, kinds: _Kinds, max_running: Mapping[str, int] | None) -> _Kinds:
        """Return the kinds of which another one may run; nobody else claims one of these meanwhile."""
        limits = {task_type: (max_running or {}).get(task_type) for task_type, _ in kinds}
        limited = sorted(task_type for task_type, limit in limits.items() if limit is not None)
        if not limited:
            return kinds
        session.all("lock_types", {"keys": array(self._names.lock_key("type", name) for name in limited)})
        running: dict[str, int] = dict(session.all("running", {"types": array(limited)}))
        return [
            kind for kind in kinds if (limit := limits[kind[0]]) is None or running.get(kind[0], 0) < limit
        ]

    def _next(self, session: Session, kinds: _Kinds, most: int) -> tuple[list[Row], bool]:
        """Lock the next tasks that nobody else has locked; also tell whether others have become due."""
        if not kinds:
            return [], False
        depth = max(_DEPTH, 2 * most)
        asked = False
        while True:
            found = session.all("next", {**_asked(kinds), "depth": depth, "most": most})
            if found:
                return [Row(*row[:-1]) for row in found], bool(found[0][-1])
            seen = session.one("heads_seen", {**_asked(kinds), "depth": depth})
            if seen is None or not seen[0]:
                return [], False
            if seen[0] >= depth and depth < _DEEPEST:
                depth *= 4
            elif asked:
                return [], False  # all that there are, or so many that others are about to free some
            asked = True  # one that merely changed while it was being locked is elsewhere now, and waits all the same

    def claimable(self, kinds: _Kinds, limit: int) -> Sequence[TaskKey]:
        """See :meth:`LeaseStore.claimable`."""
        asked = {**_asked([*dict.fromkeys(kinds)]), "depth": limit}

        def work(session: Session) -> list[TaskKey]:
            while True:
                rows = session.all("claimable", asked)
                if not rows[0][0] or not session.run("promote", {"limit": _MOST_PROMOTED}):
                    return [TaskKey(*row[1:]) for row in rows if row[1] is not None]

        return self._database.write("look for waiting tasks", work) if kinds else []

    def unclaimed(
        self,
        task_types: _Kinds | None,
        except_types: _Kinds,
        older_than_seconds: float,
        limit: int,
        *,
        handled: bool | None,
    ) -> Sequence[Stored]:
        """See :meth:`LeaseStore.unclaimed`."""
        left_out = _asked(except_types or None)
        params = {
            **_asked(task_types),
            "except_types": left_out["types"],
            "except_versions": left_out["versions"],
            "handled": handled,
            "older_than_seconds": float(older_than_seconds),
            "limit": limit,
        }
        by_kind = bool(except_types) and task_types is None and handled is True

        def work(session: Session) -> list[Stored]:
            while True:
                rows = self._others(session, except_types, older_than_seconds, limit) if by_kind else None
                if rows is None:
                    rows = [Row(*row) for row in session.all("unclaimed", params)]
                found: list[Stored] = []
                set_aside = 0
                for row in rows:
                    try:
                        found.append(self._rows.stored(row))
                    except CorruptRecord:
                        set_aside += self._ownership.set_aside(session, row)
                if not set_aside or len(rows) < limit:
                    return found

        return self._database.write("look for waiting tasks", work)

    def _others(
        self, session: Session, except_types: _Kinds, older_than_seconds: float, limit: int
    ) -> list[Row] | None:
        """Return what waits of other kinds, without a look at all that waits; None if there is too much of it."""
        deferred = {"most_deferred": _MOST_DEFERRED}
        left_out = {tuple(kind) for kind in except_types}
        kinds = [kind for kind in session.all("waiting_kinds", deferred) if kind not in left_out]
        if not kinds:
            return []
        asked = {**_asked(kinds), **deferred, "older_than_seconds": float(older_than_seconds), "limit": limit}
        rows = [Row(*row) for row in session.all("unclaimed_by_kind", asked)]
        return rows if len(rows) < limit else None

    def next_due_seconds(self, kinds: _Kinds) -> float | None:
        """See :meth:`LeaseStore.next_due_seconds`."""
        asked = {**_asked(kinds), "most_deferred": _MOST_FOR_LATER}
        found = self._database.read("look for start times", lambda session: session.one("next_due", asked))
        assert found is not None, "the statement always answers"
        return None if found[0] is None else float(found[0])

    def workload(self) -> Workload:
        """See :meth:`LeaseStore.workload`."""
        found = self._database.read("count what waits", lambda session: session.one("workload"))
        assert found is not None, "the statement always answers"
        waiting, running, oldest_waiting, oldest_running = found
        return Workload(waiting, running, float(oldest_waiting or 0.0), float(oldest_running or 0.0))


def _asked(kinds: _Kinds | None) -> dict[str, object]:
    if kinds is None:
        return {"types": None, "versions": None}
    return {"types": array(name for name, _ in kinds), "versions": array(version for _, version in kinds)}
