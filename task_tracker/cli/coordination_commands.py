"""``task_tracker pause``, ``resume`` and ``workers``: what an operator tells the workers of a store, and asks of them.

Owns the arguments, the lines and the exit codes: 0 for what was done, 1 if no worker is ready, 2 for what cannot work
or a store that cannot be asked. Refuses to work on tasks: nothing is reconciled and nothing swept meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from task_tracker.cli.looking import add_command, idle_tracker
from task_tracker.cli.printing import in_one_line, note, say
from task_tracker.coordination import kinds_of
from task_tracker.errors import StoreUnavailable
from task_tracker.store import WorkerFact

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the commands to ``commands``, the subparsers of the program."""
    pause = add_command(
        commands,
        "pause",
        "have no worker claim tasks of a type",
        "From now on no worker of the store claims tasks of this type, in no process, until it is resumed. What runs "
        "goes on.",
    )
    pause.add_argument("task_type", metavar="TYPE")
    pause.set_defaults(command=_pause)
    resume = add_command(
        commands, "resume", "let workers claim them again", "Ends what the command pause has begun."
    )
    resume.add_argument("task_type", metavar="TYPE")
    resume.set_defaults(command=_resume)
    workers = add_command(
        commands,
        "workers",
        "say which workers live, and what is paused",
        "One line for each worker that was heard of lately. Exit code 1 if none of them is ready.",
    )
    workers.add_argument(
        "--json", action="store_true", help="everything that they say, as one line of JSON each"
    )
    workers.set_defaults(command=_workers)


def _pause(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
        before = options.task_type in tracker.paused_types()
        tracker.pause_type(options.task_type)
        say(
            f"{options.task_type} was paused already"
            if before
            else f"{options.task_type} is paused; what runs goes on, and nothing of it is claimed until it is resumed"
        )
        with contextlib.suppress(StoreUnavailable):  # it is paused all the same
            _remark_unknown(options.task_type, tracker.workers())
    return 0


def _remark_unknown(task_type: str, workers: Sequence[WorkerFact]) -> None:
    known = sorted({kind[0] for fact in workers for kind in kinds_of(fact)})
    if task_type not in known:
        there_are = f"they have some for {', '.join(known)}" if known else "there is no worker just now"
        note(f"no live worker has a handler for {task_type}; {there_are}")


def _resume(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
        before = options.task_type in tracker.paused_types()
        tracker.resume_type(options.task_type)
    say(f"{options.task_type} is claimed again" if before else f"{options.task_type} was not paused")
    return 0


def _workers(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
        workers, paused = tracker.workers(), tracker.paused_types()
    for fact in workers:
        say(orjson.dumps(_as_object(fact)).decode() if options.json else in_one_line(_line(fact)))
    ready = sum(fact.data.get("ready") is True for fact in workers)
    if not options.json:
        say(f"{ready} of {len(workers)} workers ready; paused: {', '.join(paused) or 'nothing'}")
    return 0 if ready else 1


def _as_object(fact: WorkerFact) -> dict[str, Any]:
    return {
        **fact.data,
        "instance": fact.name,
        "age_seconds": fact.age_seconds,
        "life_seconds": fact.life_seconds,
    }


def _line(fact: WorkerFact) -> str:
    """Return what is said of a worker in one line; what it does not say is left out."""
    data = fact.data
    parts = [
        fact.name,
        f"{data.get('state', 'of an unknown state')}, {'ready' if data.get('ready') is True else 'NOT ready'}",
    ]
    if "slots" in data:
        parts.append(f"{data.get('running', 0)} of {data['slots']} slots taken")
    if kinds := data.get("kinds"):
        parts.append("for " + ", ".join(" ".join(str(part) for part in kind) for kind in kinds))
    if not_ready := _not_ready(data):
        parts.append(f"because of {not_ready}")
    if paused := data.get("paused"):
        parts.append(f"leaves alone {', '.join(paused)}")
    parts.append(f"heard of {fact.age_seconds:.0f} s ago")
    return "; ".join(parts)


def _not_ready(data: Mapping[str, Any]) -> str:
    """Return what keeps a worker from being ready, as far as it says so."""
    reasons = [
        text
        for name, text in (
            ("blocked_loop_seconds", "a blocked event loop"),
            ("store_away_seconds", "a store that does not answer"),
        )
        if data.get(name)
    ]
    facts = data.get("facts")
    if isinstance(facts, Mapping):
        reasons += [
            f"{name} ({fact.get('detail') or 'not ready'})"
            for name, fact in facts.items()
            if not fact.get("ready")
        ]
    return ", ".join(reasons)
