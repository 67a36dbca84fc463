"""A closing block that a later view notarizes again is still given to who lags.

Seeds 547 and 2070 of the schedules once ended here: whoever had the block had stored it under the later NOTARIZE,
which is no end of a Blocks message, so that nobody could ever show it; in 2070 the next committee was who lacked it.
"""

from __future__ import annotations

import pytest
from sim_committee import World
from sim_committee_app import Script, cheap_signatures

from farflung.ledger.sdbft.replica_messages import Message, VoteMessage, VoteQuorum
from farflung.ledger.votes import VoteKind

LATE = 65  # when FINALIZE votes of view 1 arrive: views 2 and 3 have notarized the block again by then


def closing(reigns: tuple[tuple[int, ...], ...], away: int) -> World:
    """Four seats, an epoch of one block. `away` hears nothing of its end, and those who do keep it to themselves."""
    world = World(4, Script(reigns, 1), delta_ms=100)
    carry = world.deliver

    def deliver(sender: int, target: int, message: Message) -> None:
        vote = message.signed.vote if isinstance(message, VoteMessage) else None
        vote = message.vote if isinstance(message, VoteQuorum) else vote
        if target == away and world.now < 2000:
            return
        if vote is not None and vote.epoch == 0 and vote.kind == VoteKind.FINALIZE:
            if vote.view > 1 or isinstance(message, VoteQuorum):
                return
            if world.now < LATE:
                world.at(LATE, deliver, (sender, target, message))
                return
        carry(sender, target, message)

    world.deliver = deliver  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize("after", [(0, 1, 2, 3), (3,)], ids=["goes on without it", "is the one that lacks it"])
def test_a_closing_block_notarized_again_is_given_to_who_lags(after: tuple[int, ...]):
    world = closing(((0, 1, 2, 3), after, (0, 1, 2, 3)), away=3)
    with cheap_signatures():
        world.start()
        world.run(1900)
        heights, (block, *_) = world.heights(), world.nodes[0].disk.blocks
        assert heights[3] == 0
        assert min(heights[:3]) >= 1
        assert (block.certificate.kind, block.certificate.view) == (VoteKind.FINALIZE, 1)
        assert world.run(20_000, lambda: min(world.heights()) >= 4), world.heights()
