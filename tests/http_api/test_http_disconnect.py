"""Clients that go away while a real server keeps them waiting."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from task_tracker import StorageConfig, TaskTracker
from tests.http_api.asking import PATIENCE_SECONDS, app_with, create, is_waited_for, run, until


@contextmanager
def serving(app: Any) -> Iterator[tuple[tuple[str, int], asyncio.AbstractEventLoop]]:
    """Run a server in a thread; its address and its event loop."""
    started = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            loops.append(asyncio.get_running_loop())
            started.set()

    server = Server(uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert started.wait(PATIENCE_SECONDS)
            yield listening.getsockname(), loops[0]
        finally:
            server.should_exit = True
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "something keeps the server from ending"


async def tasks_of(loop: asyncio.AbstractEventLoop) -> int:
    """How many asyncio tasks there are on another thread's loop, this question apart."""

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(count(), loop))


@pytest.fixture(params=["memory", "persistent"])
def tracker(request, tmp_path):
    place = {"root": str(tmp_path)} if request.param == "persistent" else {}
    config = StorageConfig(task_tracker={"backend": request.param, **place})
    with config.build_task_tracker(cleanup=False) as tracker:
        yield tracker


def test_who_goes_away_is_not_waited_for(tracker: TaskTracker) -> None:
    task_id = create(tracker)
    request = (
        f"GET /api/v1/tasks/{task_id}?wait=60 HTTP/1.1\r\nHost: server\r\nX-Account: acme\r\nX-User: alice\r\n\r\n"
    ).encode()

    with serving(app_with(tracker)) as (address, loop):

        async def at_most(number: int) -> bool:
            return await tasks_of(loop) <= number

        async def story() -> None:
            idle = await tasks_of(loop)
            streams = [await asyncio.open_connection(*address) for _ in range(3)]
            for _, writer in streams:
                writer.write(request)
            waiting = lambda: sum(map(len, tracker.access.changes._callbacks.values()))  # noqa: E731
            await until(lambda: waiting() == 3)
            for _, writer in streams[:2]:
                writer.close()
                await writer.wait_closed()
            await until(lambda: waiting() == 1)  # nobody waited 60 s for that
            tracker.complete(task_id, {"for": "the third"})
            reader, writer = streams[2]
            answer = await reader.readuntil(b'{"for":"the third"}')
            assert answer.startswith(b"HTTP/1.1 200")
            writer.close()
            await writer.wait_closed()
            await until(lambda: not is_waited_for(tracker))
            await until(lambda: at_most(idle))

        run(story)
