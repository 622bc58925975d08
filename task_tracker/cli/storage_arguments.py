"""The arguments that say where tasks are kept, alike for all commands that ask for one store.

Owns their names and what they imply. Refuses to open anything.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["STORAGE_ARGUMENTS", "add_storage_arguments", "given", "given_storage"]

STORAGE_ARGUMENTS: Final = ("backend", "root", "dsn")


def add_storage_arguments(parser: argparse._ActionsContainer) -> None:
    """Add them to a parser, or to a group of one."""
    parser.add_argument(
        "--root", metavar="DIRECTORY", help="with it the backend is lease unless one is given"
    )
    parser.add_argument(
        "--dsn",
        help="the connection string; with it the backend is postgres unless --backend is given. Better in "
        "TASK_TRACKER__DSN, where no list of processes shows it",
    )
    parser.add_argument("--backend", metavar="NAME")


def given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return those of ``names`` that were given."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def given_storage(options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Return what was given of where tasks are kept, and of ``more``, with what that implies."""
    arguments = given(options, (*STORAGE_ARGUMENTS, *more))
    if "dsn" in arguments:
        arguments.setdefault("backend", "postgres")
    return arguments
