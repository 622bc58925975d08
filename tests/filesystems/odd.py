"""File systems of fsspec with the manners of some that exist, over a directory of this host."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

PATIENCE = 5.0


class Odd(LocalFileSystem):
    """Local files; whatever the mode, ``pipe_file`` overwrites. ``manners`` are words:

    ``no mode``: what is opened as new is overwritten, too. ``mv refuses``: an existing target.
    ``mv copies``, by halves; ``mv keeps`` its source; ``no mv``. ``torn``: writes wait in the middle until somebody
    has looked. ``caches lists``, until it is told to forget; ``caches files``, for ever. ``late lists``: never shows
    what was written. ``read-only``.
    """

    protocol = "odd"
    cachable = False

    def __init__(self, manners: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.manners = set(manners.split(", ")) - {""}
        self._files: dict[str, bytes] = {}
        self._looks = threading.Condition()
        self.calls: list[str] = []

    def _has(self, manner: str) -> bool:
        return manner in self.manners

    def _check_writable(self, path: str) -> None:
        if self._has("read-only"):
            raise PermissionError(13, "Permission denied", path)

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self.calls.append("ls")
        path = self._strip_protocol(path)
        if self._has("late lists"):
            return []
        if not self._has("caches lists"):
            return super().ls(path, detail=detail, **options)
        try:
            entries = self.dircache[path]
        except KeyError:
            entries = self.dircache[path] = super().ls(path, detail=True, **options)
        return entries if detail else [entry["name"] for entry in entries]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self.calls.append("cat_file")
        path = self._strip_protocol(path)
        if self._has("caches files") and path in self._files:
            return self._files[path]
        data: bytes = super().cat_file(path, start, end, **options)
        self._files[path] = data
        LOOKS.note(path)
        return data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        self._check_writable(path)
        if self._has("torn") and len(value) > 10_000:
            _write_by_halves(path, value)
        else:
            Path(path).write_bytes(value)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "x" in mode and self._has("no mode"):
            mode = "wb"
        if mode != "rb":
            self._check_writable(path)
        return super().open(path, mode, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._check_writable(target)
        if self._has("no mv"):
            raise NotImplementedError("mv")
        if self._has("mv refuses") and not os.path.exists(source):
            raise FileNotFoundError(source)
        if self._has("mv refuses"):
            try:
                os.link(source, target)
            except FileExistsError as error:
                raise FileExistsError(target) from error
            os.unlink(source)
        elif self._has("mv copies"):
            _write_by_halves(target, Path(source).read_bytes())
            os.unlink(source)
        elif self._has("mv keeps"):
            shutil.copyfile(source, target)
        else:
            os.replace(source, target)


class _Looks:
    """Who has read a file how often, so that a writer can wait for that rather than for luck."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: dict[str, int] = {}

    def note(self, path: str) -> None:
        with self._changed:
            self._counts[path] = self._counts.get(path, 0) + 1
            self._changed.notify_all()

    def wait(self, path: str) -> None:
        """Wait until somebody has read ``path``, who began after this did."""
        with self._changed:
            # One reader may be in the middle of it.
            wanted = self._counts.get(path, 0) + 2
            self._changed.wait_for(lambda: self._counts.get(path, 0) >= wanted, PATIENCE)


LOOKS = _Looks()


def _write_by_halves(path: str, data: bytes) -> None:
    watched = os.path.exists(path)
    with open(path, "wb", buffering=0) as file:
        file.write(data[: len(data) // 2])
        if watched and len(data) > 10_000:
            LOOKS.wait(path)
        file.write(data[len(data) // 2 :])


def odd(root: Path, manners: str = "") -> DirFileSystem:
    """A directory of it, as everybody has one: through a wrapper, with an instance of his own."""
    return DirFileSystem(path=str(root), fs=Odd(manners))


class OneLoop(AsyncFileSystem):
    """Local files by coroutines, all of which need the event loop and the process of the first one, as sessions do."""

    protocol = "oneloop"
    root_marker = "/"

    def __init__(self, base: str, **options: Any) -> None:
        super().__init__(**options)
        self._base = base
        self._home: tuple[int, Any] | None = None

    async def _at(self, path: str) -> str:
        here = os.getpid(), asyncio.get_running_loop()
        if self._home is None:
            self._home = here
        if self._home != here:
            raise RuntimeError("attached to a different loop")
        await asyncio.sleep(0)
        return f"{self._base}/{self._strip_protocol(path).strip('/')}"

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        return _bytes_of(await self._at(path))[start:end]

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        _publish(await self._at(path), value, exclusive=mode == "create")

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        await self._pipe_file(path2, await self._cat_file(path1))

    async def _rm_file(self, path: str, **_: Any) -> None:
        os.unlink(await self._at(path))

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(await self._at(path), exist_ok=exist_ok)

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        seen = os.stat(await self._at(path))
        return {"name": path, "size": seen.st_size, "type": "directory" if S_ISDIR(seen.st_mode) else "file"}

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        names = os.listdir(await self._at(path))
        paths = [f"{path.rstrip('/')}/{name}" for name in names if not name.endswith(".part")]
        return [await self._info(each) for each in paths] if detail else paths


def _bytes_of(path: str) -> bytes:
    return Path(path).read_bytes()


def _publish(target: str, value: bytes, *, exclusive: bool) -> None:
    temporary = f"{target}.{threading.get_ident()}.{id(value)}.part"
    Path(temporary).write_bytes(value)
    if not exclusive:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)
    finally:
        os.unlink(temporary)
