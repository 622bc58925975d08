"""Two calls of stores, interleaved at every boundary between their statements.

Owns the schedules. Each call runs in a thread of its own on a connection that stops before each statement; a
scheduler lets them go on one statement at a time, in every order that there is. Whoever waits for a lock is found
out by asking the database, and has to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import psycopg

from stores.postgres.connections import BoundedConnection, opener
from stores.postgres.store import PostgresTaskStore
from tests.postgres.grounds import Control, Ground
from tests.postgres.watched import Watched

PATIENCE_SECONDS = 60.0
GLANCE_SECONDS = 0.002

Call = Callable[[PostgresTaskStore], object]
_T = TypeVar("_T")


class Gate:
    """Where a thread stops before each of its statements. Closed only while a schedule runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = False
        self._let_go = 0
        self.closed = False
        self.ended = False

    def arrive(self) -> None:
        """Stop until :meth:`pass_one`."""
        with self._changed:
            if not self.closed:
                return
            self._waiting = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._let_go > 0, PATIENCE_SECONDS), (
                "nobody lets this thread go on"
            )
            self._let_go -= 1

    def pass_one(self) -> None:
        """Let the thread that stands here run its next statement."""
        with self._changed:
            assert self._waiting
            self._waiting = False
            self._let_go += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Say that the thread has ended."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def stands(self, seconds: float) -> bool:
        """Wait a moment; tell whether the thread stands here again, or has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting or self.ended, seconds)


class Stepped(Watched):
    """A connection that stops before each statement."""

    gate: Gate

    def around(self, send: Callable[[], _T]) -> _T:
        self.gate.arrive()
        return send()


class Actor:
    """A store whose statements run when they are told to."""

    def __init__(self, ground: Ground, control: Control) -> None:
        self._control = control
        self._plain = opener(ground.dsn, connect_seconds=5, statement_seconds=30)
        self.gate = Gate()
        self.store = ground.store(pool_size=1, open_connection=self._open)
        self.store.prepare()

    def _open(self) -> BoundedConnection:
        connection = self._plain()
        connection.__class__ = Stepped
        assert isinstance(connection, Stepped)
        connection.gate = self.gate
        self.backend = connection.info.backend_pid
        return connection

    def begin(self, call: Call) -> None:
        """Start the call; it stops before its first statement."""
        self.outcome: object = None
        self.gate.closed, self.gate.ended = True, False

        def run() -> None:
            try:
                self.outcome = call(self.store)
            except Exception as error:  # noqa: BLE001  # the test looks at it
                self.outcome = error
            self.gate.end()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert self.gate.stands(PATIENCE_SECONDS)

    def settle(self) -> bool:
        """Wait until this actor stands, has ended, or waits for a lock; tell whether it does not wait for one."""
        while not self.gate.stands(GLANCE_SECONDS):
            found = self._control.execute("SELECT pg_blocking_pids(%s)", [self.backend]).fetchone()
            if found is not None and found[0]:
                return False
        return True

    def join(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        self.gate.closed = False

    def close(self) -> None:
        self.store.close()


class Run(NamedTuple):
    """One schedule: who ran at each step, where both could have, and what the two calls answered."""

    steps: str
    choices: list[int]
    outcomes: tuple[object, object]
    waited: bool


class Interleaver:
    """Runs two calls under every schedule."""

    def __init__(self, ground: Ground) -> None:
        self._control = psycopg.connect(ground.dsn, autocommit=True)
        self.actors = (Actor(ground, self._control), Actor(ground, self._control))

    def close(self) -> None:
        for actor in self.actors:
            actor.close()
        self._control.close()

    def runs(self, prepare: Callable[[], tuple[Call, Call]]) -> Iterator[Run]:
        """Give one run after another, each on what ``prepare`` makes; the state can be looked at in between."""
        prefix: list[int] = []
        while True:
            run = self._run(prepare(), prefix)
            yield run
            # The last decision that can be made otherwise.
            prefix = run.choices
            while prefix and prefix[-1] == 1:
                prefix = prefix[:-1]
            if not prefix:
                return
            prefix = [*prefix[:-1], 1]

    def _run(self, calls: tuple[Call, Call], prefix: list[int]) -> Run:
        for actor, call in zip(self.actors, calls, strict=True):
            actor.begin(call)
        choices: list[int] = []
        steps, waited = "", False
        while True:
            free = [
                index for index, actor in enumerate(self.actors) if actor.settle() and not actor.gate.ended
            ]
            if not free:
                if all(actor.gate.ended for actor in self.actors):
                    break
                waited = True
                continue  # one has ended, the other one is about to get its lock
            chosen = free[0]
            if len(free) == 2:
                chosen = prefix[len(choices)] if len(choices) < len(prefix) else 0
                choices.append(chosen)
            waited |= len(free) == 1 and not any(actor.gate.ended for actor in self.actors)
            steps += "AB"[chosen]
            self.actors[chosen].gate.pass_one()
        for actor in self.actors:
            actor.join()
        return Run(steps, choices, (self.actors[0].outcome, self.actors[1].outcome), waited)
