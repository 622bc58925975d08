"""Files of attempts whose processes are killed or frozen in the middle: the winner's stay, all others go."""

from __future__ import annotations

from pathlib import Path

import pytest

from task_tracker import TaskStatus
from tests.core.support import OWNER
from tests.lease.directories import directories, markers
from tests.runtime.processes.program import Place, wait_for
from tests.runtime.processes.tasks import go

HANDLERS = "--handlers=tests.runtime.processes.files:registry"


@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.slow), "frozen"])
def test_only_the_winners_directory_remains(place: Place, how: str) -> None:
    """[D120] [D057] The other one thaws when its task has ended, and ends with what it has."""
    task = place.submit("build", version=1, unregistered=True)
    with place.start(HANDLERS) as loser:
        place.wait_begun()
        if how == "killed":
            loser.kill()
        else:
            loser.freeze()
        place.expire()
        with place.start(HANDLERS) as winner:
            place.wait_begun(2)
            go(place.log, task.task_id)
            ended = place.wait_ended(task)
            assert ended.status is TaskStatus.COMPLETED
            first, last = (Path(line["place"]) for line in place.lines("begin"))
            assert first != last
            assert place.tracker.effects_path(task.task_id, **OWNER) == str(last)
            wait_for(lambda: directories(place.root) == [last], "the loser's is swept")
            if how == "frozen":
                loser.thaw()
                assert loser.terminate() == 0
            assert winner.terminate() == 0
    assert ended.result == "by 2"
    assert place.seen(task) == ended
    assert {path.name: path.read_text() for path in last.iterdir()} == {"part-1": "by 2", "part-2": "by 2"}
    assert directories(place.root) == [last]
    assert markers(place.root) == []
    assert place.tracker.delete(task.task_id, **OWNER)
    assert directories(place.root) == []


def test_what_was_killed_and_may_not_run_again_leaves_nothing(place: Place) -> None:
    """It ends as failed, which names no directory."""
    task = place.submit("build", version=1, unregistered=True, max_attempts=1)
    with place.start(HANDLERS) as killed:
        place.wait_begun()
        killed.kill()
    place.expire()
    assert len(directories(place.root)) == len(markers(place.root)) == 1
    with place.start(HANDLERS) as worker:
        ended = place.wait_ended(task)
        wait_for(lambda: directories(place.root) == [], "it is swept")
        assert worker.terminate() == 0
    assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "holder_lost")
    assert ended.effects_dir is None
    assert markers(place.root) == []
