"""What a file client's errors mean: the path is not there, it is taken, or something else is wrong.

Owns the reading of types, of their names and of texts: servers of this kind answer most errors with one status
and a sentence. Refuses to take any "not found" for an absent record: a mount point, a user or a module that is
not found says nothing about the path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["meaning_of", "says_unsupported"]

# Texts of AGFS (Go: github.com/c4pt0r/agfs, Rust: OpenViking's ragfs), of Go's os package, of object stores.
_MISSING: Final = re.compile(
    r"no such (?:file|directory|key|object|path|entry)|nosuchkey|not found|(?:does not|doesn't|not) exist"
)
_TAKEN: Final = re.compile(r"already exists|(?:file|directory) exists")
_UNSUPPORTED: Final = re.compile(r"not (?:supported|implemented)|unsupported")
_NO_DIRECTORY: Final = re.compile(r"not a directory|NotADirectory", re.IGNORECASE)
_PATH: Final = re.compile(r"\S*/\S*")

_OTHER_THINGS: Final = (
    *("account", "api ?key", "bucket", "certificate", "collection", "command", "connection", "credential"),
    *("database", "endpoint", "host", "method", "module", "mount", "mountpoint", "page", "plugin", "route"),
    *("server", "service", "session", "table", "tenant", "token", "user", "volume"),
)
_OTHER_MISSING: Final = re.compile(rf"\b(?:{'|'.join(_OTHER_THINGS)})\b[^:]*\bnot (?:found|exist)")
_OTHER_NAMES: Final = re.compile("|".join(_OTHER_THINGS).replace(" ?", ""), re.IGNORECASE)
_FILE_NAMES: Final = re.compile(r"(?:file|path|key|object|entry|directory)$", re.IGNORECASE)
_TROUBLE_NAMES: Final = re.compile(r"connect|timeout|network|transport|permission|auth", re.IGNORECASE)


def says_unsupported(error: BaseException | None) -> bool:
    """Tell whether a client means that it, or the file system behind it, does not know the call at all."""
    return error is not None and (
        isinstance(error, NotImplementedError)
        or any("NotSupported" in kind.__name__ for kind in type(error).__mro__)
        or _UNSUPPORTED.search(str(error).lower()) is not None
    )


def meaning_of(
    error: Exception, method: str, paths: Sequence[str]
) -> type[FileNotFoundError | FileExistsError] | None:
    """Return what ``method`` of the client means by ``error``; None for trouble."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError
    if isinstance(error, FileExistsError):
        return FileExistsError
    text = str(error)
    names = [kind.__name__ for kind in type(error).__mro__]
    if method == "ls" and (_NO_DIRECTORY.search(text) or any(map(_NO_DIRECTORY.search, names))):
        return FileNotFoundError  # a file where a directory would be: there is nothing in it
    if isinstance(error, (OSError, ImportError)) or any(map(_TROUBLE_NAMES.search, names)):
        return None
    if isinstance(error, KeyError) and error.args and _is_part(str(error.args[0]), paths):
        return FileNotFoundError  # a dict in place of a server
    for name in names:
        thing, found, _ = name.partition("NotFound")
        if found:
            other = _OTHER_NAMES.search(thing) and not _FILE_NAMES.search(thing)
            return None if other else FileNotFoundError
    if any("AlreadyExists" in name or "FileExists" in name for name in names):
        return FileExistsError
    text = _PATH.sub("", text.lower())
    if _MISSING.search(text):
        return None if _OTHER_MISSING.search(text) else FileNotFoundError
    return FileExistsError if _TAKEN.search(text) else None


def _is_part(name: str, paths: Sequence[str]) -> bool:
    return any(f"/{name.strip('/')}/" in f"{path}/" for path in paths)
