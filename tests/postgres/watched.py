"""A connection of which a test sees each statement, however it is sent. Owns that each is seen once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg

from stores.postgres.connections import BoundedConnection
from stores.postgres.prepared import Found

_T = TypeVar("_T")


class Watched(BoundedConnection):
    """Calls :meth:`around` with what sends a statement."""

    _is_sending = False

    def around(self, send: Callable[[], _T]) -> _T:
        raise NotImplementedError

    def ask(self, statement: bytes, params: Mapping[str, Any], *, rows: bool) -> Found:
        return self._once(lambda: super(Watched, self).ask(statement, params, rows=rows))

    def execute(self, *args: Any, **kwargs: Any) -> psycopg.Cursor[Any]:
        return self._once(lambda: super(Watched, self).execute(*args, **kwargs))

    def _once(self, send: Callable[[], _T]) -> _T:
        if self._is_sending:
            return send()
        self._is_sending = True
        try:
            return self.around(send)
        finally:
            self._is_sending = False
