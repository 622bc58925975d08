"""The worker processes of a chaos, and what is done to them: killed, frozen, stopped, disks filled, clocks set.

Owns who lives, and how often each thing was done.
"""

from __future__ import annotations

import os
import random  # noqa: TID251  # seeded: who is hit
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection

from tests.lease.processes.conductor import fork
from tests.runtime.processes.clocks import Clocks
from tests.runtime.processes.disk import Disk, allow_writing, deny_writing
from tests.runtime.processes.plan import Plan
from tests.runtime.processes.servers import Servers

__all__ = ["HOUR", "Crowd"]

MOST_FROZEN = 2
BLOWS = (
    *("kills", "freezes", "stops", "clock_steps", "full_disks", "full_stores", "client_kills"),
    *("terminations", "server_restarts", "redis_stops"),
)
HOUR = 3600.0


class Crowd:
    """``work`` and ``ask`` are the lives of a worker and of a client, given the number of a host."""

    def __init__(
        self,
        plan: Plan,
        clocks: Clocks,
        disk: Disk | None,
        servers: Servers,
        work: Callable[[int], None],
        ask: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._clocks = clocks
        self._disk = disk
        self._servers = servers
        self._lives = {"worker": work, "client": ask}
        self._hosts: dict[int, int] = {}
        self._roles: dict[int, str] = {}
        self._stopping: set[int] = set()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._frozen: set[int] = set()
        self._denied: set[int] = set()
        self._is_full = False
        self.counts: Counter[str] = Counter()
        for host in range(plan.workers + plan.clients):
            self._start("worker" if host < plan.workers else "client", host)

    # ---- what is done -----------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Return what is still to be done."""
        return [name for name in BLOWS if self.counts[name] < getattr(self._plan, name)]

    def strike(self) -> None:
        """Do one thing, of those that are left the likelier the more is left of it."""
        left = self.left()
        if not left:
            return
        weights = [max(1, getattr(self._plan, name) - self.counts[name]) for name in left]
        (chosen,) = self._dice.choices(left, weights)
        if getattr(self, f"_{chosen}")():
            self.counts[chosen] += 1

    def tick(self) -> None:
        """Let be over what is over, and start anew who has ended."""
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()
        for pid in list(self._hosts):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert pid in self._stopping, f"{self._roles[pid]} {pid} ended by itself ({status})"
                # One that has hardly begun does not listen to the signal yet.
                assert status in (0, signal.SIGTERM), f"worker {pid} was told to stop and ended with {status}"
                role, host = self._forget(pid)
                self._start(role, host)

    def calm(self) -> None:
        """End all that was to be over later."""
        for _, action in sorted(self._later, key=lambda later: later[0]):
            action()
        self._later = []

    def wait_for_clients(self, deadline: float, meanwhile: Callable[[], None]) -> None:
        """Return when all clients have ended by themselves, which they have been told."""
        while clients := [pid for pid, role in self._roles.items() if role == "client"]:
            assert time.monotonic() < deadline, f"clients do not end: {clients}"
            ended, status = os.waitpid(clients[0], os.WNOHANG)
            if ended:
                assert status == 0, f"client {ended} ended with {status}"
                self._forget(ended)
            meanwhile()

    def kill_all(self) -> None:
        """End everybody."""
        for pid in list(self._hosts):
            self._kill(pid)

    # ---- blows ------------------------------------------------------------------------------------------

    def _kills(self) -> bool:
        self._start(*self._kill(self._one_of("worker")))
        return True

    def _client_kills(self) -> bool:
        self._start(*self._kill(self._one_of("client")))
        return True

    def _freezes(self) -> bool:
        if len(self._frozen) >= MOST_FROZEN:
            return False
        pid = self._one_of("worker", but=self._frozen)
        self._frozen.add(pid)
        os.kill(pid, signal.SIGSTOP)
        terms = self._dice.uniform(1.2, 2.5) if self._dice.random() < 0.6 else self._dice.uniform(0.05, 0.6)
        self._do_later(terms * self._plan.lease_seconds, lambda: self._thaw(pid))
        return True

    def _stops(self) -> bool:
        pid = self._one_of("worker", but=self._stopping)
        self._stopping.add(pid)
        os.kill(pid, signal.SIGTERM)
        if self._dice.random() < 0.5:  # and now
            self._do_later(0.02, lambda: os.kill(pid, signal.SIGTERM) if pid in self._hosts else None)
        return True

    def _clock_steps(self) -> bool:
        host = self._dice.randrange(self._clocks.hosts)
        back = self._clocks.offset(host) != 0 and self._dice.random() < 0.4
        self._clocks.step_to(host, 0.0 if back else self._dice.uniform(-6, 6) * HOUR)
        return True

    def _full_disks(self) -> bool:
        pid = self._one_of("worker", but=self._denied)
        self._denied.add(pid)
        deny_writing(pid)
        self._do_later(self._dice.uniform(0.2, 1.5) * self._plan.lease_seconds, lambda: self._allow(pid))
        return True

    def _full_stores(self) -> bool:
        if self._disk is None or self._is_full or not self._disk.fill():
            return False
        self._is_full = True
        self._do_later(self._dice.uniform(0.2, 1.5) * self._plan.lease_seconds, self._empty)
        return True

    def _terminations(self) -> bool:
        return self._servers.end_a_session()

    def _server_restarts(self) -> bool:
        return self._servers.restart()

    def _redis_stops(self) -> bool:
        if not self._servers.take_redis_away():
            return False
        self._do_later(self._dice.uniform(0.5, 4) * self._plan.lease_seconds, self._servers.bring_redis_back)
        return True

    # ---- within -----------------------------------------------------------------------------------------

    def _start(self, role: str, host: int) -> None:
        pid = fork(lambda: self._lives[role](host))
        self._hosts[pid], self._roles[pid] = host, role

    def _kill(self, pid: int) -> tuple[str, int]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return self._forget(pid)

    def _forget(self, pid: int) -> tuple[str, int]:
        self._frozen.discard(pid)
        self._denied.discard(pid)
        self._stopping.discard(pid)
        return self._roles.pop(pid), self._hosts.pop(pid)

    def _thaw(self, pid: int) -> None:
        if pid in self._frozen:  # and not killed meanwhile
            os.kill(pid, signal.SIGCONT)
            self._frozen.discard(pid)

    def _allow(self, pid: int) -> None:
        if pid in self._denied:
            allow_writing(pid)
            self._denied.discard(pid)

    def _empty(self) -> None:
        assert self._disk is not None
        self._disk.empty()
        self._is_full = False

    def _one_of(self, role: str, but: Collection[int] = ()) -> int:
        return self._dice.choice([pid for pid, own in self._roles.items() if own == role and pid not in but])

    def _do_later(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))
