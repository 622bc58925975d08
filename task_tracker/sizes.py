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
        if payload_json is not None and len(payload_json) > self.max_payload_bytes:
            raise InvalidPayload(
                f"the payload takes {len(payload_json)} bytes as JSON, and max_payload_bytes is "
                f"{self.max_payload_bytes}; put what is large elsewhere and submit where it is, or raise the setting"
            )
        return payload_json

    def check_checkpoint(self, checkpoint_json: bytes) -> bytes:
        """Return what fits. Raises TooLarge."""
        if len(checkpoint_json) > self.max_checkpoint_bytes:
            raise TooLarge(
                f"the checkpoint takes {len(checkpoint_json)} bytes as JSON, and max_checkpoint_bytes is "
                f"{self.max_checkpoint_bytes}; keep what is large elsewhere and note where it is, or raise the setting"
            )
        return checkpoint_json

    def check_result(self, result_json: bytes) -> bytes:
        """Return what fits. Raises TooLarge."""
        if len(result_json) > self.max_result_bytes:
            raise TooLarge(
                f"the result takes {len(result_json)} bytes as JSON, and max_result_bytes is {self.max_result_bytes}; "
                "put what is large into files (ctx.workdir) or elsewhere and return where it is, or raise the setting"
            )
        return result_json


def check_resource_id(resource_id: str) -> str:
    """Return what fits. Raises TooLarge."""
    if len(resource_id) > defaults.MAX_RESOURCE_ID_CHARACTERS:
        raise TooLarge(
            f"resource_id has {len(resource_id)} characters, and may have {defaults.MAX_RESOURCE_ID_CHARACTERS}; "
            "give a shorter name, a digest of the long one for instance"
        )
    return resource_id
