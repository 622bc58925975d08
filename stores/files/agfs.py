"""``agfs://host:port/``: AGFS servers as a file system of fsspec, over pyagfs.

Owns what their answers mean: the server says everything with one status and a sentence, and a request that was
not answered in time may still be served. Refuses to retry by itself: whoever asked knows how to find out.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from fsspec import AbstractFileSystem

from stores.files.client_errors import meaning_of
from task_tracker.errors import SettingsError

__all__ = ["AgfsFileSystem"]

_T = TypeVar("_T")

_PORT: Final = 8080
_TIMEOUT_SECONDS: Final = 10.0
_MAX_CONNECTIONS: Final = 32
_OPTIONS: Final = frozenset(
    {"use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop"}
)
"""What fsspec gives to all of its file systems."""
_TIMES: Final = ("modTime", "mod_time")


class AgfsFileSystem(AbstractFileSystem):
    """An AGFS server. ``timeout`` is in seconds, for each request; ``secure`` means https.

    Creating a file exclusively is not offered: the server looks first and writes then.
    """

    protocol = "agfs"
    root_marker = "/"

    def __init__(
        self,
        host: str = "localhost",
        port: int = _PORT,
        *,
        timeout: float = _TIMEOUT_SECONDS,
        secure: bool = False,
        **options: Any,
    ) -> None:
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"agfs:// has no option {min(unknown)!r}; it has port, timeout and secure")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise TypeError(f"timeout is {timeout!r}; give a positive number of seconds")
        super().__init__(**options)
        self.host, self.port = host, port
        scheme = "https" if secure else "http"
        self._client = _client(f"{scheme}://{host}:{port}", timeout)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(path)
        if text.startswith("agfs://"):
            text = "/" + text.removeprefix("agfs://").partition("/")[2]
        return "/" + text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        place = path.removeprefix("agfs://").partition("/")[0]
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "")
        if "@" in place or not (port or str(_PORT)).isdecimal():
            raise ValueError(f"{path!r} is no AGFS server; write agfs://host:port/path")
        return ({"host": host} if host else {}) | ({"port": int(port)} if port else {})

    # ---- what is there ---------------------------------------------------------------------------------

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the entries of a directory, or the one of a file."""
        path = self._strip_protocol(path)
        try:
            entries = self._call("ls", path, lambda: self._client.ls(path))
        except NotADirectoryError:
            entries = None
        if entries is None:
            found = [self.info(path)]
        else:
            found = [_entry(f"{path.rstrip('/')}/{entry['name']}", entry) for entry in entries]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return what the server tells of a path."""
        path = self._strip_protocol(path)
        return _entry(path, self._call("stat", path, lambda: self._client.stat(path)))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return a file's bytes; the whole of it is read, whatever is asked for."""
        path = self._strip_protocol(path)
        data: bytes = self._call("read", path, lambda: self._client.read(path))
        return data[start:end]

    # ---- changes ---------------------------------------------------------------------------------------

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a file, in place. Raises NotImplementedError for ``mode="create"``."""
        if mode != "overwrite":
            raise NotImplementedError("an AGFS server has no exclusive create")
        path = self._strip_protocol(path)
        # Its own retries would write again after others did.
        self._call("write", path, lambda: self._client.write(path, bytes(value), max_retries=0))

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Rename; what becomes of a target that is there depends on the mount."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._call("mv", source, lambda: self._client.mv(source, target))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Read and write."""
        self.pipe_file(path2, self.cat_file(path1))

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        path = self._strip_protocol(path)
        self._call("rm", path, lambda: self._client.rm(path))

    _rm = rm_file

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self.rm_file(path)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Make a directory. Raises FileExistsError."""
        path = self._strip_protocol(path)
        if create_parents:
            self.makedirs(self._parent(path), exist_ok=True)
        self._call("mkdir", path, lambda: self._client.mkdir(path))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it. A mount point above may refuse and be there all the same."""
        parts = self._strip_protocol(path).strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            directory = "/" + "/".join(parts[:depth])
            try:
                self._call("mkdir", directory, lambda: self._client.mkdir(directory))  # noqa: B023  # called at once
            except FileExistsError:
                if depth == len(parts) and not exist_ok:
                    raise
            except OSError:
                # Servers also refuse what is there, and what lies above a mount, in words of their own.
                if self.info(directory)["type"] != "directory":
                    raise

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        if mode == "wb":
            return _Upload(self, path)
        raise NotImplementedError(f"an AGFS server cannot open files as {mode!r}; it can 'rb' and 'wb'")

    # ---- answers ---------------------------------------------------------------------------------------

    def _call(self, method: str, path: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Exception as error:  # the client raises one class for everything, with its cause as context
            raise _meaning(error, method, path) from error


class _Upload(io.BytesIO):
    """Bytes that are written to the server when this is closed."""

    def __init__(self, fs: AgfsFileSystem, path: str) -> None:
        super().__init__()
        self._fs, self._path = fs, path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._fs.pipe_file(self._path, data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            super().close()  # what is half-written by its author is not to be seen


def _client(url: str, timeout: float) -> Any:
    """Return a client with one time limit for everything; its own one for writes is ten seconds and more."""
    try:
        import requests
        from pyagfs import AGFSClient
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"agfs:// needs the package {error.name}; install durable-task-tracker[agfs]"
        ) from error

    class TimedSession(requests.Session):
        """A session whose requests all have the same limit."""

        def request(self, *arguments: Any, **options: Any) -> Any:
            return super().request(*arguments, **options | {"timeout": timeout})

    client = AGFSClient(url, timeout=timeout)
    client.session.close()
    client.session = TimedSession()
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=_MAX_CONNECTIONS)
    client.session.mount("http://", adapter)
    client.session.mount("https://", adapter)
    return client


def _meaning(error: Exception, method: str, path: str) -> OSError:
    """Return what ``error`` means. Only a sentence of the server itself can mean that a path is not there."""
    cause = error.__context__ if error.__context__ is not None else error
    response = getattr(cause, "response", None)
    if response is None:
        kind = TimeoutError if "Timeout" in type(cause).__name__ else ConnectionError
        return kind(f"{error}; whether it was served is not known")
    said = _sentence(response)
    if said is None:
        return OSError(f"HTTP status {response.status_code} without an error of AGFS; is it such a server?")
    if method == "ls" and "not a directory" in said.lower():
        return NotADirectoryError(said)
    if method == "read" and "is a directory" in said.lower():
        return IsADirectoryError(said)
    meaning = meaning_of(RuntimeError(said), method, [path])
    return OSError(said) if meaning is None else meaning(said)


def _sentence(response: Any) -> str | None:
    """Return the server's own error in a response, None if it is not the server's."""
    try:
        said = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return said if isinstance(said, str) and said else None


def _entry(path: str, told: Mapping[str, Any]) -> dict[str, Any]:
    is_directory = bool(told.get("isDir", told.get("is_dir", False)))
    modified = next((told[name] for name in _TIMES if name in told), None)
    return {
        "name": path,
        "size": told.get("size", 0),
        "type": "directory" if is_directory else "file",
        "modified": modified,
    }
