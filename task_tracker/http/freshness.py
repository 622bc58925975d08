"""Validators of HTTP caching (RFC 9110, section 13): whether a client has seen this state already."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from task_tracker.http.rendering import encode

__all__ = ["etag_of", "is_known"]

_ENTITY_TAG: Final = re.compile(r'"[^"]*"')


def etag_of(view: Mapping[str, Any]) -> str:
    """Return the entity tag of a task's public view, the same on every instance.

    Weak (``W/``), since it names the task's state and not the bytes of the envelope around it.
    """
    digest = hashlib.blake2b(encode(view, sort_keys=True), digest_size=16).hexdigest()
    return f'W/"{digest}"'


def is_known(etag: str, if_none_match: Iterable[str]) -> bool:
    """Tell whether ``If-None-Match`` (all its lines) names ``etag``, by weak comparison; ``*`` names all."""
    lines = [line.strip() for line in if_none_match]
    opaque = etag.removeprefix("W/")
    return lines == ["*"] or any(opaque in _ENTITY_TAG.findall(line) for line in lines)
