"""A Redis server of a test's own: started on a free port, killed, frozen, started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

__all__ = ["RedisServer", "redis_binary"]

PATIENCE_SECONDS = 30.0


def redis_binary() -> str | None:
    """Where the server is installed, None if it is not."""
    return shutil.which("redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """Keeps nothing on disk: whoever stops it loses all that it held."""

    def __init__(self, directory: Path, *options: str, sentinel: Path | None = None) -> None:
        """``sentinel``: the rules of a server that is to be one."""
        self._directory = directory
        self._options = options
        self._sentinel = sentinel
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        binary = redis_binary()
        assert binary is not None
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory))
        log = ("--logfile", str(self._directory / "redis.log"))
        kind = ("--save", "", "--appendonly", "no") if self._sentinel is None else ("--sentinel",)
        rules = () if self._sentinel is None else (str(self._sentinel),)
        self._process = subprocess.Popen(
            [binary, *rules, *place, *log, *kind, *self._options], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.answers():
            assert self._process.poll() is None, (self._directory / "redis.log").read_text()
            assert time.monotonic() < deadline, "the Redis server does not answer"
            time.sleep(0.01)

    def answers(self) -> bool:
        with contextlib.closing(self.client()) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                return False

    def stop(self) -> None:
        """End it; everything that it held is lost."""
        if self._process is not None:
            self.thaw()
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Have it answer nothing, as a host that is gone; connections stay."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=5, socket_connect_timeout=1)

    def ask(self, *command: Any) -> Any:
        """Return the answer to one command."""
        with contextlib.closing(self.client()) as client:
            return client.execute_command(*command)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
