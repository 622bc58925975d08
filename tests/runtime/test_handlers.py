"""The table of handlers: what is refused at registration, at the start, and at the first use."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict

from task_tracker import HandlerRegistry, SettingsError, TaskTracker
from task_tracker.handlers import Handler
from tests.runtime.test_handlers_imports import write_module

HERE = __name__


class Ingest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: str
    depth: int = 1


async def run(ctx: object, payload: Ingest) -> dict[str, Any]:
    return {"url": payload.url}


def run_sync(ctx: object, payload: object, *, more: int = 0) -> None:
    """Takes what it must, and something with a default."""


def hook(ctx: object, record: object) -> None:
    """What is done before a task fails."""


def lonely(ctx: object) -> None:
    """Takes too little."""


def demanding(ctx: object, payload: object, model: object) -> None:
    """Takes too much."""


def stepwise(ctx: object, payload: object) -> Iterator[int]:
    yield 1


async def stepwise_async(ctx: object, payload: object) -> AsyncIterator[int]:
    yield 1


class Runner:
    @staticmethod
    def run(ctx: object, payload: object) -> str:
        return "ran"


not_a_function = 7


def client() -> str:
    return "client"


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


def handler(**fields: Any) -> Handler:
    return HandlerRegistry().register("ingest", **({"handler": f"{HERE}:run"} | fields))


# ---- the table -------------------------------------------------------------------------------------


def test_a_row_says_what_was_registered(registry: HandlerRegistry) -> None:
    row = registry.register(
        "ingest", version=2, handler=f"{HERE}:run", payload=Ingest, timeout_seconds=90_000, max_running=2
    )
    assert registry.get("ingest", 2) is row
    assert (row.task_type, row.version, row.kind) == ("ingest", 2, ("ingest", 2))
    assert (row.timeout_seconds, row.max_running, row.on_failure) == (90_000, 2, None)
    assert (row.cancellable, row.cleanup_seconds) == (True, 10)
    assert (row.retry_seconds, row.retry_limit_seconds) == (1, 300)


def test_versions_are_rows_of_their_own(registry: HandlerRegistry) -> None:
    """[D148] Whoever has one version does not have the other."""
    for version in (2, 10, 0):
        registry.register("ingest", version=version, handler=f"{HERE}:run")
    registry.register("b", handler=f"{HERE}:run_sync")
    assert registry.kinds() == [("b", 1), ("ingest", 0), ("ingest", 2), ("ingest", 10)]
    assert [row.kind for row in registry.handlers()] == registry.kinds()
    latest = registry.latest("ingest")
    assert latest is not None
    assert latest.version == 10
    assert registry.latest("nothing") is None
    assert registry.get("ingest", 3) is None


def test_what_a_crash_means_is_said_by_each_handler() -> None:
    """[D149] At most once unless it is declared that running twice does no harm; attempts follow from that."""
    careful, repeatable = handler(), handler(idempotent=True)
    assert (careful.delivery, careful.max_attempts) == ("at_most_once", 1)
    assert (repeatable.delivery, repeatable.max_attempts) == ("at_least_once", 3)
    assert handler(idempotent=True, max_attempts=1).delivery == "at_least_once"
    assert handler(max_attempts=1).max_attempts == 1
    with pytest.raises(SettingsError, match="max_attempts is 2 and it is not idempotent; only work that may"):
        handler(max_attempts=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"handler": "nonsense"}, 'write "module:function", so that each worker finds it by itself'),
        ({"handler": run}, 'write "module:function"'),
        ({"handler": "a:b:c"}, 'write "module:function"'),
        ({"handler": "a b:c"}, 'write "module:function"'),
        ({"handler": ":c"}, 'write "module:function"'),
        ({"on_failure": "x"}, "on_failure is 'x'; write"),
        ({"version": -1}, "version is -1; give a whole number of at least 0"),
        ({"version": True}, "version is True"),
        ({"version": "2"}, "version is '2'"),
        ({"version": 2**31}, "version is 2147483648"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0; give a finite number of seconds above 0"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds is inf"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds is nan"),
        ({"timeout_seconds": "1"}, "timeout_seconds is '1'"),
        ({"timeout_seconds": 10**400}, "timeout_seconds is 1000"),
        ({"cleanup_seconds": 10**400}, "cleanup_seconds is 1000"),
        ({"cleanup_seconds": -1}, "cleanup_seconds is -1"),
        ({"retry_seconds": 0}, "retry_seconds is 0"),
        ({"retry_limit_seconds": 0.5}, "retry_limit_seconds is 0.5, less than retry_seconds"),
        ({"idempotent": True, "max_attempts": 0}, "max_attempts is 0; give a whole number of at least 1"),
        ({"max_running": 0}, "max_running is 0"),
        ({"max_running": True}, "max_running is True"),
        ({"max_running": 1.5}, "max_running is 1.5"),
        ({"idempotent": True, "max_attempts": "3"}, "max_attempts is '3'"),
        ({"idempotent": "no"}, "idempotent is 'no'; give True or False"),
        ({"idempotent": 1}, "idempotent is 1; give True or False"),
        ({"idempotent": None}, "idempotent is None; give True or False"),
        ({"cancellable": "false"}, "cancellable is 'false'; give True or False"),
        ({"timeout_seconds": True}, "timeout_seconds is True"),
        ({"cleanup_seconds": None}, "cleanup_seconds is None"),
        ({"retry_seconds": "1"}, "retry_seconds is '1'"),
        ({"retry_limit_seconds": "300"}, "retry_limit_seconds is '300'"),
        ({"on_failure": hook}, "on_failure is <function hook"),
        ({"payload": "Ingest"}, "payload is 'Ingest'; give the model (a class) or another type"),
        ({"payload": {"url": str}}, "payload is {'url'"),
        ({"payload": Ingest(url="x")}, "payload is Ingest(url='x', depth=1); give the model (a class)"),
    ],
)
def test_values_that_cannot_work_are_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        handler(**fields)
    assert str(refused.value).startswith("handler 'ingest': ")
    assert message in str(refused.value)


@pytest.mark.parametrize("model", [Ingest, list[int], int | None, Annotated[int, "of pages"], Any, dict])
def test_whatever_may_be_a_type_is_taken(model: Any) -> None:
    row = handler(payload=model)
    assert row.payload is model
    assert row.problems() == []


def test_a_blank_type_is_refused(registry: HandlerRegistry) -> None:
    with pytest.raises(ValueError, match="task_type must be a non-blank string"):
        registry.register(" ", handler=f"{HERE}:run")


def test_no_time_to_clean_up_is_a_time() -> None:
    assert handler(cleanup_seconds=0).cleanup_seconds == 0


def test_a_pair_is_registered_once(registry: HandlerRegistry) -> None:
    registry.register("ingest", handler=f"{HERE}:run")
    with pytest.raises(
        SettingsError, match=f"version 1 is registered already, as {HERE}:run; choose another"
    ):
        registry.register("ingest", handler=f"{HERE}:run_sync")


def test_a_registry_in_use_takes_no_more(registry: HandlerRegistry) -> None:
    """Another process would not have what is registered late."""
    registry.register("ingest", handler=f"{HERE}:run")
    with TaskTracker(handlers=registry) as tracker:
        assert tracker.handlers is registry
        with pytest.raises(SettingsError, match="in use by a tracker or a worker; call register"):
            registry.register("late", handler=f"{HERE}:run")
        with pytest.raises(SettingsError, match="in use by a tracker or a worker; call register"):
            registry.resource("late", client)
    assert registry.get("late", 1) is None
    registry.freeze()
    assert registry.kinds() == [("ingest", 1)]


# ---- the check at the start --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "run_sync", "Runner.run"])
def test_a_check_lets_good_ones_pass(registry: HandlerRegistry, name: str) -> None:
    registry.register("ingest", handler=f"{HERE}:{name}", on_failure=f"{HERE}:hook", payload=Ingest)
    registry.resource("client", client)
    registry.resource("by name", f"{HERE}:client")
    registry.resource("of a class", dict)
    registry.check()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "no.such.module:run",
            "no.such.module cannot be imported (ModuleNotFoundError: No module named 'no'); check",
        ),
        (f"{HERE}:absent", f"there is no absent in {HERE}; check the name"),
        (f"{HERE}:Runner.absent", f"there is no Runner.absent in {HERE}"),
        (f"{HERE}:not_a_function", "is 7; give a function that takes ("),
        (f"{HERE}:Runner", "give a function that takes ("),
        (f"{HERE}:lonely", "does not take ("),
        (f"{HERE}:demanding", "missing a required argument: 'model'"),
        (f"{HERE}:stepwise", "yields; give a function that returns, and takes ("),
        (f"{HERE}:stepwise_async", "yields; give a function that returns"),
    ],
)
@pytest.mark.parametrize("place", ["handler", "on_failure"])
def test_a_reference_that_cannot_work_is_found_at_the_start(
    registry: HandlerRegistry, reference: str, message: str, place: str
) -> None:
    row = registry.register("ingest", **{"handler": f"{HERE}:run", place: reference})  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as refused:
        registry.check()
    assert str(refused.value).startswith("handlers that cannot work: 'ingest' version 1")
    assert message in str(refused.value)
    with pytest.raises(SettingsError) as refused:
        row.load() if place == "handler" else row.load_on_failure()
    assert message in str(refused.value)


def test_a_check_names_everything_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: HandlerRegistry
) -> None:
    name = write_module(tmp_path, monkeypatch, "broken_handlers", "raise OSError('no config\\nfor you')\n")
    registry.register("a", handler=f"{name}:run")
    registry.register("b", handler=f"{HERE}:run", on_failure=f"{HERE}:lonely")
    registry.register("c", handler=f"{HERE}:run", payload=threading.Thread)
    registry.resource("r", f"{HERE}:run")
    registry.resource("s", run_sync)  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as refused:
        registry.check()
    text = str(refused.value)
    assert "\n" not in text
    problems = text.removeprefix("handlers that cannot work: ").split(" | ")
    assert [problem.split(": ")[0] for problem in problems] == [
        "'a' version 1",
        "'b' version 1, on_failure",
        "'c' version 1, payload",
        "resource 'r'",
        "resource 's'",
    ]
    assert "(OSError: no config)" in problems[0]


def test_a_function_written_in_c_is_believed(registry: HandlerRegistry) -> None:
    registry.register("ingest", handler="builtins:max")
    registry.check()


def test_resources_are_known_by_name(registry: HandlerRegistry) -> None:
    registry.resource("b", client)
    registry.resource("a", f"{HERE}:client")
    assert registry.resources() == ["a", "b"]
    assert registry.factory("a") is registry.factory("b") is client
    for name, factory, message in (
        ("a", client, "registered already; choose another name"),
        ("c", 7, "factory is 7; give a function that takes nothing"),
        ("c", "client", "factory is 'client'; write"),
        (" ", client, "the name of a resource must be"),
    ):
        with pytest.raises(ValueError, match=message):
            registry.resource(name, factory)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="no resource 'x' is registered, known are a, b"):
        registry.factory("x")
