"""What an object server really does with conditions: tried out, on an object of the library's own.

Owns the experiment. It exists because servers that call themselves compatible take a condition that they do not know
for none, and overwrite.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Final, NamedTuple

from stores.files.backing import Changed, ETag
from stores.files.objects_requests import Requests, Unsupported
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable

__all__ = ["Found", "probe"]

_WRONG: Final = ETag("00000000000000000000000000000000#1")
_OLD: Final = timedelta(days=1)


class Found(NamedTuple):
    """What holds on this server."""

    conditional_put: bool
    """If-None-Match: * and If-Match are honoured."""
    conditional_delete: bool
    consistent: bool
    """What was written is read and listed by whoever looks afterwards."""


def probe(requests: Requests, directory: str, clock: Clock) -> Found:
    """Try it out with seven requests, in a directory of its own. Raises StoreUnavailable."""
    name = clock.new_token()
    path = f"{directory}/{name}"
    data = name.encode()
    try:
        exclusive, tag = _creates_once(requests, path, data)
        compares = tag is not None and _refuses_wrong_tag(requests, path, data)
        read = requests.get(path)
        objects, _ = requests.list(directory)
        mine = next((listed for listed in objects if listed.name == name), None)
        consistent = read is not None and read[0].startswith(data) and mine is not None
        deletes = tag is not None and _deletes_only_the_right_one(requests, path, tag)
        # Those that crashed, by the server's own clock.
        for listed in objects:
            if mine is not None and mine.modified_at - listed.modified_at > _OLD:
                requests.delete(f"{directory}/{listed.name}")
    except FileNotFoundError as error:
        # Once is no proof: somebody in between may have said it. The next call tries again.
        raise StoreUnavailable(
            f"{requests.where(path)} was written and is not there; try again, and if it stays so keep records elsewhere"
        ) from error
    except BaseException:
        with contextlib.suppress(StoreUnavailable):
            requests.delete(path)
        raise
    if not deletes:
        requests.delete(path)
    return Found(exclusive and compares, exclusive and compares and deletes, consistent)


def _creates_once(requests: Requests, path: str, data: bytes) -> tuple[bool, ETag | None]:
    try:
        tag = requests.put(path, data, new=True)
    except Unsupported:
        return False, requests.put(path, data)
    try:
        # Other bytes: a request that was sent twice is settled by content.
        return False, requests.put(path, data + b"-2", new=True)
    except FileExistsError:
        return True, tag


def _refuses_wrong_tag(requests: Requests, path: str, data: bytes) -> bool:
    try:
        requests.put(path, data + b"-3", over=_WRONG)
    except Changed:
        return True
    except Unsupported:
        pass
    return False


def _deletes_only_the_right_one(requests: Requests, path: str, tag: ETag) -> bool:
    try:
        requests.delete_if(path, _WRONG)
    except Changed:
        pass
    except (FileNotFoundError, Unsupported):
        return False
    else:
        return False
    try:
        requests.delete_if(path, tag)
    except (Changed, FileNotFoundError, Unsupported):
        return False
    return True
