"""A task's life and listings on an object store, against the bare requests: moto's server, in its own process."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import obstore
from obstore.store import S3Store

from benchmarks.measure import Row, microseconds, paired
from stores import PersistentTaskStore
from task_tracker import TaskRecord, TaskStatus
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.codec import encode_record
from task_tracker.store import Query

BUCKET = "bench-bucket"
ROUNDS, TIMES = 10, 10
PATIENCE_SECONDS = 30.0


def rows() -> list[Row]:
    """Measure it all on one server."""
    with _server() as endpoint:
        store = PersistentTaskStore(
            f"s3://{BUCKET}/ours",
            options={"key": "k", "secret": "s", "region": "us-east-1", "endpoint_url": endpoint},
        )
        bare = S3Store(
            BUCKET,
            endpoint=endpoint,
            access_key_id="k",
            secret_access_key="s",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        return [_life(store, bare), *_reading(store, bare), *_listing(store)]


def _record(user_id: str = "alice", **fields: Any) -> TaskRecord:
    now = SYSTEM_CLOCK.now()
    ordinary: dict[str, Any] = {
        "task_id": SYSTEM_CLOCK.new_id(now),
        "task_type": "reindex",
        "status": TaskStatus.PENDING,
        "created_at": now,
        "updated_at": now,
        "account_id": "acme",
        "user_id": user_id,
    }
    return TaskRecord(**(ordinary | fields))


def _life(store: PersistentTaskStore, bare: S3Store) -> Row:
    numbers = itertools.count()
    data = encode_record(_record())

    def ours() -> None:
        stored = store.create(_record())
        for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
            stored = store.update(stored.record.changed(status=status), expected=stored.version)

    def floor() -> None:
        path = f"bare/{next(numbers)}.json"
        tag = obstore.put(bare, path, data, mode="create", use_multipart=False)["e_tag"]
        for _ in range(2):
            tag = obstore.put(bare, path, data, mode={"e_tag": tag}, use_multipart=False)["e_tag"]

    mine, theirs, ratio = paired(ours, floor, rounds=ROUNDS, times=TIMES)
    detail = f"{mine / 1000:.1f} ms, {theirs / 1000:.1f} ms; 4 requests against 3"
    return Row("create, start, complete / three conditional PUTs by obstore", ratio, "x", 1.8, detail)


def _reading(store: PersistentTaskStore, bare: S3Store) -> list[Row]:
    created = store.create(_record("bob"))
    key = created.record.key
    obstore.put(bare, "bare/read.json", encode_record(created.record), use_multipart=False)

    def floor() -> None:
        bytes(obstore.get(bare, "bare/read.json").bytes())

    found = []
    for what, call in (
        ("get", lambda: store.get(key)),
        ("get of a known version", lambda: store.get(key, known=created.version)),
    ):
        mine, theirs, ratio = paired(call, floor, rounds=ROUNDS, times=TIMES)
        detail = f"{mine / 1000:.1f} ms, {theirs / 1000:.1f} ms"
        found.append(Row(f"{what} / a GET by obstore", ratio, "x", 1.5, detail))
    return found


def _listing(store: PersistentTaskStore) -> list[Row]:
    for age in range(1000, 0, -1):
        created_at = SYSTEM_CLOCK.now() - 60 * age
        times = {
            "task_id": SYSTEM_CLOCK.new_id(created_at),
            "created_at": created_at,
            "updated_at": created_at,
        }
        store.create(_record("carol", status=TaskStatus.COMPLETED, **times))
    query = Query("acme", "carol", limit=50)
    started = time.perf_counter()
    first = store.list(query)
    cold = (time.perf_counter() - started) * 1000
    assert len(first.items) == 50
    again = microseconds(lambda: store.list(query), times=20) / 1000
    return [
        Row("list 50 of 1,000, first: 52 requests, 16 at a time", cold, "ms"),
        Row("list 50 of 1,000, again: one request", again, "ms"),
    ]


@contextlib.contextmanager
def _server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("PUT", f"/{BUCKET}")
                assert connection.getresponse().status == 200
                break
            except OSError:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
