"""The demo's servers and workers as processes, and the directory they share: started, killed, and cleaned up."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from demo.server import ACCOUNT, USER

PROJECT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = PROJECT / ".demo"

START_SECONDS: Final = 15.0
STOP_SECONDS: Final = 4.0
ANSWER_SECONDS: Final = 5.0


class DemoFailed(Exception):
    """Something is not as the demo says it is."""


class Process:
    """A process of the demo's, that ends when its standard input does. ``name`` is also that of its log."""

    def __init__(
        self, name: str, logs: Path, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log = logs / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=PROJECT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its processes
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def first_line(self) -> str:
        """Return the first line that it prints, which says that it is ready. Raises DemoFailed if none comes."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DemoFailed(f"{self.name} was not ready after {START_SECONDS:.0f} seconds")
            if select.select([self._process.stdout], [], [], remaining)[0]:
                more = os.read(self._process.stdout.fileno(), 100)
                if not more:
                    raise DemoFailed(f"{self.name} ended before it was ready")
                line += more
        return line.decode()

    def ended_by(self) -> int | None:
        """Return the signal that ended the process, None if it lives or ended by itself."""
        code = self._process.poll()
        return -code if code is not None and code < 0 else None

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed, nobody is told."""
        self._process.kill()
        self._process.wait()
        self.let_go()

    def freeze(self) -> None:
        """SIGSTOP: it stands still, in the middle of whatever it does, and does not know it."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on as if nothing had been."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in an orderly way, or else kill it. Twice is safe."""
        self.let_go()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def let_go(self) -> None:
        """Ask it to end, by closing its input."""
        self.thaw()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def has_logged(self, text: str) -> bool:
        return self._log.exists() and text in self._log.read_text(errors="replace")

    def last_log_lines(self) -> list[str]:
        if not self._log.exists():
            return []
        return self._log.read_text(errors="replace").splitlines()[-15:]


class ServerProcess(Process):
    """One running server, and how it is asked."""

    def __init__(
        self, name: str, root: Path, logs: Path, *, works: bool, lease_seconds: float | None
    ) -> None:
        arguments = ["demo.server", "--root", str(root)]
        if lease_seconds is not None:
            arguments += ["--lease-seconds", str(lease_seconds)]
        super().__init__(name, logs, arguments + ["--work"] * works)
        self._client: httpx.Client | None = None
        self.port = 0

    def wait_until_ready(self) -> None:
        self.port = int(self.first_line().split()[1])
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"X-Account": ACCOUNT, "X-User": USER},
            timeout=ANSWER_SECONDS,
            trust_env=False,  # a proxy of the environment has no business here
        )

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the server's answer. Raises DemoFailed if there is none."""
        assert self._client is not None
        try:
            return self._client.request(method, f"/api/v1{path}", **options)
        except httpx.TransportError as error:
            raise DemoFailed(
                f"server {self.name} did not answer {method} {path}: {type(error).__name__} {error}"
            ) from error

    def let_go(self) -> None:
        """Ask it to end, by closing its input."""
        if self._client is not None:
            self._client.close()
        super().let_go()


class Stage:
    """A directory of this run's own, and every process started in it. Leaving the block removes all of it."""

    def __init__(self) -> None:
        self.directory = _make_directory()
        self.root = self.directory / "tasks"
        self.root.mkdir()
        self._processes: list[Process] = []

    def start(self, name: str, *, works: bool = False, lease_seconds: float | None = None) -> ServerProcess:
        """Start a server on the directory; with leases if ``lease_seconds`` is given."""
        server = ServerProcess(name, self.root, self.directory, works=works, lease_seconds=lease_seconds)
        self._processes.append(server)
        return server

    def start_worker(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> Process:
        """Start a worker of the ingestion and return it when it has said what its settings are."""
        worker = Process(name, self.directory, ["demo.ingestion", *arguments], environment)
        self._processes.append(worker)
        worker.first_line()
        return worker

    @property
    def name(self) -> str:
        return str(self.directory.relative_to(PROJECT))

    def record_files(self) -> list[Path]:
        return sorted(self.root.glob(f"local/{ACCOUNT}/tasks/{USER}/*.json"))

    def stop_all(self) -> None:
        for process in self._processes:
            process.let_go()
        for process in self._processes:
            process.stop()

    def logs(self) -> list[str]:
        return [
            f"{process.name}: {line}"
            for process in {process.name: process for process in self._processes}.values()
            for line in process.last_log_lines()
        ]

    def clear(self) -> None:
        self.stop_all()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.exists():
            raise DemoFailed(f"{self.name} could not be removed; remove it by hand")
        with contextlib.suppress(OSError):  # another demo is at work beside this one
            PLACE.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def _make_directory() -> Path:
    while True:
        PLACE.mkdir(exist_ok=True)
        try:
            return Path(tempfile.mkdtemp(prefix="run-", dir=PLACE))
        except FileNotFoundError:  # another demo ended in between and took the empty place away
            continue
