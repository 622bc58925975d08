"""A process that crashes others: ``python -m tests.lease.faults.crashing <place> [--every N] [--share I/N]``.

Owns the judgement of what a child that was killed, stopped or refused at one of its system calls leaves behind. It
takes the scenes one after the other, injects at every system call (or at every Nth), and prints one JSON object with
the numbers and what was wrong. Nothing else runs in this process, so that children can be forked from it.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from task_tracker.errors import TaskTrackerError
from tests.files.support import descriptors
from tests.lease.faults.aftermath import ABSENT, Watcher, age, record_paths, settle, words
from tests.lease.faults.scenes import CARELESS, SCENES, TASK, Desk, Scene, told
from tests.lease.faults.tracing import Child, Point, Voice, check_tracing, injected, points

KINDS: Final = ("kill", "stop", "refuse", "recovery")
KILLS_BETWEEN: Final = 4
FEWEST_CALLS_BETWEEN: Final = 24
"""Cleaning up takes hundreds of system calls after each of thousands of kills: some of them, evenly spread."""
REFUSALS: Final = ("ENOSPC", "EIO")
FENCED: Final = ("commit", "commit_synced", "commit_unsynced", "release", "release_when_cancelled", "end")


class Missed(Exception):
    """The call did not come this time: a file that was younger is read once more, for instance."""


class Crasher:
    """Injects into the scenes and keeps the score."""

    def __init__(self, place: Path, every: int) -> None:
        self.place = place
        self.every = every
        self.injections: Counter[str] = Counter()
        self.failures: list[str] = []
        self.fenced = 0
        """How many who were stopped were told that their lease was lost."""
        self._roots = 0
        self._turn = 0
        self._templates = 0

    def try_out(self, scene: Scene, kinds: tuple[str, ...]) -> None:
        """Do all kinds of injections to one scene; one that cannot even be rehearsed is a failure."""
        try:
            self._run(scene, kinds)
        except Exception as error:  # noqa: BLE001  # one of many, all of which are reported
            self.failures.append(f"{scene}: {''.join(traceback.format_exception(error))[-1500:]}")

    def _run(self, scene: Scene, kinds: tuple[str, ...]) -> None:
        trial = _Trial(scene, self._new_root(), self.place / "trace")
        refusing = [point for point in trial.points if point.on_disk]
        for kind in kinds:
            if kind == "kill":
                self._each(kind, trial.points, trial, trial.kill)
            elif kind == "stop":
                self._each(kind, trial.points[:-1], trial, trial.stop)  # an exit cannot be stopped
            elif kind == "refuse":
                for code in REFUSALS:
                    self._each(kind, refusing, trial, functools.partial(trial.refuse, code))
            else:
                self._recovery(trial)

    def _each(
        self,
        kind: str,
        among: list[Point],
        trial: _Trial,
        inject: Callable[[Point, Path], object],
    ) -> None:
        for point in among:
            self._turn += 1
            if self._turn % self.every == 0:
                name = f"{trial.scene} {kind} at {point} {point.text[:150]}"
                self._one(name, kind, functools.partial(inject, point))

    def _one(self, name: str, kind: str, inject: Callable[[Path], object]) -> None:
        root = self._new_root()
        try:
            self.fenced += inject(root) is True
        except Missed:
            kind = "missed"
        except Exception as error:  # noqa: BLE001  # one of many, all of which are reported
            reason = str(error) or type(error).__name__
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.failures.append(
                f"{name}: {type(error).__name__}: {reason} ({where.name}, line {where.lineno})"
            )
        self.injections[kind] += 1
        shutil.rmtree(root)

    def _recovery(self, trial: _Trial) -> None:
        """Kill those who clean up after a kill, too: after some kills, at some of their calls."""
        stride = FEWEST_CALLS_BETWEEN + 8 * self.every
        for number, point in enumerate(trial.changing):
            self._templates += 1
            if self._templates % (KILLS_BETWEEN * self.every):
                continue
            template = self._new_root()
            trial.leave(template, point)
            second = _Recovery(trial, template, self.place / "trace")
            for later in second.points[number % stride :: stride]:
                name = f"{trial.scene} kill at {point}, recovery kill at {later} {later.text[:150]}"
                self._one(name, "recovery", functools.partial(second.kill, later))
            shutil.rmtree(template)

    def _new_root(self) -> Path:
        self._roots += 1
        root = self.place / str(self._roots)
        root.mkdir()
        return root


class _Trial:
    """One scene: what it does when nothing is wrong, and what it may leave when something is."""

    def __init__(self, scene: Scene, root: Path, output: Path) -> None:
        self.scene = scene
        self.before: dict[str, str] = {}

        def prepare() -> Desk:
            return self._prepare(root)

        # Twice: the first opens what a process opens once, like its own modules.
        self._rehearse(root.with_name(f"{root.name}-rehearsal"))
        self.points = points(prepare, self._act, output)
        self.after = words(root)
        shutil.rmtree(root)

    def kill(self, point: Point, root: Path) -> None:
        """SIGKILL before the call is made."""
        heard = self._killed(root, point)
        acknowledged = any(one["kind"] == "done" for one in heard)
        self._check_words(words(root), acknowledged)
        self._check_final(settle(root), acknowledged)

    def leave(self, root: Path, point: Point) -> None:
        """Leave ``root`` as a kill leaves it."""
        self._killed(root, point)
        age(root)

    def refuse(self, code: str, point: Point, root: Path) -> None:
        """The call fails once: the caller is told so, or the operation did not need it."""
        with Child(lambda: self._prepare(root), self._act) as child:
            child.attach(*injected(point, f"error={code}"))
            child.go()
            heard = child.hear_all()
            assert child.until_ended() == 0
        _check_unbroken(heard)
        if any(one["kind"] == "missed" for one in heard):
            raise Missed
        acknowledged = any(one["kind"] == "done" for one in heard)
        refused = [one for one in heard if one["kind"] == "refused"]
        assert acknowledged or refused, f"heard nothing but {heard}"
        for one in refused:
            assert one["error"] == "StoreUnavailable", f"told {one['error']}: {one['message']}"
        (leak,) = [one["leaked"] for one in heard if one["kind"] == "descriptors"]
        assert not leak, f"{leak} descriptors are left open"
        self._check_words(words(root), acknowledged)
        self._check_final(settle(root), acknowledged)

    def stop(self, point: Point, root: Path) -> bool:
        """SIGSTOP after the call was made; all is taken over; SIGCONT. What was taken stays as it is.

        True if whoever was stopped held it before.
        """
        with Child(lambda: self._prepare(root), self._act_late) as child:
            child.attach(*injected(point, "signal=STOP"))
            child.go()
            if not child.until_stopped():
                raise Missed
            stopped_with = words(root)
            watcher = Watcher(root)
            taken = watcher.take_all()
            for lease in taken.values():
                stored = watcher.store.get(lease.key)
                watcher.store.commit(lease, stored.record.changed(message="taken"))  # type: ignore[union-attr]
            contents = {path.stem: path.read_bytes() for path in record_paths(root)}
            child.go_on()
            heard = child.hear_all()
            assert child.until_ended() == 0
        _check_unbroken(heard)
        now = {path.stem: path.read_bytes() for path in record_paths(root)}
        for task_id in taken:
            assert now[task_id] == contents[task_id], f"{task_id} was taken over and changed after that"
        self._check_told(heard, taken, stopped_with)
        watcher.settle_held(taken)
        watcher.close()
        settle(root)
        return any(one.get("error") == "LeaseLost" for one in heard)

    # ---- the child ---------------------------------------------------------------------------------------

    def _prepare(self, root: Path) -> Desk:
        desk = Desk(root, **self.scene.options)
        self.scene.before(desk)
        return desk

    def _act(self, desk: Desk, voice: Voice) -> None:
        before = descriptors()
        try:
            answer = self.scene.act(desk)
        except TaskTrackerError as error:
            voice.say("refused", error=type(error).__name__, message=str(error))
        else:
            voice.say("done", told=told(answer))
        try:
            voice.say("descriptors", leaked=len(descriptors()) - len(before))
        except OSError:
            voice.say("missed")  # the operation took fewer calls this time: the fault was for this one

    def _act_late(self, desk: Desk, voice: Voice) -> None:
        self._act(desk, voice)
        voice.say("late", error=desk.late())

    def _rehearse(self, root: Path) -> None:
        """Do it once in this process, so that everything is imported, and see what the words are before."""
        root.mkdir()
        desk = self._prepare(root)
        self.before = words(root)
        self.scene.act(desk)
        settle(root)
        shutil.rmtree(root)

    def _killed(self, root: Path, point: Point) -> list[dict[str, Any]]:
        with Child(lambda: self._prepare(root), self._act) as child:
            child.attach(*injected(point, "signal=KILL"))
            child.go()
            heard = child.hear_all()
            code = child.until_ended()
        if code == 0:
            raise Missed
        assert code == -9, f"it was not killed but ended with {code}: {heard}"
        return heard

    @property
    def changing(self) -> list[Point]:
        """The calls before which the disk is in a state of its own."""
        calls = ("mkdir", "rmdir", "rename", "renameat2", "link", "unlink", "write", "fsync", "exit_group")
        return [point for point in self.points if point.call in calls]

    # ---- the judgement -----------------------------------------------------------------------------------

    def _check_words(self, now: dict[str, str], acknowledged: bool) -> None:
        for task_id in {*now, *self.before, *self.after}:
            old, new = self.before.get(task_id, ABSENT), self.after.get(task_id, ABSENT)
            legal = {new} if acknowledged else {old, new, *self.scene.between}
            found = now.get(task_id, ABSENT)
            assert found in legal, f"{task_id} is {found:.80} and should be one of {sorted(legal)}"

    def _check_final(self, final: dict[str, str], acknowledged: bool) -> None:
        if acknowledged:
            for task_id in self.before:
                if task_id not in self.after:
                    assert task_id not in final, f"{task_id} was deleted and is there again"
            if self.scene.final is not None:
                found = final[TASK].partition(":")[0]
                assert found == self.scene.final, f"{found} in the end, not {self.scene.final}"

    def _check_told(
        self, heard: list[dict[str, Any]], taken: dict[str, Any], stopped_with: dict[str, str]
    ) -> None:
        (late,) = [one["error"] for one in heard if one["kind"] == "late"]
        done = any(one["kind"] == "done" for one in heard)
        if TASK not in taken:
            return
        assert late in ("LeaseLost", "no lease"), f"a later commit was told {late}"
        if self.scene.name in FENCED and done:
            found, new = stopped_with.get(TASK), self.after.get(TASK)
            assert found == new, f"it was told that it had written, when the record was still {found}"
        for one in heard:
            if one["kind"] == "refused" and self.scene.name in FENCED:
                assert one["error"] == "LeaseLost", f"told {one['error']}: {one['message']}"


class _Recovery:
    """The clean-up after one kill, and kills in the middle of that."""

    def __init__(self, trial: _Trial, template: Path, output: Path) -> None:
        self._trial = trial
        self._template = template
        root = template.with_name(f"{template.name}-dry")
        self.points = points(lambda: self._prepare(root), self._act, output)
        self._final = words(root)
        shutil.rmtree(root)

    def kill(self, point: Point, root: Path) -> None:
        """SIGKILL to whoever cleans up; the next one cleans up all the same."""
        root.rmdir()
        with Child(lambda: self._prepare(root), self._act) as child:
            child.attach(*injected(point, "signal=KILL"))
            child.go()
            heard = child.hear_all()
            code = child.until_ended()
        if code == 0:
            raise Missed
        assert code == -9, f"it was not killed but ended with {code}: {heard}"
        final = settle(root)
        assert final.keys() == self._final.keys(), f"{final} rather than {self._final}"

    def _prepare(self, root: Path) -> Path:
        shutil.copytree(self._template, root)
        age(root)
        return root

    def _act(self, root: Path, voice: Voice) -> None:
        settle(root)
        voice.say("done")


def _check_unbroken(heard: list[dict[str, Any]]) -> None:
    for one in heard:
        assert one["kind"] != "broken", " / ".join(one["trace"].split("\n")[-4:])


def share_of(share: str) -> Iterator[Scene]:
    """Every Nth of the scenes, beginning with the Ith."""
    number, _, among = share.partition("/")
    yield from SCENES[int(number) :: int(among)]


def named(name: str) -> Iterator[Scene]:
    """The scenes of this name, the careless one among them."""
    yield from (scene for scene in (*SCENES, CARELESS) if scene.name == name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--scene", help="only this one")
    given = parser.parse_args()
    logging.getLogger("task_tracker").setLevel(
        logging.ERROR
    )  # what cannot be settled is told, thousands of times
    reason = check_tracing()
    crasher = Crasher(given.place, given.every)
    if reason is None:
        for scene in named(given.scene) if given.scene else share_of(given.share):
            crasher.try_out(scene, tuple(given.kinds.split(",")))
    answer = {
        "skip": reason,
        "injections": crasher.injections,
        "fenced": crasher.fenced,
        "failures": crasher.failures,
    }
    print(json.dumps(answer))  # noqa: T201  # that is how it answers


if __name__ == "__main__":
    main()
