"""Processes that tests talk to: an AGFS server."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.files.support import PATIENCE, PROJECT


class AgfsServer:
    """An AGFS server over ``root``, in a process of its own."""

    def __init__(self, root: Path, *, replaces: bool = True) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.filesystems.agfs_server",
                str(root),
                *([] if replaces else ["--refuse"]),
            ],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"agfs://127.0.0.1:{self.port}"

    def _tell(self, order: str) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/test/{order}", method="POST", data=b""
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def hold(self, operation: str, when: str) -> None:
        """Keep the next such request waiting, before it is served or after that."""
        self._tell(f"hold?operation={operation}&when={when}")

    def wait_until_held(self) -> None:
        self._tell("wait")

    def release(self) -> None:
        self._tell("release")

    def fail(self, sentence: str) -> None:
        """Answer everything with this; ``page`` as a proxy does whose server is elsewhere."""
        self._tell(f"fail?with={sentence.replace(' ', '+')}")

    def heal(self) -> None:
        self._tell("fail")

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self._tell("counts")
        return counts

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
