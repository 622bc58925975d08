"""Long texts of users' code, made short and then safe: masking credentials takes time, and happens on the event loop.

Owns where a text is cut. Refuses to show what is next to a cut: that may be one half of a credential, which nothing
recognises any more.
"""

from __future__ import annotations

import traceback
from typing import Final

from task_tracker.redaction import REDACTED, redact_text

__all__ = ["excerpt", "shortened", "traceback_text"]

MOST_CHARS: Final = 10_000
_EDGE_CHARS: Final = 512
"""More than any pattern reads before it knows a credential."""
_CUT: Final = "... [cut]"
_FRAME: Final = '\n  File "'


def excerpt(text: str) -> str:
    """Return the beginning of ``text``, 10,000 characters of it at most, with credentials masked."""
    if len(text) <= MOST_CHARS:
        return redact_text(text)
    start = redact_text(text[:MOST_CHARS])
    end = max(len(start) - _EDGE_CHARS, start.rfind(REDACTED) + len(REDACTED))
    return start[:end] + _CUT


def shortened(text: str, most: int) -> str:
    """Return the beginning of ``text``, ``most`` characters with the word that it was cut, credentials masked."""
    text = excerpt(text)
    return text if len(text) <= most else text[: most - len(_CUT)] + _CUT


def traceback_text(error: BaseException) -> str:
    """Return the traceback of ``error`` in the same way, and what comes last of a long one too, if that is frames.

    The last part begins at a frame: no credential reaches over that line, so none was cut in two there.
    """
    text = "".join(traceback.format_exception(error))
    if len(text) <= 2 * MOST_CHARS:
        return redact_text(text)
    last = text[-MOST_CHARS:]
    frame = last.find(_FRAME)
    return excerpt(text) + ("" if frame < 0 else redact_text(last[frame:]))
