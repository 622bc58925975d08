"""readiness_route: whether this server can do its work now, for whoever sends it requests.

Owns what is asked and how it is answered: 200 while everything is well, 503 with the reasons while it is not. Refuses
to wait for long, and to name hosts, processes or paths: a probe has no identity.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from fastapi import APIRouter, Response, params

from task_tracker.aio import AsyncTaskTracker
from task_tracker.errors import StoreUnavailable
from task_tracker.http.documentation import ReadinessDocumentation
from task_tracker.http.failures import Refused
from task_tracker.http.rendering import Envelope, JsonResponse, Renderer
from task_tracker.http.route import route_class
from task_tracker.http.sources import TrackerInUse, TrackerSource, check_source
from task_tracker.store import WorkerFact
from task_tracker.worker.readiness import SLOW_SECONDS, Fact, Facts, WorkerStatus

__all__ = ["readiness_route"]

_log = logging.getLogger("task_tracker")

ANSWER_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5
_NOBODY: Final = "readiness"
"""An owner without tasks: to ask a store without workers whether it answers at all."""

Check = Callable[[], bool | Fact]
"""Says from what it knows already whether something is well; it must not block."""


class HasStatus(Protocol):
    """A worker of this process."""

    def status(self) -> WorkerStatus:
        """Return what is known now."""


def readiness_route(
    tracker: TrackerSource,
    *,
    path: str = "/ready",
    worker: HasStatus | None = None,
    require_worker: bool | Collection[str] = False,
    facts: Facts | Mapping[str, Check] | None = None,
    answer_seconds: float = ANSWER_SECONDS,
    renderer: Renderer | None = None,
    dependencies: Sequence[params.Depends] = (),
    tags: Sequence[str] = ("health",),
) -> APIRouter:
    """Return a router with one route, ``GET /ready``, for ``app.include_router``.

    It answers 200 if the store answers within ``answer_seconds`` and everything else that is asked for holds, else
    503. ``worker``: one that is embedded in this process has to be ready, with all that the server reports through
    :meth:`Worker.report`. ``require_worker``: a worker of this store, in any process, has to be ready; or, given task
    types, one for each of them. ``facts``: what else has to be well here, with or without a worker: a
    :class:`~task_tracker.worker.Facts` that the server reports to, or functions by name, which return True or a
    :class:`~task_tracker.worker.Fact`. ``dependencies``: who may ask, for instance; without any, everybody may.
    ``tracker`` and ``renderer`` are those of :func:`create_router`.

    Raises TypeError and ValueError for arguments that cannot work. A store without leases has no workers: with
    ``require_worker`` the route answers 501 there.
    """
    check_source(tracker)
    if isinstance(require_worker, str):
        raise TypeError(f"require_worker is {require_worker!r}; give True, or a list of task types")
    if isinstance(answer_seconds, bool) or not 0 < answer_seconds < math.inf:
        raise ValueError(f"answer_seconds is {answer_seconds!r}; give a finite number of seconds above 0")
    renderer = renderer if renderer is not None else Envelope()
    readiness = _Readiness(
        TrackerInUse(tracker),
        renderer,
        worker=worker,
        required=require_worker if isinstance(require_worker, bool) else frozenset(require_worker),
        facts=facts,
        answer_seconds=answer_seconds,
    )
    router = APIRouter(tags=[*tags], route_class=route_class(renderer))

    @router.get(path, dependencies=[*dependencies], **ReadinessDocumentation(renderer).ready)
    async def get_readiness() -> Response:
        """Tell whether this server can do its work now."""
        return await readiness.answer()

    return router


class _Readiness:
    """What the route does."""

    def __init__(
        self,
        in_use: TrackerInUse,
        renderer: Renderer,
        *,
        worker: HasStatus | None,
        required: bool | frozenset[str],
        facts: Facts | Mapping[str, Check] | None,
        answer_seconds: float,
    ) -> None:
        self._in_use = in_use
        self._renderer = renderer
        self._worker = worker
        self._required = required
        self._facts = facts
        self._answer_seconds = answer_seconds
        self._said: tuple[str, ...] = ()

    async def answer(self) -> Response:
        """Ask, and say what came of it."""
        store, workers, paused = await self._ask_store()
        checks = {"store": store}
        if self._worker is not None:
            checks["worker"] = _of_worker(self._worker.status())
        if self._required:
            checks["workers"] = self._of_workers(workers)
        facts = self._all_facts()
        wrong = tuple(name for name, check in (*checks.items(), *facts.items()) if not check["ready"])
        self._tell(wrong)
        result = {
            "ready": not wrong,
            "checks": checks,
            "facts": facts,
            "work": None if workers is None else _work(workers),
            "paused": paused,
        }
        headers = {"Cache-Control": "no-store"}
        if not wrong:
            return JsonResponse(self._renderer.ok(result), headers=headers)
        body = self._renderer.error("UNAVAILABLE", f"Not ready: {', '.join(wrong)}", result)
        return JsonResponse(body, 503, {**headers, "Retry-After": str(_RETRY_SECONDS)})

    # ---- asking --------------------------------------------------------------------------------------

    async def _ask_store(
        self,
    ) -> tuple[dict[str, Any], Sequence[WorkerFact] | None, Sequence[str] | None]:
        """Return whether the store answers, which workers there are, and what is paused; None is not known."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                workers, paused = await self._questions(self._in_use.get())
        except TimeoutError:
            return _check(False, f"has not answered within {self._answer_seconds:g} s"), None, None
        except StoreUnavailable as error:
            if "store" not in self._said:  # said once, not at every probe
                _log.warning("the store cannot be asked: %s", error, extra={"event": "store_unavailable"})
            return _check(False, "cannot be reached"), None, None
        except Refused:
            return _check(False, "there is no tracker yet"), None, None
        return _check(True), workers, paused

    async def _questions(
        self, tracker: AsyncTaskTracker
    ) -> tuple[Sequence[WorkerFact] | None, Sequence[str] | None]:
        if tracker.tracker.access.leases is None and not self._required:
            await tracker.stats(_NOBODY, _NOBODY)
            return None, None
        return await tracker.workers(), await tracker.paused_types()

    def _of_workers(self, workers: Sequence[WorkerFact] | None) -> dict[str, Any]:
        if workers is None:
            return _check(False, "not known")
        ready = [fact for fact in workers if fact.data.get("ready") is True]
        if isinstance(self._required, bool):
            return _check(bool(ready), f"{len(ready)} of {len(workers)} ready")
        missing = sorted(self._required - {kind for fact in ready for kind in _types(fact)})
        return _check(not missing, f"none is ready for {', '.join(missing)}" if missing else "")

    def _all_facts(self) -> dict[str, dict[str, Any]]:
        facts: dict[str, Fact] = {}
        if self._worker is not None:
            facts.update(self._worker.status().facts)
        if isinstance(self._facts, Facts):
            facts.update(self._facts.all())
        else:
            facts.update({name: _asked(name, check) for name, check in (self._facts or {}).items()})
        return {
            name: {**_check(fact.ready, fact.detail), "age_seconds": fact.age_seconds}
            for name, fact in facts.items()
        }

    def _tell(self, wrong: tuple[str, ...]) -> None:
        """Log what has changed since the last answer."""
        if wrong == self._said:
            return
        self._said = wrong
        if wrong:
            _log.warning(
                "not ready: %s", ", ".join(wrong), extra={"event": "not_ready", "wrong": list(wrong)}
            )
        else:
            _log.info("ready again", extra={"event": "ready"})


