"""What an import says if an optional package is not installed: which extra brings it.

Owns that sentence. Refuses to hide any other failure of an import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["extra"]


@contextmanager
def extra(name: str, *packages: str) -> Iterator[None]:
    """Import within this block what the extra ``name`` brings. Raises ImportError that names it for these packages."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in packages:
            raise
        raise ImportError(
            f"this needs the package {package}; install it with pip install 'durable-task-tracker[{name}]'"
        ) from error
