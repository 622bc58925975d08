"""ArqWakeUp: for each task that waits, one message in a queue of ARQ's.

Owns the names of messages and how they get into Redis. A message holds the task's ids and says "run the next one"; the
task itself is in the store. Refuses to run anything: :mod:`task_tracker.queues.arq` does, in a worker of ARQ's. It
exists because ARQ itself can only enqueue from a coroutine, and tasks are submitted from any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.errors import SettingsError
from task_tracker.queues.extras import extra
from task_tracker.records import TaskKey
from task_tracker.wakeups import InProcessWakeUp

with extra("arq", "arq", "redis"):
    import redis
    from arq.connections import RedisSettings
    from arq.constants import default_queue_name, expires_extra_ms, in_progress_key_prefix, job_key_prefix
    from arq.jobs import serialize_job
    from redis.sentinel import Sentinel

    from task_tracker.queues.connecting import TROUBLE, Rest, limits, parsed, shown

__all__ = ["FUNCTION", "ArqWakeUp", "Serializer", "open_arq"]

Serializer = Callable[[dict[str, Any]], bytes]

FUNCTION: Final = "task_tracker"
_ARQ_SCHEME: Final = "arq+"
_BATCH: Final = 100
_NAMES_PER_TASK: Final = 16
_LATER: Final = "later:"
_ROUNDED_SECONDS: Final = 0.1
"""By so much stores may round start times up: a message that comes too early finds nothing, and is gone."""
_TLS_FIELDS: Final = (
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_check_hostname",
)


class ArqWakeUp(InProcessWakeUp):
    """Enqueues a message for each task that is announced; workers of ARQ's take them.

    ``redis_settings``: ARQ's, or a URL (:class:`task_tracker.queues.redis.RedisWakeUp`). ``queue_name`` and
    ``job_serializer`` are to be those of the ARQ worker; ``function_name`` is what its function is called there. A task
    has one message in the queue at most, however often it is announced, and one that ARQ holds back until its start
    time; a message that was taken can be sent again. :meth:`wake` raises StoreUnavailable within two seconds if Redis
    is away, and at once for a while after that.
    Nobody is woken by :meth:`wait`: only workers of ARQ's hear of messages.
    """

    def __init__(
        self,
        redis_settings: RedisSettings | str,
        *,
        queue_name: str = default_queue_name,
        function_name: str = FUNCTION,
        job_serializer: Serializer | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.redis_settings = (
            redis_settings if isinstance(redis_settings, RedisSettings) else _settings_of(redis_settings)
        )
        self.queue_name = queue_name
        self.function_name = function_name
        self._serializer = job_serializer
        self.where = _place(self.redis_settings)
        """Where Redis is, without its password."""
        super().__init__(clock)

    def __repr__(self) -> str:
        return f"ArqWakeUp({self.where!r}, queue_name={self.queue_name!r})"

    def renew(self) -> None:
        """Begin anew: in a forked child connections are the parent's."""
        super().renew()
        self._client: redis.Redis | None = None
        self._rest = Rest(self._clock, self.where)

    def wake(self, keys: Sequence[TaskKey]) -> None:
        """Send a message for each of ``keys``; see :meth:`WakeUp.wake`. Raises StoreUnavailable."""
        self._send_all(keys, None)

    def wake_later(self, keys: Sequence[TaskKey], at: float) -> None:
        """Send messages that ARQ holds back until then; see :meth:`WakesLater.wake_later`. Raises StoreUnavailable."""
        self._send_all(keys, at + _ROUNDED_SECONDS)

    def _send_all(self, keys: Sequence[TaskKey], at: float | None) -> None:
        self._rest.check()
        if self._client is None:
            self._client = _client_of(self.redis_settings)
        try:
            for start in range(0, len(keys), _BATCH):
                self._send(self._client, keys[start : start + _BATCH], at)
        except TROUBLE as error:
            raise self._rest.failed(error) from error
        self._rest.worked()

    def close(self) -> None:
        """Let go of the connections. Used again, it connects again."""
        self.interrupt()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _send(self, client: redis.Redis, keys: Sequence[TaskKey], at: float | None) -> None:
        """Put each message there unless it is there already. One for later has another name, and its last time counts.

        ARQ keeps a message's name while it is worked on, also after a crash of its worker, until its time is over.
        Under that name nothing can be sent, and what it is worked on need not be this task: take the next name then.
        """
        left = list(dict.fromkeys(keys))
        for number in range(_NAMES_PER_TASK):
            now_ms = int(self._clock.now() * 1000)
            at_ms = now_ms if at is None else int(at * 1000)
            life_ms = max(at_ms - now_ms, 0) + expires_extra_ms
            pipe: Any = client.pipeline(transaction=True)
            for key in left:
                name = f"{self.function_name}:{_digest(key)}:{'' if at is None else _LATER}{number}"
                message = serialize_job(
                    self.function_name, tuple(key), {}, None, now_ms, serializer=self._serializer
                )
                pipe.set(job_key_prefix + name, message, nx=at is None, px=life_ms)
                pipe.zadd(self.queue_name, {name: at_ms}, nx=at is None)
                pipe.exists(in_progress_key_prefix + name)
            answers = pipe.execute()
            left = [key for key, is_in_progress in zip(left, answers[2::3], strict=True) if is_in_progress]
            if not left:
                return


