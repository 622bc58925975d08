"""The operators' commands.

Owns how a command is found and how a mistake is told: one line, exit code 2. Refuses to do the work of a command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from task_tracker.cli import coordination_commands, copy_command, migrate_command, worker_command
from task_tracker.errors import TaskTrackerError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code: 2 for what cannot work as it was given."""
    parser = argparse.ArgumentParser(prog="task_tracker", description="Trackable background tasks.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    worker_command.add_to(commands)
    coordination_commands.add_to(commands)
    migrate_command.add_to(commands)
    copy_command.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        code: int = options.command(options)
    except TaskTrackerError as error:
        print(f"task_tracker: {error}", file=sys.stderr)  # noqa: T201  # it talks to a person in a terminal
        return 2
    return code
