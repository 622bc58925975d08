"""What a forked child must not inherit: locks that another thread of the parent held at that moment.

Owns one hook for the whole process. Objects that have locks announce themselves and are asked, in the child,
to make new ones; what the locks guarded stays as it was.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

__all__ = ["renew_after_fork"]


class Renewable(Protocol):
    """An object with locks."""

    def renew(self) -> None:
        """Make new locks; called in a forked child, where no other thread is left."""


_KNOWN: Final[weakref.WeakSet[Renewable]] = weakref.WeakSet()


def renew_after_fork(renewable: Renewable) -> None:
    """Have ``renewable`` renewed in every child that is forked while it lives."""
    _KNOWN.add(renewable)


def _renew_all() -> None:
    for renewable in list(_KNOWN):
        renewable.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
