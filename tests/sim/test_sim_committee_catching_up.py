"""Two schedules that an earlier model of this protocol did not survive (docs/protocol/sdbft.md, "Catching up")."""

from __future__ import annotations

from sim_committee import Wires, World
from sim_committee_app import cheap_signatures

from farflung.core.ids import PeerId
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica_messages import BlockProposal, Message, VoteMessage, VoteQuorum
from farflung.ledger.votes import VoteKind

DELTA = 100


def test_who_lost_the_first_messages_and_is_carried_on_by_quorums_pulls_at_the_first_gap() -> None:
    world = World(4, delta_ms=DELTA)
    carried: list[str] = []
    lost = world.deliver

    def deliver(sender: int, target: int, message: Message) -> None:
        # Node 0 misses all proposals of the first 30 blocks' time: quorums alone carry it from view to view.
        if target == 0 and isinstance(message, BlockProposal) and world.now < 600:
            carried.append("lost")
            return
        lost(sender, target, message)

    world.deliver = deliver  # type: ignore[method-assign]
    with cheap_signatures():
        world.start()
        world.run(600)
        assert world.nodes[0].replica.view > 20, "quorums carried it on"
        assert carried
        assert world.run(5000, lambda: world.heights()[0] >= 30)


def test_a_gap_is_asked_for_at_the_message_that_shows_it_and_not_at_a_timer() -> None:
    """The first proposal is lost to node 0, and no timer will ever fire: two delays after the quorum it is here."""
    world = World(4, delta_ms=10**7)
    lost = world.deliver

    def deliver(sender: int, target: int, message: Message) -> None:
        if target == 0 and world.now == 10 and isinstance(message, BlockProposal):
            return
        lost(sender, target, message)

    world.deliver = deliver  # type: ignore[method-assign]
    with cheap_signatures():
        world.start()
        world.run(60)
        assert world.heights()[0] == world.heights()[1] >= 2


def test_proposals_do_not_multiply_however_often_they_come() -> None:
    """Nobody passes a proposal on, but to who asks: messages of a view stay below a bound, with every one doubled."""
    world = World(7, delta_ms=DELTA)
    world.wires = Wires(delay=10, jitter=25, repeat=1.0)
    with cheap_signatures():
        world.start()
        world.run(3000)
    views = max(node.replica.view for node in world.nodes)
    assert views > 30
    assert world.sent["proposal"] <= 4 * 6 * views
    assert sum(world.sent.values()) <= 8 * 7 * 7 * views


def test_a_node_that_was_away_for_a_hundred_blocks_gets_them_in_few_messages() -> None:
    world = World(4, delta_ms=DELTA)
    with cheap_signatures():
        world.start()
        world.nodes[3].crash()
        assert world.run(20_000, lambda: min(world.heights()[:3]) >= 100)
        sent = world.sent["blocks"]
        world.nodes[3].start()
        assert world.run(world.now + 1000, lambda: world.heights()[3] >= 100)
    assert world.sent["blocks"] - sent <= 20


def test_who_only_follows_learns_every_block() -> None:
    world = World(5, delta_ms=DELTA)
    world.script = type(world.script)(((0, 1, 2, 3),))
    with cheap_signatures():
        world.start()
        assert world.run(3000, lambda: min(world.heights()) >= 20)
    assert not world.statements.keys() & {(4, 0, view) for view in range(100)}


def test_a_peer_that_says_it_is_far_ahead_is_asked_once_in_three_bounds() -> None:
    world = World(4, delta_ms=DELTA)
    with cheap_signatures():
        world.start()
        node, peer = world.nodes[0], PeerId(world.keys[1].public)
        status = node.replica.status()
        far = type(status)(status.epoch, 10**9, 10**9, 1, bytes(32))
        effects = [e for _ in range(100) for e in node.replica.handle(ev.ReplicaMessageEvent(peer, far), 5)]
    assert sum(isinstance(effect, ev.SendEffect) for effect in effects) == 1


def test_blocks_up_to_the_next_final_one_are_sent_however_many_messages_they_take() -> None:
    """Nobody hears a FINALIZE for a while: then one makes many blocks final, and only the last can prove it."""
    world = World(4, delta_ms=10**6)
    world.blocks_shown = 2
    pass_on = world.deliver

    def deliver(sender: int, target: int, message: Message) -> None:
        vote = message.signed.vote if isinstance(message, VoteMessage) else getattr(message, "vote", None)
        is_late = isinstance(message, VoteMessage | VoteQuorum) and vote.kind == VoteKind.FINALIZE and world.now < 190
        if 3 in (sender, target) and world.now < 300:
            return
        if not is_late:
            pass_on(sender, target, message)

    world.deliver = deliver  # type: ignore[method-assign]
    world.script = type(world.script)(((0, 1, 2),))  # and node 3 follows
    with cheap_signatures():
        world.start()
        world.run(300)
        kinds = [block.certificate.kind for block in world.nodes[0].disk.blocks]
        assert kinds[:6] == [VoteKind.NOTARIZE] * 6, "one message cannot hold the run"
        assert not world.nodes[3].disk.blocks
        assert world.run(1000, lambda: world.heights()[3] >= 20)
