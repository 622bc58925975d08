"""A child that is killed, stopped or refused at a chosen system call, by strace's fault injection.

Owns forking, attaching and the count of calls. The child is forked from a process that has everything imported
already, and strace attaches to it just before the call of interest, so an injection costs milliseconds and no call of
the start-up is counted. Refuses to know what the child does.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

GET_STRACE: Final = "strace is not installed; get it with `apt-get install strace`"

_CALLS: Final = (
    *(
        "open",
        "openat",
        "creat",
        "close",
        "read",
        "pread64",
        "write",
        "pwrite64",
        "fsync",
        "fdatasync",
        "ftruncate",
    ),
    *("stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "getdents64"),
    *("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "link", "linkat", "rename", "renameat", "renameat2"),
    *("utime", "utimensat", "chmod", "fchmod", "flock", "fcntl", "exit_group"),
)
_TRACED: Final = "trace=" + ",".join(f"?{call}" for call in _CALLS)
_LINE: Final = re.compile(r"(?:\d+\s+)?(?P<call>\w+)\((?P<rest>.*)")
_GO: Final = b"g"
_ANY_TRACER: Final = (0x59616D61, -1)  # prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), linux/prctl.h


class CannotTrace(Exception):
    """strace is missing or may not attach here."""


class Point(NamedTuple):
    """One system call of the child's: the ``nth`` of its kind since strace was attached."""

    call: str
    nth: int
    text: str
    """As strace shows it."""

    @property
    def on_disk(self) -> bool:
        """Tell whether it is about files, not about the pipes to the parent."""
        return not ("pipe:[" in self.text or "/proc/" in self.text) and self.call not in (
            "exit_group",
            "close",
        )

    def __str__(self) -> str:
        return f"{self.call} {self.nth}"


class Voice:
    """How the child speaks to its parent: lines of JSON, each in one system call."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def say(self, kind: str, **facts: Any) -> None:
        os.write(self._pipe, json.dumps({"kind": kind, **facts}).encode() + b"\n")


class Child:
    """A forked process. ``prepare`` runs untraced, then the child waits; ``act`` runs once it is told to go on.

    It must be forked from a process without other threads. It ends when the parent does, for it reads from the
    parent's pipe.
    """

    def __init__(self, prepare: Callable[[], Any], act: Callable[[Any, Voice], object]) -> None:
        go, self._go = os.pipe()
        self._heard, speak = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._go)
            os.close(self._heard)
            _live(go, Voice(speak), prepare, act)
        os.close(go)
        os.close(speak)
        self._buffer = b""
        self._strace: subprocess.Popen[str] | None = None
        self._ended = False
        first = self.hear()
        assert first is not None, "the child died while it prepared"
        assert first["kind"] == "ready", f"the child could not prepare: {first}"

    def attach(self, *options: str, output: str = "/dev/null") -> None:
        """Have strace at the child. Raises CannotTrace."""
        program = shutil.which("strace")
        if program is None:
            raise CannotTrace(GET_STRACE)
        self._strace = subprocess.Popen(
            [program, "-f", "-y", "-s", "200", "-p", str(self.pid), "-o", output, "-e", _TRACED, *options],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._strace.stderr is not None
        line = self._strace.stderr.readline()
        if "attached" not in line:
            raise CannotTrace(f"strace cannot attach to a process here: {line.strip()}")

    def go(self) -> None:
        """Let the child act."""
        os.write(self._go, _GO)

    def hear(self) -> dict[str, Any] | None:
        """Return the next thing that the child says, None if it will say nothing more."""
        while b"\n" not in self._buffer:
            chunk = os.read(self._heard, 65536)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def hear_all(self) -> list[dict[str, Any]]:
        """Return everything that the child says until it ends."""
        return list(iter(self.hear, None))

    def until_stopped(self) -> bool:
        """Wait until the child is stopped (True) or has ended (False)."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        self._ended = not os.WIFSTOPPED(status)
        return not self._ended

    def go_on(self) -> None:
        """Continue a child that is stopped."""
        os.kill(self.pid, signal.SIGCONT)

    def until_ended(self) -> int:
        """Wait for the end; return the exit code, negative for a signal's number."""
        _, status = os.waitpid(self.pid, 0)
        self._ended = True
        return os.waitstatus_to_exitcode(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._go)
        os.close(self._heard)
        if self._strace is not None:
            assert self._strace.stderr is not None
            self._strace.wait()
            self._strace.stderr.close()


def _live(go: int, voice: Voice, prepare: Callable[[], Any], act: Callable[[Any, Voice], object]) -> None:
    """Be the child. Never returns."""
    try:
        _allow_tracing()
        prepared = prepare()
        voice.say("ready")
        select.select([go], [], [])
        if os.read(go, 1) == _GO:
            act(prepared, voice)
    except BaseException as error:  # noqa: BLE001  # shown by the parent
        voice.say("broken", error=type(error).__name__, trace=traceback.format_exc())
    finally:
        os._exit(0)


def _allow_tracing() -> None:
    """Let a process that is no ancestor attach, where the Yama module would forbid it."""
    import ctypes

    ctypes.CDLL(None).prctl(*_ANY_TRACER, 0, 0, 0)


def points(prepare: Callable[[], Any], act: Callable[[Any, Voice], object], output: Path) -> list[Point]:
    """Let a child act undisturbed and return its system calls, from where it was told to go on."""
    with Child(prepare, act) as child:
        child.attach(output=str(output))
        child.go()
        said = child.hear_all()
        code = child.until_ended()
    assert code == 0, f"undisturbed, the child ended with {code}"
    broken = [heard for heard in said if heard["kind"] == "broken"]
    assert not broken, broken[0]["trace"]
    counts: Counter[str] = Counter()
    found = []
    for line in output.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is not None:
            counts[match["call"]] += 1
            found.append(Point(match["call"], counts[match["call"]], line.partition(" ")[2].strip()))
    return found[1:]  # the first is the read of the parent's word


def injected(point: Point, what: str) -> tuple[str, ...]:
    """Options of strace that let ``what`` happen to the child at ``point``."""
    return ("-e", f"inject={point.call}:{what}:when={point.nth}")


def check_tracing() -> str | None:
    """Return why there can be no tracing here, None if there can."""
    if sys.platform != "linux":
        return "strace is for Linux"
    try:
        with Child(lambda: None, lambda _, voice: voice.say("done")) as child:
            child.attach()
            child.go()
            child.hear_all()
            child.until_ended()
    except CannotTrace as error:
        return str(error)
    return None
