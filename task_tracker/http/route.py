"""What all routes have in common: how an id is cut out of a path, and how failures become answers.

Owns both for the routes of this router only; the embedding server's exception handlers are left alone, and
so are the HTTPExceptions of its identity dependency.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import APIKeyQuery
from pydantic import BaseModel
from starlette.routing import Match
from starlette.types import Scope

from task_tracker.errors import TaskTrackerError
from task_tracker.http.failures import Failure, Refused
from task_tracker.http.rendering import JsonResponse, Renderer

__all__ = ["TaskRoute", "route_class"]

_SLASH: Final = "\udc2f"  # half a character: what was decoded from bytes cannot hold it
_UNAVAILABLE_RETRY_SECONDS: Final = 5


class TaskRoute(APIRoute):
    """One route. Subclassed per router, since FastAPI builds (and rebuilds) routes from the class alone."""

    renderer: ClassVar[Renderer]
    further_query_names: ClassVar[Collection[str]]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path, an encoded slash being part of an id and not a separator.

        Servers decode ``a%2Fb`` before they route, so that the ids ``a/b`` and ``../x`` would miss these
        routes, and be answered by another part of the server in another way than an unknown id.
        """
        marked = _mark_encoded_slashes(scope)
        if marked is None:
            return super().matches(scope)
        match, found = super().matches({**scope, "path": marked})
        if match is not Match.NONE:
            parameters = found.get("path_params", {})
            found["path_params"] = {
                name: value.replace(_SLASH, "/") if isinstance(value, str) else value
                for name, value in parameters.items()
            }
        return match, found

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler with failures turned into answers."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except Refused as refused:
                failure = refused.failure
            except RequestValidationError as error:
                failure = Failure.invalid(error.errors())
            except TaskTrackerError as error:
                failure = Failure.of(error, request.path_params.get("task_id"))
            return self._answer_failure(failure)

        return answer

    def refuse_unknown_query(self, request: Request, *, hidden: Collection[str] = ()) -> None:
        """Raise Refused (400) for query parameters that nobody here reads, or that are given twice.

        Those that the route and its dependencies declare are known; ``hidden`` ones only if a dependency
        declares them.
        """
        known = self._query_names.difference(hidden) | self._names_of_dependencies
        names = [name for name, _ in request.query_params.multi_items()]
        unknown = set(names) - known
        if unknown:
            raise Refused(Failure.bad_query("unknown query parameter", unknown, known))
        repeated = {name for name in names if names.count(name) > 1} - set(self.further_query_names)
        if repeated:
            raise Refused(Failure.bad_query("given more than once:", repeated, known))

    @functools.cached_property
    def _query_names(self) -> frozenset[str]:
        return frozenset(_declared(self.dependant))

    @functools.cached_property
    def _names_of_dependencies(self) -> frozenset[str]:
        names = (name for inner in self.dependant.dependencies for name in _declared(inner))
        return frozenset((*names, *self.further_query_names))

    def _answer_failure(self, failure: Failure) -> Response:
        headers = {"Cache-Control": "no-store"}
        if failure.retry:
            headers["Retry-After"] = str(_UNAVAILABLE_RETRY_SECONDS)
        body = self.renderer.error(failure.code, failure.message, failure.details)
        return JsonResponse(body, failure.status, headers)


def route_class(renderer_: Renderer, names: Collection[str] = ()) -> type[TaskRoute]:
    """Return the class of one router's routes; ``names`` of its query parameters are read by other code."""

    class RouteOfThisRouter(TaskRoute):
        renderer = renderer_
        further_query_names = names

    return RouteOfThisRouter


def _mark_encoded_slashes(scope: Scope) -> str | None:
    """Return the decoded path with a mark for each slash that came encoded; None if there is none."""
    raw: bytes = scope.get("raw_path") or b""
    if scope["type"] != "http" or b"%2f" not in raw.lower():
        return None
    marked = "/".join(unquote(part).replace("/", _SLASH) for part in raw.decode("latin-1").split("/"))
    # A middleware may have rewritten one of the two and not the other.
    return marked if marked.replace(_SLASH, "/") == scope["path"] else None


def _declared(dependant: Any) -> Iterator[str]:
    """Yield the names of query parameters that a dependency and those below it declare."""
    for field in dependant.query_params:
        model = field.field_info.annotation
        if inspect.isclass(model) and issubclass(model, BaseModel):
            for name, inner in model.model_fields.items():
                yield inner.alias or name
        else:
            yield field.alias
    if isinstance(dependant.call, APIKeyQuery):
        yield dependant.call.model.name
    for inner in dependant.dependencies:
        yield from _declared(inner)
