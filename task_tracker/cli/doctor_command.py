"""``task_tracker doctor``: says what crashes and foreign hands have left in a store, and mends it.

Owns the lines and the exit code: 0 if nothing is left to do, 1 if something is, 2 for what cannot work or a store that
cannot be asked. Refuses to know what to look for: the store does.
"""

from __future__ import annotations

import argparse
from typing import Any

from task_tracker.cli.looking import add_command, idle_tracker
from task_tracker.cli.printing import in_one_line, say

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to ``commands``, the subparsers of the program."""
    parser = add_command(
        commands,
        "doctor",
        "say what is wrong in a store, and mend it",
        "Looks at every record, and prints one line for each finding: what it is, where, and what to do. Exit code 1 "
        "if something is left to do.",
    )
    parser.add_argument(
        "--fix", action="store_true", help="mend what can be mended without harm to what is at work"
    )
    parser.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    with idle_tracker(options) as tracker:
        findings = tracker.doctor(fix=options.fix)
    for finding in findings:
        # Both may quote what others wrote.
        line = in_one_line(f"{finding.kind} {finding.where}: {finding.message}")
        say(f"fixed: {line}" if finding.fixed else line)
    left = sum(not finding.fixed for finding in findings)
    if not findings:
        say("nothing found")
    else:
        say(f"{len(findings)} found, {len(findings) - left} of them fixed")
    return 1 if left else 0
