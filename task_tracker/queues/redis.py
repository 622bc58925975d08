"""RedisWakeUp: workers on any host are woken through a channel of a Redis server.

Owns the subscription and its thread. A channel keeps nothing, so what is said while nobody listens is gone, and Redis
never fills up; who comes (back) to the channel is woken once, since it may have missed something. Refuses to carry what
a task needs, or even its id: who is woken looks into the store.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.duty import Duty
from task_tracker.queues.connecting import TROUBLE, Rest, client_of, shown
from task_tracker.records import TaskKey
from task_tracker.redaction import redact_text
from task_tracker.wakeups import InProcessWakeUp

if TYPE_CHECKING:
    import redis
    from redis.client import PubSub

__all__ = ["RedisWakeUp"]

_log = logging.getLogger("task_tracker")

CHANNEL: Final = "task_tracker:wake"
_ROUND_SECONDS: Final = 0.5
_LINGER_SECONDS: Final = 5.0
"""How long the subscription is kept once nobody waits."""
_PING_SECONDS: Final = 15.0
"""After so long a silence the server is asked for a sign of life, and given as long again to answer."""
_SHORTEST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_MOST_AT_ONCE: Final = 1000


class RedisWakeUp(InProcessWakeUp):
    """Wakes all that wait on the same ``channel``, in this process and in others.

    ``url``: ``redis://[user:password@]host:port/db``, ``rediss://`` for TLS, ``unix://``; channels are common to all
    databases of a server, so stores that share one take different channels (``?channel=name`` in the URL says so, too).
    Connects when it is used: :meth:`wake` raises StoreUnavailable within two seconds if that fails, and at once for a
    while after that; :meth:`wait` goes on trying in the background. The thread that listens ends when nobody has waited
    for five seconds. Raises SettingsError for a URL that is none.
    """

    def __init__(self, url: str, *, channel: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._url, said = _without_channel(url)
        self.channel = channel or said or CHANNEL
        self.where = shown(url)
        """The URL as it may be shown."""
        client_of(self._url)  # said now if it cannot work
        super().__init__(clock)

    def __repr__(self) -> str:
        return f"RedisWakeUp({self.where!r}, channel={self.channel!r})"

    def renew(self) -> None:
        """Begin anew: in a forked child there is no thread, and connections are the parent's."""
        super().renew()
        self._client: redis.Redis | None = None
        self._rest = Rest(self._clock, self.where)
        self._listener = _Listener(self, self._url, self._clock)

    def wake(self, keys: Sequence[TaskKey]) -> None:
        """Wake all that listen; see :meth:`WakeUp.wake`. Raises StoreUnavailable."""
        self._rest.check()
        if self._client is None:
            self._client = client_of(self._url)
        try:
            self._client.publish(self.channel, b"")
        except TROUBLE as error:
            raise self._rest.failed(error) from error
        self._rest.worked()

    def wait(self, seconds: float) -> bool:
        """Wait to be woken; see :meth:`WakeUp.wait`."""
        self._listener.want()
        return super().wait(seconds)

    def until_listening(self, seconds: float) -> bool:
        """Return whether the channel is heard by now, having waited for that for ``seconds`` at most."""
        return self._listener.listening.wait(seconds)

    def close(self) -> None:
        """Let go of the thread and the connections. Used again, it connects again."""
        self._listener.stop()
        self.interrupt()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits just now."""
        return bool(self._waiting)

    def heard(self) -> None:
        """Wake who waits here; the listener calls it."""
        super().wake(())


class _Listener(Duty):
    """One subscription. A round reads what has come, for half a second at most."""

    def __init__(self, way: RedisWakeUp, url: str, clock: Clock) -> None:
        super().__init__("redis wake-up", clock)
        self._way = way
        self._url = url
        self.listening = threading.Event()
        self._client: Any = None
        self._pubsub: PubSub | None = None
        self._pause = _SHORTEST_PAUSE_SECONDS
        self._wanted_at = clock.monotonic()
        self._heard_at = self._pinged_at = 0.0
        self._away_since: float | None = None

    def want(self) -> None:
        """Listen, from now on until nobody has wanted that for a while."""
        self._wanted_at = self._clock.monotonic()  # before the look at the thread: it may be about to end
        self.start()

    def stop(self, timeout_seconds: float | None = 10.0) -> bool:
        """End the thread and the subscription."""
        ended = super().stop(timeout_seconds)
        if ended:
            self._drop()
        return ended

    def run_once(self) -> float | None:
        """Listen for a while; return the pause until the next round, None if nobody is interested any more."""
        if not self._is_wanted():
            self.last_round()
            if not self._is_wanted():
                self._drop()
                return None
            self.start()  # somebody came in between, and counted on this thread
            return None
        try:
            heard = self._listen()
        except TROUBLE as error:
            return self._lost(error)
        if heard:
            self._way.heard()
        return 0.0

    def on_error(self) -> float:
        """Begin with a new connection soon, whatever it was."""
        self._drop()
        return self._next_pause()

    def _is_wanted(self) -> bool:
        return self._way.is_waited_for or self._clock.monotonic() - self._wanted_at <= _LINGER_SECONDS

    def _listen(self) -> bool:
        """Return whether somebody is to be woken. Raises what :data:`TROUBLE` names."""
        if self._pubsub is None:
            self._client = client_of(self._url)  # kept: it takes its connections along when it goes
            self._pubsub = self._client.pubsub()
            self._pubsub.subscribe(self._way.channel)
            self._heard_at = self._pinged_at = self._clock.monotonic()
        pubsub = self._pubsub
        heard = False
        message: dict[str, Any] | None = pubsub.get_message(timeout=_ROUND_SECONDS)
        for _ in range(_MOST_AT_ONCE):
            if message is None:
                break
            self._heard_at = self._clock.monotonic()
            if message["type"] == "subscribe":  # also when the client has connected again without a word
                self._is_back()
                heard = True
            heard = heard or message["type"] == "message"
            message = pubsub.get_message(timeout=0.0)
        self._look_for_life(pubsub)
        return heard

    def _look_for_life(self, pubsub: PubSub) -> None:
        """A connection that a firewall has forgotten is silent for ever, and looks well."""
        now = self._clock.monotonic()
        if now - self._heard_at >= 2 * _PING_SECONDS:
            raise ConnectionError(f"nothing was heard for {now - self._heard_at:.0f} s")
        if now - max(self._heard_at, self._pinged_at) >= _PING_SECONDS:
            self._pinged_at = now
            pubsub.ping()

    def _is_back(self) -> None:
        self.listening.set()
        self._pause = _SHORTEST_PAUSE_SECONDS
        if self._away_since is not None:
            _log.info(
                "Redis at %s answers again after %.0f s",
                self._way.where,
                self._clock.monotonic() - self._away_since,
                extra={"event": "wake_up_back"},
            )
        self._away_since = None

    def _lost(self, error: Exception) -> float:
        self._drop()
        if self._away_since is None:
            self._away_since = self._clock.monotonic()
            _log.warning(
                "Redis at %s does not answer (%s); it is tried again and again, and tasks are found by looking until "
                "then",
                self._way.where,
                redact_text(str(error)) or type(error).__name__,
                extra={"event": "wake_up_away"},
            )
        return self._next_pause()

    def _next_pause(self) -> float:
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return self._clock.jitter(pause)

    def _drop(self) -> None:
        self.listening.clear()
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with contextlib.suppress(*TROUBLE):
                pubsub.close()
                self._client.close()


def _without_channel(url: str) -> tuple[str, str | None]:
    """Split the option that is this module's own off a URL."""
    if not isinstance(url, str) or "channel=" not in url:
        return url, None
    parts = urlsplit(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    (channel,) = options.pop("channel", [None])[:1]
    return urlunsplit(parts._replace(query=urlencode(options, doseq=True))), channel
