"""Answers as JSON: the envelope around them, and the bytes.

Owns the shape that clients see. The embedding server may bring its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import orjson
from pydantic import BaseModel
from starlette.responses import Response

__all__ = ["Envelope", "JsonResponse", "Renderer", "encode"]


class Renderer(Protocol):
    """Builds the body of an answer: JSON's own types, or pydantic models and dataclasses of them.

    Status codes and headers are not its business. It must not block.
    """

    def ok(self, result: Any) -> Any:
        """Return the body around a result: an object for one task, an array for a list."""

    def error(self, code: str, message: str, details: Mapping[str, Any]) -> Any:
        """Return the body of a failure. ``code`` is a word such as ``NOT_FOUND``."""


class Envelope:
    """The default: ``{"status": "ok", "result": ...}`` and ``{"status": "error", "error": {...}}``."""

    def ok(self, result: Any) -> Any:
        """Return the body around a result."""
        return {"status": "ok", "result": result}

    def error(self, code: str, message: str, details: Mapping[str, Any]) -> Any:
        """Return the body of a failure."""
        return {"status": "error", "error": {"code": code, "message": message, "details": dict(details)}}


class JsonResponse(Response):
    """A response whose content is encoded by :func:`encode`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of ``content``."""
        return encode(content)


def encode(content: Any, *, sort_keys: bool = False) -> bytes:
    """Return ``content`` as strict JSON."""
    try:
        return orjson.dumps(content, default=_plain, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        # Records of other writers may be nested as deep as orjson goes; inside an envelope that is too deep.
        return json.dumps(
            content, default=_plain, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys
        ).encode()


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"a renderer returned a {type(value).__name__}, which JSON does not have")