def _check(ready: bool, detail: str = "") -> dict[str, Any]:
    return {"ready": ready, "detail": detail}


def _asked(name: str, check: Check) -> Fact:
    try:
        found = check()
    except Exception:  # noqa: BLE001  # whatever a server's own check meets, it is not ready
        _log.exception(
            "the check of %s failed; that counts as not ready", name, extra={"event": "check_failed"}
        )
        return Fact(False, "its check failed", 0.0)
    return found if isinstance(found, Fact) else Fact(bool(found), "", 0.0)


def _of_worker(status: WorkerStatus) -> dict[str, Any]:
    """Return how the worker of this process is; what the server reported through it is among the facts."""
    if status.ready or status.state != "working":
        return _check(status.ready, status.state)
    reasons = [
        text
        for is_so, text in (
            (status.blocked_loop_seconds, "its event loop is blocked"),
            (status.store_away_seconds, "the store does not answer it"),
            (status.claiming_seconds >= SLOW_SECONDS, "a claim hangs"),
            (status.rescuing_seconds >= SLOW_SECONDS, "settling what stopped workers have left hangs"),
            (
                status.lingering >= status.slots,
                "handlers that were told to stop and go on take all its slots",
            ),
            (status.without_lease, "work goes on here whose lease is lost"),
            (status.no_thread, "there is no thread for another handler"),
            (any(not fact.ready for fact in status.facts.values()), "what was reported to it is not ready"),
        )
        if is_so
    ]
    return _check(False, ", ".join(reasons) or "its heartbeats are late, or a part of it has ended")


def _work(workers: Sequence[WorkerFact]) -> dict[str, Any]:
    """Return what the workers of the store do, all in all; None is what none of them says."""
    newest = sorted(workers, key=lambda fact: fact.age_seconds)

    def largest(name: str) -> float | None:
        return max(_numbers(workers, name), default=None)

    def first(name: str) -> float | None:
        return next(iter(_numbers(newest, name)), None)

    return {
        "workers": len(workers),
        "ready_workers": sum(fact.data.get("ready") is True for fact in workers),
        "slots": sum(_numbers(workers, "slots")),
        "running": sum(_numbers(workers, "running")),
        "oldest_running_seconds": largest("oldest_running_seconds"),
        "last_heartbeat_seconds": largest("last_heartbeat_seconds"),
        "backlog": first("backlog"),
        "oldest_waiting_seconds": first("oldest_waiting_seconds"),
    }


def _numbers(workers: Iterable[WorkerFact], name: str) -> list[float]:
    """Return what workers say of ``name``; those of another version may say something else, or nothing."""
    found = (fact.data.get(name) for fact in workers)
    return [value for value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]


def _types(fact: WorkerFact) -> Iterable[str]:
    kinds = fact.data.get("kinds")
    return [kind[0] for kind in kinds if isinstance(kind, list) and kind] if isinstance(kinds, list) else ()
