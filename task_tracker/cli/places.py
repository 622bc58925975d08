"""Where on this host a configuration puts its files.

Owns the question whether a directory is there, and whether the lease backend has used it. Refuses to make one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from task_tracker.errors import SettingsError
from task_tracker.settings import TaskTrackerSettings

__all__ = ["directory_of", "is_leased"]

_ON_FILES: Final = ("persistent", "lease")


def directory_of(settings: TaskTrackerSettings) -> Path | None:
    """Return the directory of this host that the store is in, None if it is in none. Raises SettingsError."""
    if settings.backend not in _ON_FILES or settings.root is None:
        return None
    scheme, separator, rest = settings.root.partition("://")
    if separator and scheme != "file":
        return None
    try:
        return Path(rest if separator else settings.root).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # no such home
        raise SettingsError(f"root cannot be looked at: {error}; check the path") from error


def is_leased(settings: TaskTrackerSettings, directory: Path) -> bool:
    """Tell whether the lease backend has used a directory; see docs/file-format.md."""
    return (directory / settings.prefix.strip("/") / ".task_tracker" / "format").exists()
