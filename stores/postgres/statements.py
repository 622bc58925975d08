"""The SQL of this store: named statements in ``queries/*.sql``, with the names of the tables filled in.

Owns how these files are read. A statement begins with ``-- name: <name>``, a piece that others take in by its name in
braces with ``-- fragment: <name>``; other comments are for people. Refuses to build SQL from values: they are
parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Final

from psycopg import sql

from stores.postgres.names import Names

__all__ = ["Statements"]

_HEAD: Final = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)


class Statements(Mapping[str, bytes]):
    """All statements by name, ready to be sent."""

    def __init__(self, names: Names) -> None:
        self.names = names
        fragments: dict[str, sql.Composable] = {}
        self._ready: dict[str, bytes] = {}
        for kind, name, text in _pieces():
            composed = names.fill(text, fragments)
            if kind == "fragment":
                fragments[name] = composed
            else:
                self._ready[name] = composed.as_bytes(None)

    def __getitem__(self, name: str) -> bytes:
        """Return a statement. Raises KeyError."""
        return self._ready[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._ready)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._ready)


@cache
def _pieces() -> tuple[tuple[str, str, str], ...]:
    """Return (kind, name, text) of everything in the files; a fragment comes before who takes it in."""
    found: dict[str, tuple[str, str, str]] = {}
    directory = resources.files("stores.postgres").joinpath("queries")
    # What several files use is in the first one.
    for name in ("records.sql", "leases.sql", "upkeep.sql"):
        _, *parts = _HEAD.split(directory.joinpath(name).read_text(encoding="utf-8"))
        for kind, title, text in zip(*[iter(parts)] * 3, strict=True):
            lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
            if title in found:
                raise ValueError(f"{name} says {title!r} again")
            found[title] = kind, title, "\n".join(lines).strip()
    return tuple(found.values())
