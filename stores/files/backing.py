"""What the persistent store needs from a place that keeps files.

Owns the vocabulary (a read, a signature) and the promises. Implementations: a local directory
(:mod:`stores.files.local`), a server's own file client (:mod:`stores.files.client`), an object store
(:mod:`stores.files.objects`). Absence is ``FileNotFoundError``, a taken name ``FileExistsError``; everything else
that goes wrong is StoreUnavailable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

from task_tracker.clock import wall_ns
from task_tracker.errors import StoreUnavailable
from task_tracker.store import Capabilities

__all__ = [
    "DELETED",
    "SETTLED_NS",
    "AnySignature",
    "Backing",
    "Changed",
    "ETag",
    "FileRead",
    "Look",
    "Signature",
    "settled",
    "unavailable",
]

DELETED: Final = ".deleted"
"""Says by its age that a record of this directory was deleted: an id of the caller's own may come again."""
SETTLED_NS: Final = 20_000_000
"""A file that is read at least 20 ms after its mtime and shows the same signature later was not changed in
between: time stamps tick every 4 ms and inode numbers are used again at once (measured on Linux 6, ext4)."""


class Signature(NamedTuple):
    """What ``stat`` tells of a file without reading it."""

    mtime_ns: int
    inode: int
    size: int


class ETag(NamedTuple):
    """What an object store tells of an object: a tag that no other contents have."""

    tag: str


AnySignature = Signature | ETag


class FileRead(NamedTuple):
    """The bytes of a file. ``signature`` is None where the place cannot tell; ``settled`` as in SETTLED_NS."""

    data: bytes
    signature: AnySignature | None
    settled: bool


class Look(NamedTuple):
    """What is in a directory. ``signatures`` is None where listing it does not tell them."""

    names: Sequence[str]
    signatures: Mapping[str, AnySignature] | None = None


class Changed(Exception):  # an answer
    """What was to be replaced or removed is not what it was."""


def settled(signature: AnySignature | None, read_at_ns: int) -> bool:
    """Tell whether the signature proves anything, for bytes read at ``read_at_ns`` (wall clock)."""
    if not isinstance(signature, Signature):
        return signature is not None  # a tag always does
    return read_at_ns - signature.mtime_ns >= SETTLED_NS


class Backing(ABC):
    """Files by directory and name. Directories are paths with ``/``, as :class:`Layout` gives them."""

    capabilities: Capabilities
    atomic: bool
    """Whether a reader can never see half of a write."""

    remote: bool = False
    """Whether a mere look is a request to somebody else."""
    can_remove: bool = True
    """Whether files can be removed at all."""
    conditional: bool = False
    """Whether ``replace`` and ``retire`` compare with ``over`` by themselves, so that nobody is to be kept out."""
    consistent: bool = False
    """Whether everybody sees a write once it has returned, whole: a miss is a miss, and nothing is ever torn."""

    def keep_own_files_in(self, directory: str) -> None:  # noqa: B027  # most places need none
        """Put files of the place's own, if it needs any, below the control ``directory``."""

    @abstractmethod
    def where(self, directory: str, name: str) -> str:
        """Return the path to show in messages."""

    @abstractmethod
    def read(self, directory: str, name: str) -> FileRead:
        """Return a file's bytes. Raises FileNotFoundError."""

    @abstractmethod
    def signature(self, directory: str, name: str) -> AnySignature | None:
        """Return what can be told without reading, None if nothing can. Raises FileNotFoundError."""

    @abstractmethod
    def directory_signature(self, directory: str) -> AnySignature | None:
        """Return a value that changes with every publication and removal in it, None if nothing does.

        Raises FileNotFoundError.
        """

    @abstractmethod
    def names(self, directory: str) -> Sequence[str]:
        """Return all names in a directory, fresh; none if it does not exist."""

    def look(self, directory: str) -> Look:
        """Return the names in a directory, with their signatures where that costs nothing more."""
        return Look(self.names(directory))

    def read_unless(self, directory: str, name: str, known: AnySignature | None) -> FileRead | None:
        """Return a file's bytes, None if it still has the signature ``known``. Raises FileNotFoundError."""
        if known is not None and self.signature(directory, name) == known:
            return None
        return self.read(directory, name)

    def reading_ahead(self, directory: str, names: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context in which this thread reads these files; a place may read them all at once."""
        return nullcontext()

    @abstractmethod
    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of the directories in a directory (links apart), fresh; none if it does not exist."""

    @abstractmethod
    def exists(self, directory: str, name: str) -> bool:
        """Tell whether there is a file of this name."""

    @abstractmethod
    def create(self, directory: str, name: str, data: bytes) -> AnySignature | None:
        """Publish a new file, whole or not at all, making its directories. Raises FileExistsError.

        Exclusive if ``capabilities.exclusive_create``. Returns its signature, if it is known already.
        """

    @abstractmethod
    def replace(
        self, directory: str, name: str, data: bytes, *, final: bool, over: AnySignature | None = None
    ) -> AnySignature | None:
        """Publish new contents, whole or not at all if ``atomic``. ``final``: nothing will follow.

        With ``over`` a ``conditional`` place raises Changed unless the file has that signature. Returns the new
        one, if it is known already.
        """

    @abstractmethod
    def remove(self, directory: str, name: str) -> None:
        """Remove a file. Raises FileNotFoundError."""

    @abstractmethod
    def retire(self, directory: str, name: str, *, over: AnySignature | None = None) -> None:
        """Remove a record, whose name may come again, so that :meth:`deletions` changes. ``over`` as for ``replace``.

        Raises FileNotFoundError.
        """

    @abstractmethod
    def deletions(self, directory: str) -> tuple[object, bool]:
        """Return a value that changes whenever a record is retired, and whether being the same proves anything."""

    @abstractmethod
    def exclusively(self, directory: str, *, make: bool = False) -> AbstractContextManager[None]:
        """Keep all other writers of this directory out: of this process, and of others where
        ``compare_and_set`` is promised. ``make``: make the directory if it is missing; without it that may raise
        FileNotFoundError. Raises StoreUnavailable if it takes too long. Not re-entrant."""

    @abstractmethod
    def sweep(self, directory: str, names: Sequence[str]) -> None:
        """Remove temporary files that crashed writers left among ``names``; never those of live ones."""

    def is_abandoned(self, directory: str, name: str) -> bool:
        """Tell whether ``name`` is a temporary file that nobody will ever finish."""
        return False

    @staticmethod
    def read_time_ns() -> int:
        """Return the wall clock, to be asked before reading."""
        return wall_ns()


def unavailable(verb: str, path: str, error: OSError) -> StoreUnavailable:
    """Return what is raised for a system call that failed before it changed anything."""
    reason = error.strerror or str(error)
    return StoreUnavailable(
        f"cannot {verb} {path}: {reason}; nothing was changed, try again once that is mended"
    )
