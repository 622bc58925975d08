"""How large what a task carries may be.

Owns the bounds and the words in which they are said. Records are kept in memory, and written whole with every change,
so a large one costs everybody something. Refuses to judge what is stored already: that is read whatever its size.
"""

from __future__ import annotations

import dataclasses

from task_tracker import defaults
from task_tracker.errors import InvalidPayload, SettingsError

__all__ = ["Sizes", "TooLarge", "check_resource_id"]


class TooLarge(ValueError):
    """Something is larger than it may be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """The bounds on submitted tasks, in bytes of JSON. Raises SettingsError for what is no number of bytes."""

    max_payload_bytes: int = defaults.MAX_PAYLOAD_BYTES
    max_checkpoint_bytes: int = defaults.MAX_CHECKPOINT_BYTES
    max_result_bytes: int = defaults.MAX_RESULT_BYTES

    def __post_init__(self) -> None:
        """Check that each of them is a bound."""
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingsError(f"{name} is {value!r:.80}; give a whole number of bytes of 1 or more")

    def check_payload(self, payload_json: bytes | None) -> bytes | None:
        """Return what fits. Raises InvalidPayload."""
        if payload_json is None:
            return None
        try:
            return _fitting(
                payload_json,
                self.max_payload_bytes,
                "payload",
                "put what is large elsewhere and submit where it is",
            )
        except TooLarge as error:
            raise InvalidPayload(str(error)) from None

    def check_checkpoint(self, checkpoint_json: bytes) -> bytes:
        """Return what fits. Raises TooLarge."""
        return _fitting(
            checkpoint_json,
            self.max_checkpoint_bytes,
            "checkpoint",
            "keep what is large elsewhere and note where it is",
        )

    def check_result(self, result_json: bytes) -> bytes:
        """Return what fits. Raises TooLarge."""
        return _fitting(
            result_json,
            self.max_result_bytes,
            "result",
            "put what is large into files (ctx.workdir) or elsewhere and return where it is",
        )


def _fitting(encoded: bytes, most: int, what: str, advice: str) -> bytes:
    if len(encoded) > most:
        raise TooLarge(
            f"the {what} takes {len(encoded)} bytes as JSON, and max_{what}_bytes is {most}; {advice}, or raise the "
            "setting"
        )
    return encoded


def check_resource_id(resource_id: str) -> str:
    """Return what fits. Raises TooLarge."""
    if len(resource_id) > defaults.MAX_RESOURCE_ID_CHARACTERS:
        raise TooLarge(
            f"resource_id has {len(resource_id)} characters, and may have {defaults.MAX_RESOURCE_ID_CHARACTERS}; "
            "give a shorter name, a digest of the long one for instance"
        )
    return resource_id
