"""Rules taken away one at a time, and the scenarios that each must show up in.

A mutant is a context in which one small predicate of the replica, or one habit of its shell, is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sim_committee import World

from farflung.ledger import votes
from farflung.ledger.sdbft import inbox, links, replica, restraint, tally
from farflung.ledger.votes import Kind

Mutant = Callable[[], Any]


@contextmanager
def swap(module: Any, name: str, other: Any) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, kept)


@contextmanager
def quorum_minus_one() -> Iterator[None]:
    def is_quorum(count: int, seats: int) -> bool:
        return 3 * (count + 1) > 2 * seats

    with swap(votes, "is_quorum", is_quorum), swap(tally, "is_quorum", is_quorum):
        yield


def finalize_after_nullify() -> Any:
    return swap(replica, "may_finalize", lambda cast: Kind.FINALIZE not in cast)


def nullify_after_finalize() -> Any:
    return swap(replica, "may_nullify", lambda cast: Kind.NULLIFY not in cast)


def notarize_twice() -> Any:
    return swap(replica, "may_notarize", lambda cast: Kind.NULLIFY not in cast)


def votes_before_the_disk() -> Any:
    return swap(World, "is_logging", False)


def any_parent() -> Any:
    return swap(links.Branches, "has_link", lambda self, view, proposal: True)


def unsigned_quorums() -> Any:
    return swap(votes, "has_quorum", lambda certificate, vote, members: True)


def any_epoch() -> Any:
    return swap(inbox.Inbox, "_is_ours", lambda self, vote: vote.chain == self.reign.chain)


def build_on_a_closing_block() -> Any:
    return swap(links.Branches, "closes", lambda self, block: False)


__all__ = ["restraint"]
