"""Connections that handlers are lent while a transaction lasts: the driver's own, made over one of the pool.

Owns that what is lent cannot end the transaction and is of no use after it. The socket is the pool's; adapters, row
factories and cursors are set up anew for each user, so that nothing of one reaches another.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any, Final, NoReturn

import psycopg
from psycopg.rows import TupleRow

from stores.postgres.connections import BoundedConnection
from task_tracker.clock import SYSTEM_CLOCK

__all__ = ["AsyncLent", "Lent", "lent", "stop_users"]

_CANCEL_SECONDS: Final = 1
_UNWIND_SECONDS: Final = 1.0


class _Use:
    """Whether a call of the driver is under way, and whether another may begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._is_over = False

    @property
    def is_under_way(self) -> bool:
        return self._calls > 0

    def __enter__(self) -> None:
        with self._changed:
            if self._is_over:
                raise psycopg.InterfaceError(
                    "this transaction has ended, and with it the use of its connection"
                )
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let no other call begin."""
        with self._changed:
            self._is_over = True

    def wait_ended(self, seconds: float) -> bool:
        """Wait for the calls that are under way; False if that takes longer."""
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        with self._changed:
            while self._calls:
                left = deadline - SYSTEM_CLOCK.monotonic()
                if left <= 0:
                    return False
                SYSTEM_CLOCK.wait(self._changed, left)
        return True


class _Unprepared:
    """Keeps the driver from preparing: names of statements outlast a transaction, and the next user's are the same."""

    _prepared: Any

    @property
    def prepare_threshold(self) -> int | None:
        """None: nothing is prepared, whatever it is set to."""
        return None

    @prepare_threshold.setter
    def prepare_threshold(self, value: int | None) -> None:
        self._prepared.prepare_threshold = None


class Lent(_Unprepared, psycopg.Connection[TupleRow]):
    """For code that blocks."""

    use: _Use

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as the driver does, while the transaction lasts. Raises InterfaceError after it."""
        with self.use:
            return super().wait(*args, **kwargs)

    def commit(self) -> None:
        """Refuse. Raises ProgrammingError."""
        _refuse("commit")

    def rollback(self) -> None:
        """Refuse. Raises ProgrammingError."""
        _refuse("roll back")

    def close(self) -> None:
        """Refuse. Raises ProgrammingError."""
        _refuse("close")

    def __del__(self, *_: Any) -> None:
        """Leave the socket to its owner, without a warning that nobody closed it."""


class AsyncLent(_Unprepared, psycopg.AsyncConnection[TupleRow]):
    """For coroutines."""

    use: _Use

    async def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as the driver does, while the transaction lasts. Raises InterfaceError after it."""
        with self.use:
            return await super().wait(*args, **kwargs)

    async def commit(self) -> None:
        """Refuse. Raises ProgrammingError."""
        _refuse("commit")

    async def rollback(self) -> None:
        """Refuse. Raises ProgrammingError."""
        _refuse("roll back")

    async def close(self) -> None:
        """Refuse. Raises ProgrammingError."""
        _refuse("close")

    def __del__(self, *_: Any) -> None:
        """Leave the socket to its owner, without a warning that nobody closed it."""


def lent(connection: BoundedConnection, *, for_loop: bool) -> Lent | AsyncLent:
    """Return what a handler may use of a connection that is in a transaction."""
    made: Lent | AsyncLent = AsyncLent(connection.pgconn) if for_loop else Lent(connection.pgconn)
    made.use = _Use()
    made.prepare_threshold = None
    return made


def stop_users(connection: BoundedConnection, use: _Use) -> bool:
    """Have every user of a connection that was lent leave it alone; False if one cannot be made to.

    The server is asked to stop what it does, then the line is cut: to close it under a thread that waits there could
    give its number to another one.
    """
    use.end()
    if not use.is_under_way:
        return True
    with contextlib.suppress(psycopg.Error):
        connection.cancel_safe(timeout=_CANCEL_SECONDS)
    if use.wait_ended(_UNWIND_SECONDS):
        return True
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
    return use.wait_ended(_UNWIND_SECONDS)


def _refuse(what: str) -> NoReturn:
    raise psycopg.ProgrammingError(
        f"code within ctx.transaction() does not {what} its connection: the end of the block does. To undo a part, use "
        "`connection.transaction()`; to undo everything, raise an error"
    )
