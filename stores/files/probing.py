"""What a file system can be relied upon for, found out on the root itself.

Owns the trials: replacing while somebody reads, creating while others create, moving, listing. Refuses to
believe a protocol's name, and to promise what was not seen to hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Final, Literal

import orjson

from stores.files.connection import Connection
from stores.files.contest import Race, Watching
from stores.files.temporaries import Temporaries
from task_tracker.clock import Clock
from task_tracker.errors import SettingsError, StoreUnavailable, TaskTrackerError

__all__ = ["MARK", "Findings", "Limits", "find_out"]

MARK: Final = "probe.json"
"""In the root's control directory: what was found there, so that the long trial is made once."""
VERSION: Final = 1
"""Of the trials: a mark of another version is not believed."""

_SIZES: Final = (40_000, 90_000)
"""Of the two contents that replace each other: large enough to be seen half-written."""
_RACED_BYTES: Final = 2_000
_ENOUGH_ROUNDS: Final = 20


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long a trial may be. What was not done in a third of ``seconds`` is not promised: three are long."""

    rounds: int = 200
    racers: int = 8
    seconds: float = 30.0


_SHORT_ROUNDS: Final = 3
_SHORT_RACERS: Final = 2
"""Where the long trial was made already."""

Exclusive = Literal["put", "open", "move"]


@dataclasses.dataclass(frozen=True)
class Findings:
    """What was seen to hold."""

    moves: bool
    """``mv`` replaces: no reader sees anything but the old or the new file, and the source is gone."""
    puts: bool
    """A plain write replaces like that. Only tried where ``mv`` does not."""
    exclusive: Exclusive | None
    """Which way of creating a file has one winner, whoever races."""
    exclusive_whole: bool
    """Whether a file that is created like that is never seen half-written."""

    @property
    def atomic(self) -> bool:
        """Whether no reader can see half of a write."""
        return self.moves or self.puts

    def as_mark(self, kind: str) -> bytes:
        """Return the contents of the mark."""
        return orjson.dumps({"version": VERSION, "kind": kind, **dataclasses.asdict(self)})

    @classmethod
    def in_mark(cls, data: bytes, kind: str) -> Findings | None:
        """Return what a mark says; None if it is another version's, another file system's or damaged."""
        try:
            document = orjson.loads(data)
            if (document.pop("version"), document.pop("kind")) != (VERSION, kind):
                return None
            return cls(**document)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def find_out(
    connection: Connection, directory: str, clock: Clock, temporaries: Temporaries, limits: Limits
) -> Findings:
    """Return what holds in ``directory``, which is made; a mark there makes it short.

    Raises StoreUnavailable if it cannot be written to, SettingsError if no store can be kept there.
    """
    mark = f"{directory}/{MARK}"
    try:
        known = Findings.in_mark(connection.read(mark), connection.kind)
    except FileNotFoundError:
        known = None
        connection.make_directories(directory)
    if known is not None:
        short = dataclasses.replace(limits, rounds=_SHORT_ROUNDS, racers=_SHORT_RACERS)
        if _Trial(connection, directory, clock, temporaries, short).confirms(known):
            return known
    found = _Trial(connection, directory, clock, temporaries, limits).run()
    connection.put(mark, found.as_mark(connection.kind))
    return found


class _Trial:
    """One run of the trials."""

    def __init__(
        self, connection: Connection, directory: str, clock: Clock, temporaries: Temporaries, limits: Limits
    ) -> None:
        self._connection = connection
        self._directory = directory
        self._clock = clock
        self._temporaries = temporaries
        self._limits = limits
        self._others: list[Connection] = []

    def run(self) -> Findings:
        """Try everything."""
        self._check_fresh()
        if self._connection.in_process:
            # Dicts, in turns that we give: nobody sees half of anything, and looking first is exact.
            return Findings(moves=False, puts=True, exclusive="put", exclusive_whole=True)
        refuses = self._move_refuses()
        moves = not refuses and self._move_consumes() and self._replaces(self._by_moving)
        puts = not moves and self._replaces(self._connection.put)
        ways: list[Exclusive] = ["move", "open"] if refuses else ["open"]
        if not self._connection.looks_first:  # which few races would show
            ways.append("put")
        exclusive: Exclusive | None = None
        for way in ways:
            whole = self._excludes(way)
            if whole:
                return Findings(moves, puts, way, exclusive_whole=True)
            if whole is not None and exclusive is None:
                exclusive = way
        return Findings(moves, puts, exclusive, exclusive_whole=False)

    def confirms(self, known: Findings) -> bool:
        """Tell whether what was found earlier still seems to hold."""
        self._check_fresh()
        if self._connection.in_process:
            return True
        if known.moves and not (self._move_consumes() and self._replaces(self._by_moving)):
            return False
        if known.puts and not self._replaces(self._connection.put):
            return False
        return known.exclusive is None or self._excludes(known.exclusive) is not None

    # ---- the trials ------------------------------------------------------------------------------------

    def _check_fresh(self) -> None:
        """What was just written, changed and removed is seen, by others too, who looked before. Or raise."""
        mine, other = self._connection, self._another(0)
        with self._paths(1) as (path,):
            name = path.rsplit("/", 1)[-1]
            seen = [name in self._names(other)]
            mine.put(path, b"one")
            seen += [name in self._names(mine), name in self._names(other), _content(other, path) == b"one"]
            mine.put(path, b"two")
            seen.append(_content(other, path) == b"two")
            mine.remove(path)
            seen += [name in self._names(other), _is_there(other, path)]
        if seen != [False, True, True, True, True, False, False]:
            raise SettingsError(
                f"{self._connection.show(self._directory)} does not show what was just written there; records "
                "cannot be kept behind a cache of files, give the file system that is behind it"
            )

    def _move_refuses(self) -> bool:
        """Tell whether ``mv`` says that the target is there, or does nothing to it."""
        with self._paths(2) as (source, target):
            self._connection.put(source, b"new")
            self._connection.put(target, b"old")
            try:
                self._connection.move(source, target)
            except FileExistsError:
                return True
            except (FileNotFoundError, TaskTrackerError):
                return False  # it does not move at all
            return False

    def _move_consumes(self) -> bool:
        """Tell whether ``mv`` leaves no source behind, and fails without one."""
        with self._paths(2) as (source, target):
            self._connection.put(source, b"new")
            self._connection.put(target, b"old")
            try:
                self._connection.move(source, target)
            except (OSError, TaskTrackerError):
                return False
            if _is_there(self._connection, source) or self._connection.read(target) != b"new":
                return False
            try:
                self._connection.move(source, target)
            except FileNotFoundError:
                return self._connection.read(target) == b"new"
            except TaskTrackerError:
                return False
            return False

    def _by_moving(self, path: str, data: bytes) -> None:
        with self._paths(1) as (source,):
            self._connection.put(source, data)
            self._connection.move(source, path)

    def _replaces(self, write: Callable[[str, bytes], None]) -> bool:
        """Tell whether a reader sees nothing but whole contents while a file is replaced, round after round."""
        contents = [bytes([ord("a") + which]) * size for which, size in enumerate(_SIZES)]
        with self._paths(1) as (path,):
            try:
                write(path, contents[0])
            except (OSError, TaskTrackerError):
                return False
            with Watching(self._another(0), path, allowed={*contents}) as watching:
                until = self._until()
                try:
                    for turn in range(self._limits.rounds):
                        write(path, contents[turn % 2])
                        if watching.broken:
                            return False
                        if self._clock.monotonic() > until:
                            # Far away each round is long, and the reader is in the middle of many.
                            return turn >= _ENOUGH_ROUNDS
                except (OSError, TaskTrackerError):
                    return False
            return not watching.broken and watching.looks > 0

    def _excludes(self, way: Exclusive) -> bool | None:
        """Return None if two can create a file in this way, else whether none is seen half-written."""
        # Racers have instances of their own: a lock inside one would hide what two processes do.
        racers = [self._another(number) for number in range(self._limits.racers)]
        bodies = [b"%d" % number * _RACED_BYTES for number in range(len(racers))]
        with Race(
            [self._creator(way, racer, body) for racer, body in zip(racers, bodies, strict=True)]
        ) as race:
            until = self._until()
            whole = way != "open" or not self._shows_early()
            for turn in range(self._limits.rounds):
                with self._paths(1) as (path,):
                    with Watching(self._connection, path, allowed={*bodies}, may_be_missing=True) as watching:
                        won = race.run(path)
                    whole = whole and not watching.broken
                    if won.count(True) != 1 or self._connection.read(path) != bodies[won.index(True)]:
                        return None
                    if not turn and not self._refuses_again(way, path):
                        return None
                if self._clock.monotonic() > until:
                    return None
        return whole

    def _shows_early(self) -> bool:
        """Tell whether a file that was opened as new is seen before it is closed."""
        with self._paths(1) as (path,):
            seen: list[bool] = []

            def look() -> None:
                seen.append(_is_there(self._another(0), path))

            with contextlib.suppress(OSError, TaskTrackerError):
                self._connection.open_new(path, b"whole", before_end=look)
            return seen != [False]

    def _creator(self, way: Exclusive, connection: Connection, data: bytes) -> Callable[[str], bool]:
        """Return a call that creates a file and tells whether it did. It raises what is no answer."""

        def create(path: str) -> bool:
            try:
                create_exclusively(connection, way, path, data, self._temporaries)
            except FileExistsError:
                return False
            return True

        return create

    def _refuses_again(self, way: Exclusive, path: str) -> bool:
        """Tell whether a file that is there is refused, also if the new one is empty."""
        before = self._connection.read(path)
        for data in (b"", before):
            if self._creator(way, self._connection, data)(path):
                return False
        return self._connection.read(path) == before

    # ---- the pieces ------------------------------------------------------------------------------------

    def _until(self) -> float:
        return self._clock.monotonic() + self._limits.seconds / 3

    def _another(self, number: int) -> Connection:
        while len(self._others) <= number:
            try:
                self._others.append(self._connection.another())
            except Exception:  # noqa: BLE001  # cannot be built twice: then one has to do
                self._others.append(self._connection)
        return self._others[number]

    def _names(self, connection: Connection) -> list[str]:
        try:
            return [entry.name for entry in connection.entries(self._directory)]
        except FileNotFoundError:  # where directories are only prefixes, an empty one is not there
            return []

    @contextlib.contextmanager
    def _paths(self, count: int) -> Iterator[list[str]]:
        """Give paths that nobody has used; remove what is there afterwards."""
        paths = [f"{self._directory}/{self._temporaries.new_name()}" for _ in range(count)]
        try:
            yield paths
        finally:
            for path in paths:
                with contextlib.suppress(OSError, TaskTrackerError):
                    self._connection.remove(path)


def create_exclusively(
    connection: Connection, way: Exclusive, path: str, data: bytes, temporaries: Temporaries
) -> None:
    """Create a file in a way that :class:`Findings` names. Raises FileExistsError."""
    if way == "put":
        connection.put_new(path, data)
    elif way == "open":
        connection.open_new(path, data)
    else:
        source = f"{path.rpartition('/')[0]}/{temporaries.new_name()}"
        try:
            connection.put(source, data)
            connection.move(source, path)
        except BaseException:
            with contextlib.suppress(OSError, TaskTrackerError):
                connection.remove(source)
            raise


def _content(connection: Connection, path: str) -> bytes | None:
    try:
        return connection.read(path)
    except FileNotFoundError:
        return None


def _is_there(connection: Connection, path: str) -> bool:
    try:
        connection.read(path)
    except FileNotFoundError:
        return False
    except StoreUnavailable:
        return True
    return True
