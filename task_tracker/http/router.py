"""create_router: the routes, their parameters and their documentation.

Owns the table of routes. What they do is in :mod:`task_tracker.http.answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response, params

from task_tracker.http.answers import TaskAnswers
from task_tracker.http.callers import Scope, known_caller, owner_meant, scope_meant
from task_tracker.http.documentation import Documentation
from task_tracker.http.rendering import Envelope, Renderer
from task_tracker.http.route import TaskRoute, route_class
from task_tracker.http.sources import TrackerSource, check_source
from task_tracker.records import TaskStatus

__all__ = ["create_router"]

MAX_LIMIT: Final = 200
MAX_WAIT_SECONDS: Final = 60
RETRY_AFTER_SECONDS: Final = 2

UserId = Annotated[
    str | None, Query(description="The owner of the task. For administrators of the account only.")
]
AnyUserId = Annotated[
    str | None, Query(description="Only this user's tasks. For administrators of the account only.")
]
WaitSeconds = Annotated[
    float | None,
    Query(
        ge=0,
        le=MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Answer as soon as the task has ended, or with its state after so many seconds.",
    ),
]
TaskType = Annotated[str | None, Query(min_length=1, description="Only tasks of this type.")]
Status = Annotated[TaskStatus | None, Query(description="Only tasks in this state.")]
ResourceId = Annotated[str | None, Query(description="Only tasks that work on this resource.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Tasks per page.")]
Before = Annotated[str | None, Query(description="`X-Next-Cursor` of the page before: go on where it ended.")]


def create_router(
    tracker: TrackerSource,
    *,
    identity: Callable[..., Any] | params.Depends,
    prefix: str = "/api/v1",
    renderer: Renderer | None = None,
    retry_after_seconds: int = RETRY_AFTER_SECONDS,
    query_parameters: Collection[str] = (),
    tags: Sequence[str] = ("tasks",),
) -> APIRouter:
    """Return a router with the five task routes below ``prefix``, for ``app.include_router``.

    ``tracker``: a tracker, or a function without arguments that returns one (``get_task_tracker``), asked
    for each request. A synchronous tracker is wrapped once, with threads of the wrapper's own that end with
    it; pass an AsyncTaskTracker to choose its threads and deadline. Closing stays the server's business.
    ``identity``: the server's own FastAPI dependency. It returns an object with ``account_id`` and
    ``user_id`` (:class:`Identity` or the like), ``user_id`` None for an administrator of the account, or
    raises an HTTPException, which is left as it is. ``renderer``: builds the bodies, an :class:`Envelope`
    by default. ``retry_after_seconds``: what active tasks say in ``Retry-After``. ``query_parameters``:
    names that other code reads from the query without declaring them to ``identity``; unknown ones are
    refused. Raises TypeError and ValueError for arguments that cannot work.
    """
    check_source(tracker)
    if not (callable(identity) or isinstance(identity, params.Depends)):
        raise TypeError(
            "identity must be the dependency that says who is asking (it returns account_id and user_id); "
            f"a {type(identity).__name__} cannot, and without it everybody would see every task"
        )
    if (
        isinstance(retry_after_seconds, bool)
        or not isinstance(retry_after_seconds, int)
        or retry_after_seconds < 0
    ):
        raise ValueError(
            f"retry_after_seconds must be a whole number of 0 or more, not {retry_after_seconds!r}"
        )
    if not isinstance(prefix, str) or (prefix and (not prefix.startswith("/") or prefix.endswith("/"))):
        raise ValueError(f'prefix must begin with "/" and not end with it, or be empty; not {prefix!r:.80}')
    renderer = renderer if renderer is not None else Envelope()
    if not all(callable(getattr(renderer, name, None)) for name in ("ok", "error")):
        raise TypeError(f"renderer must have the methods ok and error; a {type(renderer).__name__} has not")
    answers = TaskAnswers(tracker, renderer, retry_after_seconds=retry_after_seconds)
    router = APIRouter(
        prefix=prefix, tags=[*tags], route_class=route_class(renderer, frozenset(query_parameters))
    )
    _add_routes(router, answers, Documentation(renderer), identity)
    return router


def _add_routes(
    router: APIRouter,
    answers: TaskAnswers,
    documentation: Documentation,
    identity: Callable[..., Any] | params.Depends,
) -> None:
    asking = identity if isinstance(identity, params.Depends) else Depends(identity)

    # Fixed paths before {task_id}: the first route that matches wins.
    @router.get("/tasks/stats", **documentation.stats)
    async def get_task_stats(request: Request, user_id: AnyUserId = None, who: Any = asking) -> Response:
        """Count the caller's tasks by type and state."""
        caller = _checked(request, who)
        return await answers.stats(scope_meant(caller, user_id))

    @router.get("/tasks", **documentation.page)
    async def list_tasks(
        request: Request,
        task_type: TaskType = None,
        status: Status = None,
        resource_id: ResourceId = None,
        limit: Limit = 50,
        before: Before = None,
        user_id: AnyUserId = None,
        who: Any = asking,
    ) -> Response:
        """List the caller's tasks, newest first; filters apply before the page is cut."""
        caller = _checked(request, who)
        return await answers.page(
            request,
            scope_meant(caller, user_id),
            task_type=task_type,
            status=status,
            resource_id=resource_id,
            limit=limit,
            before=before,
            tell_owner=caller.is_administrator,
        )

    @router.get("/tasks/{task_id}", **documentation.one)
    async def get_task(
        request: Request,
        task_id: str,
        wait: WaitSeconds = None,
        user_id: UserId = None,
        who: Any = asking,
    ) -> Response:
        """Return one task. Poll with `If-None-Match`, or let the server wait with `?wait=30`."""
        caller = _checked(request, who)
        return await answers.one(
            request, task_id, owner_meant(caller, user_id), wait, tell_owner=caller.is_administrator
        )

    @router.post("/tasks/{task_id}/cancel", **documentation.cancel)
    async def cancel_task(
        request: Request, task_id: str, user_id: UserId = None, who: Any = asking
    ) -> Response:
        """Cancel a pending task; ask the code that works on a running one to stop (`cancelling`)."""
        caller = _checked(request, who)
        return await answers.cancel(task_id, owner_meant(caller, user_id), tell_owner=caller.is_administrator)

    @router.delete("/tasks/{task_id}", **documentation.delete)
    async def delete_task(
        request: Request, task_id: str, user_id: UserId = None, who: Any = asking
    ) -> Response:
        """Delete a task that has ended."""
        caller = _checked(request, who)
        return await answers.delete(task_id, owner_meant(caller, user_id))


def _checked(request: Request, who: object) -> Scope:
    """Return the caller, having refused query parameters that mean nothing to this caller on this route."""
    caller = known_caller(who)
    route: TaskRoute = request.scope["route"]
    # Whoever is not an administrator is told of `user_id` what is told of any unknown name.
    route.refuse_unknown_query(request, hidden=() if caller.is_administrator else ("user_id",))
    return caller
