"""Payloads on their way to a handler: they arrive as they were given, or the call that gave them is refused."""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator

from task_tracker import HandlerRegistry, InvalidPayload, SettingsError
from task_tracker.handlers import Handler
from task_tracker.worker import TaskContext
from tests.core.support import OWNER
from tests.runtime.workers import Crew


def handler(model: Any) -> Handler:
    return HandlerRegistry().register("ingest", handler="app.ingest:run", payload=model)


class Ingest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: str
    depth: int = 1


WRONG: dict[str, Any] = {"url": 5}


class Rich(BaseModel):
    at: datetime
    price: Decimal
    tags: set[str] = set()
    alias: int = Field(0, alias="aliasName")


class Secret(BaseModel):
    key: SecretStr


class Partial(BaseModel):
    name: str
    hidden: int = Field(0, exclude=True)


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def known(cls, value: str) -> str:
        if value == "bad":
            raise ValueError("not that\none")
        if value == "crash":
            raise KeyError("name")
        return value


AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.parametrize(
    ("model", "payload", "wanted"),
    [
        (Ingest, Ingest(url="u"), Ingest(url="u")),
        (Ingest, {"url": "u", "depth": 3}, Ingest(url="u", depth=3)),
        (
            Rich,
            {"at": AT, "price": Decimal("1.10"), "tags": {"a"}, "aliasName": 4},
            Rich(at=AT, price=Decimal("1.10"), tags={"a"}, aliasName=4),
        ),
        (Strict, Strict(at=AT), Strict(at=AT)),
        (list[int], [1, 2], [1, 2]),
        (int | None, None, None),
        (None, {"a": [1, None]}, {"a": [1, None]}),
        (None, None, None),
    ],
)
def test_a_payload_reaches_the_handler_as_it_was_given(model: Any, payload: object, wanted: object) -> None:
    row = handler(model)
    assert row.parse(row.encode(payload)) == wanted


@pytest.mark.parametrize(
    ("model", "payload", "message"),
    [
        (Ingest, {}, "payload.url: Field required"),
        (Ingest, None, "payload: Input should be a valid dictionary"),
        (Ingest, {"url": 1, "depth": "x"}, "payload.url: Input should be a valid string (and 1 more)"),
        (Ingest, {"url": "u", "more": 1}, "payload.more: Extra inputs are not permitted"),
        (Ingest, Ingest.model_construct(**WRONG), "payload.url: Input should be a valid string"),
        (Secret, {"key": "hunter2"}, "it is another one; leave no field out, give secrets as private"),
        (Partial, Partial(name="n", hidden=3), "it is another one; leave no field out"),
        (Picky, {"name": "bad"}, "payload.name: Value error, not that one"),
        (Picky, {"name": "crash"}, "takes: KeyError: 'name'"),
        (list[float], [float("nan")], "payload[0] is nan, which JSON does not have"),
        (None, {"a": object()}, "payload.a is a builtins.object, which JSON does not have"),
        (None, {1: 2}, "payload has the key 1; JSON keys are strings"),
    ],
)
def test_a_payload_that_is_not_what_it_takes_is_refused(model: Any, payload: object, message: str) -> None:
    with pytest.raises(InvalidPayload) as refused:
        handler(model).encode(payload)
    text = str(refused.value)
    assert message in text
    assert "hunter2" not in text
    assert "\n" not in text


@pytest.mark.parametrize("stored", [b'{"depth": 1}', b"null", None, b"[1]"])
def test_what_was_stored_by_another_version_is_refused_as_such(stored: bytes | None) -> None:
    with pytest.raises(InvalidPayload, match="the payload is not what 'ingest' version 1 takes: payload"):
        handler(Ingest).parse(stored)


def test_an_unfinished_model_is_the_programs_mistake_and_not_the_payloads() -> None:
    class Unfinished(BaseModel):
        other: "Missing"  # type: ignore[name-defined]  # noqa: F821, UP037

    with pytest.raises(SettingsError, match="is nothing that pydantic can check"):
        handler(Unfinished).encode({"other": 1})


# ---- where they are checked ----------------------------------------------------------------------------

_checked: ContextVar[tuple[int, ...]] = ContextVar("_checked", default=())


def _check(number: int) -> int:
    _checked.set((*_checked.get(), number))
    return number


async def numbers_checked(_: TaskContext, __: int) -> tuple[int, ...]:
    return _checked.get()


def test_what_a_check_leaves_in_context_variables_is_seen_by_its_handler_only(crew: Crew) -> None:
    """The attempts of a worker are begun by one piece of code, which has nothing of one of them in those of others."""
    handlers = HandlerRegistry()
    model = Annotated[int, AfterValidator(_check)]
    handlers.register("number", handler=f"{__name__}:numbers_checked", payload=model)
    handlers.check()
    tracker = crew.tracker(handlers)
    submit = copy_context().run  # which checks them too
    tasks = [submit(tracker.submit, "number", number, **OWNER).record for number in (1, 2, 3)]
    assert crew.worker(tracker).run_once() == 3
    assert [crew.seen(task).result for task in tasks] == [[1], [2], [3]]
