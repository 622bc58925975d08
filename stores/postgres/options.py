"""What configuration says to this store.

Owns the names and bounds of ``storage.task_tracker.options``. Refuses names that it does not know, and shows no
connection string.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from stores.postgres.names import DEFAULT_PREFIX, DEFAULT_SCHEMA, Names
from task_tracker import defaults
from task_tracker.errors import SettingsError
from task_tracker.store import StoreOptions, lease_terms

__all__ = ["PostgresSettings"]

_KNOWN: Final = (
    *("connect_seconds", "listen", "listen_dsn", "pool_size", "schema", "statement_seconds", "table_prefix"),
)
_PLACE: Final = "storage.task_tracker.options"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostgresSettings:
    """Where the tables are, and how long to wait for what. Times are seconds. Raises SettingsError."""

    dsn: str = dataclasses.field(repr=False)
    names: Names = dataclasses.field(default_factory=Names)
    pool_size: int = 10
    """Connections that this process may have at once."""
    connect_seconds: float = 5.0
    statement_seconds: float = 30.0
    """How long a statement may take, its waits for locks included."""
    lock_seconds: float = defaults.LOCK_TIMEOUT_SECONDS
    """How long a statement waits for somebody else's transaction, and a call for a connection."""
    listen: bool = True
    """Whether writes tell those who listen, and those who wait listen."""
    listen_dsn: str | None = dataclasses.field(default=None, repr=False)
    """A way to the same database that leads through no pooler in transaction mode. None: ``dsn`` is one."""
    lease_seconds: float = defaults.LEASE_SECONDS
    heartbeat_seconds: float | None = None

    def __post_init__(self) -> None:
        """Check what is here."""
        if not isinstance(self.dsn, str) or not self.dsn.strip():
            raise SettingsError(
                'the backend "postgres" needs storage.task_tracker.dsn; give postgresql://user:password@host/database'
            )
        if isinstance(self.pool_size, bool) or not isinstance(self.pool_size, int) or self.pool_size < 1:
            raise SettingsError(
                f"{_PLACE}.pool_size is {self.pool_size!r}; give a whole number of at least 1"
            )
        if not isinstance(self.listen, bool):
            raise SettingsError(f"{_PLACE}.listen is {self.listen!r}; give true or false")
        if self.listen_dsn is not None and (
            not isinstance(self.listen_dsn, str) or not self.listen_dsn.strip()
        ):
            raise SettingsError(
                f"{_PLACE}.listen_dsn is no text; give postgresql://user:password@host/database"
            )
        for name in ("connect_seconds", "statement_seconds", "lock_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 86_400:
                raise SettingsError(f"{_PLACE}.{name} is {value!r}; give a number of seconds above 0")
        if math.isinf(lease_terms(self.lease_seconds, self.heartbeat_seconds)[0]):
            raise SettingsError("lease_seconds is infinite; give a number of seconds, 30 for instance")

    @classmethod
    def of(cls, options: StoreOptions) -> PostgresSettings:
        """Return what ``options`` ask for."""
        unknown = sorted(set(options.options) - set(_KNOWN))
        if unknown:
            raise SettingsError(
                f"the postgres backend has no option {unknown[0]!r}; it knows {', '.join(_KNOWN)}"
            )
        given = {name: value for name, value in options.options.items() if value is not None}
        names = Names(
            given.pop("schema", DEFAULT_SCHEMA),  # type: ignore[arg-type]  # Names looks at it
            given.pop("table_prefix", DEFAULT_PREFIX),  # type: ignore[arg-type]
        )
        terms = {
            name: value
            for name in ("lease_seconds", "heartbeat_seconds")
            if (value := getattr(options, name)) is not None
        }
        return cls(
            dsn=options.dsn or "",
            names=names,
            lock_seconds=options.lock_timeout_seconds,
            **terms,
            **given,  # type: ignore[arg-type]  # checked when it is made
        )
