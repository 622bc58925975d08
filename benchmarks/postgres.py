"""PostgreSQL: the life of a task against three bare commits, other queues on the same server, a long list.

The server is the one that ``TASK_TRACKER_TEST_DSN`` names or that listens here; everything is in a schema of its own.
The peers are installed into the scratch directory; where that cannot be done a row says so. All of them, and the
bare commits, run with the same ``synchronous_commit``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import live
from benchmarks.live import OWNER, Life
from benchmarks.measure import Row, paired
from benchmarks.workers import registry
from task_tracker import TaskTracker
from task_tracker.clock import SYSTEM_CLOCK

NAMED = "TASK_TRACKER_TEST_DSN"
PEERS = ["procrastinate==3.10.0", "pgqueuer==1.6.0", "asyncpg==0.32.0", "psycopg[binary]>=3.3,<4"]

MOST_OF_BARE_COMMITS = 1.5
MOST_OF_PEER = 1.0
MOST_OF_BARE_QUERY = 2.0

TASKS = live.TASKS
PEER_NAMES = ("procrastinate", "pgqueuer")
ROUNDS = 3
LISTED = 100_000
PEER_SECONDS = 300.0
PAGE = 50

BARE_PAGE = """
    SELECT record FROM task_tracker_tasks WHERE account_id = %s AND user_id = %s
    ORDER BY created_at DESC, task_id DESC LIMIT %s
"""
MULTIPLY = """
    INSERT INTO task_tracker_tasks (
        account_id, user_id, task_id, creation, record, task_type, status, kind, blocks, created_at)
    SELECT account_id, user_id, task_id || '-' || n, creation,
           replace(record::text, task_id, task_id || '-' || n)::json, task_type, status, kind, blocks, created_at - n
    FROM task_tracker_tasks, generate_series(1, %(copies)s) AS n WHERE task_id = %(first)s
