"""Servers of a chaos's own: PostgreSQL for the backend of that name, Redis for wake-ups; and what is done to them.

Owns when each is there. The chaos ends sessions in the middle of whatever they do, has PostgreSQL stop without a word
and come back (`immediate`: it recovers from its log), and takes Redis away for a while with all that it held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random  # noqa: TID251  # seeded: whose session ends
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.runtime.processes.plan import Plan

__all__ = ["Servers", "started"]


class Servers:
    """What a plan needs, as far as it is not there already."""

    def __init__(self, plan: Plan, holding: contextlib.ExitStack) -> None:
        self._dice = random.Random(plan.seed)
        self._postgres = self._redis = None
        self.plan = plan
        if plan.store["backend"] == "postgres" and "dsn" not in plan.store:
            from tests.postgres.server import own_server

            self._postgres = holding.enter_context(own_server())
            self.plan = dataclasses.replace(
                plan, store={"migrate": True, **plan.store, "dsn": self._postgres.dsn}
            )
        if plan.redis_stops:
            from tests.queues.redis_server import RedisServer

            self._redis = holding.enter_context(RedisServer(Path(plan.directory)))
            self.plan = dataclasses.replace(self.plan, redis_url=self._redis.url)

    def end_a_session(self) -> bool:
        """End one session of the store, whatever it does; False if there is none."""
        import psycopg

        dsn = self.plan.store["dsn"]
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(dsn, autocommit=True) as connection,
        ):
            sessions = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'task_tracker' ORDER BY pid"
            ).fetchall()
            if sessions:
                connection.execute("SELECT pg_terminate_backend(%s)", self._dice.choice(sessions))
                return True
        return False

    def let_all_be_due(self) -> None:
        """Have every start time come: the database's clock says what is due, and nobody can move that."""
        import psycopg

        if self.plan.store["backend"] == "postgres":
            table = f"{self.plan.store.get('options', {}).get('table_prefix', 'task_tracker_')}tasks"
            with psycopg.connect(self.plan.store["dsn"], autocommit=True) as connection:
                connection.execute(f"UPDATE {table} SET not_before = 0 WHERE deferred".encode())

    def restart(self) -> bool:
        """Have PostgreSQL stop at once and begin again; what was committed is there."""
        assert self._postgres is not None, "the chaos restarts no server but its own: leave `dsn` out"
        self._postgres.stop(signal.SIGQUIT)
        self._postgres.start()
        return True

    def take_redis_away(self) -> bool:
        """Stop Redis; False if it is away already."""
        assert self._redis is not None
        if not self._redis.answers():
            return False
        self._redis.stop()
        return True

    def bring_redis_back(self) -> None:
        """Start it again, empty."""
        assert self._redis is not None
        self._redis.start()


@contextlib.contextmanager
def started(plan: Plan) -> Iterator[Servers]:
    """Give the servers of a plan while the block runs."""
    with contextlib.ExitStack() as holding:
        yield Servers(plan, holding)
