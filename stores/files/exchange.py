"""Swapping two names in one step, where the system can: Linux's ``renameat2`` with RENAME_EXCHANGE.

Owns the call into the C library. Exists because replacing a file by renaming costs half as much again on ext4,
which starts to write the new data out at that moment: worth it where durability is promised, and only there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Final

__all__ = ["exchange"]

# linux/fs.h and fcntl.h; renameat2(2) has been in glibc since 2.28.
_EXCHANGE: Final = 2
_HERE: Final = -100
_ENCODING: Final = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""What ``os.fsencode`` does, which takes as long as the rest."""


def _find() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # another system, or another C library
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


_RENAMEAT2: Final = _find()


def exchange(one: str, other: str) -> None:
    """Swap what two names stand for. Raises OSError: ENOSYS, EINVAL where that cannot be; ENOENT if one is missing."""
    if _RENAMEAT2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one)
    if _RENAMEAT2(_HERE, one.encode(*_ENCODING), _HERE, other.encode(*_ENCODING), _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), one)
