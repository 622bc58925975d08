"""A disk that forgets: recorded system calls, and every state that a power cut could leave of them.

Owns the recording and three models of what reaches the disk before it is synced. In all of them a file's unsynced data
may be there, missing or torn; they differ in the names:

``ordered``  changes of names reach the disk in their order: a prefix of them, at least up to the last that was synced;
``subset``   any subset of the changes of directories that were not synced; one rename is one change;
``split``    likewise, and a rename from one directory to another may be half done: both names, or neither.

Where there are too many subsets a fixed choice of them is taken. Refuses to know what the files mean.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from stores.files.ops import FileOps

Model = Literal["ordered", "subset", "split"]
MODELS: Final[tuple[Model, ...]] = ("ordered", "subset", "split")

ALL_SUBSETS_OF: Final = 5
"""Up to so many changes every subset is looked at: 32 states."""
RECENT: Final = 16
"""So many of the last changes are lost and kept one by one; the older ones together."""
DRAWN: Final = 8
"""How many subsets of all are drawn where there are too many, besides the regular ones."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One system call that changes something. ``path`` is that of the descriptor where it takes one."""

    name: str
    path: str
    target: str = ""
    data: bytes = b""


class RecordingOps(FileOps):
    """System calls that are made and written down. ``fsync`` is only written down."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._paths: dict[int, str] = {}
        for name in ("mkdir", "rmdir", "unlink", "link", "replace", "rename", "exchange"):
            setattr(self, name, self._recorded(name))
        for name, function in (
            ("open", self._open),
            ("close", self._close),
            ("write", self._write),
            ("fsync", self._fsync),
        ):
            setattr(self, name, function)

    def _recorded(self, name: str) -> Callable[..., Any]:
        function = getattr(FileOps, name)

        def call(path: str, target: Any = "", *rest: Any, **keywords: Any) -> Any:
            arguments = (path, target, *rest) if target != "" else (path, *rest)
            answer = function(*arguments, **keywords)
            self.steps.append(Step(name, path, target if isinstance(target, str) else ""))
            return answer

        return call

    def _open(self, path: str, flags: int, mode: int = 0o777) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        handle = os.open(path, flags, mode)
        self._paths[handle] = path
        if new:
            self.steps.append(Step("create", path))
        elif flags & os.O_TRUNC:
            raise AssertionError(f"{path} is opened with O_TRUNC: half of it would be lost in a power cut")
        return handle

    def _close(self, handle: int) -> None:
        self._paths.pop(handle, None)
        os.close(handle)

    def _write(self, handle: int, data: bytes) -> int:
        written = os.write(handle, data)
        self.steps.append(Step("write", self._paths.get(handle, ""), data=bytes(data[:written])))
        return written

    def _fsync(self, handle: int) -> None:
        self.steps.append(Step("fsync", self._paths.get(handle, "")))


# ---- the disk --------------------------------------------------------------------------------------------

Part = tuple[int, str, int | None]
"""In this directory this name now means that inode, or nothing."""
Change = tuple[Part, ...]
Tree = dict[int, dict[str, int]]
ROOT: Final = 0


@dataclasses.dataclass
class State:
    """What a power cut left."""

    entries: Tree
    data: dict[int, bytes]

    def files(
        self, directory: int = ROOT, path: str = "", depth: int = 0
    ) -> Iterator[tuple[str, bytes | None]]:
        """All paths with their contents; None for a directory."""
        assert depth < 12, "a directory is within itself"
        for name, inode in sorted(self.entries.get(directory, {}).items()):
            below = f"{path}/{name}" if path else name
            if inode in self.data:
                yield below, self.data[inode]
            else:
                yield below, None
                yield from self.files(inode, below, depth + 1)

    def write(self, root: Path) -> None:
        """Make it real below ``root``, which exists."""
        for path, data in self.files():
            if data is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(data)


class Disk:
    """What the recorded calls have done so far, and what of it is sure to stay."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._numbers = itertools.count(1)
        self._now: Tree = {ROOT: {}}
        self._sure: dict[Model, Tree] = {model: {} for model in MODELS}
        self._pending: dict[Model, list[Change]] = {model: [] for model in MODELS}
        self._data: dict[int, bytes] = {}
        self._unsynced: set[int] = set()

    # ---- what was done -----------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Do one recorded call."""
        if not step.path.startswith(f"{self._root}/"):
            if step.name == "fsync" and step.path == self._root:
                self._sync(ROOT)
            return
        getattr(self, f"_{step.name}")(step)

    def inode(self, path: str) -> int | None:
        """What ``path`` means now."""
        inode: int | None = ROOT
        for part in filter(None, path[len(self._root) :].split("/")):
            inode = self._now.get(inode, {}).get(part) if inode is not None else None
        return inode

    def content(self, path: str) -> bytes | None:
        """What a reader sees at ``path`` now."""
        inode = self.inode(path)
        return None if inode is None else self._data.get(inode)

    def is_idle(self, step: Step) -> bool:
        """Tell whether an fsync would change nothing: what it syncs has been synced already."""
        inode = self.inode(step.path)
        if inode in self._data:
            return inode not in self._unsynced
        return not any(
            part[0] == inode for changes in self._pending.values() for change in changes for part in change
        )

    def _create(self, step: Step) -> None:
        number = next(self._numbers)
        self._data[number] = b""
        self._unsynced.add(number)
        self._change((*self._place(step.path), number))

    def _mkdir(self, step: Step) -> None:
        number = next(self._numbers)
        self._now[number] = {}
        self._change((*self._place(step.path), number))

    def _write(self, step: Step) -> None:
        inode = self.inode(step.path)
        if inode is not None:  # somebody may have removed it meanwhile
            self._data[inode] += step.data
            self._unsynced.add(inode)

    def _fsync(self, step: Step) -> None:
        inode = self.inode(step.path)
        if inode in self._data:
            self._unsynced.discard(inode)
        elif inode is not None:
            self._sync(inode)

    def _link(self, step: Step) -> None:
        self._change((*self._place(step.target), self.inode(step.path)))

    def _unlink(self, step: Step) -> None:
        self._change((*self._place(step.path), None))

    _rmdir = _unlink

    def _rename(self, step: Step) -> None:
        inode = self.inode(step.path)
        self._change((*self._place(step.path), None), (*self._place(step.target), inode))

    _replace = _rename

    def _exchange(self, step: Step) -> None:
        one, other = self.inode(step.path), self.inode(step.target)
        self._change((*self._place(step.path), other), (*self._place(step.target), one))

    def _place(self, path: str) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        directory = self.inode(above)
        assert directory is not None, f"{above} is not there"
        return directory, name

    def _change(self, *parts: Part) -> None:
        _apply(self._now, parts)
        for model in MODELS:
            split = model == "split" and len({directory for directory, _, _ in parts}) > 1
            self._pending[model].extend([(part,) for part in parts] if split else [parts])

    def _sync(self, directory: int) -> None:
        for model in MODELS:
            pending = self._pending[model]
            touching = [
                number
                for number, change in enumerate(pending)
                if any(part[0] == directory for part in change)
            ]
            if model == "ordered":
                touching = [*range(touching[-1] + 1)] if touching else []
            sure = frozenset(touching)
            for number in touching:
                _apply(self._sure[model], pending[number])
            self._pending[model] = _still_pending(pending, sure)

    # ---- what may be left ----------------------------------------------------------------------------------

    def after_power_cuts(self, model: Model) -> Iterator[Callable[[], State]]:
        """Every state that is looked at, to be made by who wants it."""
        pending = self._pending[model]
        shown = {
            inode for names in (*self._now.values(), *self._sure[model].values()) for inode in names.values()
        }
        shown.update(inode for change in pending for _, _, inode in change if inode is not None)
        torn = any(self._data[inode] for inode in shown & self._unsynced)
        for number, kept in enumerate(_choices(len(pending), model)):
            # Each set of names with one fate of the data only, unless they are few.
            fates = _FATES if len(pending) <= ALL_SUBSETS_OF else (_FATES[number % len(_FATES)],)
            for fate in fates if torn else _FATES[:1]:
                yield functools.partial(self._left, model, kept, fate)

    def _left(self, model: Model, kept: Sequence[int], fate: float) -> State:
        entries = {directory: dict(names) for directory, names in self._sure[model].items()}
        for number in kept:
            _apply(entries, self._pending[model][number])
        return State(entries, {inode: self._fated(inode, fate) for inode in self._data})

    def _fated(self, inode: int, fate: float) -> bytes:
        data = self._data[inode]
        return data[: int(len(data) * fate)] if inode in self._unsynced else data


