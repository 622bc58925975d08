"""When a lease has expired: its entry's time stamp is old for the file server, and stood still for us.

Owns the two clocks of that judgement. The file server's alone could be fooled by a step of its clock or by
attributes that a network client keeps for a minute; so an entry must also have stood unchanged for two
heartbeat periods while this process watched. Neither is needed for safety, only for patience.
"""

from __future__ import annotations

import contextlib
import threading
from typing import NamedTuple

from stores.files.lease.control import Control
from stores.files.lease.names import EntryName
from task_tracker.clock import Clock
from task_tracker.forks import renew_after_fork

__all__ = ["WATCHED_PERIODS", "LeaseWatch", "Sighting"]

WATCHED_PERIODS = 2
_AHEAD_SECONDS = 1.0


class Sighting(NamedTuple):
    """An entry as it was seen. Its name and its time stamp together say which heartbeat was the last."""

    path: str
    name: EntryName
    mtime_ns: int
    age_seconds: float


class LeaseWatch:
    """What this process has seen of the entries in ``leases/``. Thread-safe."""

    def __init__(
        self, control: Control, clock: Clock, *, lease_seconds: float, heartbeat_seconds: float
    ) -> None:
        self._control = control
        self._clock = clock
        self._lease_seconds = lease_seconds
        self.heartbeat_seconds = heartbeat_seconds
        self._watch_seconds = heartbeat_seconds * WATCHED_PERIODS
        self._seen: dict[str, tuple[int, float]] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock: a forked child may have inherited one that is held."""
        self._lock = threading.Lock()

    def expired(self) -> list[Sighting]:
        """Return the entries that have expired, longest silent first. Looks at all of them."""
        with self._lock:
            return self._look()

    def _look(self) -> list[Sighting]:
        found = self._list()
        now_ns = self._control.now_ns()
        at = self._clock.monotonic()
        seen: dict[str, tuple[int, float]] = {}
        expired = []
        for path, name, mtime_ns in found:
            before = self._seen.get(path)
            since = before[1] if before is not None and before[0] == mtime_ns else at
            seen[path] = (mtime_ns, since)
            age_seconds = (now_ns - mtime_ns) / 1e9
            # A stamp from the future (the server's clock stepped back) says nothing: ours alone judges then.
            ahead = age_seconds < -_AHEAD_SECONDS
            still_seconds = at - since
            if still_seconds >= self._watch_seconds and (
                age_seconds > self._lease_seconds
                or (ahead and still_seconds > self._lease_seconds + self._watch_seconds)
            ):
                expired.append(Sighting(path, name, mtime_ns, age_seconds))
        self._seen = seen
        expired.sort(key=lambda sighting: sighting.mtime_ns)
        return expired

    def _list(self) -> list[tuple[str, EntryName, int]]:
        found = []
        for shard in self._control.shard_names():
            directory = f"{self._control.leases}/{shard}"
            for text in self._control.names(directory):
                name = EntryName.parse(text)
                if name is None:
                    continue
                path = f"{directory}/{text}"
                # Moved on meanwhile, or out of reach just now: the next look comes to it again.
                with contextlib.suppress(OSError):
                    found.append((path, name, self._control.mtime_ns(path)))
        return found

    def unchanged(self, sighting: Sighting) -> bool:
        """Tell whether an entry still stands as it was seen."""
        try:
            return self._control.mtime_ns(sighting.path) == sighting.mtime_ns
        except FileNotFoundError:
            return False

    def age_seconds(self, path: str) -> float | None:
        """Return how long ago an entry was renewed, by the file server's clock; None if it is gone."""
        try:
            mtime_ns = self._control.mtime_ns(path)
        except FileNotFoundError:
            return None
        return max(0.0, (self._control.now_ns() - mtime_ns) / 1e9)
