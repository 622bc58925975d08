"""`python -m demo`: tells the story, cleans up, and says by its exit code whether all of it was true."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

from demo.lease_story import LeaseStory
from demo.processes import DemoFailed, Stage
from demo.screen import Screen
from demo.story import Story
from demo.worker_story import WorkerStory

FAILED = 1
INTERRUPTED = 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--pace", type=float, default=1.0, help="how long the work takes; 1 is for people, less is quicker"
    )
    parser.add_argument(
        "--dsn",
        help="tell the ingestion alone, with its records in this PostgreSQL database (extra `postgres`)",
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    screen = Screen()
    began = time.monotonic()
    try:
        code = _run(screen, asked.pace, asked.dsn)
        if code == 0:
            screen.say(f"{time.monotonic() - began:.1f} seconds, nothing left behind.")
        return code
    except DemoFailed as failure:
        screen.problem(f"\nFAILED: {failure}")
        return FAILED
    except KeyboardInterrupt:
        screen.problem("\nStopped. All processes are gone, and so is their directory.")
        return INTERRUPTED
    except BrokenPipeError:  # whoever listened has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(screen: Screen, pace: float, dsn: str | None) -> int:
    stage = Stage()
    try:
        try:
            if dsn is None:
                Story(stage, screen, pace=pace).tell()
                LeaseStory(stage, screen, pace=pace).tell()
            WorkerStory(stage, screen, pace=pace, dsn=dsn).tell()
        except DemoFailed as failure:
            screen.problem(f"\nFAILED: {failure}")
            for line in stage.logs():
                screen.say(line)
            return FAILED
        return 0
    finally:
        # From here on nothing interrupts: it takes a few seconds at most.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        stage.clear()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
