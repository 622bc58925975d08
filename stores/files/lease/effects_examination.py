"""What a look at everything finds among the directories of attempts.

Owns the comparison of ``effects/`` with all records: also finds what no marker tells of, as a power cut leaves it, an
attempt that made its directory anew after it was fenced off, or a record that was removed by hand. Refuses to judge a
directory whose record may only be out of sight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from stores.files.lease.control import Control
from stores.files.lease.effects import DIRECTORY, Effects, Standing, directory_name, marked, standing
from stores.files.lease.trees import TreeRemoval
from task_tracker.errors import CorruptRecord, StoreUnavailable, TaskTrackerError
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Finding

__all__ = ["EffectsExamination"]

_MOST_REMOVED = 1 << 62


class EffectsExamination:
    """One look at the directories of one root, after all its records were looked at.

    ``begun_ns`` is when that began, by the file server's clock; ``digests`` says which tasks were there, and ``whole``
    whether those are all.
    """

    def __init__(
        self,
        effects: Effects,
        control: Control,
        read: Callable[[TaskKey], TaskRecord | None],
        old: Callable[[str, float], list[str]],
        *,
        begun_ns: int,
        digests: Mapping[str, TaskKey],
        whole: bool,
        lease_seconds: float,
        fix: bool,
    ) -> None:
        self._effects = effects
        self._control = control
        self._read = read
        self._old = old
        self._begun_ns = begun_ns
        self._digests = digests
        self._whole = whole
        self._lease_seconds = lease_seconds
        self._fix = fix

    def findings(self) -> Iterator[Finding]:
        """Look at the markers, then at what has none."""
        texts = self._control.names(self._control.open_effects)
        names = [name for text in texts if (name := marked(text)) is not None]
        old = set(self._old(self._control.open_effects, self._lease_seconds))
        for name in names:
            if str(name) in old:
                with contextlib.suppress(CorruptRecord, StoreUnavailable):  # reported with the records
                    yield from self._look_at_marker(str(name))
        with_marker = {directory_name(name) for name in names}
        for shard in self._control.names(self._control.effects):
            if len(shard) == 2:
                for directory in self._control.names(f"{self._control.effects}/{shard}"):
                    if directory not in with_marker:
                        yield from self._look_at_directory(directory)

    def _look_at_marker(self, text: str) -> Iterator[Finding]:
        name = marked(text)
        assert name is not None, "chosen by that"
        key = self._effects.key_of(name)
        if key is None:
            key = self._digests.get(name.key[1:])
            if key is None and not (self._whole and self._is_old(self._effects.marker(name))):
                return
        directory = self._effects.path(directory_name(name))
        was_there = self._control.exists(directory)
        removal = TreeRemoval(self._control.ops, _MOST_REMOVED) if self._fix else None
        trouble: OSError | None = None
        try:
            found = self._effects.settle_one(name, key, removal)
        except OSError as error:
            found, trouble = Standing.LEFT, error
        fixed = self._fix and trouble is None
        if found is Standing.LEFT and was_there:
            yield _left(directory, trouble, fixed=fixed)
        elif found is not Standing.OPEN:
            message = "it tells of a directory that nobody has to look at any more; the sweep removes it"
            yield Finding("half_made", self._effects.marker(name), message, fixed)

    def _look_at_directory(self, directory: str) -> Iterator[Finding]:
        match = DIRECTORY.fullmatch(directory)
        path = self._effects.path(directory)
        if match is None or not self._is_old(path):
            return
        key = self._digests.get(match["task"])
        if key is None and not self._whole:
            return
        try:
            record = None if key is None else self._read(key)
        except TaskTrackerError:
            return  # reported with the records
        if standing(record, directory, int(match["epoch"])) is not Standing.LEFT:
            return
        trouble = None
        if self._fix:
            try:
                self._effects.remove(directory)
            except OSError as error:
                trouble = error
        yield _left(path, trouble, fixed=self._fix and trouble is None)

    def _is_old(self, path: str) -> bool:
        """Tell whether something was there long before the records were looked at, and so was its record.

        By its change time: handlers set the other one, as an unpacked archive does.
        """
        try:
            changed_ns = self._control.ops.lstat(path).st_ctime_ns
        except FileNotFoundError:
            return False
        return self._begun_ns - changed_ns > self._lease_seconds * 1e9


def _left(path: str, trouble: OSError | None, *, fixed: bool) -> Finding:
    message = "an attempt that did not complete its task left it, or its task was deleted; it is of no use"
    if trouble is not None:
        message = f"{message}, but cannot be removed: {trouble}; remove it by hand"
    return Finding("unnamed_effects", path, message, fixed)
