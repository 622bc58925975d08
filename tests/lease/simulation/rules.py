"""How a search asks what is right.

Owns the shape of rules and of their violation. What is remembered between steps is a set of facts, so that states
can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.lease.simulation.calls import Request
from tests.lease.simulation.disk import Disk, Result
from tests.lease.simulation.processes import Fact

__all__ = ["Ghost", "Rules", "Violation"]

Ghost = frozenset[Fact]
"""What happened so far, as far as the rules have to remember it."""


class Violation(AssertionError):
    """A rule was broken. ``check`` is the rule's name."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check
        self.message = message


class Rules(Protocol):
    """What must hold. Each method returns what is to be remembered, or raises Violation."""

    def concerns(self, request: Request) -> bool:
        """Tell whether ``called`` is to see such requests."""

    def called(self, request: Request, result: Result, before: Disk, after: Disk, ghost: Ghost) -> Ghost:
        """Look at a call that was made."""

    def said(self, actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        """Hear what a program says."""

    def recovered(self, before: Disk, after: Disk, facts: Sequence[Fact], ghost: Ghost) -> None:
        """Look at what recovery alone made of a state in which everybody crashed."""
