"""All owners' indexes of one store, as many as fit; and who the owners are.

Owns the bound on their memory: the ones not asked for longest are given up and rebuilt when needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from stores.files.backing import Backing
from stores.files.index import OwnerIndex
from stores.files.layout import Layout, decode_component
from stores.files.shelf import RecordShelf
from stores.files.versions import RecordReader
from task_tracker.errors import StoreUnavailable, TaskTrackerError
from task_tracker.forks import renew_after_fork

__all__ = ["Indexes"]

MAX_NAMES: Final = 500_000
"""Summaries held at once, about 0.5 KB each."""
MAX_OWNERS: Final = 65_536
_CALLS_BETWEEN_COUNTS: Final = 256


class Indexes:
    """Indexes by owner. Thread-safe."""

    def __init__(
        self, files: Backing, layout: Layout, reader: RecordReader, *, max_names: int = MAX_NAMES
    ) -> None:
        self._files = files
        self._layout = layout
        self._reader = reader
        self._max_names = max_names
        self._shelf = RecordShelf()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew, as a forked child does: an index may just have been in the middle of something."""
        self._lock = threading.Lock()
        self._indexes: OrderedDict[tuple[str, str], OwnerIndex] = OrderedDict()
        self._calls = 0

    def of(self, account_id: str, user_id: str) -> OwnerIndex:
        """Return the index of an owner. Raises InvalidTaskId for ids that cannot be stored."""
        owner = (account_id, user_id)
        with self._lock:
            index = self._indexes.get(owner)
            if index is None:
                index = OwnerIndex(self._files, self._layout, account_id, user_id, self._reader, self._shelf)
                self._indexes[owner] = index
            self._indexes.move_to_end(owner)
            self._calls += 1
            if self._calls >= _CALLS_BETWEEN_COUNTS or len(self._indexes) > MAX_OWNERS:
                self._make_room()
        return index

    def forget(self, account_id: str, user_id: str, name: str) -> None:
        """Know nothing of a file any more: it was removed, and its name may come again."""
        with self._lock:
            index = self._indexes.get((account_id, user_id))
        if index is not None:
            index.forget(name)

    def users(self, account_id: str) -> list[str]:
        """Return the users of an account that have a directory, sorted."""
        names = self._files.directories(self._layout.account_directory(account_id))
        return sorted(user for name in names if (user := decode_component(name)) is not None)

    def owners(self, failed: list[TaskTrackerError]) -> Iterator[tuple[str, str]]:
        """Iterate over all (account, user) that have a directory; accounts that cannot be listed go to ``failed``."""
        for name in sorted(self._files.directories(self._layout.prefix)):
            account_id = decode_component(name)
            if account_id is None:
                continue
            try:
                users = self.users(account_id)
            except StoreUnavailable as error:
                if self._files.remote:
                    raise
                failed.append(error)
            else:
                yield from ((account_id, user_id) for user_id in users)

    def _make_room(self) -> None:
        self._calls = 0
        held = sum(len(index) for index in self._indexes.values())
        while len(self._indexes) > 1 and (held > self._max_names or len(self._indexes) > MAX_OWNERS):
            _, index = self._indexes.popitem(last=False)
            held -= len(index)
