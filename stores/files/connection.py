"""A file system of fsspec: its instances, its errors, and the few calls that records need.

Owns the manners that all of them share: one instance per process, built anew after a fork; no listing from a
cache; "not there" and "taken" told apart from trouble. Refuses to know which of them can be relied upon for
what: that is found out by trying (:mod:`stores.files.probing`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar

from task_tracker.errors import CorruptRecord, SettingsError, StoreUnavailable
from task_tracker.forks import renew_after_fork
from task_tracker.redaction import redact_text

__all__ = ["Connection", "Entry", "is_filesystem"]

_T = TypeVar("_T")

_INNER: Final = ("fs", "sync_fs")
"""What wrappers call the file system that they wrap."""
_OF_ONE_LOOP: Final = ("asynchronous", "loop")


class Entry(NamedTuple):
    """What a listing tells of a name."""

    name: str
    is_directory: bool


class _Turn:
    """Turns in the file systems that live in this process: they are plain dicts, walked by several threads."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self.lock = threading.RLock()


_TURN: Final = _Turn()


class Connection:
    """A file system and a path in it. Paths that are given begin with ``/`` and lie below that path."""

    def __init__(self, make: Callable[[], Any], root: str, *, first: Any = None, url: str = "") -> None:
        """``make`` builds an instance that nobody else uses; ``first`` is used until the process forks."""
        self._make = make
        self._url = redact_text(url.rstrip("/"))
        self._fs = make() if first is None else first
        self._root = root.rstrip("/")
        self._relative = not self._fs.root_marker and not self._root
        self.in_process = any(map(_is_memory, _layers(self._fs)))
        """Whether the files are in this process's memory."""
        innermost = [*_layers(self._fs)][-1]
        self.looks_first = not innermost.async_impl and type(innermost).pipe_file is _default_pipe_file()
        """Whether :meth:`put_new` is the one that everybody inherits, which looks first and writes then."""
        kind = type(self._fs)
        self.kind = f"{kind.__module__}.{kind.__qualname__}"
        protocol = self._fs.protocol
        self._scheme: str = protocol if isinstance(protocol, str) else protocol[0]
        self.renew_lock()
        renew_after_fork(self)

    @classmethod
    def by_url(cls, url: str, options: dict[str, Any]) -> Connection:
        """Return the connection that a URL means; ``options`` go to fsspec. Raises SettingsError."""
        shown = redact_text(url)
        try:
            import fsspec
        except ModuleNotFoundError as error:
            extra = "agfs" if url.startswith("agfs:") else "fsspec"
            raise SettingsError(
                f"root is {shown!r}, which needs fsspec; install durable-task-tracker[{extra}]"
            ) from error
        _know_agfs(fsspec)
        try:
            first, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
        except SettingsError:
            raise
        except ImportError as error:
            raise SettingsError(f"root is {shown!r}: {error}; install what it names") from error
        except ValueError as error:
            raise SettingsError(f"root is {shown!r}: {redact_text(str(error))}") from error
        except TypeError as error:
            raise SettingsError(f"the options do not fit root {shown!r}: {error}") from error
        except Exception as error:  # file systems connect while they are built, and raise anything
            reason = redact_text(str(error)) or type(error).__name__
            raise StoreUnavailable(f"cannot open {shown}: {reason}; try again once that is mended") from error
        _switch_caches_off(first)

        def make() -> Any:
            fs = _built_again(first)
            _switch_caches_off(fs)
            return fs

        return cls(make, root, first=first, url=url)

    @classmethod
    def of(cls, fs: Any) -> Connection:
        """Return the connection that an instance is. One that was made for coroutines is made again for threads."""
        first = _built_again(fs) if getattr(fs, "asynchronous", False) else fs
        return cls(lambda: _built_again(fs), "", first=first)

    def another(self) -> Connection:
        """Return a connection with an instance of its own, as another process has one."""
        if self.in_process:
            return self
        return Connection(self._make, self._root, url=self._url)

    def renew(self) -> None:
        """Forget the instance, whose sockets and event loop are the parent's."""
        self.renew_lock()
        if not self.in_process:
            self._fs = None

    def renew_lock(self) -> None:
        """Begin with a lock that nobody holds."""
        self._lock = threading.Lock()

    @property
    def place(self) -> object:
        """What is the same for two connections to the same files of this process."""
        return [id(getattr(fs, "store", fs)) for fs in _layers(self._instance())][-1]

    def show(self, path: str) -> str:
        """Return the path to show in messages."""
        return f"{self._url}{path}" if self._url else f"{self._scheme}://{self.full(path)}"

    def full(self, path: str) -> str:
        """Return the path as the file system knows it."""
        return path.lstrip("/") if self._relative else f"{self._root}{path}"

    # ---- calls -----------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""
        data = self._call("read", path, lambda fs, full: fs.cat_file(full))
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise StoreUnavailable(
                f"cannot read {self.show(path)}: a {type(data).__name__} came, not bytes; check the file system"
            )
        return bytes(data)

    def exists(self, path: str) -> bool:
        """Tell whether there is something. Never from a cached listing."""

        def look(fs: Any, full: str) -> bool:
            _forget_listings(fs, full)
            fs.info(full)  # not exists(), which takes every trouble for "no"
            return True

        try:
            return self._call("look at", path, look)
        except FileNotFoundError:
            return False

    def entries(self, path: str) -> Sequence[Entry]:
        """Return what is in a directory, fresh. Raises FileNotFoundError."""

        def look(fs: Any, full: str) -> list[Any]:
            _forget_listings(fs, full)
            return list(fs.ls(full, detail=True))

        own = self.full(path).strip("/")
        return [
            Entry(name.rsplit("/", 1)[-1], entry["type"] == "directory")
            for entry in self._call("list", path, look)
            if (name := str(entry["name"]).rstrip("/")).strip("/") != own
        ]

    def put(self, path: str, data: bytes) -> None:
        """Write a file, over what is there."""
        self._call("write", path, lambda fs, full: fs.pipe_file(full, data))

    def put_new(self, path: str, data: bytes) -> None:
        """Write a file by the mode that is to fail if there is one. Whether it does is for a probe to say."""
        self._call("create", path, lambda fs, full: fs.pipe_file(full, data, mode="create"))

    def open_new(self, path: str, data: bytes, *, before_end: Callable[[], object] = lambda: None) -> None:
        """The same by opening it as new; ``before_end`` is called while it is not closed."""

        def write(fs: Any, full: str) -> None:
            with fs.open(full, "xb") as file:
                file.write(data)
                before_end()

        self._call("create", path, write)

    def move(self, source: str, target: str) -> None:
        """Rename a file. What becomes of a target that is there is for a probe to say."""
        self._call("move", source, lambda fs, full: fs.mv(full, self.full(target)))

    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""

        def remove(fs: Any, full: str) -> None:
            try:
                fs.rm_file(full)
            except NotImplementedError:
                fs.rm(full)

        self._call("remove", path, remove)

    def make_directories(self, path: str) -> None:
        """Make a directory and those above it."""
        with contextlib.suppress(FileExistsError):
            self._call("make", path, lambda fs, full: fs.makedirs(full, exist_ok=True))

    def _call(self, verb: str, path: str, call: Callable[[Any, str], _T]) -> _T:
        try:
            with self._turn():
                return call(self._instance(), self.full(path))
        except (FileNotFoundError, FileExistsError):
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(f"{self.show(path)}: {error}") from error
        except IsADirectoryError as error:
            raise CorruptRecord(
                f"{self.show(path)} is a directory where a file belongs; move it away by hand",
                path=self.show(path),
            ) from error
        except Exception as error:  # file systems raise anything
            raise StoreUnavailable(
                f"cannot {verb} {self.show(path)}: {redact_text(str(error)) or type(error).__name__}; "
                "try again once that is mended"
            ) from error

    def _turn(self) -> AbstractContextManager[object]:
        return _TURN.lock if self.in_process else contextlib.nullcontext()

    def _instance(self) -> Any:
        fs = self._fs
        if fs is None:
            with self._lock:
                if self._fs is None:
                    self._fs = self._make()
                fs = self._fs
        return fs


