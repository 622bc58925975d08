"""Ends of attempts that a store takes together: what comes while one write is under way goes out in the next one.

Owns which ends those are. A single one goes out at once, and nothing is waited for so that more may come: they are
those that the loop has in its next few turns, or until the thread that writes is done. A write that takes long is not
waited for. Refuses to judge what became of an end: each is told what it would have been told alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from task_tracker.records import TaskRecord
from task_tracker.store import LeaseStore, Stored
from task_tracker.worker.attempts import AttemptRecord, EndInHand
from task_tracker.worker.calls import After, Answer, Calls, Tell, look_at
from task_tracker.worker.settling import Ending

__all__ = ["Ends"]

_PATIENCE_SECONDS: Final = 0.005
"""What ends wait for a write that is under way before another thread writes them."""
_TURNS: Final = 2
"""Of the loop, without one more: attempts that are begun together are one apart."""
_MOST_GATHERED: Final = 100


class _Waiting(NamedTuple):
    """An end, and who waits for it."""

    record: AttemptRecord
    ending: Ending
    waited: asyncio.Future[TaskRecord | None]
    frees_slot: bool


class Ends:
    """``most``: how many threads may write at once. ``ahead`` is given how many slots were freed; see `Executor`."""

    def __init__(
        self, store: LeaseStore, calls: Calls, most: int, ahead: Callable[[int], After | None]
    ) -> None:
        self.are_together: Final = store.ends_together and store.blocking
        """Whether this is of any use."""
        self._store = store
        self._calls = calls
        self._most = most
        self._ahead = ahead
        self._changing = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._writers = 0
        """Threads that write, or are about to look."""
        self._is_looking = False

    async def write(self, record: AttemptRecord, ending: Ending, *, frees_slot: bool) -> TaskRecord | None:
        """Write an end, maybe with others; return the record as it was written, None if it has to be by itself.

        Raises as :meth:`AttemptRecord.settle`, and NoThread. Cancelled, it is taken back, or goes on if it has begun.
        """
        loop = asyncio.get_running_loop()
        waited: asyncio.Future[TaskRecord | None] = loop.create_future()
        one = _Waiting(record, ending, waited, frees_slot)
        with self._changing:
            self._waiting.append(one)
            is_first, self._writers = self._writers == 0, max(self._writers, 1)
        try:
            if is_first:
                loop.call_soon(self._gather, loop, one, _TURNS)
            elif not self._is_looking:
                self._is_looking = True
                loop.call_later(_PATIENCE_SECONDS, self._look, loop, one)
            return await waited
        except BaseException:
            self._take_back(one)
            raise

    def _gather(self, loop: asyncio.AbstractEventLoop, last: _Waiting, turns: int) -> None:
        """Take along what the loop has to end in its next turns: of attempts that began together, say."""
        waiting = self._waiting  # threads put another list in its place
        newest = waiting[-1] if waiting else last
        if newest is not last and len(waiting) < _MOST_GATHERED:
            turns = _TURNS
        if turns:
            loop.call_soon(self._gather, loop, newest, turns - 1)
            return
        try:
            self._send()
        except RuntimeError as error:  # no thread, or they were told to end
            for one in self._waiting:
                if not one.waited.done():
                    one.waited.set_exception(copy.copy(error))  # each is raised by itself

    def _send(self) -> None:
        """Have a thread write what waits when it comes to it. Raises NoThread."""
        try:
            self._calls.send(self._write_waiting)
        except BaseException:
            with self._changing:
                self._writers -= 1
            raise

    def _take_back(self, one: _Waiting) -> None:
        with self._changing:
            if one in self._waiting:
                self._waiting.remove(one)
        if one.waited.done():
            look_at(one.waited)

    def _look(self, loop: asyncio.AbstractEventLoop, seen: _Waiting) -> None:
        """See whether what waited a moment ago still does: then the write under way takes long."""
        with self._changing:
            first = self._waiting[0] if self._waiting else None
            is_long = first is seen and self._writers < self._most
            self._writers += is_long
        self._is_looking = first is not None
        if first is not None:
            loop.call_later(_PATIENCE_SECONDS, self._look, loop, first)
        if is_long:
            with contextlib.suppress(
                RuntimeError
            ):  # it waits for the threads that there are, or they have ended
                self._send()

    # ---- in threads ------------------------------------------------------------------------------------

    def _write_waiting(self, tell: Tell) -> Iterator[After]:
        """Write what waits, and what comes meanwhile; give what is to be done for the slots that each write frees.

        That comes before the next write: if that one hangs, the slots are in use.
        """
        while True:
            with self._changing:
                taken, self._waiting = self._waiting, []
                if not taken:
                    self._writers -= 1
                    return
            answers = [(one, answer) for one, answer in zip(taken, self._written(taken), strict=True)]
            freed = sum(one.frees_slot and answer.value is not None for one, answer in answers)
            # Before anybody knows: the loop must not claim for these slots too.
            after = self._ahead(freed) if freed else None
            tell(((one.waited, answer) for one, answer in answers), after is not None)
            if after is not None:
                yield after

    def _written(self, taken: Sequence[_Waiting]) -> list[Answer]:
        """Write these together and return what came of each: None of one that has to be by itself."""
        prepared = [Answer.of(one.record.end_in_hand, one.ending.step) for one in taken]
        ends: list[EndInHand] = [answer.value for answer in prepared if answer.value is not None]
        found = iter(self._found(ends))
        return [
            answer if answer.value is None else Answer.of(one.record.ended, answer.value, next(found))
            for one, answer in zip(taken, prepared, strict=True)
        ]

    def _found(self, ends: Sequence[EndInHand]) -> Sequence[Stored | BaseException | None]:
        """Return what the store says of each."""
        try:
            if len(ends) == 1:
                return [self._store.end(ends[0].lease, ends[0].record)]
            found = self._store.end_several([(end.lease, end.record) for end in ends]) if ends else []
            return [one for one, _ in zip(found, ends, strict=True)]
        except BaseException as error:  # noqa: BLE001  # told to each
            return [error] * len(ends)
