"""What operators and workers tell each other by way of the store: paused task types, and what workers say.

Owns ``paused/``, with a file for each paused type, and ``workers/``, with a file for each worker, replaced whole. How
old one is, the file server's clock says. Refuses to know records and leases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import orjson

from stores.files.layout import decode_component, encode_component
from stores.files.lease.control import Control
from stores.files.lease.names import digest
from stores.files.ops import DIRECTORY_FLAGS, READ_FLAGS
from task_tracker.clock import Clock
from task_tracker.codec import check_id
from task_tracker.errors import InvalidTaskId, StoreUnavailable
from task_tracker.records import TaskKey
from task_tracker.store import FORGOTTEN_SECONDS, Finding, WorkerFact, check_fact, silent_worker

__all__ = ["Notices", "PauseLook"]

_STAGED: Final = "~"
"""First letter of a file that is being written; no encoded name begins with it."""
_LONG: Final = "="
"""First letter of a file whose name stands for a text that is too long for one; the text is in the file."""
_STAGED_SECONDS: Final = 3600.0
"""Nobody writes a small file for that long."""
_LARGEST_BYTES: Final = 1 << 20


class _Seen(NamedTuple):
    """A file in ``workers/``. ``fact`` is None if it holds none."""

    path: str
    age_seconds: float
    fact: WorkerFact | None

    @property
    def dead_seconds(self) -> float:
        """For how long its life has been over; negative while it lives."""
        return self.age_seconds - (self.fact.life_seconds if self.fact is not None else 0.0)


class Notices:
    """The notices of one control directory. ``sync``: what is paused survives a power cut."""

    def __init__(self, control: Control, clock: Clock, *, sync: bool) -> None:
        self._control = control
        self._clock = clock
        self._sync = sync
        self._last_paused: frozenset[str] = frozenset()

    # ---- pausing -------------------------------------------------------------------------------------

    def pause(self, task_type: str) -> None:
        """Make the file that pauses a type."""
        name = _name(check_id(task_type, "task_type"))
        text = task_type.encode() if name.startswith(_LONG) else b""
        self._write(self._control.paused, name, text, sync=self._sync)
        self._sync_paused()

    def unpause(self, task_type: str) -> None:
        """Remove it."""
        name = _name(check_id(task_type, "task_type"))
        self._control.remove_file(f"{self._control.paused}/{name}")
        self._sync_paused()

    def paused(self) -> Sequence[str]:
        """Return the paused types, sorted. Raises StoreUnavailable for one whose name is lost."""
        return sorted(text for name in self._paused_names() if (text := self._paused_type(name)) is not None)

    def look(self, task_types: Sequence[str]) -> PauseLook:
        """Return what one claim of these types asks."""
        return PauseLook(self, task_types)

    def list_paused(self, task_types: Sequence[str]) -> frozenset[str]:
        """Return which of these types are paused. Lists once, and reads nothing."""
        names = self._paused_names()
        return frozenset(kind for kind in task_types if _name(kind) in names) if names else frozenset()

    def were_paused(self, task_types: Sequence[str]) -> bool:
        """Tell whether one of these types was paused when that was listed last."""
        return bool(self._last_paused) and any(_name(kind) in self._last_paused for kind in task_types)

    def is_paused(self, task_type: str) -> bool:
        """Tell whether this type is, by a look at its file."""
        return self._control.exists(f"{self._control.paused}/{_name(task_type)}")

    def _paused_names(self) -> frozenset[str]:
        # Where it is gone, nothing can be said to be paused or not: not Control.names, for which that is no name.
        self._last_paused = frozenset(self._control.ops.listdir(self._control.paused))
        return self._last_paused

    def _paused_type(self, name: str) -> str | None:
        """Return the type that a file pauses; None for a foreign one, or one that is gone by now."""
        if not name.startswith(_LONG):
            return decode_component(name)
        path = f"{self._control.paused}/{name}"
        try:
            text = self._control.read(path).decode(errors="replace")
        except FileNotFoundError:
            return None
        if _long_name(text) != name:
            raise StoreUnavailable(
                f"{path} pauses a task type, and what is in it does not say which one any more; remove it, and pause "
                "that type again"
            )
        return text

    def _sync_paused(self) -> None:
        if not self._sync:
            return
        handle = self._control.ops.open(self._control.paused, DIRECTORY_FLAGS)
        try:
            self._control.ops.fsync(handle)
        finally:
            self._control.ops.close(handle)

    # ---- what workers say ----------------------------------------------------------------------------

    def publish(self, fact: WorkerFact) -> None:
        """Write a fact over the last one of this name."""
        data = orjson.Fragment(check_fact(fact))
        document = {"name": fact.name, "life_seconds": fact.life_seconds, "data": data}
        # Not synced: it says what holds now. The rename keeps the stamp that the server gave when it was written.
        self._write(self._control.workers, _name(fact.name), orjson.dumps(document), sync=False)

    def withdraw(self, name: str) -> None:
        """Remove a fact, if there is one."""
        self._control.remove_file(f"{self._control.workers}/{_name(check_id(name, 'name'))}")

    def facts(self) -> Sequence[WorkerFact]:
        """Return those whose life has not ended, by name."""
        living = (seen.fact for seen in self._look() if seen.dead_seconds <= 0)
        return sorted((fact for fact in living if fact is not None), key=lambda fact: fact.name)

    def forget(self, limit: int) -> None:
        """Remove what died long ago and what was never finished, ``limit`` files at most."""
        old = [seen.path for seen in self._look() if seen.dead_seconds > FORGOTTEN_SECONDS]
        for path in (*old, *self._abandoned())[:limit]:
            self._control.remove_file(path)

    def findings(self, *, fix: bool) -> Iterator[Finding]:
        """Name what died and was not withdrawn, what cannot be read, and what was never finished."""
        for seen in self._look():
            if seen.dead_seconds <= 0:
                continue
            fixed = fix and self._control.remove_file(seen.path)
            if seen.fact is not None:
                yield silent_worker(seen.fact, seen.path, fixed=fixed)
            else:
                yield Finding(
                    "unreadable", seen.path, "no worker wrote this; it says nothing, remove it", fixed
                )
        for path in self._abandoned():
            fixed = fix and self._control.remove_file(path)
            yield Finding("temporary_file", path, "a writer stopped before it was done; remove it", fixed)

    def _look(self) -> list[_Seen]:
        """Read all facts, with their ages by the file server's clock."""
        read = [*self._read()]
        now_ns = self._control.now_ns() if read else 0
        found = []
        for path, mtime_ns, data in read:
            # From the future: the server's clock stepped back since, and who lives says so soon.
            age_seconds = abs(now_ns - mtime_ns) / 1e9
            found.append(_Seen(path, age_seconds, _fact(data, age_seconds)))
        return found

    def _read(self) -> Iterator[tuple[str, int, bytes]]:
        for name in self._control.ops.listdir(self._control.workers):
            if name.startswith(_STAGED):
                continue
            path = f"{self._control.workers}/{name}"
            # Withdrawn meanwhile, or no file at all.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                handle = self._control.ops.open(path, READ_FLAGS)
                try:
                    stamp = self._control.ops.fstat(handle).st_mtime_ns
                    yield path, stamp, self._control.ops.read(handle, _LARGEST_BYTES)
                finally:
                    self._control.ops.close(handle)

    def _abandoned(self) -> list[str]:
        staged = [
            f"{directory}/{name}"
            for directory in (self._control.paused, self._control.workers)
            for name in self._control.names(directory)
            if name.startswith(_STAGED)
        ]
        now_ns = self._control.now_ns() if staged else 0
        old = []
        for path in staged:
            with contextlib.suppress(FileNotFoundError):
                if abs(now_ns - self._control.file_mtime_ns(path)) > _STAGED_SECONDS * 1e9:
                    old.append(path)
        return old

    def _write(self, directory: str, name: str, data: bytes, *, sync: bool) -> None:
        """Write a file whole, in the place of the one that is there."""
        staged, path = f"{directory}/{_STAGED}{self._clock.new_token()}", f"{directory}/{name}"
        self._control.write(staged, data, sync=sync)
        try:
            self._control.ops.replace(staged, path)
        except FileNotFoundError:
            # A network client may have repeated a request that was done: what is there decides.
            if not self._holds(path, data):
                raise
        except BaseException:
            with contextlib.suppress(OSError):
                self._control.remove_file(staged)
            raise

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self._control.read(path) == data
        except FileNotFoundError:
            return False


