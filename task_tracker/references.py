"""References: ``"module:function"`` in place of a function, so that every process finds it by itself.

Owns their form and what may be wrong with what they name. Refuses to import before it is asked to.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from task_tracker.errors import SettingsError
from task_tracker.forks import renew_after_fork

__all__ = ["check_reference", "first_line", "fitting", "load_reference"]

_TRIES: Final = 5
"""Of an import that is shown half of another module: those that it meets have fewer to go each time."""


class _Imports:
    """Imports at the same time: one that takes long holds up nobody who needs another module.

    Python itself lets threads wait for a module that another one imports. Where that would be a deadlock, since modules
    import each other, one thread is shown half of a module, and fails although nothing is wrong.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self._counting = threading.Lock()
        self._under_way = 0
        self._begun = 0

    def load(self, name: str) -> ModuleType:
        """Import a module; again if that fails while others are imported: between two tries it is in nobody's way."""
        with self._counting:
            self._begun += 1
            self._under_way += 1
            alone, number = self._under_way == 1, self._begun
        try:
            for _ in range(_TRIES):
                try:
                    return import_module(name)
                except Exception:
                    if alone and number == self._begun:
                        raise
            return import_module(name)
        finally:
            with self._counting:
                self._under_way = max(self._under_way - 1, 0)  # below it, if the module forked


_imports = _Imports()


def load_reference(reference: str, takes: Sequence[str]) -> Callable[..., Any]:
    """Return what ``"module:function"`` names, if it can be called with these arguments.

    Raises SettingsError, whatever the module does while it is imported and looked at, sys.exit() too.
    """
    module_name, _, path = reference.partition(":")
    with _its_errors(f"{module_name} cannot be imported", "check the name, install what it needs"):
        found: Any = _imports.load(module_name)
    with _its_errors(f"{path} cannot be looked up in {module_name}", "mend the module"):
        for name in path.split("."):
            try:
                found = getattr(found, name)
            except AttributeError as error:
                raise SettingsError(f"there is no {path} in {module_name}; check the name") from error
        return fitting(found, reference, takes)


@contextmanager
def _its_errors(what: str, advice: str) -> Iterator[None]:
    """Raise as SettingsError what users' code raises in this block."""
    try:
        yield
    except SettingsError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # somebody's Ctrl-C: other threads never see one
        raise SettingsError(f"{what} ({type(error).__name__}: {first_line(error)}); {advice}") from error


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
    try:
        return next(iter(str(error).splitlines()), "")
    except BaseException as problem:  # noqa: BLE001  # its __str__ is users' code as well
        return f"no text: its __str__ raised {type(problem).__name__}"
