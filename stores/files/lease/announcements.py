"""Which tasks of a kind are active: each announces itself before it exists, and whoever wants to be alone looks.

Owns ``keys/``. An announcement is a file whose name says kind, task and life; it is made before the record and
removed after the task has ended, so that two who look at each other cannot both see nobody. Refuses to be
asked what is running: the records say that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stores.files.lease.control import Control
from stores.files.lease.names import announcement, announcement_of, life_of
from task_tracker import transitions
from task_tracker.errors import CorruptRecord
from task_tracker.records import TaskKey, TaskRecord

__all__ = ["Announcements", "Crowded"]

ROUNDS: Final = 100

Reader = Callable[[TaskKey], TaskRecord | None]
"""Reads a record; None if there is none. Raises CorruptRecord, StoreUnavailable."""


class Crowded(Exception):
    """Others announce themselves faster than they can be judged. The caller waits and tries again."""


class Announcements:
    """The announcements of one control directory."""

    def __init__(self, control: Control, read: Reader) -> None:
        self._control = control
        self._read = read

    def make(self, record: TaskRecord, *, is_staged: bool = False) -> None:
        """Announce ``record``. ``is_staged``: it is about to be created, and its staged file says so to doctor."""
        path = self._control.announcement(announcement(record))
        try:
            if is_staged:
                self._control.mark(path)
            else:
                self._control.write(path, b"", sync=False)
        except FileExistsError:
            return  # a repeated request's: nobody else uses the life

    def take_back(self, record: TaskRecord) -> None:
        """Remove the announcement of ``record``, if it is there."""
        self._control.remove_file(self._control.announcement(announcement(record)))

    def alone(self, record: TaskRecord) -> bool:
        """Tell whether no other active task of its kind exists; ``record`` has been announced.

        Another one that is still being created is fenced: it starts again, and meets this one. Two that do so
        to each other both start again. Raises Crowded if others come faster than they can be judged.
        """
        own = announcement(record)
        directory = self._control.announcement(own).rpartition("/")[0]
        kind = own.partition(".")[0] + "."
        unreadable: set[str] = set()
        for _ in range(ROUNDS):
            others = [
                name
                for name in self._control.names(directory)
                if name.startswith(kind) and name != own and name not in unreadable
            ]
            if not others:
                return True
            try:
                if self._lives(record, others[0]):
                    return False
            except CorruptRecord:
                # Whether it was active when it could be read is asked of the index, before all this.
                unreadable.add(others[0])
                continue
            self._control.remove_file(f"{directory}/{others[0]}")
        raise Crowded

    def _lives(self, record: TaskRecord, name: str) -> bool:
        """Tell whether the announced task is active. A creator that has not come so far is fenced first."""
        parts = announcement_of(name)
        if parts is None:
            return False
        _, task_id, life = parts
        key = TaskKey(record.account_id, record.user_id, task_id)
        other = self._read(key)
        if other is None or life_of(other) != life:
            # Looking first and fencing afterwards would miss a record that comes in between.
            self._control.remove_file(self._control.staged_record(life))
            other = self._read(key)
        return (
            other is not None
            and life_of(other) == life
            and transitions.blocks_duplicates(other.status, other.completed_at)
        )
