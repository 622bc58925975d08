"""What happens to the lease protocol when one rule is taken away.

Owns one change of the library's own code per rule, the scenario that shows what it breaks, and the check that
must notice. A rule whose loss nothing notices is not needed, or not tested.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from stores.files.lease.announcements import Announcements
from stores.files.lease.births import Births
from stores.files.lease.deletions import Deletions
from stores.files.lease.entries import Entries
from stores.files.lease.intents import Intents
from stores.files.lease.names import EntryName
from stores.files.lease.notices import PauseLook
from stores.files.lease.ownership import Ownership
from stores.files.lease.records import Records
from stores.files.lease.room import Room
from stores.files.lease.store import LeaseTaskStore
from stores.files.lease.sweeping import Recovery
from stores.files.local import LocalFiles
from tests.lease.simulation import mutations as broken

__all__ = ["MUTANTS", "Mutant"]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A rule that is not there. ``check`` notices it in ``scenario``, in the world that ``how`` describes."""

    name: str
    changes: tuple[tuple[type, str, Any], ...]
    scenario: str
    check: str
    how: dict[str, Any] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Change the library's code while the block runs."""
        with contextlib.ExitStack() as changed:
            for owner, name, replacement in self.changes:
                changed.enter_context(mock.patch.object(owner, name, replacement))
            yield


_CACHED: Final = {"cached": True, "recovers": False, "by_steps": True}
_SHORT: Final = {"by_steps": True}
_ALIVE: Final = {"recovers": False}
"""What breaks among the living, whatever a crash would leave."""
_LATE: Final = "no commit after a later take-over"
_ONE: Final = "one active of a kind"
_LIMIT: Final = "never more than the limit"

