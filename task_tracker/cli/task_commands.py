"""``task_tracker list``, ``show``, ``cancel`` and ``retry``: what an operator asks about tasks, and does to one.

Owns the arguments, the lines and the exit codes: 0 for what was done; 1 if there is no such task, if it cannot be done
to it as it is now, or if a record cannot be read; 2 for what cannot work or a store that cannot be asked. Shows what
the HTTP API shows: credentials are masked. Refuses to work on tasks.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import orjson

from task_tracker.cli.looking import add_command, idle_tracker
from task_tracker.errors import CorruptRecord, InvalidTransition, TaskNotFound, TaskTrackerError
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.redaction import redact_text

__all__ = ["add_to"]

_LONGEST_DETAIL: Final = 100
_NO_SUCH_TASK: Final = "{account}/{user} has no task {task}; ids are in what list prints"


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
    _add_for_one(commands, "show", "show one task", "Prints a task as JSON.").set_defaults(command=_show)
    _add_for_one(
        commands,
        "cancel",
        "cancel a task",
        "Cancels a task that waits, and asks what works on one that runs to stop; its holder hears of that with its "
        "next heartbeat. Exit code 1 if the task has ended.",
    ).set_defaults(command=_cancel)
    _add_for_one(
        commands,
        "retry",
        "submit the work of an ended task once more",
        "Submits a new task with the type, version, resource and payload of the old one. Exit code 1 if that has not "
        "ended, or was not submitted for a worker.",
    ).set_defaults(command=_retry)


def _add_for_one(commands: Any, name: str, brief: str, description: str) -> argparse.ArgumentParser:
    parser = add_command(commands, name, brief, description)
    parser.add_argument("task_id", metavar="TASK")
    parser.add_argument("--account", required=True, metavar="ID")
    parser.add_argument("--user", required=True, metavar="ID")
    return parser


def _list(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
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
        _say(orjson.dumps(_view(record)).decode() if options.json else _line(record))
    for corrupt in page.corrupt:
        _note(f"cannot be read: {corrupt}")
    if page.next_cursor is not None:
        _note(f"there are more: --before {page.next_cursor}")
    elif not page and not page.corrupt:
        _note("there are none")
    return 1 if page.corrupt else 0


def _show(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
        try:
            record = tracker.get(options.task_id, options.account, options.user)
        except CorruptRecord as error:
            return _refused(error, 1)
        except ValueError as error:
            return _refused(error, 2)
    if record is None:
        return _no_such_task(options)
    _say(orjson.dumps(_view(record), option=orjson.OPT_INDENT_2).decode())
    return 0


def _cancel(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
        try:
            record = tracker.cancel(options.task_id, options.account, options.user)
        except TaskNotFound:
            return _no_such_task(options)
        except (InvalidTransition, CorruptRecord) as error:
            return _refused(error, 1)
        except ValueError as error:
            return _refused(error, 2)
    if record is None:
        return _no_such_task(options)
    if record.status is TaskStatus.CANCELLED:
        _say(f"{record.task_id} is cancelled")
    else:
        _say(f"{record.task_id} is to stop, and is cancelled once it has")
    return 0


def _retry(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
        try:
            # No handler is known here, and the old task was submitted by who knew one.
            made = tracker.retry(options.task_id, options.account, options.user, unregistered=True)
        except TaskNotFound:
            return _no_such_task(options)
        except (InvalidTransition, CorruptRecord) as error:
            return _refused(error, 1)
        except ValueError as error:
            return _refused(error, 2)
    done = "is submitted and does" if made.created else "is active already with"
    _say(f"{made.task_id} {done} the work of {options.task_id}")
    return 0


def _view(record: TaskRecord) -> dict[str, Any]:
    return {**record.to_dict(), "account_id": record.account_id, "user_id": record.user_id}


def _line(record: TaskRecord) -> str:
    """Return what matters of a task in one line, whatever others have written into it."""
    view = record.to_dict()
    parts = [
        record.task_id,
        record.user_id,
        record.task_type,
        str(view["status"]),
        str(view["created_at_iso"] or record.created_at),
        *([f"for {record.resource_id}"] if record.resource_id else []),
        *(
            [f"{record.progress:g} %"]
            if record.progress is not None and not record.status.is_terminal
            else []
        ),
    ]
    detail = view.get("error") or (
        None if record.status.is_terminal else view.get("message") or view.get("stage")
    )
    if detail:
        parts.append(detail if len(detail) <= _LONGEST_DETAIL else f"{detail[:_LONGEST_DETAIL]}...")
    return "; ".join(_printable(part) for part in parts)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def _no_such_task(options: argparse.Namespace) -> int:
    told = _NO_SUCH_TASK.format(account=options.account, user=options.user, task=options.task_id)
    return _refused(told, 1)


def _refused(why: TaskTrackerError | ValueError | str, code: int) -> int:
    _note(f"task_tracker: {redact_text(_printable(str(why)))}")
    return code


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # that is how it answers


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # to the person who typed it
