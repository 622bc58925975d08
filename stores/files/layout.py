"""Ids to safe paths and back.

Owns where a record lives: ``<prefix>/<account>/tasks/<user>/<task>.json``. Refuses to trust an id: each
becomes exactly one path component, by a reversible encoding that is the same on every operating system.
"""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from task_tracker.codec import check_id
from task_tracker.errors import InvalidTaskId, SettingsError
from task_tracker.records import TaskKey

__all__ = ["CONTROL", "Layout", "decode_component", "encode_component", "is_reserved"]

TASKS: Final = "tasks"
CONTROL: Final = ".task_tracker"
SUFFIX: Final = ".json"
MAX_COMPONENT_BYTES: Final = 200
"""Leaves room for the suffixes below the 255 bytes that file systems allow for a name."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_@-](?:[A-Za-z0-9_@.-]*[A-Za-z0-9_@-])?", re.ASCII)
# https://learn.microsoft.com/windows/win32/fileio/naming-a-file: reserved with and without an extension
_WINDOWS_DEVICE: Final = re.compile(
    r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE | re.ASCII
)


@lru_cache(maxsize=4096)  # a task's ids are needed several times in each of its steps
def encode_component(text: str) -> str:
    """Return ``text`` as one path component.

    ASCII letters, digits, ``-``, ``_``, ``@`` and inner dots stay; everything else is percent-encoded in
    UTF-8, and so are a leading or trailing dot and the first letter of a Windows device name. Raises
    InvalidTaskId if that is longer than 200 bytes.
    """
    if _PLAIN.fullmatch(text) and not _WINDOWS_DEVICE.fullmatch(text):
        encoded = text
    else:
        encoded = "".join(
            character if _stays(text, index) else "".join(f"%{byte:02X}" for byte in character.encode())
            for index, character in enumerate(text)
        )
        if _WINDOWS_DEVICE.fullmatch(encoded):
            encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded) > MAX_COMPONENT_BYTES:
        raise InvalidTaskId(
            f"id {text[:40]!r}... takes {len(encoded)} bytes as a file name, {MAX_COMPONENT_BYTES} are possible; "
            "use a shorter one"
        )
    return encoded


def decode_component(name: str) -> str | None:
    """Return the text that :func:`encode_component` made ``name`` of, None if it made no such name."""
    try:
        text = unquote_to_bytes(name).decode() if "%" in name else name
        # Not kept: a large directory would push out what is in use.
        return text if encode_component.__wrapped__(text) == name and text else None
    except (UnicodeError, InvalidTaskId):
        return None


def is_reserved(path: str) -> bool:
    """Tell whether ``path`` (below the prefix, with ``/``) is the tracker's own: hide it from users of the files.

    That is ``.task_tracker`` and, in each account, ``tasks``.
    """
    # However it is written: `acme/./tasks` reaches the same files.
    parts = [part for part in posixpath.normpath(f"/{path}").split("/") if part]
    return parts[:1] == [CONTROL] or parts[1:2] == [TASKS]


def _stays(text: str, index: int) -> bool:
    character = text[index]
    if character == ".":
        return 0 < index < len(text) - 1
    return character.isascii() and (character.isalnum() or character in "-_@")


class Layout:
    """Paths below a root, with ``/``, beginning with the prefix (``/local``, or nothing)."""

    def __init__(self, prefix: str) -> None:
        parts = [part for part in prefix.split("/") if part]
        if any(part in (".", "..") or "\0" in part for part in parts):
            raise SettingsError(f"prefix is {prefix!r}; give a plain path such as /local, or nothing")
        self.prefix = "".join(f"/{part}" for part in parts)
        self.control = f"{self.prefix}/{CONTROL}"
        self.owner_directory = lru_cache(maxsize=4096)(self._owner_directory)
        self.place = lru_cache(maxsize=4096)(self._place)
        """Returns directory and file name of a record. Raises InvalidTaskId."""

    def _owner_directory(self, account_id: str, user_id: str) -> str:
        return f"{self.account_directory(account_id)}/{encode_component(check_id(user_id, 'user_id'))}"

    def account_directory(self, account_id: str) -> str:
        """Return the directory that holds one directory for each user. Raises InvalidTaskId."""
        return f"{self.prefix}/{encode_component(check_id(account_id, 'account_id'))}/{TASKS}"

    def _place(self, key: TaskKey) -> tuple[str, str]:
        task_id = check_id(key.task_id, "task_id")
        return self.owner_directory(key.account_id, key.user_id), encode_component(task_id) + SUFFIX

    @staticmethod
    def task_id_of(name: str) -> str | None:
        """Return the task id of a file name, None if the file is no record's."""
        return decode_component(name[: -len(SUFFIX)]) if name.endswith(SUFFIX) else None