_ALL: Final = (
    Mutant("no purge", ((Entries, "purge", broken.no_purge),), "hold, thief", _LATE, _ALIVE),
    Mutant(
        "the old stage is emptied, not removed",
        ((Entries, "purge", broken.purge_without_rmdir),),
        "hold, thief",
        _LATE,
        _CACHED,
    ),
    Mutant(
        "a stage that was taken from its holder is kept",
        ((Entries, "purge", broken.purge_into_spares),),
        "hold, thief",
        _LATE,
        _CACHED,
    ),
    Mutant(
        "no provisional name",
        ((Entries, "grab", broken.grab_in_one),),
        "hold, thief, late thief",
        _LATE,
        {"cached": True, "recovers": False},
    ),
    Mutant(
        "record read before the purge",
        ((Recovery, "take_over", broken.read_before_the_purge),),
        "hold, thief",
        "terminal is final",
    ),
    Mutant(
        "no reading again after a take-over",
        ((Recovery, "take_over", broken.no_reading_again),),
        "hold, thief",
        "terminal is final",
    ),
    Mutant(
        "the epoch is not raised",
        ((EntryName, "claimed", broken.same_epoch),),
        "hold, thief",
        "one grant of an epoch",
        _ALIVE,
    ),
    Mutant(
        "what has ended is claimed again",
        ((Ownership, "_is_for", staticmethod(broken.any_state)),),
        "hold, thief",
        "nothing is left over",
    ),
    Mutant(
        "an entry is for any life",
        ((Ownership, "_is_for", staticmethod(broken.any_life)),),
        "delete, create again and claim, thief",
        "nothing is left over",
    ),
    Mutant(
        "the token is not checked in the write",
        ((Records, "publish", broken.look_then_write),),
        "hold, thief",
        _LATE,
        _ALIVE,
    ),
    Mutant(
        "not there is taken for lost, without a look at the record",
        ((Records, "_landed", broken.not_landed), (Ownership, "_lost", broken.lost_at_once)),
        "hold, thief",
        "a loss is a loss",
        {"lost_replies": frozenset({"replace"})},
    ),
    Mutant(
        "entry removed before the terminal commit",
        ((Ownership, "_end", broken.entry_first),),
        "hold, thief",
        "everything ends",
    ),
    Mutant(
        "key freed before the terminal commit",
        ((Ownership, "_end", broken.key_first),),
        "only one: create and end, create",
        _ONE,
    ),
    Mutant(
        "removal is not repeated",
        ((Entries, "remove", broken.removed_once),),
        "hold, cancel",
        "nothing is left over",
    ),
    Mutant(
        "a waiting task is not given back",
        ((Ownership, "put_back", broken.left_in_leases),),
        "retry, claim",
        "everything ends",
    ),
    Mutant(
        "an entry is given back as if it were new",
        ((Entries, "put_back", broken.put_back_as_new),),
        "retry, claim",
        "what nobody has claimed has no stage",
    ),
    Mutant(
        "the purge takes the wish to cancel",
        ((Entries, "purge", broken.purge_with_wish),),
        "hold, cancel, thief",
        "a requested cancel is kept",
    ),
    Mutant(
        "a cancel does not look again",
        ((Intents, "_requested", broken.wish_without_looking_again),),
        "hold, cancel",
        "a cancel that is too late says so",
    ),
    Mutant(
        "announced, not looked",
        ((Announcements, "alone", broken.never_alone_in_doubt),),
        "only one: create twice",
        _ONE,
    ),
    Mutant(
        "the smaller name wins",
        ((Announcements, "alone", broken.smaller_name_wins),),
        "only one: create twice",
        _ONE,
        _SHORT,
    ),
    Mutant(
        "half-made creators are not fenced",
        ((Announcements, "_lives", broken.lives_without_fence),),
        "only one: create twice",
        _ONE,
    ),
    Mutant(
        "a creator writes what was taken from it again",
        ((Births, "_link", broken.link_once_more),),
        "only one: create twice",
        _ONE,
    ),
    Mutant(
        "recovery looks first and fences afterwards",
        ((Births, "recover", broken.look_first),),
        "create, recover",
        "everything ends",
    ),
    Mutant(
        "looked, then unlinked",
        ((Deletions, "delete", broken.unlink),),
        "delete, delete and create again",
        "no live record is deleted",
    ),
    Mutant(
        "heartbeats do not look for wishes",
        ((Ownership, "renew", broken.renewed_without_a_look),),
        "hold, cancel",
        "a requested cancel is seen",
    ),
    Mutant(
        "wishes are not shown",
        ((LeaseTaskStore, "_overlaid", broken.shown_as_stored),),
        "hold, cancel, look",
        "a requested cancel is shown",
    ),
    Mutant(
        "a fenced creator says that it created",
        ((Births, "_link", broken.link_unless_fenced),),
        "create, recover",
        "nothing acknowledged is lost",
    ),
    Mutant(
        "announcements are never judged",
        ((Announcements, "_lives", broken.all_live),),
        "create, recover",
        "no key is blocked",
    ),
    Mutant(
        "an index never looks again",
        ((LocalFiles, "directory_signature", broken.never_changed),),
        "list again, create",
        "listings are whole",
    ),
    Mutant(
        "all who meet give back",
        ((Room, "is_taken", broken.all_give_back),),
        "two workers, at most one task",
        "somebody gets the place",
        _ALIVE,
    ),
    Mutant(
        "later ones do not count, though they were there first",
        ((Room, "is_taken", broken.only_earlier_ones_count),),
        "two workers, at most one task",
        _LIMIT,
        _ALIVE,
    ),
    Mutant(
        "counted before the task is grabbed",
        ((Room, "is_taken", broken.counted_before),),
        "two workers, at most one task",
        _LIMIT,
        _ALIVE,
    ),
    Mutant(
        "pauses are looked for before the task is grabbed",
        ((PauseLook, "holds", broken.paused_before),),
        "worker, pause",
        "what is paused is not taken",
        _ALIVE,
    ),
)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
