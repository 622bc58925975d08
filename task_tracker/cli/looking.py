"""Commands that ask one store, or tell it something, and do nothing by themselves.

Owns their common arguments, and that a place which was mistyped is refused and not made. Refuses to reconcile or to
sweep meanwhile.
"""

from __future__ import annotations

import argparse
from typing import Any

from task_tracker.cli.places import directory_of, is_leased
from task_tracker.cli.storage_arguments import add_storage_arguments, given_storage
from task_tracker.cli.worker_settings import read_document, storage_config
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.tracker import TaskTracker

__all__ = ["add_command", "idle_tracker"]


def add_command(commands: Any, name: str, brief: str, description: str) -> argparse.ArgumentParser:
    """Add a command to the subparsers of the program, with the arguments that say where tasks are kept."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=brief,
        description=f"{description} Arguments win over the environment (TASK_TRACKER__ROOT=...), that over --config.",
    )
    parser.add_argument("--config", metavar="FILE", help="JSON with the section storage.task_tracker")
    add_storage_arguments(parser)
    return parser


def idle_tracker(options: argparse.Namespace) -> TaskTracker:
    """Return a tracker that does nothing by itself. Raises SettingsError, CapabilityMissing, StoreUnavailable."""
    # What was refused is to be told, whatever the server wants.
    arguments = {**given_storage(options), "strict": True}
    config = storage_config(arguments, read_document(options.config))
    settings = config.task_tracker
    directory = directory_of(settings)
    try:
        if directory is not None and settings.backend == "lease" and not is_leased(settings, directory):
            raise SettingsError(
                f"no worker and no tracker of the lease backend has ever used {directory}; give the root that they use"
            )
        if directory is not None and not directory.is_dir():
            raise SettingsError(f"there is no directory {directory}; check the path")
    except OSError as error:
        raise StoreUnavailable(
            f"{directory} cannot be looked at: {error.strerror}; check the path and who may read it"
        ) from error
    return config.build_task_tracker(cleanup=False, reconcile=False)
