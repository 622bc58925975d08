"""Files as objects of S3 and its like, through obstore. A single PUT publishes; conditions keep writers apart.

Owns how directories are seen in flat names, and tombstones: where the server cannot delete conditionally, a record is
replaced by a small object that everybody here takes for nothing, and that stays for ids which may come again. Refuses
to promise what the probe did not find.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from stores.files.backing import AnySignature, Backing, Changed, ETag, FileRead, Look
from stores.files.layout import CONTROL, SUFFIX
from stores.files.objects_library import check_installed
from stores.files.objects_options import ObjectSettings
from stores.files.objects_probe import Found, probe
from stores.files.objects_requests import Listed, Requests, Unsupported
from task_tracker import defaults
from task_tracker.clock import Clock, is_generated_id
from task_tracker.errors import StoreUnavailable
from task_tracker.forks import renew_after_fork
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.store import Capabilities

__all__ = ["TOMBSTONE", "ObjectFiles"]

_log = logging.getLogger("task_tracker")

TOMBSTONE: Final = b'{"task_tracker":"deleted"}'
"""Shorter than any record. Always the same: whatever was deleted, there is nothing now."""
_TOMBSTONE_TAG: Final = ETag(hashlib.md5(TOMBSTONE, usedforsecurity=False).hexdigest())
_PROBES: Final = "probes"
_READERS: Final = 16
_MOST_KNOWN: Final = 10_000


class ObjectFiles(Backing):
    """Objects below a URL such as ``s3://bucket/prefix``."""

    remote = True
    atomic = True
    consistent = True

    def __init__(
        self,
        requests: Requests,
        clock: Clock,
        *,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._lock_timeout_seconds = lock_timeout_seconds
        self._locks = KeyedLocks()
        self._probes = f"{CONTROL}/{_PROBES}"
        self._found: Found | None = None
        self._tombstones: set[tuple[str, ETag]] = set()
        self._ahead = threading.local()
        self.renew()
        renew_after_fork(self)

    @classmethod
    def open(
        cls,
        url: str,
        clock: Clock,
        options: Mapping[str, object],
        *,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
    ) -> ObjectFiles:
        """Return the place that a URL means, without asking it anything. ``options``: fsspec's names.

        Raises SettingsError.
        """
        check_installed()
        requests = Requests(ObjectSettings.of(url, options), clock)
        return cls(requests, clock, lock_timeout_seconds=lock_timeout_seconds)

    def renew(self) -> None:
        """Make new locks, as a forked child does."""
        self._probing = threading.Lock()

    # ---- what the server can do --------------------------------------------------------------------------

    def keep_own_files_in(self, directory: str) -> None:
        """Try the server out below the control directory."""
        self._probes = f"{directory.lstrip('/')}/{_PROBES}"

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What the probe found. While nobody answers, what most servers can do; writing looks again."""
        try:
            found = self._probed()
        except StoreUnavailable:
            found = Found(True, True, True)
        return Capabilities(
            durable=True,
            shared=found.consistent,
            exclusive_create=found.conditional_put,
            compare_and_set=found.conditional_put,
        )

    @property
    def conditional(self) -> bool:  # type: ignore[override]
        """Whether conditions are honoured. Raises StoreUnavailable if nobody answers."""
        return self._probed().conditional_put

    def _probed(self) -> Found:
        if self._found is None:
            with self._probing:
                if self._found is None:
                    self._found = probe(self._requests, self._probes, self._clock)
                    if not self._found.conditional_put:
                        _log.warning(
                            "this object store ignores the conditions of a PUT; without compare-and-set the last "
                            "writer wins",
                            extra={"event": "conditional_put_missing"},
                        )
        return self._found

    # ---- reading -------------------------------------------------------------------------------------

    def where(self, directory: str, name: str) -> str:
        """Return the object's URL."""
        return self._requests.where(_path(directory, name))

    def read(self, directory: str, name: str) -> FileRead:
        """Return an object's bytes."""
        path = _path(directory, name)
        ahead: dict[str, FileRead] = getattr(self._ahead, "reads", {})
        return ahead.pop(path, None) or self._read(path)

    def _read(self, path: str) -> FileRead:
        found = self._requests.get(path)
        assert found is not None, "no condition was given"
        return self._whole(path, *found)

    def _whole(self, path: str, data: bytes, tag: ETag | None) -> FileRead:
        if data == TOMBSTONE:
            raise FileNotFoundError(self._requests.where(path))
        return FileRead(data, tag, tag is not None)

    def read_unless(self, directory: str, name: str, known: AnySignature | None) -> FileRead | None:
        """Return an object's bytes unless it has the tag ``known``: one conditional GET."""
        path = _path(directory, name)
        found = self._requests.get(path, unless=known if isinstance(known, ETag) else None)
        return None if found is None else self._whole(path, *found)

    @contextlib.contextmanager
    def reading_ahead(self, directory: str, names: Sequence[str]) -> Iterator[None]:
        """Read objects several at a time, for :meth:`read` in this thread while the block runs."""
        if len(names) < 2:
            yield
            return
        paths = [_path(directory, name) for name in names]
        down = threading.Event()

        def try_to_read(path: str) -> FileRead | None:
            if down.is_set():
                return None
            try:
                return self._read(path)
            except FileNotFoundError:
                return None
            except StoreUnavailable:
                down.set()  # the others would wait as long; read says so
                return None

        with ThreadPoolExecutor(min(_READERS, len(paths)), "task-tracker-read") as readers:
            read = readers.map(try_to_read, paths)
            self._ahead.reads = {path: found for path, found in zip(paths, read, strict=True) if found}
        try:
            yield
        finally:
            self._ahead.reads = {}

    def signature(self, directory: str, name: str) -> ETag | None:
        """Return the tag."""
        signature = self._read(_path(directory, name)).signature
        assert not isinstance(signature, tuple) or isinstance(signature, ETag)
        return signature

    def directory_signature(self, directory: str) -> None:
        """Return None: there are no directories that could change."""

    def names(self, directory: str) -> Sequence[str]:
        """Return all names in a directory."""
        return self.look(directory).names

    def look(self, directory: str) -> Look:
        """Return the names in a directory and their tags, from one listing."""
        objects, _ = self._requests.list(directory.strip("/"))
        present = [found for found in objects if not self._is_tombstone(directory, found)]
        return Look(
            [found.name for found in present],
            {found.name: found.tag for found in present if found.tag is not None},
        )

    def _is_tombstone(self, directory: str, found: Listed) -> bool:
        if found.size != len(TOMBSTONE):
            return False
        if found.tag == _TOMBSTONE_TAG:
            return True
        path = _path(directory, found.name)
        if found.tag is not None and (path, found.tag) in self._tombstones:
            return True
        try:
            self._read(path)
        except FileNotFoundError:
            if found.tag is not None:
                if len(self._tombstones) >= _MOST_KNOWN:
                    self._tombstones.clear()
                self._tombstones.add((path, found.tag))
            return True
        return False

    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of the directories in a directory: those with an object somewhere below."""
        return self._requests.list(directory.strip("/"))[1]

    def exists(self, directory: str, name: str) -> bool:
        """Tell whether there is an object: read, since only the answer to a GET tells a missing bucket from it."""
        try:
            self._read(_path(directory, name))
        except FileNotFoundError:
            return False
        return True

    # ---- writing -------------------------------------------------------------------------------------

    def create(self, directory: str, name: str, data: bytes) -> ETag | None:
        """Publish a new object."""
        path = _path(directory, name)
        if not self.conditional:
            if self.exists(directory, name):
                raise FileExistsError(self.where(directory, name))
            return self._requests.put(path, data)
        try:
            return self._requests.put(path, data, new=True)
        except FileExistsError:
            # The library's own files leave none.
            tombstone = None if CONTROL in directory.split("/") else self._tombstone_at(path)
            if tombstone is None:
                raise
        try:
            return self._requests.put(path, data, over=tombstone)
        except Changed as error:
            raise FileExistsError(self.where(directory, name)) from error

    def _tombstone_at(self, path: str) -> ETag | None:
        try:
            found = self._requests.get(path)
        except FileNotFoundError:
            return None
        return found[1] if found is not None and found[0] == TOMBSTONE else None

    def replace(
        self, directory: str, name: str, data: bytes, *, final: bool, over: AnySignature | None = None
    ) -> ETag | None:
        """Publish new contents."""
        if over is None or not self.conditional:
            return self._requests.put(_path(directory, name), data)
        if not isinstance(over, ETag):
            raise Changed(self.where(directory, name))
        return self._requests.put(_path(directory, name), data, over=over)

    def remove(self, directory: str, name: str) -> None:
        """Remove an object; it may be gone already."""
        self._requests.delete(_path(directory, name))

    def retire(self, directory: str, name: str, *, over: AnySignature | None = None) -> None:
        """Remove an object that has the tag ``over``."""
        path = _path(directory, name)
        found = self._probed()
        if not isinstance(over, ETag) or not found.conditional_put:
            self._requests.delete(path)
        elif found.conditional_delete:
            try:
                self._requests.delete_if(path, over)
            except Unsupported as error:
                raise StoreUnavailable(
                    f"cannot delete {self._requests.where(path)}: {error}; the server could do it a moment ago"
                ) from error
        elif CONTROL not in directory.split(
            "/"
        ):  # what is there blocks nobody, and its names are not looked at
            self._requests.put(path, TOMBSTONE, over=over)
            if is_generated_id(name.removesuffix(SUFFIX)):
                self._requests.delete(path)  # such an id does not come again

    def deletions(self, directory: str) -> tuple[object, bool]:
        """Return that nothing is known: tags tell it."""
        return None, False

    def sweep(self, directory: str, names: Sequence[str]) -> None:
        """Do nothing: a PUT that crashes leaves nothing."""

    @contextlib.contextmanager
    def exclusively(self, directory: str, *, make: bool = False) -> Iterator[None]:
        """Keep the other threads of this process out; others are kept out by conditions, if at all."""
        with self._locks.hold(directory, self._lock_timeout_seconds) as held:
            if not held:
                raise StoreUnavailable(
                    f"{directory} was written by another thread for {self._lock_timeout_seconds} seconds; "
                    "nothing was written, try again"
                )
            yield


def _path(directory: str, name: str) -> str:
    return f"{directory.strip('/')}/{name}".lstrip("/")
