"""The operators' commands.

Owns how a command is found and how a mistake is told: one line, exit code 2. Refuses to do the work of a command.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from task_tracker.cli import (
    coordination_commands,
    copy_command,
    doctor_command,
    migrate_command,
    task_commands,
    worker_command,
)
from task_tracker.cli.printing import in_one_line, note, prepare
from task_tracker.errors import TaskTrackerError
from task_tracker.redaction import redact_text

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code: 2 for what cannot work as it was given."""
    parser = argparse.ArgumentParser(prog="task_tracker", description="Trackable background tasks.")
    commands = parser.add_subparsers(title="commands", required=True, dest="command_name", metavar="COMMAND")
    worker_command.add_to(commands)
    coordination_commands.add_to(commands)
    task_commands.add_to(commands)
    doctor_command.add_to(commands)
    migrate_command.add_to(commands)
    copy_command.add_to(commands)
    prepare()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # Told by the program it would stand below a usage that names no option of the command.
        commands.choices[options.command_name].error(
            f"unrecognized arguments: {redact_text(' '.join(unknown))}"
        )
    try:
        code: int = options.command(options)
    except TaskTrackerError as error:
        note(f"task_tracker: {in_one_line(error)}")
        return 2
    return code
