"""Disks that are full for a while: for one process, or for everybody.

For one process by its limit on the size of files, which needs no privilege (EFBIG). For everybody by a file system
in memory that is given no more room than it uses, in a mount namespace of its own (ENOSPC; for new files and
directories as well, as on most disks).
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Disk", "allow_writing", "can_mount", "deny_writing", "with_mounts"]

MEGABYTES = 512
INODES = 400_000


def deny_writing(pid: int) -> None:
    """Have every write to a file fail in that process; names can still be made, moved and removed."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))


def allow_writing(pid: int) -> None:
    """Take that back."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def with_mounts(command: list[str]) -> list[str]:
    """Return ``command`` run where it can mount what nobody else sees, and what ends with it."""
    return ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), *command]


@functools.cache
def can_mount() -> bool:
    """Tell whether that works here."""
    if sys.platform != "linux" or shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    script = "mount -t tmpfs -o size=1m tmpfs /mnt && mount -o remount,size=2m /mnt"
    return subprocess.run(with_mounts(["sh", "-c", script]), capture_output=True, check=False).returncode == 0


class Disk:
    """A file system in memory, mounted at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", self._room(MEGABYTES << 20, INODES), "tmpfs", path], check=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "-l", self._path], check=False)

    def fill(self) -> bool:
        """Leave no room; False if somebody was just taking some, which is to be tried again."""
        found = os.statvfs(self._path)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return self._remount(used, found.f_files - found.f_ffree)

    def empty(self) -> None:
        """Give room again."""
        assert self._remount(MEGABYTES << 20, INODES), "it was larger before"

    def _remount(self, size: int, inodes: int) -> bool:
        options = f"remount,{self._room(size, inodes)}"
        return (
            subprocess.run(["mount", "-o", options, self._path], capture_output=True, check=False).returncode
            == 0
        )

    @staticmethod
    def _room(size: int, inodes: int) -> str:
        return f"size={size},nr_inodes={inodes}"
