"""``task_tracker list``, ``show``, ``cancel`` and ``retry``: what an operator asks about tasks, and does to one.

Owns the arguments, the lines and the exit codes: 0 for what was done; 1 if there is no such task, if it cannot be done
to it as it is now, or if a record cannot be read; 2 for what cannot work or a store that cannot be asked. Shows the
public view of tasks, in which credentials are masked, their owners, and who holds them. Refuses to work on tasks.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from task_tracker.cli.looking import add_command, idle_tracker
from task_tracker.cli.printing import in_one_line, note, say
from task_tracker.errors import CorruptRecord, InvalidPayload, InvalidTransition, TaskNotFound
from task_tracker.order_checks import LARGEST_NUMBER
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.tracker import TaskTracker
from task_tracker.transitions import cancellation_requested

__all__ = ["add_to"]

_LONGEST_DETAIL: Final = 100


def add_to(commands: Any) -> None:
    """Add the commands to ``commands``, the subparsers of the program."""
    listed = add_command(
        commands,
        "list",
        "list tasks, the newest first",
        "One line for each task of an account, or of one of its users. Exit code 1 if a record cannot be read.",
    )
    listed.add_argument("--account", required=True, metavar="ID")
    listed.add_argument("--user", metavar="ID", help="only this user's")
    listed.add_argument("--type", metavar="TYPE")
    listed.add_argument("--status", choices=[*TaskStatus])
    listed.add_argument("--resource", metavar="ID")
    listed.add_argument("--limit", type=_whole, default=50, metavar="N", help="50 unless given")
    listed.add_argument("--before", metavar="CURSOR", help="go on where an earlier page has ended")
    listed.add_argument("--json", action="store_true", help="the whole tasks, as one line of JSON each")
    listed.set_defaults(command=_list)
    _add_for_one(commands, "show", "show one task", "Prints a task as JSON.").set_defaults(
        command=partial(_run, _show)
    )
    _add_for_one(
        commands,
        "cancel",
        "cancel a task",
        "Cancels a task that waits, and asks what works on one that runs to stop; its holder hears of that with its "
        "next heartbeat. Exit code 1 if the task has ended, however it has.",
    ).set_defaults(command=partial(_run, _cancel))
    _add_for_one(
        commands,
        "retry",
        "submit the work of an ended task once more",
        "Submits a new task with the type, version, resource and payload of the old one, without what was private and "
        "without its start time. Exit code 1 if the old one has not ended, was not submitted for a worker or held "
        "credentials, and if another one of its type and resource is active and there may be but one.",
    ).set_defaults(command=partial(_run, _retry))


def _add_for_one(commands: Any, name: str, brief: str, description: str) -> argparse.ArgumentParser:
    parser = add_command(commands, name, brief, description)
    parser.add_argument("task_id", metavar="TASK")
    parser.add_argument("--account", required=True, metavar="ID")
    parser.add_argument("--user", required=True, metavar="ID")
    return parser


def _list(options: argparse.Namespace) -> int:
    with _tracker(options) as tracker:
        try:
            page = tracker.list_tasks(
                options.type,
                options.status,
                options.resource,
                options.limit,
                options.account,
                options.user,
                before=options.before,
            )
        except ValueError as error:  # an owner or a cursor that cannot be meant
            return _refused(error, 2)
    for record in page:
        say(_as_json(record) if options.json else _line(record))
    for corrupt in page.corrupt:
        note(f"cannot be read: {in_one_line(corrupt)}")
    if page.next_cursor is not None:
        note(f"there are more: --before {page.next_cursor}")
    elif not page and not page.corrupt:
        note("there are none")
    return 1 if page.corrupt else 0


def _show(options: argparse.Namespace, tracker: TaskTracker) -> int:
    record = tracker.get(options.task_id, options.account, options.user)
    if record is None:
        return _no_such_task(options)
    say(_as_json(record, indent=2))
    return 0


def _cancel(options: argparse.Namespace, tracker: TaskTracker) -> int:
    before = tracker.get(options.task_id, options.account, options.user)
    # The tracker takes a second cancel as done already; who types one is to learn that it came too late.
    if before is not None and before.status.is_terminal:
        return _refused(f"{before.task_id} has ended: it is {before.status}", 1)
    record = tracker.cancel(options.task_id, options.account, options.user)
    assert record is not None, "this tracker is strict"
    if not cancellation_requested(record):
        return _refused(f"{record.task_id} cannot be cancelled: it is {record.status}", 1)
    is_over = record.status is TaskStatus.CANCELLED
    say(f"{in_one_line(record.task_id)} {'is cancelled' if is_over else 'is asked to stop'}")
    return 0


def _retry(options: argparse.Namespace, tracker: TaskTracker) -> int:
    # No handler is known here, and the old task was submitted by who knew one.
    made = tracker.retry(options.task_id, options.account, options.user, unregistered=True)
    if not made.created:
        return _refused(f"{made.task_id}, of the same type and resource, is active; nothing was submitted", 1)
    say(f"{in_one_line(made.task_id)} is submitted and does the work of {in_one_line(options.task_id)}")
    if tracker.wake_up_failures:
        note("no worker could be told of it; they find it when they look next")
    return 0


def _run(do: Callable[[argparse.Namespace, TaskTracker], int], options: argparse.Namespace) -> int:
    """Do something with one task; return the exit code."""
    try:
        with _tracker(options) as tracker:
            return do(options, tracker)
    except TaskNotFound:
        return _no_such_task(options)
    except InvalidPayload as error:
        return _refused(f"{error} (only a program can do that, by TaskTracker.retry)", 1)
    except (InvalidTransition, CorruptRecord) as error:
        return _refused(error, 1)
    except ValueError as error:  # an id that cannot be meant
        return _refused(error, 2)


@contextmanager
def _tracker(options: argparse.Namespace) -> Iterator[TaskTracker]:
    """Give a tracker. What it logs is told by the commands, in a line of their own."""
    log, handler = logging.getLogger("task_tracker"), logging.NullHandler()
    log.addHandler(handler)
    try:
        with idle_tracker(options) as tracker:
            yield tracker
    finally:
        log.removeHandler(handler)


def _as_json(record: TaskRecord, indent: int | None = None) -> str:
    """Return a task as JSON that any terminal can show, and that has no line ends where ``indent`` has none."""
    view = {
        **record.to_dict(),
        "owner_account_id": record.account_id,
        "owner_user_id": record.user_id,
    }
    # Not orjson, which leaves other characters than ASCII as they are, and stops at records that can be read.
    return json.dumps(view, indent=indent).replace("\x7f", "\\u007f")


def _line(record: TaskRecord) -> str:
    """Return what matters of a task in one line, whatever others have written into it."""
    view: dict[str, Any] = record.to_dict()
    is_over = record.status.is_terminal
    parts = [
        record.task_id,
        record.user_id,
        record.task_type,
        str(view["status"]),
        str(view["created_at_iso"] or record.created_at),
        *([f"for {record.resource_id}"] if record.resource_id else []),
        *([f"{record.progress:g} %"] if record.progress is not None and not is_over else []),
    ]
    detail = view.get("error") or (None if is_over else view.get("message") or view.get("stage"))
    if detail:
        parts.append(detail if len(detail) <= _LONGEST_DETAIL else f"{detail[:_LONGEST_DETAIL]}...")
    return "; ".join(in_one_line(part) for part in parts)


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= LARGEST_NUMBER:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, not {text!r:.80}")
    return number


def _no_such_task(options: argparse.Namespace) -> int:
    return _refused(
        f"{options.account}/{options.user} has no task {options.task_id}; ids are in what list prints", 1
    )


def _refused(why: object, code: int) -> int:
    note(f"task_tracker: {in_one_line(why)}")
    return code
