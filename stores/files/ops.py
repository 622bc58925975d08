"""The system calls that publication is made of, in one place.

Owns nothing but the list. Exists so that tests can record them, fail the Nth and drop what was not synced,
while the real ones cost nothing extra.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

from stores.files.exchange import exchange

__all__ = ["FileOps"]


class FileOps:
    """``os`` as the files backends use it. Subclass it to watch or to fail."""

    open = staticmethod(os.open)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    fstat = staticmethod(os.fstat)
    close = staticmethod(os.close)
    stat = staticmethod(os.stat)
    lstat = staticmethod(os.lstat)
    listdir = staticmethod(os.listdir)
    mkdir = staticmethod(os.mkdir)
    link = staticmethod(os.link)
    replace = staticmethod(os.replace)
    rename = staticmethod(os.rename)
    rmdir = staticmethod(os.rmdir)
    utime = staticmethod(os.utime)
    """Without times: the file server stamps its own clock."""
    unlink = staticmethod(os.unlink)
    exchange = staticmethod(exchange)
    pause = staticmethod(time.sleep)
    """Between tries that wait for another process."""

    @staticmethod
    def scandir(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """``os.scandir``, whose overloads a plain attribute would lose."""
        return os.scandir(path)


READ_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
)  # a pipe is no record
NO_ACCESS_TIME: Final = getattr(os, "O_NOATIME", 0)
NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
# Not through a link: the holder's pid is written into the lock.
LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
DIRECTORY_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
