"""Records where earlier trackers kept them, and where no store of today looks.

Owns the knowledge of these places: ``<account>/_system/tasks/<user>/<task>.json``, ``<account>/tasks/<task>.json``
(the user is in the record), and names that were not encoded. Refuses to overwrite a record of today, and to
delete anything: what was imported is put aside under another name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import orjson

from stores.files.backing import Backing
from stores.files.layout import CONTROL, SUFFIX, TASKS, Layout, decode_component
from task_tracker.codec import decode_record
from task_tracker.errors import CorruptRecord, InvalidTaskId, InvalidTransition, TaskExists
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Finding

__all__ = ["OLD_LAYOUT", "OldLayouts", "OldRecord"]

OLD_LAYOUT: Final = "old_layout"
"""The kind of these findings."""
SYSTEM: Final = "_system"
ASIDE: Final = ".imported"
"""Ends the name of a record that was imported; it is not looked at again."""

Adopt = Callable[[TaskRecord, bytes], None]
"""Creates a record with these bytes. Raises TaskExists."""


class OldRecord(NamedTuple):
    """A file where none should be. ``user_id`` is None where only the record tells it."""

    directory: str
    name: str
    account_id: str
    user_id: str | None


class OldLayouts:
    """The old places below a root. ``adopt`` creates a record of today."""

    def __init__(self, files: Backing, layout: Layout, adopt: Adopt) -> None:
        self._files = files
        self._layout = layout
        self._adopt = adopt

    def find(self) -> Iterator[OldRecord]:
        """Iterate over what is in old places. Raises StoreUnavailable."""
        for account in sorted(self._files.directories(self._layout.prefix)):
            if account == CONTROL:
                continue
            account_id = _id_of(account)
            above = f"{self._layout.prefix}/{account}"
            tasks = f"{above}/{TASKS}"
            users = sorted(self._files.directories(tasks))
            for name in self._records_in(tasks):
                if name not in users:
                    yield OldRecord(tasks, name, account_id, None)
            for user in users:
                yield from self._misnamed(f"{tasks}/{user}", account, user)
            old = f"{above}/{SYSTEM}/{TASKS}"
            for user in sorted(self._files.directories(old)):
                for name in self._records_in(f"{old}/{user}"):
                    yield OldRecord(f"{old}/{user}", name, account_id, _id_of(user))

    def _misnamed(self, directory: str, account: str, user: str) -> Iterator[OldRecord]:
        """Iterate over the records of a user's directory that no id leads to, for how they are named."""
        unreachable = decode_component(account) is None or decode_component(user) is None
        for name in self._records_in(directory):
            if unreachable or self._layout.task_id_of(name) is None:
                yield OldRecord(directory, name, _id_of(account), _id_of(user))

    def _records_in(self, directory: str) -> list[str]:
        return sorted(name for name in self._files.names(directory) if name.endswith(SUFFIX))

    def examine(self, old: OldRecord, *, fix: bool) -> Finding | None:
        """Say what is to be done about one, and with ``fix`` do it; None if it is gone meanwhile."""
        where = self._files.where(old.directory, old.name)
        try:
            data = self._files.read(old.directory, old.name).data
            record = self._decode(old, data, where)
            directory, name = self._layout.place(record.key)
        except FileNotFoundError:
            return None
        except (CorruptRecord, InvalidTaskId) as error:
            return Finding(OLD_LAYOUT, where, f"a record in an old place that cannot be imported: {error}")
        place = self._files.where(directory, name)
        if not fix:
            return Finding(
                OLD_LAYOUT,
                where,
                f"a record where no store looks; with fix it is imported to {place} and put aside",
            )
        try:
            self._adopt(record, data)
        except TaskExists:
            if not self._holds(directory, name, data):
                return Finding(
                    OLD_LAYOUT,
                    where,
                    f"a record in an old place, but {place} is there and differs, and that one is used; compare them, "
                    "then remove this one",
                )
        except InvalidTransition as error:
            return Finding(
                OLD_LAYOUT, where, f"a record in an old place that cannot be imported now: {error}"
            )
        return self._put_aside(old, data, where, place)

    def _holds(self, directory: str, name: str, data: bytes) -> bool:
        try:
            return self._files.read(directory, name).data == data
        except FileNotFoundError:
            return False

    def _decode(self, old: OldRecord, data: bytes, where: str) -> TaskRecord:
        user_id = old.user_id if old.user_id is not None else _user_in(data, where)
        return decode_record(
            data, TaskKey(old.account_id, user_id, _id_of(old.name.removesuffix(SUFFIX))), where
        )

    def _put_aside(self, old: OldRecord, data: bytes, where: str, place: str) -> Finding:
        """Give the original a name that is not looked at, where files can be removed."""
        if not self._files.can_remove:
            message = f"imported to {place}; this one cannot be removed here and is not used any more"
            return Finding(OLD_LAYOUT, where, message, fixed=True)
        aside = old.name + ASIDE
        try:
            self._files.create(old.directory, aside, data)
        except FileExistsError:
            if self._files.read(old.directory, aside).data != data:
                message = f"imported to {place}; {aside} is beside this one and differs, remove one of them"
                return Finding(OLD_LAYOUT, where, message)
        with contextlib.suppress(FileNotFoundError):  # another doctor was quicker
            self._files.remove(old.directory, old.name)
        return Finding(
            OLD_LAYOUT, where, f"imported to {place}; the original is {aside} beside it", fixed=True
        )


def _id_of(name: str) -> str:
    """Return the id that a name means: the encoded one, or what it says itself."""
    text = decode_component(name)
    return name if text is None else text


def _user_in(data: bytes, where: str) -> str:
    try:
        user_id = orjson.loads(data)["user_id"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecord(f"{where} does not say whose task it is", path=where) from error
    if not isinstance(user_id, str):
        raise CorruptRecord(f"{where} does not say whose task it is", path=where)
    return user_id
