"""Decides if a relay carries for a peer at a payer's cost: the rules that a pass must keep (core.relay_passes).

A pass is shown in a ticket, by whoever dials. It speaks about keys only: a copy in a stranger's hands is worth
nothing, because the ticket around it is signed by one holder and names another. What lies on the payer's channel is
asked of the ledger by the shell (`net.io.relay_metering_gate`); `relay_meter` says how much of the quota is left.
"""

from __future__ import annotations

from farflung.core import limits, relay_passes
from farflung.core.ids import PeerId
from farflung.core.relay_passes import RelayPass, SignedRelayPass
from farflung.net.relay_tickets import TicketStatus

Name = tuple[PeerId, int, int]  # of a pass at its relay: payer, opening, serial


def name_of(toll: RelayPass) -> Name:
    """What it is called there."""
    return toll.payer, toll.opening, toll.serial


def judge(signed: SignedRelayPass | None, relay: PeerId, parties: tuple[PeerId, ...]) -> RelayPass | TicketStatus:
    """The pass, if it is for this relay and these keys, and its payer's; else why not."""
    if signed is None:
        return TicketStatus.UNPAID
    toll = signed.toll
    if not relay_passes.is_well_formed(toll):
        return TicketStatus.MALFORMED
    if toll.relay != relay:
        return TicketStatus.ELSEWHERE
    if not set(parties) <= set(toll.holders):
        return TicketStatus.NO_HOLDER
    return toll if relay_passes.is_pass_signed(signed) else TicketStatus.FORGED


def is_current(toll: RelayPass, now: int) -> bool:
    """Whether a pass counts at `now` by the relay's clock, and is no longer than any pass may be."""
    return has_counted(toll, now) and now < toll.expires


def has_counted(toll: RelayPass, now: int) -> bool:
    """Whether a pass counts at `now`, or did once."""
    is_begun = toll.begins - limits.PASS_SKEW_SECONDS <= now
    return is_begun and toll.begins < toll.expires <= toll.begins + limits.PASS_SECONDS


def renews(new: RelayPass, old: RelayPass) -> bool:
    """Whether `new` may stand for `old`: the same pass, with no holder and no byte less, and a later end."""
    same = (new.chain, new.payer, new.relay, new.opening, new.serial)
    before = (old.chain, old.payer, old.relay, old.opening, old.serial)
    is_more = (new.quota, new.lost) == (max(new.quota, old.quota), max(new.lost, old.lost))
    is_for_all = set(new.holders) >= set(old.holders)
    return same == before and is_more and is_for_all and new.expires > old.expires