_FATES: Final = (1.0, 0.0, 0.5)
"""How much of a file's unsynced data is there."""


def _still_pending(changes: Sequence[Change], sure: frozenset[int]) -> list[Change]:
    """Return what may still be lost: not what something later, and sure by now, has overwritten."""
    settled: set[tuple[int, str]] = set()
    left: list[Change] = []
    for number, change in reversed([*enumerate(changes)]):
        if number in sure:
            settled.update(part[:2] for part in change)
        else:
            left.append(tuple(part for part in change if part[:2] not in settled))
    return [change for change in reversed(left) if change]


def _apply(entries: Tree, parts: Change) -> None:
    # First what goes, then what comes: a swap names the same places twice.
    for directory, name, inode in sorted(parts, key=lambda part: part[2] is not None):
        names = entries.setdefault(directory, {})
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _choices(number: int, model: Model) -> Iterator[Sequence[int]]:
    """Which of ``number`` changes reach the disk."""
    every = range(number)
    old = max(0, number - RECENT)
    recent = range(old, number)
    if model == "ordered":
        yield from (range(length) for length in (*range(min(old, 1)), *recent, number))
        return
    if number <= ALL_SUBSETS_OF:
        yield from (kept for size in range(number + 1) for kept in itertools.combinations(every, size))
        return
    yield ()
    yield from (range(length) for length in (*recent, number))
    yield from ([other for other in every if other != one] for one in recent)
    yield from ((*range(old), one) for one in recent)
    for draw in range(DRAWN):
        bits = int.from_bytes(hashlib.blake2b(b"%d %d" % (number, draw), digest_size=64).digest())
        yield [one for one in every if bits >> (one % 512) & 1]


def without(steps: Sequence[Step], dropped: int) -> list[Step]:
    """The same calls without the one at this index."""
    return [step for number, step in enumerate(steps) if number != dropped]