def is_filesystem(thing: object) -> bool:
    """Tell whether ``thing`` is a file system of fsspec; without importing that, who has one has it loaded."""
    spec = sys.modules.get("fsspec.spec")
    return spec is not None and isinstance(thing, spec.AbstractFileSystem)


def _default_pipe_file() -> object:
    return sys.modules["fsspec.spec"].AbstractFileSystem.pipe_file


def _know_agfs(fsspec: Any) -> None:
    """Have ``agfs://`` known also where this is not an installed distribution (its entry point is not read)."""
    if "agfs" not in fsspec.available_protocols():
        fsspec.register_implementation("agfs", "stores.files.agfs.AgfsFileSystem")


def _layers(fs: Any) -> Iterator[Any]:
    """Iterate over a file system and those that it wraps."""
    while fs is not None:
        yield fs
        fs = next((inner for name in _INNER if is_filesystem(inner := getattr(fs, name, None))), None)


def _is_memory(fs: Any) -> bool:
    memory = sys.modules.get("fsspec.implementations.memory")
    return memory is not None and isinstance(fs, memory.MemoryFileSystem)


def _switch_caches_off(fs: Any) -> None:
    """Have instances of our own never keep a listing. Not by their options: some take none that they do not know."""
    for layer in _layers(fs):
        everybodys = any(layer is known for known in list(type(layer)._cache.values()))
        if not everybodys and hasattr(layer, "dircache"):
            layer.dircache.use_listings_cache = False


def _forget_listings(fs: Any, path: str) -> None:
    """Have the next look at ``path`` ask the server; wrappers do not always pass that on."""
    for layer in _layers(fs):
        # What a wrapped one calls this path is not known here.
        layer.invalidate_cache(path) if layer is fs else layer.invalidate_cache()


def _built_again(fs: Any) -> Any:
    """Return a new instance like ``fs``, of the same arguments, those that it wraps built again as well."""

    def again(value: Any) -> Any:
        return _built_again(value) if is_filesystem(value) else value

    options = {name: again(value) for name, value in fs.storage_options.items() if name not in _OF_ONE_LOOP}
    return type(fs)(*map(again, fs.storage_args), **options, skip_instance_cache=True)
