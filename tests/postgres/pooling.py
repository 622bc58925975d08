"""What a pooler in transaction mode does to a client: the next transaction runs on another server connection.

Owns a connection that is several. Sessions are cleared between transactions, so that whatever was set is gone.
"""

from __future__ import annotations

from typing import Any

import psycopg

from stores.postgres.connections import BoundedConnection, Opener


class Pooled(BoundedConnection):
    """A connection whose statements run on one of several sessions: another one for each transaction."""

    sessions: list[BoundedConnection]
    number: int

    def execute(self, *args: Any, **kwargs: Any) -> psycopg.Cursor[Any]:
        session = self.sessions[self.number % len(self.sessions)]
        cursor = session.execute(*args, **kwargs)
        if session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            # What a session kept (prepared statements, settings, its advisory locks) would be somebody else's.
            session.execute(b"DISCARD ALL")
            self.number += 1
        return cursor

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        super().close()


def pooled(open_one: Opener, sessions: int = 3) -> Opener:
    """Return what opens such connections."""

    def open_pooled() -> BoundedConnection:
        connection = open_one()
        connection.__class__ = Pooled
        assert isinstance(connection, Pooled)
        connection.number = 0
        connection.sessions = [open_one() for _ in range(sessions)]
        return connection

    return open_pooled
