"""The SQL of this store: named statements in ``queries/*.sql``, with the names of the tables filled in.

Owns how these files are read. A statement begins with ``-- name: <name>``, a piece that others take in by its name in
braces with ``-- fragment: <name>``; other comments are for people. A statement with ``{filters}`` is several: by the
name ``page+user+status`` it has the fragments ``page_user`` and ``page_status`` there, so that the plan of each can be
kept. Refuses to build SQL from values: they are parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Final

from psycopg import sql

from stores.postgres.names import Names

__all__ = ["Statements"]

_FILTERS: Final = "{filters}"
_HEAD: Final = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)


class Statements(Mapping[str, bytes]):
    """All statements by name, ready to be sent."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._fragments: dict[str, sql.Composable] = {}
        self._filtered: dict[str, str] = {}
        self._ready: dict[str, bytes] = {}
        for kind, name, text in _pieces():
            if kind == "fragment":
                self._fragments[name] = names.fill(text, self._fragments)
                continue
            if _FILTERS in text:
                self._filtered[name] = text
            self._ready[name] = self._composed(text)

    def _composed(self, text: str, filters: Iterable[str] = ()) -> bytes:
        chosen = sql.SQL(" ").join(self._fragments[name] for name in filters)
        return self.names.fill(text, {**self._fragments, "filters": chosen}).as_bytes(None)

    def __getitem__(self, name: str) -> bytes:
        """Return a statement. Raises KeyError."""
        if name not in self._ready:
            base, *filters = name.split("+")
            text = self._filtered[base]
            self._ready[name] = self._composed(text, [f"{base}_{chosen}" for chosen in filters])
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
