"""``task_tracker migrate``: brings a database's tables to what this version needs.

Owns the arguments and the exit code: 0 if the tables are as they should be (now), 1 if ``--check`` found that they are
not, 2 for what cannot work. Refuses to know what a migration is: the backend does.
"""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import closing
from typing import Any

from task_tracker.cli.printing import say
from task_tracker.cli.worker_settings import read_document, storage_config
from task_tracker.config import StorageConfig
from task_tracker.registry import open_schema

__all__ = ["add_to"]

_BACKEND = "postgres"
_NOWHERE = "postgresql://"
"""What is only printed needs no database."""
_STORAGE_ARGUMENTS = ("backend", "dsn")
_OPTIONS = ("schema", "table_prefix")


def add_to(commands: Any) -> None:
    """Add the command to ``commands``, the subparsers of the program."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "migrate",
        help="prepare the tables of a database",
        description="Applies the migrations that are still to come; any number of processes may do so at once. "
        "Arguments win over the environment (TASK_TRACKER__DSN=...), that over --config.",
    )
    parser.add_argument(
        "--check", action="store_true", help="only say what is to come; exit code 1 if something is"
    )
    parser.add_argument("--sql", action="store_true", help="print all steps as SQL and change nothing")
    parser.add_argument("--config", metavar="FILE", help="JSON with the section storage.task_tracker")
    parser.add_argument("--backend", metavar="NAME", help="postgres, unless one is given")
    parser.add_argument(
        "--dsn",
        help="the connection string; better in TASK_TRACKER__DSN, where no list of processes shows it",
    )
    parser.add_argument("--schema", metavar="NAME")
    parser.add_argument("--table-prefix", metavar="TEXT")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    arguments = {name: value for name in _STORAGE_ARGUMENTS if (value := getattr(options, name)) is not None}
    document = read_document(options.config)
    if StorageConfig.from_document(document).task_tracker.backend == "memory":
        arguments.setdefault("backend", _BACKEND)  # nobody has said which; whoever migrates has a database
    settings = storage_config(arguments, document).task_tracker
    named = {name: value for name in _OPTIONS if (value := getattr(options, name)) is not None}
    settings = settings.model_copy(update={"options": {**settings.options, **named}})
    asked = settings.store_options(None)
    if options.sql and asked.dsn is None:
        asked = dataclasses.replace(asked, dsn=_NOWHERE)
    with closing(open_schema(settings.backend, asked)) as schema:
        if options.sql:
            say(schema.script().rstrip())
            return 0
        if options.check:
            pending = schema.pending()
            say("\n".join(f"to come: {name}" for name in pending) or "nothing to do")
            return 1 if pending else 0
        say("\n".join(f"applied: {name}" for name in schema.migrate()) or "nothing to do")
        return 0