def open_arq(url: str) -> ArqWakeUp:
    """Return the way that ``arq+redis://host:6379/0?queue=name`` says. Raises SettingsError."""
    bare, _, options = url.removeprefix(_ARQ_SCHEME).partition("?")
    kept, queue_name = [], default_queue_name
    for option in options.split("&") if options else []:
        name, _, value = option.partition("=")
        if name == "queue":
            queue_name = value
        else:
            kept.append(option)
    return ArqWakeUp("?".join([bare, "&".join(kept)] if kept else [bare]), queue_name=queue_name)


def _digest(key: TaskKey) -> str:
    return hashlib.sha256(orjson.dumps(list(key))).hexdigest()[:32]


def _settings_of(url: str) -> RedisSettings:
    said = parsed(url)
    kind = str(said.pop("connection_class", ""))
    names = {"db": "database", "path": "unix_socket_path"}
    fields = {names.get(name, name): value for name, value in said.items()}
    unknown = set(fields) - set(RedisSettings.__dataclass_fields__)
    if unknown:
        raise SettingsError(
            f"{shown(url)!r:.200} has the option {min(unknown)!r:.80}, which ARQ does not take; give RedisSettings of "
            "arq in place of a URL"
        )
    return RedisSettings(**fields, ssl="SSL" in kind)


def _place(settings: RedisSettings) -> str:
    if settings.unix_socket_path:
        return f"unix://{settings.unix_socket_path}?db={settings.database}"
    if isinstance(settings.host, str):
        return f"redis{'s' * settings.ssl}://{settings.host}:{settings.port}/{settings.database}"
    hosts = ",".join(f"{host}:{port}" for host, port in settings.host)
    return f"{settings.sentinel_master} at the sentinels {hosts}"


def _client_of(settings: RedisSettings) -> redis.Redis:
    """Return a client for threads, which connects when it is used."""
    options: dict[str, Any] = {
        **limits(),
        "db": settings.database,
        "username": settings.username,
        "password": settings.password,
    }
    if settings.ssl:
        options |= {name: getattr(settings, name) for name in _TLS_FIELDS} | {"ssl": True}
    if settings.sentinel:
        known: Any = Sentinel
        client: redis.Redis = known(settings.host, **options).master_for(settings.sentinel_master)
        return client
    if not isinstance(settings.host, str):
        raise SettingsError("redis_settings has several hosts, which sentinels only have; say sentinel=True")
    return redis.Redis(
        host=settings.host, port=settings.port, unix_socket_path=settings.unix_socket_path, **options
    )