class PauseLook:
    """What one claim asks about paused types. Lists once at most, and not at all while nothing waits."""

    def __init__(self, notices: Notices, task_types: Sequence[str]) -> None:
        self._notices = notices
        self._task_types = task_types
        self._listed = False

    def known(self) -> frozenset[str]:
        """Return which of the types are paused, none where none was at the last look: then each is asked about."""
        return self._list() if self._notices.were_paused(self._task_types) else frozenset()

    def holds(self, task_type: str) -> bool:
        """Tell whether one of the types is paused now."""
        return self._notices.is_paused(task_type) if self._listed else task_type in self._list()

    def _list(self) -> frozenset[str]:
        self._listed = True
        return self._notices.list_paused(self._task_types)


def _name(text: str) -> str:
    try:
        return encode_component(text)
    except InvalidTaskId:
        return _long_name(text)


def _long_name(text: str) -> str:
    return f"{_LONG}{digest(TaskKey('', '', text))}"


def _fact(data: bytes, age_seconds: float) -> WorkerFact | None:
    """Return the fact in a file, None if it is somebody else's."""
    try:
        document = orjson.loads(data)
        fact = WorkerFact(document["name"], document["data"], document["life_seconds"], age_seconds)
        check_fact(fact)
    except (ValueError, TypeError, KeyError):
        return None
    return fact
