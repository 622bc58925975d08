"""What a pass could not settle, told once.

Owns the memory of what was told. A pass comes to the same item every few seconds, for as long as nobody mends it.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["Reports"]

_log = logging.getLogger("task_tracker")

MOST: Final = 1000
"""Beyond that nothing is remembered, and everything is told again."""


class Reports:
    """The reports of one process about one root."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def tell(self, path: str, error: Exception) -> None:
        """Log that ``path`` could not be settled, unless that was said with the same reason before."""
        reason = str(error)
        if self._told.get(path) == reason:
            return
        if len(self._told) >= MOST:
            self._told.clear()
        self._told[path] = reason
        _log.warning(
            "%s could not be settled: %s", path, error, extra={"event": "recovery_failed", "path": path}
        )
