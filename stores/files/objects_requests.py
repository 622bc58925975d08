"""Requests to an object store, each sent until it is answered or patience is at its end.

Owns the translation of every error of the library, and the knowledge whether a write may have been sent twice: a
refusal after a lost answer is settled by looking at what is there. Refuses to know what the objects are.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

from stores.files.backing import Changed, ETag
from stores.files.objects_library import LIBRARY, describe
from stores.files.objects_options import ObjectSettings
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable, TaskTrackerError

__all__ = ["Listed", "Requests", "Unsupported"]

_T = TypeVar("_T")

_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
_NO_OBJECT: Final = ("NoSuchKey", "BlobNotFound", "ResourceNotFound", "No such object", "NoSuchVersion")
_REFUSED: Final = (
    *("PermissionDeniedError", "UnauthenticatedError", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    *("AccessDenied", "ExpiredToken", "AuthenticationFailed", "instance metadata"),
)
_BUSY: Final = (
    "ConditionalRequestConflict",
    "OperationAborted",
)  # AWS: another write is under way, try again
_NOT_KNOWN: Final = ("NotSupportedError", "NotImplemented", "501 Not Implemented")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_FIRST_PAUSE_SECONDS: Final = 0.1
_SIGNED_FOR: Final = timedelta(minutes=2)
_WITH_GENERATIONS: Final = ("gs", "gcs")


class Unsupported(StoreUnavailable):
    """The server does not know this kind of request."""


class Listed(NamedTuple):
    """An object in a listing."""

    name: str
    size: int
    tag: ETag | None
    modified_at: datetime


class Requests:
    """Objects by path below a URL. Thread-safe; a forked child connects anew."""

    def __init__(self, settings: ObjectSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._generations = settings.url.startswith(_WITH_GENERATIONS)
        self._built: tuple[int, Any, Any, Any] | None = None

    def where(self, path: str) -> str:
        """Return the URL of an object."""
        return f"{self._settings.url}/{path}"

    # ---- the requests ----------------------------------------------------------------------------------

    def get(self, path: str, *, unless: ETag | None = None) -> tuple[bytes, ETag | None] | None:
        """Return an object; None if it still has the tag ``unless``. Raises FileNotFoundError."""
        options = {} if unless is None else {"if_none_match": self._quoted(unless)}
        library, reading, _ = self._stores()
        try:
            answer = library.get(reading, path, options=options)
            return bytes(answer.bytes()), self._tag(answer.meta)
        except Exception as error:
            if type(error).__name__ == "NotModifiedError":
                return None
            if isinstance(error, FileNotFoundError) and self._is_missing(path, error):
                raise FileNotFoundError(self.where(path)) from error
            raise self._trouble("read", path, error) from error

    def _is_missing(self, path: str, error: Exception) -> bool:
        """Tell whether it is the object store that says that an object is not there, and no proxy before it."""
        if _says(error, _NO_BUCKET):
            return False
        if _says(error, _NO_OBJECT):
            return True
        directory, _, name = path.rpartition("/")
        return all(listed.name != name for listed in self.list(directory)[0])

    def put(self, path: str, data: bytes, *, new: bool = False, over: ETag | None = None) -> ETag | None:
        """Publish an object and return its tag. Raises FileExistsError if ``new``, Changed if ``over`` is not there."""
        library, _, writing = self._stores()
        mode: Any = "create" if new else "overwrite" if over is None else self._version(over)

        def send() -> ETag | None:
            return self._tag(library.put(writing, path, data, mode=mode, use_multipart=False))

        def refusal(error: Exception) -> Exception | None:
            refused = type(error).__name__ in ("AlreadyExistsError", "PreconditionError")
            if not refused or _says(error, _BUSY) or _says(error, _NO_BUCKET):
                return None
            return FileExistsError(self.where(path)) if new else Changed(self.where(path))

        def settled() -> tuple[ETag | None] | None:
            try:
                there = self.get(path)
            except FileNotFoundError:
                return None
            return (there[1],) if there is not None and there[0] == data else None

        return self._insist("write", path, send, refusal, settled)

    def delete(self, path: str) -> None:
        """Remove an object, whether it is there or not."""
        library, reading, _ = self._stores()
        try:
            library.delete(reading, path)
        except FileNotFoundError as error:
            if not self._is_missing(path, error):
                raise self._trouble("delete", path, error) from error
        except Exception as error:
            raise self._trouble("delete", path, error) from error

    def delete_if(self, path: str, tag: ETag) -> None:
        """Remove an object that has this tag. Raises Changed, FileNotFoundError; Unsupported if that cannot be asked.

        The library has no such call; so it signs a plain one. The condition need not be signed.
        """
        library, reading, _ = self._stores()

        def send() -> None:
            try:
                url = library.sign(reading, "DELETE", path, _SIGNED_FOR)
            except Exception as error:
                raise Unsupported(describe(error)) from error
            request = urllib.request.Request(url, method="DELETE", headers={"If-Match": self._quoted(tag)})
            with urllib.request.urlopen(request, timeout=self._settings.patience_seconds / 2):
                pass

        def refusal(error: Exception) -> Exception | None:
            if isinstance(error, Unsupported):
                return error
            if not isinstance(error, urllib.error.HTTPError):
                return None
            with error:
                said = error.read().decode(errors="replace")
            if error.code == 404 and any(word in said for word in _NO_OBJECT):
                return FileNotFoundError(self.where(path))
            if error.code == 501:
                return Unsupported(said)
            return Changed(self.where(path)) if error.code == 412 else None

        def settled() -> tuple[None] | None:
            try:
                return None if self.get(path) else (None,)
            except FileNotFoundError:
                return (None,)

        return self._insist("delete", path, send, refusal, settled)

    def list(self, directory: str) -> tuple[Sequence[Listed], Sequence[str]]:
        """Return the objects in a directory and the names of the directories in it."""
        library, reading, _ = self._stores()
        try:
            found = library.list_with_delimiter(reading, directory or None)
        except Exception as error:
            raise self._trouble("list", directory, error) from error
        objects = [
            Listed(_name(meta["path"]), meta["size"], self._tag(meta), meta["last_modified"])
            for meta in found["objects"]
        ]
        return objects, [_name(prefix) for prefix in found["common_prefixes"]]

    # ---- the pieces ------------------------------------------------------------------------------------

    def _insist(
        self,
        verb: str,
        path: str,
        send: Callable[[], _T],
        refusal: Callable[[Exception], Exception | None],
        settled: Callable[[], tuple[_T] | None],
    ) -> _T:
        """Send a write until it is answered. A refusal after a lost answer may be that of the second sending."""
        deadline = self._clock.monotonic() + self._settings.patience_seconds / 2
        pause, lost = _FIRST_PAUSE_SECONDS, False
        for left in range(self._settings.max_retries, -1, -1):
            try:
                return send()
            except Exception as error:
                refused = refusal(error)
                if refused is not None:
                    done = settled() if lost and not isinstance(refused, Unsupported) else None
                    if done is not None:
                        return done[0]
                    raise refused from error
                if _says(error, _NOT_KNOWN):
                    raise Unsupported(describe(error)) from error
                busy = _says(error, _BUSY)
                lost = lost or not busy
                final = _says(error, (*_NO_BUCKET, *_REFUSED))
                if final or not left or self._clock.monotonic() >= deadline:
                    raise self._trouble(verb, path, error) from error
            self._pause(pause)
            pause *= 2
        raise AssertionError("unreachable")

    def _pause(self, seconds: float) -> None:
        condition = threading.Condition()
        with condition:
            self._clock.wait(condition, self._clock.jitter(seconds))

    def _stores(self) -> tuple[Any, Any, Any]:
        """Return the library, and the store to read from (it repeats requests) and to write to (it does not)."""
        built = self._built
        if built is None or built[0] != os.getpid():
            library = LIBRARY.get()
            try:
                reading, writing = (
                    library._store.from_url(
                        self._settings.url, **self._settings.built_with(retrying=retrying)
                    )
                    for retrying in (True, False)
                )
            except Exception as error:
                raise StoreUnavailable(
                    f"cannot use {self._settings.url}: {describe(error)}; mend root and its options"
                ) from error
            if built is not None:
                _FROM_PARENTS.append(built)  # never taken apart in a child: its threads are the parent's
            built = self._built = (os.getpid(), library, reading, writing)
        return built[1:]

    def _tag(self, meta: Any) -> ETag | None:
        tag = meta["e_tag"]
        if tag is None:
            return None
        if tag.startswith('"'):
            tag = tag.strip('"')  # some listings leave the quotes out
        return ETag(f"{tag}#{meta['version']}" if self._generations else tag)

    def _version(self, tag: ETag) -> dict[str, str]:
        if not self._generations:
            return {"e_tag": self._quoted(tag)}
        text, _, generation = tag.tag.rpartition("#")
        return {"e_tag": f'"{text}"', "version": generation}

    def _quoted(self, tag: ETag) -> str:
        text = tag.tag.rpartition("#")[0] if self._generations else tag.tag
        return text if text.startswith("W/") else f'"{text}"'

    def _trouble(self, verb: str, path: str, error: Exception) -> TaskTrackerError:
        if isinstance(error, TaskTrackerError):
            return error
        where = self.where(path)
        if _says(error, _NO_BUCKET):
            return StoreUnavailable(
                f"cannot {verb} {where}: there is no such bucket; create it, or mend root"
            )
        if _says(error, _REFUSED):
            return StoreUnavailable(
                f"cannot {verb} {where}: the credentials were refused ({describe(error)}); mend key, secret, token "
                "and region in the options or in the environment. Without permission to list the bucket, what is "
                "not there is refused, too"
            )
        return StoreUnavailable(
            f"cannot {verb} {where}: {describe(error)}; try again once the object store answers"
        )


_FROM_PARENTS: Final[list[Any]] = []


def _says(error: BaseException, words: Sequence[str]) -> bool:
    """Tell whether the server, or the library, says one of ``words``; ids in a path say nothing."""
    text = str(error)
    codes = _CODE.findall(text)
    said = " ".join(codes) if codes else text.rpartition("status code:")[2]
    return any(word in f"{type(error).__name__}: {said}" for word in words)


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
