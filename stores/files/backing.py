"""What the persistent store needs from a place that keeps files.

Owns the vocabulary (a read, a signature) and the promises. Implementations: a local directory
(:mod:`stores.files.local`) and a server's own file client (:mod:`stores.files.client`). Absence is
``FileNotFoundError``, a taken name ``FileExistsError``; everything else that goes wrong is StoreUnavailable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from task_tracker.clock import wall_ns
from task_tracker.errors import StoreUnavailable
from task_tracker.store import Capabilities

__all__ = ["DELETED", "Backing", "FileRead", "Signature", "settled", "unavailable"]

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


class FileRead(NamedTuple):
    """The bytes of a file. ``signature`` is None where the place cannot tell; ``settled`` as in SETTLED_NS."""

    data: bytes
    signature: Signature | None
    settled: bool


def settled(signature: Signature | None, read_at_ns: int) -> bool:
    """Tell whether the signature proves anything, for bytes read at ``read_at_ns`` (wall clock)."""
    return signature is not None and read_at_ns - signature.mtime_ns >= SETTLED_NS


class Backing(ABC):
    """Files by directory and name. Directories are paths with ``/``, as :class:`Layout` gives them."""

    capabilities: Capabilities
    atomic: bool
    """Whether a reader can never see half of a write."""

    remote: bool = False
    """Whether a mere look is a request to somebody else."""
    can_remove: bool = True
    """Whether files can be removed at all."""

    @abstractmethod
    def where(self, directory: str, name: str) -> str:
        """Return the path to show in messages."""

    @abstractmethod
    def read(self, directory: str, name: str) -> FileRead:
        """Return a file's bytes. Raises FileNotFoundError."""

    @abstractmethod
    def signature(self, directory: str, name: str) -> Signature | None:
        """Return what can be told without reading, None if nothing can. Raises FileNotFoundError."""

    @abstractmethod
    def directory_signature(self, directory: str) -> Signature | None:
        """Return a value that changes with every publication and removal in it, None if nothing does.

        Raises FileNotFoundError.
        """

    @abstractmethod
    def names(self, directory: str) -> Sequence[str]:
        """Return all names in a directory, fresh; none if it does not exist."""

    @abstractmethod
    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of the directories in a directory (links apart), fresh; none if it does not exist."""

    @abstractmethod
    def exists(self, directory: str, name: str) -> bool:
        """Tell whether there is a file of this name."""

    @abstractmethod
    def create(self, directory: str, name: str, data: bytes) -> None:
        """Publish a new file, whole or not at all, making its directories. Raises FileExistsError.

        Exclusive if ``capabilities.exclusive_create``.
        """

    @abstractmethod
    def replace(self, directory: str, name: str, data: bytes, *, final: bool) -> None:
        """Publish new contents, whole or not at all if ``atomic``. ``final``: nothing will follow."""

    @abstractmethod
    def remove(self, directory: str, name: str) -> None:
        """Remove a file. Raises FileNotFoundError."""

    @abstractmethod
    def retire(self, directory: str, name: str) -> None:
        """Remove a record, whose name may come again, so that :meth:`deletions` changes. Raises FileNotFoundError."""

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
