"""A PostgreSQL server for tests: the one that is named, one that is there, or one that is started for the session.

Owns how a server is found, started and stopped.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from task_tracker.clock import SYSTEM_CLOCK

NAMED = "TASK_TRACKER_TEST_DSN"
WHERE_DEBIAN_HAS_IT = "/usr/lib/postgresql"
PATIENCE_SECONDS = 60.0


class NoServer(Exception):
    """There is none, and none can be started; the message says so in one line."""


@contextlib.contextmanager
def found_or_started() -> Iterator[str]:
    """Give the connection string of a server while the block runs. Raises NoServer."""
    named = os.environ.get(NAMED)
    if named:
        _try(named)  # whoever names one wants to know that it does not answer
        yield named
        return
    for dsn in _candidates():
        with contextlib.suppress(psycopg.Error):
            _try(dsn)
            yield dsn
            return
    if _programs() is None:
        raise NoServer(
            f"no PostgreSQL: {NAMED} names none, none answers on 127.0.0.1:5432 or the socket, none is installed"
        )
    with own_server() as server:
        yield server.dsn


def _try(dsn: str) -> None:
    with psycopg.connect(dsn, connect_timeout=3, autocommit=True) as connection:
        connection.execute("SELECT 1")


def _candidates() -> Iterator[str]:
    for host in ("127.0.0.1", None):
        for user in dict.fromkeys((getpass.getuser(), "postgres")):
            for database in ("test", "postgres"):
                yield make_conninfo(host=host, port=5432, user=user, dbname=database, connect_timeout=3)


# ---- one of our own ------------------------------------------------------------------------------------


class OwnServer:
    """A server in a directory of its own, that can be stopped and started again."""

    def __init__(self, programs: Path, directory: str) -> None:
        self._programs = programs
        self._directory = directory
        self._user = _give_away(directory)
        self._port = free_port()
        self.dsn = make_conninfo(host="127.0.0.1", port=self._port, user="postgres", dbname="postgres")
        made = subprocess.run(
            [
                programs / "initdb",
                "-D",
                f"{directory}/data",
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "-N",
            ],
            user=self._user,
            cwd=directory,
            capture_output=True,
            check=False,
        )
        if made.returncode:
            raise NoServer(
                f"{programs}/initdb failed: {made.stderr.decode(errors='replace').strip()[-200:]!r}"
            )

    def start(self) -> None:
        """Start it, and return once it answers. Raises NoServer."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._port,
            "unix_socket_directories": self._directory,
            "fsync": "off",
            "max_connections": 200,
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = Path(self._directory, "log")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", f"{self._directory}/data", *arguments],
                user=self._user,
                cwd=self._directory,
                stdout=subprocess.DEVNULL,
                stderr=output,
            )
        deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return _try(self.dsn)
            except psycopg.Error as error:
                if self._process.poll() is not None or SYSTEM_CLOCK.monotonic() > deadline:
                    said = log.read_text(errors="replace").strip()[-300:]
                    raise NoServer(f"the server that was started does not answer: {said!r}") from error

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends all sessions, SIGQUIT does so without a word."""
        self._process.send_signal(how)
        self._process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def own_server() -> Iterator[OwnServer]:
    """Give a server that was started for the block. Raises NoServer."""
    programs = _programs()
    if programs is None:
        raise NoServer("PostgreSQL's initdb is not installed")
    with tempfile.TemporaryDirectory(prefix="task-tracker-postgres-") as directory:
        server = OwnServer(programs, directory)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def has_programs() -> bool:
    """Tell whether a server can be started here."""
    return _programs() is not None


def _programs() -> Path | None:
    """Return the directory of initdb and postgres, the newest that is installed."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    debian = sorted(Path(WHERE_DEBIAN_HAS_IT).glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if debian:
        return debian[-1].parent
    package = find_spec("pgserver")
    if package is not None and package.submodule_search_locations:
        programs = Path(package.submodule_search_locations[0]) / "pginstall" / "bin"
        return programs if (programs / "initdb").exists() else None
    return None


def _give_away(directory: str) -> int | None:
    """Hand the directory to somebody who may run a server: initdb refuses root. Return who that is."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            os.chown(directory, user.pw_uid, user.pw_gid)
            return user.pw_uid
    raise NoServer("PostgreSQL is installed, but there is no user but root to run it")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
