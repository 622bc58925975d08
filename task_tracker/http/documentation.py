"""What the OpenAPI document says about the routes, with examples made by the renderer in use."""

from __future__ import annotations

from typing import Any, Final

import orjson

from task_tracker.http.rendering import Renderer, encode

__all__ = ["Documentation", "ReadinessDocumentation"]

_TASK: Final = {
    "task_id": "01980d5e-6c2f-7a30-9d5b-0f4c1f2a3b4c",
    "task_type": "session_commit",
    "status": "running",
    "created_at": 1752570000.25,
    "updated_at": 1752570003.5,
    "resource_id": "sess-1",
    "result": None,
    "error": None,
    "progress": 40,
    "created_at_iso": "2025-07-15T09:00:00.250000+00:00",
    "updated_at_iso": "2025-07-15T09:00:03.500000+00:00",
}
_NAME: Final = {"resource": _TASK["task_id"], "type": "task"}
_READY: Final = {
    "ready": True,
    "checks": {"store": {"ready": True, "detail": ""}},
    "facts": {"search index": {"ready": True, "detail": "", "age_seconds": 3.5}},
    "work": {
        "workers": 2,
        "ready_workers": 2,
        "slots": 8,
        "running": 3,
        "oldest_running_seconds": 12.5,
        "last_heartbeat_seconds": 4.0,
        "backlog": 0,
        "oldest_waiting_seconds": 0.0,
    },
    "paused": [],
}

Operation = dict[str, Any]


class _Operations:
    """How an operation is described, with examples in the renderer's form."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        # Named, "default" also keeps FastAPI from announcing a 422 that these routes never send.
        self._other = self._failure("INTERNAL", "Internal error", "Any other failure, in the same form.")

    def _operation(
        self, summary: str, description: str, result: Any, failures: dict[Any, Operation]
    ) -> Operation:
        ok = self._example(self._renderer.ok(result), description)
        return {"summary": summary, "responses": {200: ok, **failures}}

    def _failure(
        self, code: str, message: str, description: str, details: dict[str, Any] | None = None
    ) -> Operation:
        return self._example(self._renderer.error(code, message, details or {}), description)

    @staticmethod
    def _example(body: Any, description: str) -> Operation:
        return {
            "description": description,
            "content": {"application/json": {"example": orjson.loads(encode(body))}},
        }


class Documentation(_Operations):
    """Keyword arguments for FastAPI's route decorators."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer)
        bad = self._failure(
            "INVALID_ARGUMENT", "wait: Input should be less than or equal to 60", "A bad parameter."
        )
        missing = self._failure(
            "NOT_FOUND",
            "Task not found or expired",
            "Unknown, expired, malformed or somebody else's id; they cannot be told apart.",
            _NAME,
        )
        down = self._failure(
            "UNAVAILABLE",
            "The task store cannot be reached; nothing is known, try again",
            "The store cannot be reached. Says in `Retry-After` when to ask again.",
        )
        state = self._failure(
            "FAILED_PRECONDITION",
            "The task has ended already: it is completed",
            "The task's state does not allow that.",
            {**_NAME, "status": "completed"},
        )
        common = {400: bad, 503: down, "default": self._other}
        self.stats = self._operation(
            "Count tasks",
            "The numbers, by type and state.",
            {"session_commit": {"running": 1, "completed": 12}},
            common,
        )
        self.page = self._operation(
            "List tasks",
            "One page, newest first. `X-Next-Cursor` and `Link` lead to the next one; `X-Skipped-Records` "
            "counts records that cannot be read. Administrators see `owner_account_id` and `owner_user_id` too.",
            [_TASK],
            common,
        )
        self.one = self._operation(
            "Get a task",
            "The task, with an `ETag`; while it is active also `Retry-After`.",
            _TASK,
            {
                304: {"description": "The state is still the one named in `If-None-Match`."},
                404: missing,
                **common,
            },
        )
        self.cancel = self._operation(
            "Cancel a task",
            "The task as it now stands: `cancelled`, or `cancelling` until the work has stopped.",
            {**_TASK, "status": "cancelling"},
            {404: missing, 412: state, **common},
        )
        self.delete = self._operation(
            "Delete a task", "It is gone.", {"deleted": True}, {404: missing, 412: state, **common}
        )


class ReadinessDocumentation(_Operations):
    """The same for the route of :mod:`task_tracker.http.readiness`."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer)
        checks = {"store": {"ready": False, "detail": "cannot be reached"}}
        failure = self._failure(
            "UNAVAILABLE",
            "Not ready: store",
            "Something is not; `details` says what. Says in `Retry-After` when to ask again.",
            {**_READY, "ready": False, "checks": checks},
        )
        self.ready = self._operation(
            "Is it ready?",
            "Everything that was asked for is well.",
            _READY,
            {503: failure, "default": self._other},
        )
