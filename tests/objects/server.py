"""A real S3 server (moto's), in a thread of the test process, that can be counted, disturbed and made worse."""

import contextlib
import io
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest

from stores.files.objects_probe import Found

BUCKET = "tasks-bucket"
_PATIENCE_SECONDS = 60.0
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)

# moto keeps its buckets in globals, whichever server asks.
_turn = threading.Lock()
_numbers = itertools.count(1)

Environ = dict[str, Any]
Answer = tuple[str, list[tuple[str, str]], bytes]
Disturbance = Callable[[str, str], str | None]
"""Method and key (of the bucket) in; a status line if the request is to fail with it."""

UNAVAILABLE = "503 Service Unavailable"


class S3Server:
    """One bucket behind HTTP. ``ignored``: headers that it takes no notice of, as (method, header)."""

    def __init__(self) -> None:
        # Half a second, which only those pay who need it.
        from moto.moto_server.werkzeug_app import create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        serve = self._answer

        class KeepsConnections(WSGIRequestHandler):
            """Werkzeug's own closes each connection, and a thread waits for what may still come through it."""

            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def run_wsgi(self) -> None:
                status, headers, data = serve(self.make_environ())
                code, _, reason = status.partition(" ")
                self.send_response(int(code), reason)
                for name, value in headers:
                    self.send_header(name, value)
                if not any(name.lower() == "content-length" for name, _ in headers):
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        # Of S3 alone: to find out which service is meant takes moto longer than to answer.
        self._moto = create_backend_app("s3")
        self.ignored: set[tuple[str, str]] = set()
        self.disturbances: list[Disturbance] = []
        self.lost: list[Disturbance] = []
        """Like disturbances, but the request has taken effect when it fails."""
        self.found: Found | None = None
        """What a store's probe said of it, undisturbed."""
        self.requests: list[tuple[str, str, int]] = []
        """Method, key (or the prefix that is listed), status."""
        self._server = make_server(
            "127.0.0.1", 0, self._moto, threaded=True, request_handler=KeepsConnections
        )
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        assert self.ask("PUT", f"/{BUCKET}")[0] == 200

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def options(self, **more: object) -> dict[str, object]:
        """Return what a store needs to get in; it tries once."""
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.endpoint,
            "region": "us-east-1",
            "max_retries": 0,
        } | more

    def new_root(self) -> str:
        """Return the URL of an empty place."""
        return f"s3://{BUCKET}/root-{next(_numbers)}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_PATIENCE_SECONDS)

    # ---- behind everybody's back -----------------------------------------------------------------------

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request that nobody counts. The server looks for a signature, not at it."""
        status, _, data = self._ask_moto(
            {
                "REQUEST_METHOD": method,
                "PATH_INFO": unquote(path).encode().decode("latin-1"),
                "RAW_URI": path,
                "REQUEST_URI": path,
                "SERVER_NAME": "127.0.0.1",
                "SERVER_PORT": str(self._server.server_port),
                "HTTP_HOST": f"127.0.0.1:{self._server.server_port}",
                "wsgi.url_scheme": "http",
                "QUERY_STRING": "",
                "HTTP_AUTHORIZATION": _SIGNED,
            },
            body,
        )
        return int(status.split()[0]), data

    def put(self, key: str, data: bytes) -> None:
        assert self.ask("PUT", f"/{BUCKET}/{quote(key)}", data)[0] == 200

    def get(self, key: str) -> bytes | None:
        status, data = self.ask("GET", f"/{BUCKET}/{quote(key)}")
        return data if status == 200 else None

    def delete(self, key: str) -> None:
        assert self.get(key) is not None
        self.ask("DELETE", f"/{BUCKET}/{quote(key)}")

    # ---- what tests do with it -------------------------------------------------------------------------

    @contextlib.contextmanager
    def disturbed(self, disturbance: Disturbance) -> Iterator[None]:
        self.disturbances.append(disturbance)
        try:
            yield
        finally:
            self.disturbances.remove(disturbance)

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Count requests by method while the block runs; a GET of a listing is LIST."""
        before, counts = len(self.requests), Counter[str]()
        yield counts
        counts.update(method for method, _, _ in self.requests[before:])

    # ---- serving ---------------------------------------------------------------------------------------

    def _answer(self, environ: Environ) -> Answer:
        method = environ["REQUEST_METHOD"]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        path = environ["PATH_INFO"].encode("latin-1").decode()
        _, _, key = path.lstrip("/").partition("/")
        if method == "GET" and "list-type" in environ["QUERY_STRING"]:
            method, key = "LIST", environ["QUERY_STRING"]
        for method_, header in self.ignored:
            if method_ == method:
                environ.pop(f"HTTP_{header.upper().replace('-', '_')}", None)
        failure = next((found for each in self.disturbances if (found := each(method, key))), None)
        if failure is None:
            answer = self._ask_moto(environ, body)
            failure = next((found for each in [*self.lost] if (found := each(method, key))), None)
        else:
            answer = (failure, [], b"")
        if failure is not None:
            answer = (failure, [("Content-Length", "0")], b"")
        self.requests.append((method, key, int(answer[0].split()[0])))
        return answer

    def _ask_moto(self, environ: Environ, body: bytes) -> Answer:
        environ = environ | {
            "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.errors": io.StringIO(),
        }
        kept: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], _: object = None) -> Callable[[bytes], object]:
            kept[:] = [status, headers]
            return lambda data: None

        # S3 takes conditional writes one at a time; moto looks and writes in two steps.
        with _turn:
            data = b"".join(self._moto(environ, start))
        return kept[0], kept[1], data


@pytest.fixture(scope="session")
def shared_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def s3_server(shared_server: S3Server) -> Iterator[S3Server]:
    """Return the server as it is when nobody disturbs it."""
    yield shared_server
    shared_server.disturbances.clear()
    shared_server.lost.clear()
    shared_server.ignored.clear()
    shared_server.requests.clear()
