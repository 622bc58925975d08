"""A handler of worker processes that puts files into ``ctx.workdir``, and waits to be let go on before it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from task_tracker import HandlerRegistry
from tests.runtime.processes.tasks import wait_go, write

__all__ = ["registry"]


async def build(ctx: Any, payload: Any) -> str:
    place = Path(ctx.workdir)
    (place / "part-1").write_text(f"by {ctx.attempt_count}")
    write(ctx, "begin", place=str(place))
    await wait_go(ctx)
    (place / "part-2").write_text(f"by {ctx.attempt_count}")
    write(ctx, "end")
    return f"by {ctx.attempt_count}"


def registry() -> HandlerRegistry:
    made = HandlerRegistry()
    made.register("build", handler=f"{__name__}:build", idempotent=True, max_attempts=5, retry_seconds=0.01)
    return made
