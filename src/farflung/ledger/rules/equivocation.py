"""Punishes two votes that no honest validator signs both of.

The proof is in the signatures, and the stake is lost at once.

What excludes each other, in one view of one epoch (docs/protocol/sdbft.md, "Accountability"): NOTARIZE for two blocks,
FINALIZE for two blocks, FINALIZE and NULLIFY. NOTARIZE and NULLIFY is what an honest validator may sign. Half of the
stake, rounded down, is the accuser's; the rest is burnt, so that accusing oneself costs half.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules.accounts import deposit
from farflung.ledger.validators import CommitteeRow, ValidatorAccuse, ValidatorRow, ValidatorState, count_key
from farflung.ledger.votes import excludes, is_vote_signed


def accuse(draft: StateDraft, sender: PeerId, op: ValidatorAccuse) -> None:
    """Takes the stake of a seat that contradicted itself. Codes: FF-LEDG-261 to -263."""
    first, second = op.first, op.second
    if first.vote.chain != draft.law.chain or first.seat != second.seat or not excludes(first.vote, second.vote):
        raise PolicyError("FF-LEDG-261", "the votes do not exclude each other")
    epoch = draft.find(CommitteeRow, count_key(first.vote.epoch))
    if epoch is None or not (is_vote_signed(first, epoch.members) and is_vote_signed(second, epoch.members)):
        raise PolicyError("FF-LEDG-262", "no seat of that epoch signed both votes")
    row = draft.find(ValidatorRow, epoch.members[first.seat])
    if row is None or row.state == ValidatorState.JAILED:
        raise PolicyError("FF-LEDG-263", "the validator is jailed already")
    bounty = row.stake // 2
    burnt = row.burnt + row.stake - bounty
    draft.put(replace(row, stake=0, burnt=burnt, until=0, state=ValidatorState.JAILED))
    deposit(draft, sender, bounty)
