"""HandlerRegistry: which code works on which tasks.

Owns what is known of a handler before it runs: its reference, the model of its payload, its limits, and
whether it may run twice. Refuses to import a handler before it is asked for, so that a server may submit work
whose code only workers have. It exists so that every process reads the same table.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, Literal

import orjson

from task_tracker.codec import check_id, encode_value
from task_tracker.errors import InvalidPayload, SettingsError
from task_tracker.references import check_reference, first_line, fitting, load_reference

__all__ = ["Delivery", "Handler", "HandlerRegistry", "InvalidPayload"]

Delivery = Literal["at_most_once", "at_least_once"]
"""What a crash in the middle of a handler means for its task: it fails, or it runs once more."""

ATTEMPTS_IF_IDEMPOTENT: Final = 3
RETRY_SECONDS: Final = 1.0
RETRY_LIMIT_SECONDS: Final = 300.0
CLEANUP_SECONDS: Final = 10.0

_HIGHEST: Final = 2**31 - 1
"""What an integer column of any database takes."""
_LONGEST: Final = sys.float_info.max
"""A whole number above it is finite as well, and no timer takes it."""

_VALUES: Final = (bool, int, float, str, bytes, dict, list, tuple, set, frozenset)
"""Objects of these are no types, so no payload can be checked against them."""

_HANDLER_TAKES: Final = ("ctx", "payload")
_HOOK_TAKES: Final = ("ctx", "record")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handler:
    """One row of the table. Times are seconds."""

    task_type: str
    version: int
    handler: str
    """``"module:function"``: takes ``(ctx, payload)``, sync or async."""
    payload: Any = None
    """A pydantic model, or another type that pydantic can check; None takes any JSON."""
    timeout_seconds: float | None = None
    """None: the worker's own default."""
    on_failure: str | None = None
    """``"module:function"``: takes ``(ctx, record)``, called before the task ends as failed."""
    idempotent: bool = False
    """Whether running it twice does no more than running it once; only such tasks are tried again."""
    cancellable: bool = True
    max_attempts: int = 1
    retry_seconds: float = RETRY_SECONDS
    """The pause before the second attempt; it doubles with each one."""
    retry_limit_seconds: float = RETRY_LIMIT_SECONDS
    """The longest such pause."""
    cleanup_seconds: float = CLEANUP_SECONDS
    """What it has to unwind once it was told to stop."""
    max_running: int | None = None
    """How many may run at once over all workers of a store; None: as many as there are slots."""
    _loaded: dict[str, Callable[..., Any]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What was imported, by reference."""

    @property
    def kind(self) -> tuple[str, int]:
        """The pair (task_type, version)."""
        return self.task_type, self.version

    @property
    def delivery(self) -> Delivery:
        """``at_least_once`` for idempotent handlers, ``at_most_once`` for all others."""
        return "at_least_once" if self.idempotent else "at_most_once"

    @property
    def is_loaded(self) -> bool:
        """Whether :meth:`load` returns at once: it was imported before, by :meth:`HandlerRegistry.check` say."""
        return self.handler in self._loaded

    @property
    def is_hook_loaded(self) -> bool:
        """Whether :meth:`load_on_failure` returns at once."""
        return self.on_failure is None or self.on_failure in self._loaded

    def load(self) -> Callable[..., Any]:
        """Return the function, imported at the first call. Raises SettingsError if there is none, or a wrong one."""
        return self._load(self.handler, _HANDLER_TAKES)

    def load_on_failure(self) -> Callable[..., Any] | None:
        """Return the hook in the same way; None if there is none."""
        return None if self.on_failure is None else self._load(self.on_failure, _HOOK_TAKES)

    def parse(self, payload_json: bytes | None) -> Any:
        """Return the payload as the handler takes it. Raises InvalidPayload."""
        if self.payload is None:
            return None if payload_json is None else orjson.loads(payload_json)
        adapter = self._adapter
        try:
            # As JSON, where dates are text: strict models would refuse that in Python's own values.
            return adapter.validate_json(b"null" if payload_json is None else payload_json)
        except Exception as error:
            raise InvalidPayload(self._about(_mistake(error))) from error

    def encode(self, payload: object) -> bytes | None:
        """Return ``payload`` (a model, or what it is made of) as JSON for :meth:`parse`. Raises InvalidPayload.

        Refuses what would reach the handler as something else than the model made of it: fields that JSON leaves
        out, secrets that are written as stars. What the model ignores was never in it.
        """
        if self.payload is None:
            return plain_payload(payload)
        adapter = self._adapter
        try:
            wanted = adapter.validate_python(payload)
            encoded = plain_payload(
                adapter.dump_python(wanted, mode="json", by_alias=True, round_trip=True, warnings=False)
            )
            same = bool(self.parse(encoded) == wanted)
        except InvalidPayload:
            raise
        except Exception as error:
            raise InvalidPayload(self._about(_mistake(error))) from error
        if not same:
            raise InvalidPayload(
                self._about(
                    "written as JSON and read again it is another one; leave no field out, give secrets as private"
                )
            )
        return encoded

    def problems(self) -> list[str]:
        """Import everything and return what is wrong, one line each."""
        return [
            *(f"{self._name}: {problem}" for problem in _problem(self.load)),
            *(f"{self._name}, on_failure: {problem}" for problem in _problem(self.load_on_failure)),
            *(f"{self._name}, payload: {problem}" for problem in _problem(lambda: self._adapter)),
        ]

    def _load(self, reference: str, takes: Sequence[str]) -> Callable[..., Any]:
        # No cached_property: in Python 3.11 it has one lock for all rows, and an import may take long.
        function = self._loaded.get(reference)
        if function is None:
            function = self._loaded[reference] = load_reference(reference, takes)
        return function

    @cached_property
    def _adapter(self) -> Any:
        if self.payload is None:
            return None
        from pydantic import TypeAdapter

        try:
            adapter = TypeAdapter(self.payload)
            adapter.validator.title  # noqa: B018  # raises if it names something that is not defined yet
            return adapter
        except Exception as error:  # a name that is not there yet, or whatever a type raises here
            raise SettingsError(
                f"{self.payload!r:.80} is nothing that pydantic can check ({first_line(error)}); give a model"
            ) from error

    @property
    def _name(self) -> str:
        return f"{self.task_type!r} version {self.version}"

    def _about(self, problem: str) -> str:
        return f"the payload is not what {self._name} takes: {problem}"


class HandlerRegistry:
    """The table of all handlers of a program, and of what they share. Thread-safe once it is in use.

    A tracker or worker that takes it freezes it: what is registered later would be known in one process only.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, int], Handler] = {}
        self._latest: dict[str, Handler] = {}
        self._factories: dict[str, str | Callable[[], Any]] = {}
        self._frozen = False

    def register(
        self,
        task_type: str,
        *,
        version: int = 1,
        handler: str,
        payload: Any = None,
        timeout_seconds: float | None = None,
        on_failure: str | None = None,
        idempotent: bool = False,
        cancellable: bool = True,
        max_attempts: int | None = None,
        retry_seconds: float = RETRY_SECONDS,
        retry_limit_seconds: float = RETRY_LIMIT_SECONDS,
        cleanup_seconds: float = CLEANUP_SECONDS,
        max_running: int | None = None,
    ) -> Handler:
        """Add a handler for tasks of this type and version, and return its row; nothing is imported.

        ``version`` changes when an older handler could not work on the payload; 0 is for tasks from a table without
        versions (docs/postgres.md). ``max_attempts`` is 1, or 3 for an ``idempotent`` handler. Raises SettingsError
        for a pair that is taken, for a value of another type than the one that is asked for, and for values that
        cannot work together.
        """
        self._check_open()
        name = f"handler {task_type!r}"
        row = Handler(
            task_type=check_id(task_type, "task_type"),
            version=_whole(version, f"{name}: version", 0),
            handler=check_reference(handler, f"{name}: handler"),
            payload=_model(payload, name),
            timeout_seconds=None if timeout_seconds is None else _seconds(timeout_seconds, name, "timeout"),
            on_failure=None if on_failure is None else check_reference(on_failure, f"{name}: on_failure"),
            idempotent=_flag(idempotent, f"{name}: idempotent"),
            cancellable=_flag(cancellable, f"{name}: cancellable"),
            max_attempts=(ATTEMPTS_IF_IDEMPOTENT if idempotent else 1)
            if max_attempts is None
            else _whole(max_attempts, f"{name}: max_attempts", 1),
            retry_seconds=_seconds(retry_seconds, name, "retry"),
            retry_limit_seconds=_seconds(retry_limit_seconds, name, "retry_limit"),
            cleanup_seconds=_seconds(cleanup_seconds, name, "cleanup", zero=True),
            max_running=None if max_running is None else _whole(max_running, f"{name}: max_running", 1),
        )
        if row.max_attempts > 1 and not idempotent:
            raise SettingsError(
                f"{name}: max_attempts is {max_attempts} and it is not idempotent; only work that may run twice is "
                "tried again: leave max_attempts out, or say idempotent=True if that is so"
            )
        if retry_limit_seconds < retry_seconds:
            raise SettingsError(
                f"{name}: retry_limit_seconds is {retry_limit_seconds:g}, less than retry_seconds; give no less"
            )
        if row.kind in self._handlers:
            raise SettingsError(
                f"{name}: version {version} is registered already, as {self._handlers[row.kind].handler}; "
                "choose another version"
            )
        self._handlers[row.kind] = row
        latest = self._latest.get(task_type)
        if latest is None or latest.version < version:
            self._latest[task_type] = row
        return row

    def resource(self, name: str, factory: str | Callable[[], Any]) -> None:
        """Name something that handlers share, with what builds it once per worker.

        ``factory`` takes nothing and is sync or async, or ``"module:function"``. Raises SettingsError for a
        name that is taken.
        """
        self._check_open()
        check_id(name, "the name of a resource")
        if name in self._factories:
            raise SettingsError(f"resource {name!r} is registered already; choose another name")
        if isinstance(factory, str):
            factory = check_reference(factory, f"resource {name!r}: factory")
        elif not callable(factory):
            raise SettingsError(
                f"resource {name!r}: factory is {factory!r:.80}; give a function that takes nothing, or "
                '"module:function"'
            )
        self._factories[name] = factory

    def get(self, task_type: str, version: int) -> Handler | None:
        """Return the handler of this type and version, None if there is none here."""
        return self._handlers.get((task_type, version))

    def latest(self, task_type: str) -> Handler | None:
        """Return the handler of the highest version, None if there is none."""
        return self._latest.get(task_type)

    def kinds(self) -> list[tuple[str, int]]:
        """Return all pairs (task_type, version), sorted."""
        return sorted(self._handlers)

    def handlers(self) -> list[Handler]:
        """Return all rows, in the order of :meth:`kinds`."""
        return [self._handlers[kind] for kind in self.kinds()]

    def resources(self) -> list[str]:
        """Return the names of all resources, sorted."""
        return sorted(self._factories)

    def factory(self, name: str) -> Callable[[], Any]:
        """Return what builds a resource, imported if need be. Raises SettingsError."""
        factory = self._factories.get(name)
        if factory is None:
            known = ", ".join(self.resources()) or "none"
            raise SettingsError(f"no resource {name!r} is registered, known are {known}")
        return (
            load_reference(factory, ()) if isinstance(factory, str) else fitting(factory, repr(factory), ())
        )

    def check(self) -> None:
        """Import every reference; raise one SettingsError that names all that is wrong. For the start of a worker."""
        wrong = [problem for row in self.handlers() for problem in row.problems()]
        for name in self.resources():
            wrong += [f"resource {name!r}: {problem}" for problem in _problem(lambda: self.factory(name))]  # noqa: B023  # called at once
        if wrong:
            raise SettingsError("handlers that cannot work: " + " | ".join(wrong))

    def freeze(self) -> None:
        """Take no more: a tracker or a worker uses it. Twice is safe."""
        self._frozen = True

    def _check_open(self) -> None:
        if self._frozen:
            raise SettingsError(
                "this registry is in use by a tracker or a worker; call register() and resource() before that"
            )


