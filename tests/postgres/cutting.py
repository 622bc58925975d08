"""Connections that break at the worst moment: right before a statement, or after it when its answer is on its way.

Owns at which statement. A break is real: the session is closed, and the server undoes what was not committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import psycopg

from stores.postgres.connections import BoundedConnection, Opener, opener
from tests.postgres.grounds import Ground
from tests.postgres.watched import Watched

_T = TypeVar("_T")


@dataclasses.dataclass
class Scissors:
    """Cut at the ``nth`` statement from now (0: never), before it or ``after`` it, once or ``forever``."""

    nth: int = 0
    after: bool = False
    forever: bool = False
    seen: int = 0
    cuts: int = 0

    def cut_at(self, nth: int, *, after: bool, forever: bool = False) -> None:
        self.nth, self.after, self.forever = nth, after, forever
        self.seen = self.cuts = 0

    def put_away(self) -> None:
        self.nth = 0

    def due(self) -> bool:
        self.seen += 1
        return self.nth > 0 and (self.seen == self.nth or (self.forever and self.seen > self.nth))


class Cut(Watched):
    """A connection with scissors at it."""

    scissors: Scissors

    def around(self, send: Callable[[], _T]) -> _T:
        if not self.scissors.due():
            return send()
        self.scissors.cuts += 1
        if self.scissors.after:
            send()
        self.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


def cut_opener(ground: Ground, scissors: Scissors) -> Opener:
    """Return what opens such connections."""
    plain = opener(ground.dsn, connect_seconds=5, statement_seconds=30)

    def open_one() -> BoundedConnection:
        connection = plain()
        connection.__class__ = Cut
        assert isinstance(connection, Cut)
        connection.scissors = scissors
        return connection

    return open_one
