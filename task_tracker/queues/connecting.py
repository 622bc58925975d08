"""How Redis is reached: what a URL says, clients whose calls end soon, and a rest after one that failed.

Owns time limits and what is shown of a URL. Refuses to know what is sent. It exists because whoever stores a task must
not wait for a Redis that is away, and must not read its password in a log.
"""

from __future__ import annotations

import threading
from typing import Any, Final
from urllib.parse import urlsplit

from task_tracker.clock import Clock
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.forks import renew_after_fork
from task_tracker.queues.extras import extra
from task_tracker.redaction import redact_text

with extra("redis", "redis"):
    import redis
    from redis.backoff import NoBackoff
    from redis.connection import parse_url as _parse_url
    from redis.retry import Retry

__all__ = ["LIMITS", "TROUBLE", "Rest", "client_of", "limits", "parsed", "shown"]

CALL_SECONDS: Final = 1.0
"""How long connecting, and each answer, may take."""
LIMITS: Final = {"socket_connect_timeout": CALL_SECONDS, "socket_timeout": CALL_SECONDS}
TROUBLE: Final = (redis.RedisError, OSError)
"""What calls raise while Redis is away or refuses."""
_SHORTEST_REST_SECONDS: Final = 0.25
_LONGEST_REST_SECONDS: Final = 5.0


def shown(url: str) -> str:
    """Return ``url`` as it may be shown: without its password and its options."""
    return redact_text(url.partition("?")[0])


def parsed(url: str) -> dict[str, Any]:
    """Return what a Redis URL says, as arguments of a client. Raises SettingsError."""
    read: Any = _parse_url
    try:
        said: dict[str, Any] = dict(read(url))
        path = urlsplit(url).path.strip("/")
        if not url.startswith("unix:") and path and not path.isdecimal():
            raise ValueError("the database is no number")
    except (ValueError, AttributeError, TypeError):
        # What exactly is wrong with it may quote a part of the password.
        raise SettingsError(
            f"{shown(url)!r:.200} is no URL of a Redis; give redis://host:6379/0, rediss:// for TLS or unix:// for a "
            "socket, with special characters of the password percent-encoded"
        ) from None
    return said


def limits() -> dict[str, Any]:
    """Return arguments that bound the calls of a client: one second each, and one more try on a fresh connection.

    A server that was restarted has closed the old one, which is no outage.
    """
    lost = redis.ConnectionError
    return {
        **LIMITS,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 1, supported_errors=(lost,)),
        "retry_on_error": [lost],
    }


def client_of(url: str) -> redis.Redis:
    """Return a client, which connects when it is used. What the URL says of time limits holds instead of these."""
    parsed(url)
    bounds = limits()
    if url.startswith("unix:"):
        del bounds["socket_keepalive"], bounds["socket_connect_timeout"]  # of TCP
    client = redis.Redis.from_url(url, **bounds)
    pool = client.connection_pool
    try:
        pool.connection_class(
            **pool.connection_kwargs
        )  # connects to nothing; options that it does not know fail here
    except (redis.RedisError, ValueError, TypeError):
        raise SettingsError(f"{shown(url)!r:.200} has an option that redis-py does not take") from None
    return client


class Rest:
    """After a failure nothing is tried for a while, then for longer, up to five seconds. Thread-safe."""

    def __init__(self, clock: Clock, where: str) -> None:
        self._clock = clock
        self._where = where
        self._until = 0.0
        self._next = _SHORTEST_REST_SECONDS
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock: the parent's may have been held."""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise StoreUnavailable while nothing is to be tried."""
        seconds = self._until - self._clock.monotonic()
        if self._until and seconds > 0:
            raise StoreUnavailable(
                f"Redis at {self._where} did not answer a moment ago and is tried again in {seconds:.1f} s; what is "
                "stored is found without it"
            )

    def failed(self, error: Exception) -> StoreUnavailable:
        """Take note of a failure and return what to raise."""
        with self._lock:
            self._until = self._clock.monotonic() + self._clock.jitter(self._next)
            self._next = min(2 * self._next, _LONGEST_REST_SECONDS)
        return StoreUnavailable(
            f"Redis at {self._where} does not answer ({redact_text(str(error)) or type(error).__name__}); what is "
            "stored is found without it, see that it comes back"
        )

    def worked(self) -> None:
        """Take note that it answers."""
        if self._until:
            with self._lock:
                self._until, self._next = 0.0, _SHORTEST_REST_SECONDS