def plain_payload(payload: object) -> bytes | None:
    """Return a payload that no model checks as JSON, None for None. Raises InvalidPayload."""
    try:
        return None if payload is None else encode_value(payload, "payload")
    except ValueError as error:
        raise InvalidPayload(str(error)) from error


# ---- checks ----------------------------------------------------------------------------------------


def _problem(load: Callable[[], object]) -> list[str]:
    try:
        load()
    except SettingsError as error:
        return [str(error)]
    return []


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r:.80}; give True or False")
    return value


def _model(payload: Any, name: str) -> Any:
    """Return what may be a type. Whether pydantic can check it is found out later: that takes its time."""
    if isinstance(payload, _VALUES) or hasattr(type(payload), "model_fields"):
        raise SettingsError(
            f"{name}: payload is {payload!r:.80}; give the model (a class) or another type, or leave it out"
        )
    return payload


def _whole(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _HIGHEST:
        raise SettingsError(f"{name} is {value!r:.80}; give a whole number of at least {least}")
    return value


def _seconds(value: object, name: str, what: str, *, zero: bool = False) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (0 < value <= _LONGEST or (zero and value == 0))
    ):
        raise SettingsError(
            f"{name}: {what}_seconds is {value!r:.80}; give a finite number of seconds above 0"
        )
    return value


def _mistake(error: Exception) -> str:
    """Say what a model found wrong first, and how many mistakes there are more. Inputs are not quoted."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):  # of a validator or serializer of the user's own
        return f"{type(error).__name__}: {first_line(error):.300}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(("payload", *(str(part) for part in first["loc"])))
    more = error.error_count() - 1
    return f"{place:.200}: {' '.join(first['msg'].split()):.300}" + (f" (and {more} more)" if more else "")
