"""The harness of the persistent store on an object store."""

import contextlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager

from stores.files.objects import ObjectFiles
from stores.files.persistent import PersistentTaskStore
from task_tracker.records import TaskKey
from task_tracker.testing import StoreHarness
from tests.contract.harnesses import OPENED, TOO_LONG, place
from tests.objects.server import UNAVAILABLE, S3Server


class ObjectsHarness(StoreHarness):
    """Objects below a prefix of their own in the server's bucket."""

    unstorable_ids = TOO_LONG

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.root = server.new_root()
        self._options = server.options()
        self.spec = ("persistent", {"root": self.root, "options": self._options})
        self._first = len(server.requests)

    def open(self) -> PersistentTaskStore:
        store = PersistentTaskStore(self.root, options=self._options)
        # Known from the first store on this server: probing again for each would take as long as all else.
        assert isinstance(store._files, ObjectFiles)
        if self.server.found is None:
            self.server.found = store._files._probed()
        store._files._found = self.server.found
        return store

    def key_of(self, path: str) -> str:
        return self.root.removeprefix("s3://").partition("/")[2] + path

    def plant(self, key: TaskKey, data: bytes) -> None:
        self.server.put(self.key_of(place(key)), data)

    def peek(self, key: TaskKey) -> bytes | None:
        return self.server.get(self.key_of(place(key)))

    def remove(self, key: TaskKey) -> None:
        self.server.delete(self.key_of(place(key)))

    def fresh(self) -> "ObjectsHarness":
        return type(self)(self.server)

    def age(self, seconds: float) -> None:
        data = self.server.get(self.key_of(OPENED))
        assert data is not None
        opened_at = json.loads(data)["opened_at"]
        self.server.put(self.key_of(OPENED), json.dumps({"opened_at": opened_at - seconds}).encode())

    def outage(self) -> AbstractContextManager[None]:
        return self.server.disturbed(lambda method, key: UNAVAILABLE)

    def unreachable(self, key: TaskKey) -> AbstractContextManager[None]:
        path = self.key_of(place(key))
        return self.server.disturbed(lambda method, key: UNAVAILABLE if key == path else None)

    @contextlib.contextmanager
    def undeletable(self, key: TaskKey) -> Iterator[None]:
        path = self.key_of(place(key))
        writes = ("DELETE", "PUT")  # some servers need a tombstone
        with self.server.disturbed(
            lambda method, key: UNAVAILABLE if method in writes and key == path else None
        ):
            yield

    def reads(self) -> int:
        return sum(
            method == "GET" and "/tasks/" in key and key.endswith(".json") and status == 200
            for method, key, status in self.server.requests[self._first :]
        )
