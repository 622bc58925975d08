"""What the tables are called, and the keys of the locks that belong to them.

Owns the schema and the prefix, quoted. Several stores may live in one database: each has names of its own, and so its
own locks. Refuses names that PostgreSQL would cut off.
"""

from __future__ import annotations

import dataclasses
import hashlib
from string import Formatter
from typing import Final

from psycopg import sql

from task_tracker.errors import SettingsError

__all__ = ["DEFAULT_PREFIX", "DEFAULT_SCHEMA", "Names"]

DEFAULT_SCHEMA: Final = "public"
DEFAULT_PREFIX: Final = "task_tracker_"

_OBJECTS: Final = (
    "tasks",
    "deletions",
    "paused",
    "workers",
    "listeners",
    "migrations",
    "unversioned",
    "may_create",
)
_INDEX: Final = "index_"
_LONGEST_NAME: Final = 63  # bytes; what is longer is cut off without a word
_LONGEST_PREFIX: Final = 40


@dataclasses.dataclass(frozen=True)
class Names:
    """Schema and prefix of all tables. Raises SettingsError for what no name can be."""

    schema: str = DEFAULT_SCHEMA
    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        """Check both."""
        _check("schema", self.schema, _LONGEST_NAME)
        if self.prefix != "":
            _check("table_prefix", self.prefix, _LONGEST_PREFIX)

    def table(self, name: str) -> str:
        """Return what a person calls one of the tables."""
        return f"{self.schema}.{self.prefix}{name}"

    def lock_key(self, *parts: str) -> int:
        """Return the key of an advisory lock: 64 bits that depend on the names and on ``parts``."""
        digest = hashlib.sha256("\0".join((self.schema, self.prefix, *parts)).encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def channel(self, name: str) -> str:
        """Return the name of a channel for notifications, which are common to all schemas of a database."""
        return f"task_tracker_{name}_{self.lock_key('channel', name) % 2**64:016x}"

    def fill(self, text: str, fragments: dict[str, sql.Composable] | None = None) -> sql.Composed:
        """Return SQL with the names in braces filled in: tables, indexes, locks, channels, ``fragments``."""
        wanted = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
        known = fragments if fragments is not None else {}
        return sql.SQL(text).format(
            **{name: known[name] if name in known else self._meant(name) for name in wanted}
        )

    def _meant(self, name: str) -> sql.Composable:
        if name in _OBJECTS:
            return sql.Identifier(self.schema, self.prefix + name)
        if name.startswith(_INDEX):
            return sql.Identifier(self.prefix + name.removeprefix(_INDEX))
        if name.endswith("_lock"):
            return sql.Literal(self.lock_key(name))
        if name.endswith("_name") and name.removesuffix("_name") in _OBJECTS:
            return sql.Literal(self._meant(name.removesuffix("_name")).as_string(None))
        if name.endswith("_bare") and name.removesuffix("_bare") in _OBJECTS:
            return sql.Identifier(self.prefix + name.removesuffix("_bare"))
        if name.endswith("_channel"):
            return sql.Literal(self.channel(name.removesuffix("_channel")))
        if name == "schema_text":
            return sql.Literal(self.schema)
        if name == "schema":
            return sql.Identifier(self.schema)
        raise LookupError(f"no SQL of this store knows {{{name}}}")


def _check(setting: str, name: object, longest: int) -> None:
    # A dollar sign could end the quotes around a function's body, a percent sign would be taken for a parameter.
    if not isinstance(name, str) or not name.strip() or not {"\0", "$", "%"}.isdisjoint(name):
        raise SettingsError(f"{setting} is {name!r:.80}; give the name of a PostgreSQL schema or table")
    if len(name.encode(errors="replace")) > longest:
        raise SettingsError(f"{setting} is {name!r:.80}, longer than {longest} bytes; choose a shorter one")
