"""An AGFS server over a directory, with the measured manners of the Go one: ``python -m ... <directory>``.

Writes truncate in place; errors are status 500 and a sentence. Prints its port, ends when its input ends. What
it is told to do by ``POST /test/...`` no real one does: hold an answer back, fail.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

ROUTES = {
    ("GET", "files"): "read",
    ("PUT", "files"): "write",
    ("DELETE", "files"): "rm",
    ("GET", "directories"): "ls",
    ("POST", "directories"): "mkdir",
    ("GET", "stat"): "stat",
    ("POST", "rename"): "mv",
}


class Refusal(Exception):
    """A sentence."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path, *, replaces: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.replaces = replaces
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.holds: dict[str, str] = {}
        self.failure: str | None = None
        self.released = threading.Event()
        self.held = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone: that is what their time limits are for."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    known: ClassVar = frozenset(ROUTES.values())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if url.path.startswith("/test/"):
            self._obey(url.path.removeprefix("/test/"), query)
            return
        operation = ROUTES.get((self.command, url.path.removeprefix("/api/v1/")))
        if operation is None:
            self._answer(404, b"404 page not found", "text/plain")
            return
        with self.server.lock:
            self.server.counts[operation] += 1
            hold = self.server.holds.pop(operation, None)
        if self.server.failure == "page":
            self._answer(404, b"<html>404 Not Found</html>", "text/html")
            return
        if self.server.failure:
            self._say(500, {"error": self.server.failure})
            return
        if hold == "before":
            self._hold()
        try:
            answer = getattr(self, f"_{operation}")(query["path"], body)
        except (Refusal, OSError) as error:
            answer = error
        if hold == "after":
            self._hold()
        if isinstance(answer, Exception):
            self._say(500, {"error": str(answer)})
        elif isinstance(answer, bytes):
            self._answer(200, answer, "application/octet-stream")
        else:
            self._say(200, answer)

    do_GET = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815  # the names that http.server asks for

    def _hold(self) -> None:
        self.server.held.set()
        self.server.released.wait(60)

    def _obey(self, order: str, query: dict[str, str]) -> None:
        server = self.server
        if order == "hold":
            server.released.clear()
            server.held.clear()
            server.holds[query["operation"]] = query["when"]
        elif order == "wait":
            server.held.wait(60)
        elif order == "release":
            server.holds.clear()
            server.released.set()
        elif order == "fail":
            server.failure = query.get("with")
        self._say(200, dict(server.counts))

    def _say(self, status: int, document: object) -> None:
        self._answer(status, json.dumps(document).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # ---- the file system -------------------------------------------------------------------------------

    def _local(self, path: str) -> Path:
        return self.server.root / path.strip("/")

    def _with_parent(self, path: str) -> Path:
        local = self._local(path)
        if not local.parent.exists():
            raise Refusal(f"parent directory does not exist: {os.path.dirname(path)}")
        return local

    def _read(self, path: str, _: bytes) -> bytes:
        local = self._local(path)
        if not local.exists():
            raise Refusal(f"no such file: {path}")
        if local.is_dir():
            raise Refusal(f"is a directory: {path}")
        try:
            return local.read_bytes()
        except FileNotFoundError as error:  # removed since
            raise Refusal(f"failed to open file: open {local}: no such file or directory") from error

    def _write(self, path: str, body: bytes) -> dict[str, str]:
        with open(self._with_parent(path), "wb", buffering=0) as file:
            half = len(body) // 2
            file.write(body[:half])
            file.write(body[half:])
        return {"message": f"Written {len(body)} bytes"}

    def _rm(self, path: str, _: bytes) -> dict[str, str]:
        local = self._local(path)
        try:
            local.unlink()
        except FileNotFoundError as error:
            raise Refusal(f"no such file or directory: {path}") from error
        return {"message": "deleted"}

    def _entry(self, local: Path) -> dict[str, Any]:
        seen = local.stat()
        return {
            "name": local.name,
            "size": seen.st_size,
            "mode": seen.st_mode & 0o777,
            "modTime": "2026-01-01T00:00:00Z",
            "isDir": local.is_dir(),
            "meta": {"name": "localfs", "type": "local"},
        }

    def _ls(self, path: str, _: bytes) -> dict[str, Any]:
        local = self._local(path)
        if not local.exists():
            raise Refusal(f"no such directory: {path}")
        if not local.is_dir():
            raise Refusal(f"not a directory: {path}")
        entries = []
        for each in sorted(local.iterdir()):
            try:
                entries.append(self._entry(each))
            except FileNotFoundError:
                continue
        return {"files": entries or None}

    def _mkdir(self, path: str, _: bytes) -> dict[str, str]:
        try:
            self._with_parent(path).mkdir()
        except FileExistsError as error:
            raise Refusal(f"directory already exists: {path}") from error
        return {"message": "directory created"}

    def _stat(self, path: str, _: bytes) -> dict[str, Any]:
        try:
            return self._entry(self._local(path))
        except FileNotFoundError as error:
            raise Refusal(f"no such file or directory: {path}") from error

    def _mv(self, path: str, body: bytes) -> dict[str, str]:
        target = json.loads(body)["newPath"]
        source = self._local(path)
        if not source.exists():
            raise Refusal(f"no such file or directory: {path}")
        if self.server.replaces:
            os.replace(source, self._with_parent(target))
            return {"message": "renamed"}
        with self.server.lock:
            if self._local(target).exists():
                raise Refusal(f"file already exists: {target}")
            os.rename(source, self._with_parent(target))
        return {"message": "renamed"}


def main() -> None:
    server = Server(Path(sys.argv[1]), replaces="--refuse" not in sys.argv[2:])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.released.set()
    server.shutdown()


if __name__ == "__main__":
    main()