"""


def rows(disk: Path) -> list[Row]:
    """Measure all of it."""
    dsn = server()
    if dsn is None:
        return [Row(f"no figures for PostgreSQL: {NAMED} names no server and none answers here", 0.0, "")]
    found: list[Row] = []
    for commit in ("on", "off"):
        found.append(_life(dsn, commit))
        found.extend(_against_peers(disk, dsn, commit))
    found.append(_listing(dsn))
    return found


def server() -> str | None:
    """Return the connection string of the server that there is, None if there is none."""
    import psycopg

    named = os.environ.get(NAMED)
    for dsn in (
        [named] if named else [f"host=127.0.0.1 user=postgres dbname={name}" for name in ("test", "postgres")]
    ):
        with contextlib.suppress(psycopg.Error), psycopg.connect(dsn, connect_timeout=3):
            return dsn
    return None


@contextlib.contextmanager
def schema(dsn: str, commit: str) -> Iterator[tuple[str, str]]:
    """Give a schema of its own, and the connection string for what is to be in it."""
    import psycopg

    name = f"benchmark_{SYSTEM_CLOCK.new_token()[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
        try:
            options = f"-c search_path={name} -c synchronous_commit={commit}"
            yield name, psycopg.conninfo.make_conninfo(dsn, options=options)
        finally:
            connection.execute(f"DROP SCHEMA {name} CASCADE".encode())


def tracker(dsn: str, name: str) -> TaskTracker:
    """Return a tracker on tables that are made in the schema ``name``."""
    from stores.postgres.store import PostgresTaskStore

    store = PostgresTaskStore(dsn, schema=name)
    store.prepare(migrate=True)
    return TaskTracker(store, handlers=registry())


def analyze(inside: str) -> None:
    """Have the server look at what is in the tables now."""
    import psycopg

    with psycopg.connect(inside, autocommit=True) as connection:
        connection.execute("ANALYZE task_tracker_tasks")


# ---- one task ----------------------------------------------------------------------------------------------


def _life(dsn: str, commit: str) -> Row:
    """Create, start and complete a task, against three single-row commits on one open connection."""
    import psycopg

    with (
        schema(dsn, commit) as (name, inside),
        tracker(inside, name) as tasks,
        psycopg.connect(inside, autocommit=True) as bare,
    ):
        bare.execute("CREATE TABLE bare (id text PRIMARY KEY, status text, document jsonb)")
        ours, floor, ratio = paired(_live(tasks), _commits(bare), rounds=20)
    return Row(
        f"create, start and complete / three bare commits, synchronous_commit {commit}",
        ratio,
        "x",
        MOST_OF_BARE_COMMITS,
        f"{ours:.0f} / {floor:.0f} us",
    )


def _live(tracker: TaskTracker) -> Callable[[], object]:
    def live() -> None:
        task = tracker.create("noop", **OWNER)
        tracker.start(task.task_id, **OWNER)
        tracker.complete(task.task_id, {"done": True}, **OWNER)

    return live


def _commits(bare: Any) -> Callable[[], object]:
    """What any store must do: the document is written whole each time, as JSONB, in one statement and commit."""
    numbers = itertools.count()
    document = json.dumps(
        {"task_type": "noop", "status": "running", "result": {"done": True}, "text": "x" * 200}
    )

    def live() -> None:
        key = f"task-{next(numbers)}"
        bare.execute("INSERT INTO bare VALUES (%s, 'pending', %s)", [key, document])
        for status in ("running", "completed"):
            bare.execute("UPDATE bare SET status = %s, document = %s WHERE id = %s", [status, document, key])

    return live


# ---- one worker ----------------------------------------------------------------------------------------------


def _against_peers(disk: Path, dsn: str, commit: str) -> list[Row]:
    """Each round begins with empty tables; who is first changes from round to round."""
    place = disk / "postgres_peers"
    try:
        _install(place)
    except (OSError, subprocess.SubprocessError) as error:
        return [Row(f"no figures for other queues: they cannot be installed here ({error!r:.60})", 0.0, "")]
    lived = _in_turn(
        {
            "here": lambda: _live_here(dsn, commit),
            **{name: partial(_live_there, place, name, dsn, commit) for name in PEER_NAMES},
        }
    )
    return [
        _compared(
            lived, name, f"{TASKS:,} no-op tasks live, one worker / {name}, synchronous_commit {commit}"
        )
        for name in PEER_NAMES
    ]


def _in_turn(ways: dict[str, Callable[[], Life]]) -> dict[str, list[Life]]:
    lives: dict[str, list[Life]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        for name in [*ways] if number % 2 else reversed([*ways]):
            lives[name].append(ways[name]())
    return lives


def _compared(lives: dict[str, list[Life]], name: str, what: str) -> Row:
    ours, theirs = lives["here"], lives[name]
    ratio = statistics.median(mine.all / its.all for mine, its in zip(ours, theirs, strict=True))
    parts = [
        statistics.median(getattr(life, part) for life in some) / TASKS * 1e6
        for some in (ours, theirs)
        for part in ("submitted", "worked")
    ]
    return Row(
        what,
        ratio,
        "x",
        MOST_OF_PEER,
        "us per task, until submitted + until ended: {:.0f} + {:.0f} / {:.0f} + {:.0f}".format(*parts),
    )


def _live_here(dsn: str, commit: str) -> Life:
    with schema(dsn, commit) as (name, inside):
        tracker(inside, name).close()
        return live.live("postgres", f"{inside}|{name}")


def _live_there(place: Path, name: str, dsn: str, commit: str) -> Life:
    with schema(dsn, commit) as (_, inside):
        return live.live(name, _url(inside), str(place))


def _install(place: Path) -> None:
    if not (place / "procrastinate").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place), *PEERS]
        subprocess.run(command, check=True, capture_output=True, timeout=300)


def _url(dsn: str) -> str:
    """The same connection string as a URL, which is what asyncpg takes."""
    from urllib.parse import quote, urlencode

    import psycopg

    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    options = urlencode({"options": parts["options"]}, quote_via=quote)
    who = quote(str(parts.get("user", "")))
    secret = f":{quote(str(parts['password']))}" if "password" in parts else ""
    where = f"{parts.get('host', '127.0.0.1')}:{parts.get('port', 5432)}"
    return f"postgresql://{who}{secret}@{where}/{parts.get('dbname', '')}?{options}"


# ---- a long list -----------------------------------------------------------------------------------------------


def _listing(dsn: str) -> Row:
    """The newest of very many, against the query that reads the same rows from the index, and nothing else."""
    import psycopg

    with schema(dsn, "off") as (name, inside), tracker(inside, name) as tasks:
        first = tasks.create("noop", **OWNER).task_id
        with psycopg.connect(inside, autocommit=True) as bare:
            bare.execute(MULTIPLY, {"first": first, "copies": LISTED - 1})
            bare.execute("ANALYZE task_tracker_tasks")
            ours, floor, ratio = paired(
                lambda: tasks.list_tasks(limit=PAGE, **OWNER),
                lambda: bare.execute(BARE_PAGE, [OWNER["account_id"], OWNER["user_id"], PAGE]).fetchall(),
            )
            assert len(tasks.list_tasks(limit=PAGE, **OWNER)) == PAGE
    return Row(
        f"list {PAGE} of {LISTED:,} of one owner / the bare query",
        ratio,
        "x",
        MOST_OF_BARE_QUERY,
        f"{ours:.0f} / {floor:.0f} us",
    )
