"""Files behind a server's own client (AGFS and its like): ``read``, ``write``, ``ls``, ``mkdir``, and if the
client has them ``rm`` and ``mv``.

Owns the translation of such a client's many errors. Refuses to promise what it does not: writes are
last-write-wins among processes, and only the threads of this process take turns.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import posixpath
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from stores.files.backing import DELETED, AnySignature, Backing, FileRead, Signature
from stores.files.client_errors import meaning_of, says_unsupported
from stores.files.ops import FileOps
from stores.files.temporaries import Temporaries
from task_tracker import defaults
from task_tracker.clock import Clock
from task_tracker.errors import CapabilityMissing, SettingsError, StoreUnavailable
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.store import Capabilities

__all__ = ["ClientFiles"]

_log = logging.getLogger("task_tracker")

_NEEDED: Final = ("read", "write", "ls", "mkdir")
_PROBE: Final = b"moved"
_MAX_KNOWN_DIRECTORIES: Final = 10_000


class ClientFiles(Backing):
    """A client object. With ``mv`` records are published by renaming, without it by writing in place."""

    capabilities = Capabilities(durable=True, shared=True)
    remote = True

    def __init__(
        self, client: Any, clock: Clock, *, lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS
    ) -> None:
        for name in _NEEDED:
            if not callable(getattr(client, name, None)):
                raise SettingsError(
                    f"a {type(client).__name__} is no file client: it has no {name}(); give a directory, "
                    f"or a client with {', '.join(_NEEDED)}"
                )
            if inspect.iscoroutinefunction(getattr(client, name)):
                raise SettingsError(
                    f"{type(client).__name__}.{name}() is a coroutine function; give the synchronous client, "
                    "AsyncTaskTracker calls it from threads"
                )
        self._client = client
        self._clock = clock
        self._lock_timeout_seconds = lock_timeout_seconds
        self.can_remove = callable(getattr(client, "rm", None))
        self.atomic = callable(getattr(client, "mv", None))
        self._probed = False
        self._probing = threading.Lock()
        self._locks = KeyedLocks()
        self._made: set[str] = set()
        self._temporaries = Temporaries(clock, FileOps())

    # ---- reading -------------------------------------------------------------------------------------

    def where(self, directory: str, name: str) -> str:
        """Return the path that the client is given."""
        return f"{directory}/{name}"

    def read(self, directory: str, name: str) -> FileRead:
        """Return a file's bytes."""
        return FileRead(self._bytes(self.where(directory, name)), None, False)

    def _bytes(self, path: str) -> bytes:
        data = self._call("read", path)
        if isinstance(data, str):
            data = data.encode(errors="surrogatepass")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise StoreUnavailable(
                f"cannot read {path}: the client gave a {type(data).__name__}, not bytes; check its version"
            )
        return bytes(data)

    def signature(self, directory: str, name: str) -> Signature | None:
        """Return None: a client cannot tell without reading."""
        return None

    def directory_signature(self, directory: str) -> Signature | None:
        """Return None: a client cannot tell without listing."""
        return None

    def names(self, directory: str) -> Sequence[str]:
        """Return all names in a directory."""
        return [_name(entry) for entry in self._entries(directory)]

    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of the directories in a directory."""
        return [_name(entry) for entry in self._entries(directory) if _is_directory(entry)]

    def _entries(self, directory: str) -> Iterable[object]:
        try:
            entries = self._call("ls", directory or "/")
        except FileNotFoundError:
            return ()
        if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, Iterable):
            raise StoreUnavailable(
                f"cannot list {directory}: the client gave a {type(entries).__name__}; check its version"
            )
        return entries

    def exists(self, directory: str, name: str) -> bool:
        """Tell whether there is a file of this name."""
        return self._present(self.where(directory, name))

    # ---- writing -------------------------------------------------------------------------------------

    def create(self, directory: str, name: str, data: bytes) -> None:
        """Publish a new file, having looked that there is none."""
        if self.exists(directory, name):
            raise FileExistsError(self.where(directory, name))
        self._make_directory(directory)
        try:
            self._publish(directory, name, data)
        except FileNotFoundError:
            # Its directory was removed behind our back, or could not be made when it was tried.
            self._made.clear()
            self._make_directory(directory)
            self.replace(directory, name, data, final=False)

    def replace(
        self, directory: str, name: str, data: bytes, *, final: bool, over: AnySignature | None = None
    ) -> None:
        """Publish new contents."""
        try:
            self._publish(directory, name, data)
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"cannot write {self.where(directory, name)}: its directory is gone; look at the client's mounts"
            ) from error

    def _publish(self, directory: str, name: str, data: bytes) -> None:
        path = self.where(directory, name)
        if not self._moves(directory):
            self._call("write", path, data)
            return
        temporary = self.where(directory, self._temporaries.new_name())
        try:
            self._call("write", temporary, data)
            self._call("mv", temporary, path)
        except BaseException:
            self._discard(temporary)
            raise

    def _moves(self, directory: str) -> bool:
        """Tell whether ``mv`` publishes: it is tried once, on two files beside the first record."""
        if not self.atomic or self._probed:
            return self.atomic
        with self._probing:
            if self.atomic and not self._probed:
                self.atomic = self._try_to_move(directory)
                self._probed = True
                if not self.atomic:
                    _log.warning(
                        "this client's mv does not replace files; records are written in place, and readers may "
                        "see half of one for a moment",
                        extra={"event": "client_mv_refused"},
                    )
        return self.atomic

    def _try_to_move(self, directory: str) -> bool:
        """Move one file onto another: the second must have the content of the first, which must be gone.

        Raises FileNotFoundError if there is no such directory, StoreUnavailable if nobody answers.
        """
        source, target = (self.where(directory, self._temporaries.new_name()) for _ in range(2))
        try:
            self._call("write", source, _PROBE)
            self._call("write", target, b"")
            try:
                self._call("mv", source, target)
            except FileExistsError:
                return False  # memfs behind AGFS does not replace
            except StoreUnavailable as error:
                if says_unsupported(error.__cause__):
                    return False
                raise
            return self._bytes(target) == _PROBE and not self._present(source)
        finally:
            self._discard(source)
            self._discard(target)

    def _present(self, path: str) -> bool:
        try:
            self._call("read", path)
        except FileNotFoundError:
            return False
        return True

    def remove(self, directory: str, name: str) -> None:
        """Remove a file. Raises CapabilityMissing if the client has no ``rm``."""
        if not self.can_remove:
            raise CapabilityMissing(
                f"{type(self._client).__name__} has no rm(), so nothing can be deleted; give a client that has it"
            )
        self._call("rm", self.where(directory, name))

    def retire(self, directory: str, name: str, *, over: AnySignature | None = None) -> None:
        """Remove a record and write another word to ``.deleted``."""
        self.remove(directory, name)
        self.replace(directory, DELETED, self._clock.new_token().encode(), final=False)

    def deletions(self, directory: str) -> tuple[object, bool]:
        """Return the word in ``.deleted``."""
        try:
            return self.read(directory, DELETED).data, True
        except FileNotFoundError:
            return None, True

    def sweep(self, directory: str, names: Sequence[str]) -> None:
        """Remove temporary files that are a day old by their names: a client does not tell their age."""
        for name in names:
            if self.can_remove and self.is_abandoned(directory, name):
                self._discard(self.where(directory, name))

    def is_abandoned(self, directory: str, name: str) -> bool:
        """Tell whether ``name`` says that it is a temporary file, a day old."""
        return self._temporaries.stale(name)

    def _discard(self, path: str) -> None:
        if self.can_remove:
            with contextlib.suppress(FileNotFoundError, StoreUnavailable):
                self._call("rm", path)

    def _make_directory(self, directory: str) -> None:
        if directory in self._made:
            return
        if len(self._made) >= _MAX_KNOWN_DIRECTORIES:
            self._made.clear()
        parts = directory.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:depth])
            if path in self._made:
                continue
            try:
                self._call("mkdir", path)
            except (FileExistsError, FileNotFoundError, StoreUnavailable):
                # Whatever mkdir says about a directory that is there, or about a mount point above it: if the
                # directory cannot be used, the write that follows says so.
                continue
            finally:
                self._made.add(path)

    @contextlib.contextmanager
    def exclusively(self, directory: str, *, make: bool = False) -> Iterator[None]:
        """Keep the other threads of this process out. Directories are made when something is written."""
        with self._locks.hold(directory, self._lock_timeout_seconds) as held:
            if not held:
                raise StoreUnavailable(
                    f"{directory} was written by another thread for {self._lock_timeout_seconds} seconds; "
                    "nothing was written, try again or look at the client"
                )
            yield

    # ---- the client ----------------------------------------------------------------------------------

    def _call(self, method: Literal["read", "write", "ls", "mkdir", "rm", "mv"], *arguments: Any) -> Any:
        try:
            answer = getattr(self._client, method)(*arguments)
            if isinstance(answer, Iterator):
                answer = list(answer)  # here, where its errors are understood
        except Exception as error:
            # Clients raise anything; only absence and presence mean something else than trouble.
            kind = meaning_of(error, method, [path for path in arguments if isinstance(path, str)])
            if kind is not None:
                raise kind(f"{method} {arguments[0]}: {error}") from error
            raise StoreUnavailable(
                f"cannot {method} {arguments[0]}: {error}; nothing is known of it, try again once that is mended"
            ) from error
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise SettingsError(
                f"{type(self._client).__name__}.{method}() returned an awaitable; give the synchronous client"
            )
        return answer


def _name(entry: object) -> str:
    """Return the name in an entry of ``ls``: a dict with ``name``, an object with it, or the name itself."""
    if isinstance(entry, Mapping):
        entry = entry.get("name", "")
    elif not isinstance(entry, str):
        entry = getattr(entry, "name", "")
    return posixpath.basename(str(entry).rstrip("/"))


def _is_directory(entry: object) -> bool:
    """Tell whether an entry of ``ls`` is a directory. One that does not say may be one: user ids hold dots, too."""
    for name in ("isDir", "is_dir"):
        flag = entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)
        if flag is not None:
            return bool(flag() if callable(flag) else flag)
    return not isinstance(entry, Mapping) or entry.get("type", "dir") in ("dir", "directory")
