"""What each route does: questions to the tracker, and their answers.

Owns rules of HTTP (what a missing task, an ended one or an unreachable store means for a request). Asks
through :class:`AsyncTaskTracker` only, never a store.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from task_tracker.aio import AsyncTaskTracker
from task_tracker.codec import check_id
from task_tracker.errors import InvalidTransition, TaskNotFound
from task_tracker.http.callers import Owner, Scope
from task_tracker.http.failures import Failure, Refused
from task_tracker.http.freshness import etag_of, is_known
from task_tracker.http.rendering import JsonResponse, Renderer
from task_tracker.http.sources import TrackerInUse, TrackerSource
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Cursor
from task_tracker.transitions import cancellation_requested

__all__ = ["TaskAnswers"]

CLIENT_GONE: Final = 499
"""Nobody reads this answer; the number is what proxies log for a client that closed the connection."""

_MAY_REVALIDATE: Final = "private, no-cache"
_NEVER_STORE: Final = "no-store"


class TaskAnswers:
    """The routes' work. One object serves all requests, on any event loop."""

    def __init__(self, source: TrackerSource, renderer: Renderer, *, retry_after_seconds: int) -> None:
        self._in_use = TrackerInUse(source)
        self._renderer = renderer
        self._retry_after_seconds = retry_after_seconds

    async def one(
        self,
        request: Request,
        task_id: str,
        owner: Owner,
        wait_seconds: float | None,
        *,
        tell_owner: bool = False,
    ) -> Response:
        """Answer with one task; with ``wait_seconds`` not before it has ended or the time is over."""
        tracker = self._tracker()
        record = await _find(tracker, task_id, owner)
        if wait_seconds and not record.status.is_terminal:
            if not await _wait(tracker, record, wait_seconds, request):
                return Response(status_code=CLIENT_GONE)
            record = await _find(tracker, task_id, owner)
        view = _view(record)
        headers = {"ETag": etag_of(view), "Cache-Control": _MAY_REVALIDATE}
        if not record.status.is_terminal:
            headers["Retry-After"] = str(self._retry_after_seconds)
        if is_known(headers["ETag"], request.headers.getlist("if-none-match")):
            return Response(status_code=304, headers=headers)
        return JsonResponse(self._renderer.ok(view | _owner(record, tell_owner)), headers=headers)

    async def page(
        self,
        request: Request,
        scope: Scope,
        *,
        task_type: str | None,
        status: TaskStatus | None,
        resource_id: str | None,
        limit: int,
        before: str | None,
        tell_owner: bool = False,
    ) -> Response:
        """Answer with a page of tasks; where the next one begins and what was skipped goes in the headers."""
        if before is not None:
            _check_cursor(before)
        page = await self._tracker().list_tasks(
            task_type,
            status,
            resource_id,
            limit,
            account_id=scope.account_id,
            user_id=scope.user_id,
            before=before,
        )
        headers = {"Cache-Control": _NEVER_STORE}
        if page.next_cursor is not None:
            headers["X-Next-Cursor"] = page.next_cursor
            headers["Link"] = f'<{_with_query(request, "before", page.next_cursor)}>; rel="next"'
        if page.corrupt:
            headers["X-Skipped-Records"] = str(len(page.corrupt))
        return self._ok([_view(record) | _owner(record, tell_owner) for record in page], headers)

    async def stats(self, scope: Scope) -> Response:
        """Answer with ``{task_type: {status: number}}``."""
        return self._ok(await self._tracker().stats(scope.account_id, scope.user_id))

    async def cancel(self, task_id: str, owner: Owner, *, tell_owner: bool = False) -> Response:
        """Cancel a task, or ask for it; refused for one that has ended, however it has."""
        tracker = self._tracker()
        current = await _find(tracker, task_id, owner)
        # The tracker takes a second cancel as done already; a client is to learn that it came too late.
        if current.status.is_terminal:
            raise Refused(_not_cancellable(current))
        try:
            changed = await tracker.cancel(task_id, *owner)
        except (
            InvalidTransition
        ) as error:  # it ended between the two looks, or its state is a newer version's
            current = await _find(tracker, task_id, owner)
            raise Refused(_not_cancellable(current)) from error
        if changed is None:
            raise Refused(Failure.not_found(task_id))
        if not cancellation_requested(changed):  # a tracker with strict=False does not raise
            raise Refused(_not_cancellable(changed))
        return self._ok(_view(changed) | _owner(changed, tell_owner))

    async def delete(self, task_id: str, owner: Owner) -> Response:
        """Delete a task that has ended; refused for an active one."""
        tracker = self._tracker()
        _check_id(task_id)
        try:
            deleted = await tracker.delete(task_id, *owner)
        except InvalidTransition as error:
            current = await _find(tracker, task_id, owner)
            raise Refused(_not_deletable(current)) from error
        if not deleted:
            raise Refused(Failure.not_found(task_id))
        return self._ok({"deleted": True})

    def _ok(self, result: Any, headers: dict[str, str] | None = None) -> Response:
        return JsonResponse(self._renderer.ok(result), headers=headers or {"Cache-Control": _NEVER_STORE})

    def _tracker(self) -> AsyncTaskTracker:
        return self._in_use.get()


