"""Ways in which a client of a file server sees less, or other things, than the server does.

Owns directories that are looked up once and never again, listings that come in two halves, and replies that get
lost. Refuses to know schedules.
"""

from __future__ import annotations

import errno
import zlib
from typing import Any, Final

from tests.lease.simulation.calls import Found, Request
from tests.lease.simulation.disk import Disk, Result, succeeded

__all__ = ["AGAIN", "Half", "Handles", "remembered", "walk_cached"]

Handles = tuple[tuple[tuple[int, tuple[str, ...]], int], ...]
"""Directories that a client knows by the names it once found them under."""

# What a client is told of a call that took effect when its first reply was lost and it asked once more.
AGAIN: Final = {
    "link": errno.EEXIST,
    "mkdir": errno.EEXIST,
    "rename": errno.ENOENT,
    "replace": errno.ENOENT,
    "rmdir": errno.ENOENT,
    "unlink": errno.ENOENT,
}


class Half:
    """A listing of which one half was read. Which half a name is in depends on the name alone."""

    __slots__ = ("_at", "_names", "_request")

    def __init__(self, request: Request, disk: Disk, at: Found) -> None:
        self._request = request
        self._at = at
        self._names = self._read(disk, 0)

    def __hash__(self) -> int:
        return hash((self._request, self._at, self._names))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Half) and (self._request, self._at, self._names) == (
            other._request,
            other._at,
            other._names,
        )

    def _read(self, disk: Disk, half: int) -> Result:
        result: Any = self._request.apply(disk, self._at, 0)[1]
        if not succeeded(result):
            return result
        return tuple(entry for entry in result if zlib.crc32(str(entry).encode()) & 1 == half)

    def finish(self, disk: Disk) -> tuple[Disk, Result]:
        """Read the other half."""
        rest: Any = self._read(disk, 1)
        if not succeeded(self._names):
            return disk, self._names
        return disk, rest if not succeeded(rest) else (*self._names, *rest)  # type: ignore[misc]


def walk_cached(request: Request, disk: Disk, handles: Handles) -> tuple[Found, Handles]:
    """Walk as a client does that looks each directory up once."""
    known = dict(handles)
    found = []
    for base, names in request.ways:
        start, rest = base, names
        for length in range(len(names), 0, -1):
            if (base, names[:length]) in known:
                start, rest = known[base, names[:length]], names[length:]
                break
        found.append(disk.walk(start, rest))
        for length in range(1, len(names) + 1):
            further = length - (len(names) - len(rest))
            inode = disk.walk(start, rest[:further]) if further > 0 else -1
            if inode >= 0 and disk.is_directory(inode):
                known.setdefault((base, names[:length]), inode)
    return (found[0] if len(found) == 1 else (found[0], found[1])), tuple(sorted(known.items()))


def remembered(request: Request, handles: Handles, made: int) -> Handles:
    """Return what a client knows after a change of its own."""
    known = dict(handles)
    places = [
        (base, (*names, last)) for (base, names), last in zip(request.ways, request.names, strict=False)
    ]
    if request.name == "mkdir":
        known[places[0]] = made
    elif request.name == "rmdir":
        known.pop(places[0], None)
    elif request.name in ("rename", "replace"):
        (base, old), (to_base, new) = places
        for place in [*known]:
            if place[0] == base and place[1][: len(old)] == old:
                known[to_base, (*new, *place[1][len(old) :])] = known.pop(place)
    return tuple(sorted(known.items()))
