"""Who is asking: what the identity dependency may be and return, and what it reads from a request."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from fastapi import Cookie, Depends, HTTPException, Query, Request
from fastapi.security import APIKeyHeader, APIKeyQuery
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

from task_tracker import TaskTracker
from task_tracker.http import Caller, Identity
from tests.http_api.asking import Client, app_with, create, run_raising, who_is_asking


@pytest.fixture
def tracker():
    with TaskTracker() as tracker:
        yield tracker


def test_any_object_with_the_two_attributes_is_an_identity(tracker: TaskTracker) -> None:
    task_id = create(tracker)

    @dataclass
    class User:
        account_id: str
        user_id: str | None
        name: str = "Alice"

    for answer in (User("acme", "alice"), SimpleNamespace(account_id="acme", user_id="alice")):
        alice = Client(app_with(tracker, identity=lambda answer=answer: answer))
        assert alice.ok("GET", f"/tasks/{task_id}")["task_id"] == task_id


def test_an_administrator_must_be_said() -> None:
    with pytest.raises(TypeError):
        Identity("acme")  # type: ignore[call-arg]
    caller: Caller = Identity("acme", None)
    assert caller.user_id is None


def test_identities_may_be_asynchronous_and_depend_on_others(tracker: TaskTracker) -> None:
    create(tracker)
    key = APIKeyHeader(name="X-Key")

    async def account(key: Annotated[str, Depends(key)]) -> str:
        return {"k1": "acme"}[key]

    async def who(account: Annotated[str, Depends(account)], session: Annotated[str, Cookie()]) -> Identity:
        return Identity(account, session)

    for identity in (who, Depends(who)):
        alice = Client(
            app_with(tracker, identity=identity), headers={"X-Key": "k1", "Cookie": "session=alice"}
        )
        assert len(alice.listed()) == 1


@pytest.mark.parametrize(("account", "user"), [(None, None), ("acme", None)])
def test_refusals_of_the_identity_are_left_as_they_are(
    tracker: TaskTracker, account: str | None, user: str | None
) -> None:
    answer = Client(app_with(tracker), account=account, user=user).get("/tasks?limit=300")
    assert (answer.status_code, answer.json()) == (401, {"detail": "who are you?"})


def test_the_servers_own_handlers_are_left_alone(tracker: TaskTracker) -> None:
    app = app_with(tracker)

    @app.exception_handler(HTTPException)
    async def own(request: Request, error: HTTPException) -> PlainTextResponse:
        return PlainTextResponse("own", error.status_code)

    @app.get("/other")
    async def other(number: int) -> int:
        return number

    assert Client(app, user=None).get("/tasks").text == "own"
    assert Client(app, base="").get("/other?number=x").status_code == 422
    assert Client(app).error("GET", "/tasks?limit=x", 400)["code"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "nobody",
    [
        None,
        Identity("", "alice"),
        Identity("acme", " "),
        Identity("a\0", "alice"),
        SimpleNamespace(account_id=None, user_id="alice"),
        SimpleNamespace(account_id=7, user_id="alice"),
        SimpleNamespace(account_id="acme", user_id=7),
    ],
)
def test_an_identity_that_names_nobody_sees_nothing(tracker: TaskTracker, nobody: Any) -> None:
    create(tracker)
    app = app_with(tracker, identity=lambda: nobody)
    assert Client(app).error("GET", "/tasks", 401)["code"] == "UNAUTHENTICATED"


def test_what_is_no_identity_is_a_mistake_of_the_server(tracker: TaskTracker) -> None:
    with pytest.raises(TypeError, match="identity dependency returned a str; return an object with"):
        run_raising(app_with(tracker, identity=lambda: "alice"))


def test_parameters_that_the_identity_reads_are_known(tracker: TaskTracker) -> None:
    create(tracker)

    class Paging(BaseModel):
        region: str = "eu"

    def account(tenant: Annotated[str, Query(alias="tenant-id")]) -> str:
        return tenant

    def who(
        request: Request,
        account: Annotated[str, Depends(account)],
        key: Annotated[str | None, Depends(APIKeyQuery(name="api_key", auto_error=False))],
        more: Annotated[Paging, Query()],
    ) -> Identity:
        assert key == "k1"
        return Identity(account, request.query_params["as"])

    query = "?tenant-id=acme&api_key=k1&as=alice&region=eu&limit=2"
    strict = Client(app_with(tracker, identity=who))
    assert strict.error("GET", f"/tasks{query}", 400)["details"]["parameters"] == ["as"]
    told = Client(app_with(tracker, identity=who, query_parameters=["as"]))
    assert len(told.listed(query)) == 1
    missing = told.error("GET", "/tasks?as=alice", 400)
    assert missing["details"]["problems"] == [
        {"in": "query", "name": "tenant-id", "problem": "Field required"}
    ]


def test_an_identity_may_read_the_users_name_from_the_query(tracker: TaskTracker) -> None:
    task_id = create(tracker)
    create(tracker, user_id="bob")

    def who(account_id: str, user_id: str) -> Identity:
        return Identity(account_id, user_id)

    trusting = Client(app_with(tracker, identity=who))
    assert [task["task_id"] for task in trusting.listed("?account_id=acme&user_id=alice")] == [task_id]
    trusting.ok("GET", f"/tasks/{task_id}?account_id=acme&user_id=alice")

    def me(user_id: str) -> Identity:
        return Identity("acme", "alice")

    mistaken = Client(app_with(tracker, identity=me))
    assert mistaken.error("GET", "/tasks?user_id=bob", 400)["details"] == {"parameters": ["user_id"]}


def test_identities_can_be_overridden_as_fastapi_does(tracker: TaskTracker) -> None:
    create(tracker)
    app = app_with(tracker)
    app.dependency_overrides[who_is_asking] = lambda: Identity("acme", "alice")
    assert len(Client(app, account=None).listed()) == 1
