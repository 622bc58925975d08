"""The core of the lease protocol, and of announcing a key, written down once more in few lines.

Owns small programs that are known to be right, and what of them can be left out: they show that the simulation
finds what it is to find, whatever the library's own code does. Refuses to be what the library is tested with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from tests.lease.simulation.calls import Request, Terrain
from tests.lease.simulation.disk import Disk, Result, succeeded
from tests.lease.simulation.exploring import Exploration
from tests.lease.simulation.processes import Actor, Fact, Process, Program
from tests.lease.simulation.rules import Ghost, Violation

__all__ = ["dedupe", "lease"]

RECORD = "/tasks/t"
DIRECTORIES = ("/leases", "/tasks", "/new", "/keys")


def read(process: Process, path: str) -> bytes | None:
    """Return a file's bytes, None if it is not there."""
    ops = process.ops
    try:
        handle = ops.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return ops.read(handle, 1 << 20)
    finally:
        ops.close(handle)


def write(process: Process, path: str, data: bytes) -> bool:
    """Make a file; False if its directory is not there."""
    ops = process.ops
    try:
        handle = ops.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileNotFoundError:
        return False
    try:
        ops.write(handle, data)
    finally:
        ops.close(handle)
    return True


def tried(call: Callable[[], object]) -> bool:
    """Make a call; False if what it is about is not there."""
    try:
        call()
    except FileNotFoundError:
        return False
    return True


def fence(process: Process, entry: str, without: str | None) -> bool:
    """Empty and remove every staging directory of an entry; False if the entry was taken away."""
    ops = process.ops
    while True:
        try:
            stages = ops.listdir(entry)
        except FileNotFoundError:
            return False
        if not stages:
            return True
        for stage in stages:
            with contextlib.suppress(FileNotFoundError):
                for name in ops.listdir(f"{entry}/{stage}"):
                    tried(lambda path=f"{entry}/{stage}/{name}": ops.unlink(path))  # type: ignore[misc]
        if without == "rmdir":
            return True
        for stage in stages:
            with contextlib.suppress(OSError):
                ops.rmdir(f"{entry}/{stage}")


def commit(process: Process, entry: str, token: str, epoch: int, status: str) -> bool:
    """Publish a record through the staging directory; False if that is not there any more."""
    staged = f"{entry}/stage-{token}/{status}"
    return write(process, staged, f"{status} {epoch}".encode()) and tried(
        lambda: process.ops.replace(staged, RECORD)
    )


def work(process: Process, entry: str, token: str, epoch: int) -> None:
    """Commit twice, then remove the entry."""
    if commit(process, entry, token, epoch, "running") and commit(process, entry, token, epoch, "completed"):
        remove(process, entry, token)


def remove(process: Process, entry: str, token: str) -> None:
    """Remove a lease's entry."""
    with contextlib.suppress(OSError):
        process.ops.rmdir(f"{entry}/stage-{token}")
    with contextlib.suppress(OSError):
        process.ops.rmdir(entry)


def thief(token: str, without: str | None) -> Program:
    """Return a program that takes the lease over and goes on."""

    def program(process: Process) -> None:
        names = process.ops.listdir("/leases")
        if not names:
            return
        epoch = int(names[-1].partition("@")[2].partition("-")[0]) + 1
        entry = f"/leases/t@{epoch}-{token}"
        first = entry if without == "confirm" else f"{entry}~"
        if not tried(lambda: process.ops.rename(f"/leases/{names[-1]}", first)):
            return
        if without != "purge" and not fence(process, first, without):
            return
        if not tried(lambda: process.ops.mkdir(f"{first}/stage-{token}")):
            return
        # Proves, by its name, that the own directory was made before anybody else took the entry over.
        if without != "confirm" and not tried(lambda: process.ops.rename(first, entry)):
            return
        process.note("taken over", entry, epoch)
        record = read(process, RECORD)
        assert record is not None
        if record.startswith(b"completed"):
            remove(process, entry, token)
        else:
            work(process, entry, token, epoch)

    return program