def _view(record: TaskRecord) -> dict[str, Any]:
    """Return what callers see. Who holds a task is a host and a process, which are no business of theirs."""
    view = record.to_dict()
    if "attempt" in view:
        view["attempt"] = {name: value for name, value in view["attempt"].items() if name != "holder"}
    return view


def _owner(record: TaskRecord, tell: bool) -> dict[str, str]:
    """Return what administrators see besides; they have to name the owner of a single task."""
    return {"owner_account_id": record.account_id, "owner_user_id": record.user_id} if tell else {}


async def _find(tracker: AsyncTaskTracker, task_id: str, owner: Owner) -> TaskRecord:
    _check_id(task_id)
    record = await tracker.get(task_id, *owner)
    if record is None:
        raise Refused(Failure.not_found(task_id))
    return record


def _check_id(task_id: str) -> None:
    """Raise InvalidTaskId, answered like an unknown id, before a malformed one reaches a store."""
    check_id(task_id, "task_id")


def _check_cursor(before: str) -> None:
    try:
        Cursor.decode(before)
    except ValueError as error:
        raise Refused(
            Failure.bad_parameter("before", "is no cursor; pass X-Next-Cursor of the page before, unchanged")
        ) from error


def _not_cancellable(record: TaskRecord) -> Failure:
    word = record.status.value
    reason = "has ended already" if record.status.is_terminal else "cannot be cancelled"
    return Failure.precondition(record.task_id, word, f"The task {reason}: it is {word}")


def _not_deletable(record: TaskRecord) -> Failure:
    word = record.status.value
    return Failure.precondition(
        record.task_id, word, f"The task is {word}; it can be deleted once it has ended"
    )


async def _wait(tracker: AsyncTaskTracker, record: TaskRecord, seconds: float, request: Request) -> bool:
    """Wait until the task has ended or the time is over; False if the client went away before that."""
    ended = asyncio.ensure_future(tracker.wait(*_id_first(record), timeout=seconds))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            return False
        with contextlib.suppress(TimeoutError, TaskNotFound):  # it is looked at once more after this
            ended.result()
        return True
    finally:
        ended.cancel()
        gone.cancel()
        await asyncio.gather(ended, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _id_first(record: TaskRecord) -> tuple[str, str, str]:
    return record.task_id, record.account_id, record.user_id


def _with_query(request: Request, name: str, value: str) -> str:
    """Return the request's path and query with one parameter replaced: a link that any proxy leaves right."""
    path, root = request.scope["path"], request.scope.get("root_path", "")
    if not path.startswith(root):
        path = root + path
    others = [(key, text) for key, text in request.query_params.multi_items() if key != name]
    return f"{quote(path)}?{urlencode([*others, (name, value)])}"
