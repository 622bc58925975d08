"""Who is asking, and whose tasks they mean.

Owns the step from what the embedding server's dependency returned to an account and a user. Refuses to
guess: an identity without a usable account sees nothing.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

from task_tracker.codec import check_id
from task_tracker.errors import InvalidTaskId
from task_tracker.http.failures import Failure, Refused

__all__ = ["Caller", "Identity", "Owner", "Scope", "known_caller", "owner_meant", "scope_meant"]


class Caller(Protocol):
    """What the identity dependency returns: anything with these two attributes."""

    @property
    def account_id(self) -> str:
        """The account, never blank."""

    @property
    def user_id(self) -> str | None:
        """The user in it; None for an administrator of the whole account."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """A ready-made :class:`Caller`. ``user_id=None`` must be said: it makes an administrator."""

    account_id: str
    user_id: str | None


class Owner(NamedTuple):
    """Whose task is meant."""

    account_id: str
    user_id: str


class Scope(NamedTuple):
    """Whose tasks are meant: one user's, or with None all of the account's."""

    account_id: str
    user_id: str | None

    @property
    def is_administrator(self) -> bool:
        """Of a caller: whether all of the account's tasks are theirs to see."""
        return self.user_id is None


def known_caller(answer: object) -> Scope:
    """Return who is asking, from what the identity dependency returned.

    Raises Refused (401) if it names nobody, TypeError if it is no identity at all.
    """
    if answer is None:
        raise Refused(_NOBODY)
    try:
        account_id, user_id = answer.account_id, answer.user_id  # type: ignore[attr-defined]
    except AttributeError as error:
        raise TypeError(
            f"the identity dependency returned a {type(answer).__name__}; "
            "return an object with account_id and user_id, for example task_tracker.http.Identity"
        ) from error
    try:
        return Scope(
            check_id(account_id, "account_id"), None if user_id is None else check_id(user_id, "user_id")
        )
    except InvalidTaskId as error:
        raise Refused(_NOBODY) from error


def scope_meant(caller: Scope, user_id: str | None) -> Scope:
    """Return whose tasks a list is about: the caller's own; an administrator's may be narrowed to a user."""
    if user_id is None:
        return caller
    return Scope(caller.account_id, _named_user(caller, user_id))


def owner_meant(caller: Scope, user_id: str | None) -> Owner:
    """Return whose task a single task's id is about. An administrator must say it."""
    if user_id is not None:
        return Owner(caller.account_id, _named_user(caller, user_id))
    if caller.user_id is None:
        raise Refused(
            Failure.bad_parameter("user_id", "is needed: an administrator names the owner of a single task")
        )
    return Owner(caller.account_id, caller.user_id)


def _named_user(caller: Scope, user_id: str) -> str:
    if caller.user_id is not None and caller.user_id != user_id:
        raise Refused(Failure.bad_parameter("user_id", "is for administrators of the account only"))
    try:
        return check_id(user_id, "user_id")
    except InvalidTaskId as error:
        raise Refused(Failure.bad_parameter("user_id", "is not the id of a user")) from error


_NOBODY = Failure(401, "UNAUTHENTICATED", "The request does not say which account and user is asking")
