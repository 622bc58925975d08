"""References: ``"module:function"`` in place of a function, so that every process finds it by itself.

Owns their form and what may be wrong with what they name. Refuses to import before it is asked to.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from task_tracker.errors import SettingsError
from task_tracker.forks import renew_after_fork

__all__ = ["check_reference", "first_line", "fitting", "load_reference"]


class _Imports:
    """One import at a time: two threads that import modules which import each other may see half of one."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self.turn = threading.RLock()  # a module that is imported may load another handler


_imports = _Imports()


def load_reference(reference: str, takes: Sequence[str]) -> Callable[..., Any]:
    """Return what ``"module:function"`` names, if it can be called with these arguments. Raises SettingsError."""
    module_name, _, path = reference.partition(":")
    try:
        with _imports.turn:
            found: Any = import_module(module_name)
    except Exception as error:
        raise SettingsError(
            f"{module_name} cannot be imported ({type(error).__name__}: {first_line(error)}); check the name, "
            f"install what it needs"
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise SettingsError(f"there is no {path} in {module_name}; check the name") from error
    return fitting(found, reference, takes)


def fitting(found: Any, reference: str, takes: Sequence[str]) -> Callable[..., Any]:
    """Return ``found`` if it can be called with these arguments. Raises SettingsError."""
    wanted = f"({', '.join(takes)})"
    if not callable(found) or (takes and inspect.isclass(found)):
        raise SettingsError(f"{reference} is {found!r:.80}; give a function that takes {wanted}")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise SettingsError(f"{reference} yields; give a function that returns, and takes {wanted}")
    try:
        inspect.signature(found).bind(*takes)
    except TypeError as error:
        raise SettingsError(f"{reference} does not take {wanted} ({error}); change its parameters") from error
    except ValueError:
        pass  # written in C, it does not say what it takes
    function: Callable[..., Any] = found
    return function


def check_reference(value: object, name: str) -> str:
    """Return ``value`` if it has the form of a reference; nothing is imported. Raises SettingsError."""
    if isinstance(value, str):
        module_name, colon, path = value.partition(":")
        if colon and all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
            return value
    raise SettingsError(
        f'{name} is {value!r:.80}; write "module:function", so that each worker finds it by itself'
    )


def first_line(error: BaseException) -> str:
    """Return the first line of what ``error`` says, for a message of one line."""
    return next(iter(str(error).splitlines()), "")
