"""Seats played by a replica that was written from the page alone agree with those that the product plays."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
import sim_committee_schedules as schedules
from second_codec import pack, unpack
from second_messages import FINALIZE, NOTARIZE, bits, checked, h, is_signed, name_of, read
from second_seat import Mixed
from sim_committee import Wires
from sim_committee_actors import Equivocator, Silent, put
from sim_committee_app import Script

from farflung.ledger.sdbft.replica_messages import Message, VoteMessage

PAGE = Path(__file__).parents[2] / "docs" / "protocol" / "sdbft.md"
SEATS = [(1,), (0, 2), (0, 1, 2, 3)]  # that the second implementation plays
DELAY, DELTA = 10, 100


def shown() -> dict[str, bytes]:
    body = PAGE.read_text("utf-8").split("<!-- vectors -->\n\n```text\n")[1].split("```\n")[0]
    found = re.findall(r"^(\S[^:]*):\n((?:  [0-9a-f]+\n)+)", body, re.MULTILINE)
    return {name: bytes.fromhex("".join(text.split())) for name, text in found}


def test_the_bytes_of_the_page_are_read_and_written_by_the_second_implementation() -> None:
    page = shown()
    messages = [name for name in page if name.startswith("message ")]
    assert len(messages) == 6
    for name in messages:
        found = read(page[name])
        assert found is not None
        assert pack([found[0], *found[1]]) == page[name]
        assert found[0] == name.removeprefix("message ")
    assert name_of(unpack(page["header"])) == page["block id"]
    for kind in ("NOTARIZE", "NULLIFY", "FINALIZE"):
        vote = unpack(page[f"vote {kind}"])
        assert h("farflung/vote/1", pack(vote)) == page[f"what seat 0 signs for {kind}"]
        assert is_signed(page["public key of seat 0"], vote, page[f"signature of seat 0 for {kind}"])
    members = [page[f"public key of seat {seat}"] for seat in range(4)]
    kind, view, seats, signatures = unpack(page["certificate FINALIZE"])
    vote = [bytes([0x11]) * 32, 1, view, FINALIZE, page["block id"]]
    assert kind == FINALIZE
    assert seats == bits([0, 2, 3], 4)
    assert checked(vote, seats, signatures, members)
    assert not checked(vote, bits([0, 2], 4), signatures[:2], members)
    assert not checked([*vote[:4], bytes(32)], seats, signatures, members)


@pytest.mark.parametrize("seconds", SEATS)
def test_a_mixed_committee_makes_a_block_every_two_delays_final_after_three(seconds: tuple[int, ...]) -> None:
    world = Mixed(4, seconds, delta_ms=DELTA)
    world.start()
    assert world.reach(16, 10_000)
    made = sorted(world.proposed[name] for height, name in world.final_at.items() if height)
    assert {after - before for before, after in pairwise(made)} == {2 * DELAY}
    for height in range(1, 16):
        assert world.final_times[height] - world.proposed[world.final_at[height]] == 3 * DELAY


@pytest.mark.parametrize("seconds", SEATS)
def test_a_dead_leader_is_passed_over_and_then_costs_nothing(seconds: tuple[int, ...]) -> None:
    world = Mixed(4, seconds, delta_ms=DELTA)
    world.start()
    world.nodes[3].crash()
    assert world.reach(36, 10_000, world.nodes[:3])
    made = sorted(world.proposed[name] for height, name in world.final_at.items() if height)
    gaps = [after - before for before, after in pairwise(made)]
    assert max(gaps) <= 3 * DELTA + 3 * DELAY
    assert set(gaps[16:]) == {2 * DELAY}


@pytest.mark.parametrize("seconds", SEATS)
def test_a_seat_that_comes_back_from_its_log_says_nothing_twice(seconds: tuple[int, ...]) -> None:
    world = Mixed(4, seconds, seed=4, delta_ms=DELTA)
    world.wires = Wires(delay=10, jitter=15, drop=0.1)
    world.start()
    for index in (*seconds, *range(4)):
        world.run(world.now + 130)
        world.nodes[index].crash()
        world.run(world.now + 40)
        world.nodes[index].start()
    world.wires = Wires(delay=10)
    assert world.reach(max(world.final_at) + 4, world.now + 100_000)


@pytest.mark.parametrize("seconds", SEATS)
def test_epochs_change_between_implementations(seconds: tuple[int, ...]) -> None:
    script = Script(((0, 1, 2, 3), (1, 2, 3, 4), (4, 3, 2, 0), (0,), (3, 1, 0, 2)), 3)
    world = Mixed(5, seconds, script, seed=1, delta_ms=DELTA)
    world.wires = Wires(delay=5, jitter=20, drop=0.05)
    world.start()
    assert world.reach(18, 100_000)


@pytest.mark.parametrize("seconds", [(1,), (1, 2)])
def test_a_leader_that_shows_two_blocks_over_links_that_lose_does_not_part_them(seconds: tuple[int, ...]) -> None:
    world = Mixed(4, seconds, seed=2, delta_ms=40)
    put(world, 0, Equivocator)
    world.wires = Wires(delay=5, jitter=10, drop=0.2)
    world.start()
    world.run(1500)
    world.wires = Wires(delay=5)
    assert world.reach(max(world.final_at) + 4, world.now + 100_000, world.nodes[1:])


@pytest.mark.parametrize("delay", [170, 400])
def test_slow_links_make_both_wait_longer(delay: int) -> None:
    world = Mixed(4, (1, 2), delta_ms=DELTA)
    world.wires, world.messages_most = Wires(delay=delay), 20_000
    world.start()
    assert world.reach(6, 200 * delay)


def schedule(seed: int) -> Mixed:
    """The world of a seed: any shape of committee, one, two or all seats, at most one traitor beside them."""
    source = random.Random(seed ^ 0x5EC0)
    reigns, blocks = source.choice(schedules.SHAPES)
    nodes = 1 + max(max(reign) for reign in reigns)
    seconds = source.sample(range(nodes), source.choice((1, 2, nodes)))
    world = Mixed(nodes, seconds, Script(reigns, blocks), seed=seed, delta_ms=source.choice((20, 40)))
    world.works = source.random() < 0.9
    others = [index for index in range(nodes) if index not in seconds]
    loyal = set(range(nodes))
    if others and min(schedules.faults(len(reign)) for reign in reigns) and source.random() < 0.6:
        index = source.choice(others)
        put(world, index, source.choice(schedules.ACTORS))
        loyal.discard(index)
    for node in world.nodes:
        node.skew, node.rate = source.randint(-200, 200) + 1000, source.choice((1000, 1000, 990, 1015))
    world.loyal, world.plan, world.messages_most = sorted(loyal), source, 300_000
    return world


@pytest.mark.parametrize("seconds", [(0, 1), (3,)])
def test_a_run_of_blocks_that_only_its_end_proves_final_goes_both_ways(seconds: tuple[int, ...]) -> None:
    world = Mixed(4, seconds, Script(((0, 1, 2),)), delta_ms=10**5)
    world.blocks_shown = 2
    pass_on = world.deliver

    def deliver(sender: int, target: int, message: Message) -> None:
        vote = message.signed.vote if isinstance(message, VoteMessage) else getattr(message, "vote", None)
        is_early = vote is not None and vote.kind == FINALIZE and world.now < 450
        if not is_early and (3 not in (sender, target) or world.now > 550):
            pass_on(sender, target, message)

    world.deliver = deliver  # type: ignore[method-assign]
    world.start()
    world.run(600)
    assert [block.certificate.kind for block in world.nodes[2].disk.blocks[:18]] == [NOTARIZE] * 18
    assert world.reach(40, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (20, 40))])
def test_schedules_of_faults_end_in_one_chain(first: int) -> None:
    for seed in range(first, first + 20):
        print(f"seed {seed}")
        schedules.play(seed, schedule)


def test_a_silent_seat_and_a_second_implementation_are_a_quorum() -> None:
    world = Mixed(4, (1,), seed=3, delta_ms=DELTA)
    put(world, 2, Silent)
    world.start()
    assert world.reach(12, 20_000, [world.nodes[index] for index in (0, 1, 3)])
