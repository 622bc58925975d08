"""Every system call of every operation fails in turn, with every error, once and from then on."""

from __future__ import annotations

import os
import shutil
import traceback
from pathlib import Path

import pytest

from task_tracker.errors import CapabilityMissing, LeaseHeld, StoreUnavailable
from tests.files.support import descriptors
from tests.lease.faults.aftermath import ABSENT, HEARTBEAT_SECONDS, LEASE_SECONDS, age, settle, words
from tests.lease.faults.drivers import shown
from tests.lease.faults.failing import TROUBLES, FailingOps
from tests.lease.faults.figures import FIGURES, Figures
from tests.lease.faults.scenes import DELETING, READING, WRITING, Desk, Scene

MOST_CALLS = 400
SOME = 35
CLAIMING = ("claim", "claim_next", "update", "complete_what_nobody_holds", "cancel_what_waits")
SCENES = (*WRITING, *DELETING, *READING)


class Trial:
    """One scene, with one system call that fails."""

    def __init__(self, scene: Scene, place: Path) -> None:
        self.scene = scene
        self._place = place
        self.struck: list[str] = []
        self.waited = 0
        root = place / "undisturbed"
        root.mkdir()
        desk = Desk(root, **scene.options)
        scene.before(desk)
        self.before = words(root)
        scene.act(desk)
        self.after = words(root)
        shutil.rmtree(root)

    def run(self, code: int, nth: int, *, forever: bool) -> list[str]:
        """Fail the ``nth`` call; return what was failed: nothing if there are fewer."""
        root = self._place / f"{code}-{nth}"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        ops = FailingOps()
        self.struck = ops.struck
        desk = Desk(root, ops=ops, **self.scene.options)
        self.scene.before(desk)
        open_before = descriptors()
        ops.fail(code, nth=nth, forever=forever)
        error = None
        try:
            self.scene.act(desk)
        except StoreUnavailable as raised:
            error = raised
        except CapabilityMissing:
            # The probe takes some errors for a file system's answer; it says which.
            if self.scene.name != "open_again":
                raise
        ops.heal()
        struck = list(ops.struck)
        assert struck or error is None, f"nothing failed, but it says {error}"
        assert not descriptors() - open_before, "a descriptor is left open"
        if error is not None:
            _check_clear(error, code, struck)
        self._check(words(root), done=error is None)
        if error is not None and words(root) == self.before:
            self._again(desk, forever=forever)
        settle(root)
        shutil.rmtree(root)
        return struck

    def _check(self, now: dict[str, str], *, done: bool) -> None:
        for task_id in {*now, *self.before, *self.after}:
            old, new = self.before.get(task_id, ABSENT), self.after.get(task_id, ABSENT)
            legal = {new} if done else {old, new, *self.scene.between}
            assert now.get(task_id, ABSENT) in legal, f"{task_id}: {now.get(task_id)!r:.80} not in {legal}"

    def _again(self, desk: Desk, *, forever: bool) -> None:
        """The fault is over: the same operation, on the same desk, does what it was asked for.

        At once; where the failed call left a claim or a deletion half-made, one lease term later at the latest.
        """
        if self._works(desk):
            return
        may_wait = CLAIMING if forever else ()
        assert self.scene.name in may_wait, "it does not work at once"
        self.waited += 1
        if words(desk.root) != self.before:
            return  # done as far as it could be: a wish to cancel, say
        age(desk.root)
        desk.store.recover()
        desk.store.expired()
        desk.clock.advance(LEASE_SECONDS + 2 * HEARTBEAT_SECONDS + 1)
        desk.store.expired()
        if self.scene.name != "cancel_what_waits":
            assert self._works(desk), "it does not work one lease term later"

    def _works(self, desk: Desk) -> bool:
        try:
            self.scene.act(desk)
        except (LeaseHeld, StoreUnavailable):
            return False
        return words(desk.root) == self.after


def _check_clear(error: StoreUnavailable, code: int, struck: list[str]) -> None:
    """It names what is wrong, and the system's own error is behind it."""
    text = str(error)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    if cause is not None and not all("/probe-" in call for call in struck):
        assert cause.errno == code
    assert os.strerror(code) in text or ";" in text, f"it does not say what is wrong or what to do: {text}"


def strike_all(scene: Scene, place: Path, *, forever: bool, every: int) -> int:
    """Fail every Nth of all calls and errors; return how many. Goes on after a failure, and tells of all."""
    trial = Trial(scene, place)
    turn = SCENES.index(scene)
    strikes = 0
    failures: list[str] = []
    for code in TROUBLES:
        for nth in range(1, MOST_CALLS):
            turn += 1
            if turn % every:
                continue
            try:
                struck = trial.run(code, nth, forever=forever)
            except Exception as error:  # noqa: BLE001  # one of many, all of which are reported
                struck = list(trial.struck)
                where = traceback.extract_tb(error.__traceback__)[-1]
                failures.append(
                    f"call {nth}, {os.strerror(code)}: {type(error).__name__}: {error} ({where.name}, {where.lineno}; "
                    f"struck: {struck})"
                )
            if not struck:
                break
            strikes += 1
    assert not failures, shown(failures)
    if trial.waited:
        FIGURES.add("of these, left something half-made for a lease term", trial.waited)
    return strikes


@pytest.mark.parametrize("forever", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_some_of_all_system_calls_fail_in_turn(
    fast_path: Path, scene: Scene, forever: bool, figures: Figures
) -> None:
    """[D073] [D081] Old content or new, a clear error, nothing left open, and on it goes."""
    strikes = strike_all(scene, fast_path, forever=forever, every=SOME)
    figures.add("system calls failed", strikes)


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_every_system_call_fails_in_turn(
    fast_path: Path, scene: Scene, forever: bool, figures: Figures
) -> None:
    """[D073] [D081]"""
    strikes = strike_all(scene, fast_path, forever=forever, every=1)
    assert strikes >= len(TROUBLES)
    figures.add("system calls failed", strikes)
