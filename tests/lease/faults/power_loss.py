"""A process that cuts the power: ``python -m tests.lease.faults.power_loss <place> [--every N] [--share I/N]``.

Owns what each durability level promises. After every recorded call of every story, in every state (or every Nth) that
:mod:`tests.lease.faults.disk` derives, records must be whole and no older than promised;
each different one is made real, opened and brought to a good end. With ``--mutants`` each fsync (or every Nth) is
left out in turn, and it must be noticed. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.lease.faults.aftermath import CONTROL, TERMINAL, settle
from tests.lease.faults.disk import MODELS, Disk, Model, State, Step, without
from tests.lease.faults.stories import PAUSED_TYPE, STORIES, Recorder, Told

LEVELS: Final = ("full", "edges", "none")
MOST_FAILURES: Final = 20
PAUSED: Final = f"local/{CONTROL}/paused/"
MARK: Final = f"local/{CONTROL}/format"


# ---- the judgement ---------------------------------------------------------------------------------------


class Tape:
    """One story at one level: the calls, what was told, and every content that each record ever had."""

    def __init__(self, story: Callable[[Recorder], None], durability: str, root: Path) -> None:
        recorder = Recorder(root, durability)
        story(recorder)
        self.name = f"{story.__name__} ({durability})"
        self.durability = durability
        self.root = str(root)
        self.steps = list(recorder.ops.steps)
        self.told = recorder.told
        self.pauses = recorder.pauses
        self.marked_after = recorder.marked_after
        self.histories = _histories(self.steps, self.root)

    def fsyncs(self) -> Iterator[int]:
        """Where the calls of fsync are that do something, and that something promised depends on.

        Not those of ``opened``: without it retention counts from a later moment, and keeps records longer.
        """
        disk = Disk(self.root)
        noting = False
        for number, step in enumerate(self.steps):
            if step.name == "fsync" and not noting and not disk.is_idle(step):
                yield number
            disk.apply(step)
            if step.name == "create":
                noting = f"{CONTROL}/.tmp-" in step.path
            elif step.name == "fsync" and step.path.endswith(CONTROL):
                noting = False

    def broken(self, state: State, done: int) -> str | None:
        """Return what is wrong with ``state`` after ``done`` calls, None if it is as promised."""
        if self.durability == "none":
            return None
        found = {path: data for path, data in state.files() if _is_record(path) and data is not None}
        for path, data in found.items():
            if data not in [content for _, content in self.histories[path]]:
                return f"{path} is not whole: {data[:30]!r} ({len(data)} bytes)"
        for path in self.histories:
            reason = self._too_old(path, found.get(path), done)
            if reason is not None:
                return reason
        return self._wrongly_paused(state, done) or (
            self._unmarked(state) if done >= self.marked_after else None
        )

    def _wrongly_paused(self, state: State, done: int) -> str | None:
        """What was said last of a paused type holds, unless somebody was about to change it."""
        said = [one for one in self.pauses if one.after <= done]
        if not said or any(one.began < done < one.after for one in self.pauses):
            return None
        found = [data for path, data in state.files() if path.startswith(PAUSED) and f"{PAUSED}~" not in path]
        wanted = [PAUSED_TYPE.encode()] if said[-1].is_paused else []
        return None if found == wanted else f"in {PAUSED} is {found}, and should be {wanted}"

    @staticmethod
    def _unmarked(state: State) -> str | None:
        """A root that was opened stays marked: a store that knows nothing of leases would write to it."""
        mark = dict(state.files()).get(MARK)
        return (
            None if mark is not None and mark.endswith(b"}") else f"the root is not marked any more: {mark!r}"
        )

    def _too_old(self, path: str, data: bytes | None, done: int) -> str | None:
        """What is promised of the last thing that was told of a record and counts at this level."""
        history = self.histories[path]
        oldest = 0
        for told in self.told:
            if told.after > done or not path.endswith(f"/{told.task_id}.json"):
                continue
            if self.durability == "full" or told.created or told.status in TERMINAL:
                # The change that made it so, and whatever came later.
                made = [number for number, (when, _) in enumerate(history) if when < told.after]
                if told.content is not None:
                    oldest = made[-1]
        allowed = [content for when, content in history[oldest:] if when < done]
        if not any(told.after <= done and path.endswith(f"/{told.task_id}.json") for told in self.told):
            allowed.append(None)
        if data in allowed:
            return None
        return f"{path} is {_short(data)} and should be one of {[_short(content) for content in allowed]}"


def _histories(steps: Sequence[Step], root: str) -> dict[str, list[tuple[int, bytes | None]]]:
    """Every content of every record, with the number of the call that made it so."""
    disk = Disk(root)
    found: dict[str, list[tuple[int, bytes | None]]] = {}
    for number, step in enumerate(steps):
        disk.apply(step)
        for path in filter(None, (step.path, step.target)):
            below = path[len(root) + 1 :]
            if path.startswith(f"{root}/") and _is_record(below):
                content = disk.content(path)
                history = found.setdefault(below, [])
                if not history or history[-1][1] != content:
                    history.append((number, content))
    return found


def _is_record(path: str) -> bool:
    return path.endswith(".json") and "/tasks/" in path


def _short(data: bytes | None) -> str:
    if data is None:
        return "absent"
    document = json.loads(data)
    return f"{document['status']}:{document.get('message')}"


# ---- cutting ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Cutter:
    """Cuts the power everywhere in a tape and keeps the score."""

    place: Path
    every: int
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    failures: list[str] = dataclasses.field(default_factory=list)
    _seen: set[bytes] = dataclasses.field(default_factory=set)

    def cut(self, tape: Tape) -> None:
        """Judge the states; make those that are new real and bring them to a good end."""
        for done, model, state in _cuts(tape.steps, tape.root, every=self.every):
            self.counts[f"{tape.durability} {model}"] += 1
            reason = tape.broken(state, done)
            if reason is None and self._is_new(tape, state):
                reason = self._bring_to_an_end(state, torn=tape.durability == "none")
            if reason is not None:
                self.failures.append(f"{tape.name}, cut after {_told(tape.steps, done)}, {model}: {reason}")
                if len(self.failures) >= MOST_FAILURES:
                    return

    def noticed(self, tape: Tape, dropped: int) -> str | None:
        """Leave out one fsync; return what is wrong then, None if nothing is."""
        steps = without(tape.steps, dropped)
        later = [dataclasses.replace(told, after=told.after - (told.after > dropped)) for told in tape.told]
        mutant = _Mutant(tape, steps, later)
        mutant.pauses = [
            dataclasses.replace(
                one, began=one.began - (one.began > dropped), after=one.after - (one.after > dropped)
            )
            for one in tape.pauses
        ]
        mutant.marked_after = tape.marked_after - (tape.marked_after > dropped)
        for done, _, state in _cuts(steps, tape.root, since=dropped):
            reason = mutant.broken(state, done)
            if reason is not None:
                return reason
        return None

    def _is_new(self, tape: Tape, state: State) -> bool:
        seen = hashlib.blake2b(repr(sorted(state.files())).encode() + tape.durability.encode()).digest()
        if seen in self._seen:
            return False
        self._seen.add(seen)
        return True

    def _bring_to_an_end(self, state: State, *, torn: bool) -> str | None:
        root = self.place / "after"
        root.mkdir()
        try:
            state.write(root)
            settle(root, torn=torn)
        except Exception as error:  # noqa: BLE001  # one of many, all of which are reported
            return f"{type(error).__name__}: {error}"
        else:
            self.counts["brought to a good end"] += 1
            return None
        finally:
            shutil.rmtree(root)


class _Mutant(Tape):
    """A tape that lacks a call."""

    def __init__(self, tape: Tape, steps: Sequence[Step], told: list[Told]) -> None:
        self.durability = tape.durability
        self.root = tape.root
        self.told = told
        self.histories = _histories(steps, tape.root)


def _cuts(
    steps: Sequence[Step], root: str, *, since: int = 0, every: int = 1
) -> Iterator[tuple[int, Model, State]]:
    """Every Nth state after each of the calls, from that call on."""
    disk = Disk(root)
    number = 0
    for done, step in enumerate(steps, start=1):
        disk.apply(step)
        if done >= since:
            for model in MODELS:
                for make in disk.after_power_cuts(model):
                    number += 1
                    if number % every == 0:
                        yield done, model, make()


def _told(steps: Sequence[Step], done: int) -> str:
    step = steps[done - 1]
    return f"call {done} ({step.name} {step.path[-60:]} {step.target[-40:]})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--story")
    parser.add_argument("--level")
    given = parser.parse_args()
    cutter = Cutter(given.place, given.every)
    number, _, among = given.share.partition("/")
    levels = LEVELS[:2] if given.mutants else LEVELS  # without promises nothing can be broken
    pairs = [(story, level) for level in levels for story in STORIES]
    unnoticed = []
    fsyncs = 0
    for story, level in pairs[int(number) :: int(among)]:
        if given.story in (None, story.__name__) and given.level in (None, level):
            root = given.place / f"{story.__name__}-{level}"
            root.mkdir()
            tape = Tape(story, level, root)
            shutil.rmtree(root)
            if given.mutants:
                for dropped in tape.fsyncs():
                    fsyncs += 1
                    if fsyncs % given.every:
                        continue
                    cutter.counts["fsyncs left out"] += 1
                    if cutter.noticed(tape, dropped) is None:
                        unnoticed.append(f"{tape.name}: {_told(tape.steps, dropped + 1)}")
            else:
                cutter.cut(tape)
    answer = {"counts": cutter.counts, "failures": cutter.failures, "unnoticed": unnoticed}
    print(json.dumps(answer))  # noqa: T201  # that is how it answers


if __name__ == "__main__":
    main()