class LateCommits:
    """No commit of an epoch after a later take-over is complete; nothing over a terminal record."""

    def concerns(self, request: Request) -> bool:
        """Look at what changes the record."""
        return request.paths[-1] == RECORD and request.changes

    def called(self, request: Request, result: Result, before: Disk, after: Disk, ghost: Ghost) -> Ghost:
        """Look at a commit."""
        if not succeeded(result):
            return ghost
        old, new = before.content_at(RECORD), after.content_at(RECORD)
        assert old is not None
        assert new is not None
        epoch = int(new.split()[1])
        if any(taken > epoch for _, taken in ghost):  # type: ignore[operator]
            raise Violation("late commit", f"{new!r} after a later take-over was complete")
        if old.startswith(b"completed"):
            raise Violation("terminal is final", f"{new!r} over {old!r}")
        return ghost

    def said(self, actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        """Remember a take-over that was complete while its entry was still there."""
        _, entry, epoch = fact
        return ghost | {("taken over", epoch)} if disk.at(str(entry)) is not None else ghost

    def recovered(self, before: Disk, after: Disk, facts: Sequence[Fact], ghost: Ghost) -> None:
        """Nothing: there is no recovery here."""


def made(*paths: str, content: bytes | None = None, disk: Disk | None = None) -> Disk:
    """Return a disk with these directories (or, with ``content``, files) on it."""
    disk = disk if disk is not None else Disk.empty()
    for path in paths:
        above, _, name = path.rpartition("/")
        parent = disk.walk(0, [part for part in above.split("/") if part])
        number = len(disk.nodes)
        if content is None:
            disk, result = disk.mkdir(parent, name, number)
        else:
            disk, result = disk.create(parent, name, number, content)
        assert succeeded(result), path
    return disk


def lease(thieves: int = 2, *, without: str | None = None, cached: bool = False) -> Exploration:
    """Return a holder that commits twice, and contenders that think it dead."""
    disk = made(*DIRECTORIES, "/leases/t@1-a", "/leases/t@1-a/stage-a")
    disk = made(RECORD, content=b"pending 0", disk=disk)
    terrain = Terrain(disk, DIRECTORIES)
    programs = [lambda process: work(process, "/leases/t@1-a", "a", 1)]
    programs += [thief(token, without) for token in "bcd"[:thieves]]
    return Exploration(
        f"lease with {thieves} thieves",
        terrain,
        disk,
        [Actor(number, "ABCD"[number], [program], terrain) for number, program in enumerate(programs)],
        LateCommits(),
        cached=cached,
    )


class OneActive:
    """Never two records, since nobody ends one."""

    def concerns(self, request: Request) -> bool:
        """Look at creations."""
        return request.name == "link"

    def called(self, request: Request, result: Result, before: Disk, after: Disk, ghost: Ghost) -> Ghost:
        """Count."""
        if len(after.names_at("/tasks")) > 1:
            raise Violation("one active", f"{after.names_at('/tasks')} under one key")
        return ghost

    def said(self, actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        """Nothing is said."""
        return ghost

    def recovered(self, before: Disk, after: Disk, facts: Sequence[Fact], ghost: Ghost) -> None:
        """Nothing: there is no recovery here."""


def creator(me: str, without: str | None) -> Program:
    """Return a program that creates a task unless there is one."""

    def program(process: Process) -> None:
        ops = process.ops
        write(process, f"/new/{me}.rec", b"pending")
        write(process, f"/keys/{me}", b"")
        for _ in range(4):
            others = [name for name in ops.listdir("/keys") if name != me]
            if without == "withdraw":
                others = [name for name in others if name < me]
            if not others:
                tried(lambda: ops.link(f"/new/{me}.rec", f"/tasks/{me}"))
                return
            other = others[0]
            record = read(process, f"/tasks/{other}")
            if record is None:
                if without != "fence":
                    tried(lambda path=f"/new/{other}.rec": ops.unlink(path))  # type: ignore[misc]
                record = read(process, f"/tasks/{other}")
            if record is not None:
                break
            tried(lambda path=f"/keys/{other}": ops.unlink(path))  # type: ignore[misc]
        tried(lambda: ops.unlink(f"/keys/{me}"))

    return program


def dedupe(creators: int = 2, *, without: str | None = None) -> Exploration:
    """Return creators of different tasks under one key."""
    disk = made(*DIRECTORIES)
    terrain = Terrain(disk, DIRECTORIES)
    actors = [
        Actor(number, "ABC"[number], [creator("abc"[number], without)], terrain) for number in range(creators)
    ]
    return Exploration(f"{creators} creators of one key", terrain, disk, actors, OneActive())
