"""The tasks of a server over HTTP: a FastAPI router to mount.

::

    from task_tracker.http import Identity, create_router

    app.include_router(create_router(tracker, identity=who_is_asking))

Owns the routes under ``/tasks``, their status codes and headers. Refuses to know who is asking: the embedding
server says so with a dependency of its own. The only part of the library that imports FastAPI.
"""

from __future__ import annotations

try:
    from task_tracker.http.callers import Caller, Identity
    from task_tracker.http.readiness import readiness_route
    from task_tracker.http.rendering import Envelope, Renderer
    from task_tracker.http.router import create_router
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("fastapi", "starlette"):
        raise
    raise ImportError(
        "task_tracker.http needs FastAPI; install it with pip install 'durable-task-tracker[http]'"
    ) from error

__all__ = ["Caller", "Envelope", "Identity", "Renderer", "create_router", "readiness_route"]
