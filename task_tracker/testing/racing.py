"""Several at once: threads of this process, or processes of their own.

Owns starting together, waiting for all and bringing back what came out. Nothing sleeps; everything ends.
"""

from __future__ import annotations

import multiprocessing
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol, TypeVar

from task_tracker.registry import open_store
from task_tracker.store import StoreOptions, TaskStore

__all__ = ["Crew", "Job", "StoreSpec", "Sync", "race"]

_T = TypeVar("_T")
_PATIENCE_SECONDS: Final = 120.0


def race(*calls: Callable[[], _T]) -> list[_T | Exception]:
    """Run ``calls`` in threads that start at once; return what each returned or raised, in order."""
    barrier = threading.Barrier(len(calls))
    outcomes: list[Any] = [AssertionError("the thread did not end")] * len(calls)

    def run(index: int) -> None:
        barrier.wait(_PATIENCE_SECONDS)
        try:
            outcomes[index] = calls[index]()
        except Exception as error:  # noqa: BLE001  # the caller looks at it
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_SECONDS)
    return outcomes


StoreSpec = tuple[str, Mapping[str, Any]]
"""The backend's name and what goes into StoreOptions; both must be picklable."""

Sync = Callable[[], None]
"""Called by a job: returns when all processes of the crew that still run have called it."""


class Job(Protocol):
    """A function at the top of a module: what a process does with the store, and its answer (picklable)."""

    def __call__(self, store: TaskStore, sync: Sync, *args: Any) -> Any:
        """Do it."""


class Crew:
    """Processes that each open a store of their own and do what they are told.

    They are started when first needed and stay until :meth:`dismiss`: starting Python is most of the cost.
    """

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Connection]] = []

    def run(self, spec: StoreSpec, job: Job, each: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run ``job`` once per tuple of arguments, each in a process of its own; return the answers in order.

        All stores are open before the first job begins. A job that raises fails the test, with its traceback.
        """
        try:
            return self._answers(self.order(spec, job, each))
        except BaseException:
            # Those that wait for the others would wait for ever, and take the next order for their cue.
            while self._members:
                self.kill(0)
            raise

    def _answers(self, members: list[Connection]) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < len(members):
            waiting = []
            for index, member in enumerate(members):
                if index in answers:
                    continue
                kind, value = self._receive(member)
                if kind == "sync":
                    waiting.append(member)
                elif kind == "answer":
                    answers[index] = value
                else:
                    raise AssertionError(f"in process {index} of {len(members)}:\n{value}")
            for member in waiting:
                member.send("go")
        return [answers[index] for index in range(len(members))]

    def order(self, spec: StoreSpec, job: Job, each: Sequence[tuple[Any, ...]]) -> list[Connection]:
        """Have the processes begin, and return the pipes to them. For :meth:`run`, and for :meth:`kill`."""
        self._grow(len(each))
        members = [pipe for _, pipe in self._members[: len(each)]]
        for member, args in zip(members, each, strict=True):
            member.send((spec, job, args))
        return members

    def kill(self, index: int) -> None:
        """End a process as ``kill -9`` does, in the middle of whatever it does."""
        process, pipe = self._members.pop(index)
        process.kill()
        process.join()
        process.close()
        pipe.close()

    def dismiss(self) -> None:
        """End all processes."""
        for _, pipe in self._members:
            pipe.close()  # which is how they learn it
        for process, _ in self._members:
            process.join(_PATIENCE_SECONDS)
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()
        self._members.clear()

    def _grow(self, size: int) -> None:
        while len(self._members) < size:
            mine, its = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(its,), daemon=True)
            process.start()
            its.close()
            self._members.append((process, mine))

    @staticmethod
    def _receive(member: Connection) -> tuple[str, Any]:
        try:
            if member.poll(_PATIENCE_SECONDS):
                return member.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionResetError):
            raise AssertionError("a process ended without an answer") from None
        raise AssertionError(f"a process did not answer within {_PATIENCE_SECONDS} seconds")


def _serve(pipe: Connection) -> None:
    """Be a member of a crew until the pipe is closed."""

    def sync() -> None:
        pipe.send(("sync", None))
        pipe.recv()

    while True:
        try:
            (backend, options), job, args = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            store = open_store(backend, StoreOptions(**options))
            try:
                sync()
                answer = "answer", job(store, sync, *args)
            finally:
                store.close()
        except Exception:  # noqa: BLE001  # shown by the parent
            answer = "failure", traceback.format_exc()
        pipe.send(answer)
