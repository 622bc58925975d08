"""What the tests of object stores start from."""

from typing import Any

from stores.files.objects import ObjectFiles
from stores.files.persistent import PersistentTaskStore
from tests.contract.harnesses import place
from tests.objects.server import S3Server


def open_on(server: S3Server, root: str, **more: Any) -> PersistentTaskStore:
    """Return a store on a root, with options for the server's sake in ``more``."""
    arguments = {name: more.pop(name) for name in ("clock", "lock_timeout_seconds") if name in more}
    return PersistentTaskStore(root, options=server.options(**more), **arguments)


def files_of(store: PersistentTaskStore) -> ObjectFiles:
    assert isinstance(store._files, ObjectFiles)
    return store._files


def key_at(root: str, key: Any) -> str:
    """Return where in the bucket a record is."""
    return root.removeprefix("s3://").partition("/")[2] + place(key)
