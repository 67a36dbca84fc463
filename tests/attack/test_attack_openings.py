"""Who may see a provider's committed states, and when: not before it is drawn, not without a verifier's own result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_lease import FACTS, ME, Process, Scene
from attack_world import JOB_KEY, SEGMENTS, STRANGER, TERMS, VERIFIERS, within

from farflung.core.codec import decode, encode
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import NS_OBJECT_KEY, SigningKey, derive
from farflung.core.ids import Hash, Signature
from farflung.peers.node import agent as role
from farflung.peers.node.sealed_files import SealedFileStore
from farflung.peers.node.segment_openings import SealedOpening
from farflung.peers.protocol import messages
from farflung.peers.protocol.job_key import LeaseKey, wrap
from farflung.peers.transfer import objects
from farflung.store.sealed_objects import open_object
from farflung.train.contribution_trace import are_opened
from farflung.verify.blind_commitment import BlindCommitment, blind

replace = msgspec.structs.replace

NIL = Hash(bytes(32))
MINE = BorderRoots(0, 1, 1, NIL, NIL, NIL)  # what a verifier says came out: the provider cannot know better


@pytest.fixture
def against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Runs an attack; afterwards the provider must serve."""
    monkeypatch.setattr(role, "capabilities", lambda *_: FACTS)
    monkeypatch.setattr(role, "start_worker", lambda *_: Process(ME))

    def run(attack: Any) -> None:
        async def test() -> None:
            async with Scene(tmp_path).open() as scene:
                await attack(scene)
                await scene.serves()

        within(20, test)

    return run


async def trained(scene: Scene, round: int = 0) -> None:
    """The round is trained and not merged."""
    if scene.provider._slot is None:
        await scene.begin()
    assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, round, 0)) == "ok"


def said_by(key: SigningKey, round: int = 0, segment: int = 0) -> BlindCommitment:
    return blind(key, TERMS.id, round, ME.public, segment, MINE)


def test_nothing_is_opened_before_it_was_trained_or_of_another_round(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        start = messages.SegmentOpenRequest(TERMS.id, 0, 0)
        unveil = messages.SegmentRevealRequest(TERMS.id, 0, 0, NIL, said_by(VERIFIERS[0]))
        assert await scene.order(messages.PROPOSE, scene.proposal) == "ok"
        assert await scene.order(messages.OPEN, start) == "FF-APP-084"  # not even started
        assert await scene.order(messages.UNVEIL, unveil) == "FF-APP-084"
        assert await scene.order(messages.START, scene.start) == "ok"
        assert await scene.order(messages.OPEN, start) == "FF-APP-084"
        assert await scene.order(messages.UNVEIL, unveil) == "FF-APP-084"
        await trained(scene)
        for round in (-1, 1, 2, 1 << 40, -(1 << 63), (1 << 64) - 1):
            assert await scene.order(messages.OPEN, replace(start, round=round)) == "FF-APP-084"
            assert await scene.order(messages.UNVEIL, replace(unveil, round=round)) == "FF-APP-084"
        assert "OpenSegmentCommand" not in scene.process.worker.asked

    against(attack)


@pytest.mark.parametrize("segment", [-1, SEGMENTS, SEGMENTS + 1, 1 << 40, -(1 << 63), (1 << 64) - 1])
def test_a_segment_that_a_round_does_not_have_is_not_opened(against: Any, segment: int) -> None:
    async def attack(scene: Scene) -> None:
        await trained(scene)
        before = scene.provider._disk.size()
        code = await scene.order(messages.OPEN, messages.SegmentOpenRequest(TERMS.id, 0, segment))
        assert code in ("FF-APP-084", "FF-CORE-022", "FF-CORE-021")
        assert "OpenSegmentCommand" not in scene.process.worker.asked  # looked at before anything is computed
        unveil = messages.SegmentRevealRequest(TERMS.id, 0, segment, NIL, replace(said_by(VERIFIERS[0])))
        assert await scene.order(messages.UNVEIL, unveil) in ("FF-APP-084", "FF-CORE-022", "FF-CORE-021")
        assert scene.provider._disk.size() == before

    against(attack)


def test_where_a_round_has_too_few_borders_nothing_is_planted(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await trained(scene)
        assert await scene.order(messages.PLANT, messages.SegmentOpenRequest(TERMS.id, 0, 1)) == "FF-APP-395"
        assert await scene.order(messages.PLANT, messages.SegmentOpenRequest(TERMS.id, 1, 0)) == "FF-APP-084"
        for party in (scene.fellow, scene.verifier, scene.stranger):
            assert (
                await scene.refused(party, messages.PLANT, messages.SegmentOpenRequest(TERMS.id, 0, 1)) == "FF-APP-041"
            )
        assert "OpenSegmentCommand" not in scene.process.worker.asked

    against(attack)


def test_private_state_is_opened_to_nobody_but_requester_and_verifiers(against: Any) -> None:
    """A fellow member holds the job's key: what it could fetch, it could read."""

    async def attack(scene: Scene) -> None:
        await trained(scene)
        order = messages.SegmentOpenRequest(TERMS.id, 0, 1)
        for party in (scene.fellow, scene.stranger):
            assert await scene.refused(party, messages.OPEN, order) == "FF-APP-041"
            unveil = messages.SegmentRevealRequest(TERMS.id, 0, 1, NIL, said_by(VERIFIERS[0], segment=1))
            assert await scene.refused(party, messages.UNVEIL, unveil) == "FF-APP-041"
        assert await scene.refused(scene.verifier, messages.OPEN, order) == "FF-APP-084"
        assert "OpenSegmentCommand" not in scene.process.worker.asked
        await scene.opened(0, 1)
        assert await scene.refused(scene.verifier, messages.OPEN, order) == "FF-APP-084"  # it names no trace
        order = replace(order, trace=scene.root(0, 1))
        assert await scene.refused(scene.verifier, messages.OPEN, order) == "ok"
        for method in (messages.TRAIN, messages.MERGE, messages.MEMBERS, messages.END, messages.START):
            assert await scene.refused(scene.verifier, method, b"") == "FF-APP-041"

    against(attack)


def test_a_verifier_sees_the_drawn_segment_and_chooses_none(against: Any) -> None:
    """Were its order to open another one, it would know more than its audit is to show; nor does it wait its turn."""

    async def attack(scene: Scene) -> None:
        await trained(scene)
        opened = await scene.opened(0, 0)
        other = messages.SegmentOpenRequest(TERMS.id, 0, 1)
        assert await scene.refused(scene.verifier, messages.OPEN, other) == "FF-APP-084"
        assert scene.process.worker.asked.count("OpenSegmentCommand") == 1
        async with scene.provider._lease.turn:  # type: ignore[union-attr]  # an order is under way
            data = await scene.call(
                scene.verifier, messages.OPEN, encode(replace(other, segment=0, trace=scene.root(0)))
            )
        assert decode(data, messages.SegmentOpenReply, 10**6) == opened

    against(attack)


def test_the_end_of_a_segment_is_shown_for_a_verifiers_own_commitment_alone(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await trained(scene)
        opened = await scene.opened(0)
        good = said_by(VERIFIERS[0])
        unveil = messages.SegmentRevealRequest(TERMS.id, 0, 0, scene.root(0, 0), good)
        wrong = [
            BlindCommitment(VERIFIERS[0].public, NIL, Signature(bytes(64))),
            BlindCommitment(VERIFIERS[0].public, NIL, Signature(b"")),
            said_by(STRANGER),
            said_by(ME),  # the provider's own
            replace(said_by(STRANGER), verifier=VERIFIERS[0].public),
            replace(good, digest=NIL),
            replace(good, verifier=VERIFIERS[1].public),
            said_by(VERIFIERS[0], segment=1),
            said_by(VERIFIERS[0], round=1),
            blind(VERIFIERS[0], NIL, 0, ME.public, 0, MINE),
            blind(VERIFIERS[0], TERMS.id, 0, STRANGER.public, 0, MINE),
        ]
        for said in wrong:
            for party in (scene.home, scene.verifier):
                assert await scene.refused(party, messages.UNVEIL, replace(unveil, blind=said)) == "FF-APP-083"
        body = [messages.UNVEIL, encode((TERMS.id, 0, 0))]  # none at all
        assert (await scene.refused(scene.home, body[0], body[1])).startswith("FF-CORE-02")
        assert await scene.order(messages.UNVEIL, replace(unveil, segment=1)) == "FF-APP-084"  # never drawn
        data = await scene.call(scene.home, messages.UNVEIL, encode(unveil))
        shown = decode(data, messages.SegmentRevealReply, 10**6)
        root = (await revealed_root(scene)).contribution.trace
        assert are_opened(root, SEGMENTS, [opened.start, *shown.leaves])
        for manifest in (shown.end, shown.last):
            chunks = [scene.provider._disk.chunk(manifest.id, i) for i in range(len(manifest.chunks))]
            assert open_object(JOB_KEY, manifest, chunks)

    against(attack)


async def revealed_root(scene: Scene) -> messages.StoredContribution:
    order = messages.RevealRequest(TERMS.id, 0, scene.fellow.key.public)
    return decode(await scene.call(scene.home, messages.REVEAL, encode(order)), messages.RevealReply, 10**6).share


def test_a_commitment_to_one_round_does_not_open_another(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        await scene.round(0)
        await trained(scene, 1)
        await scene.opened(1)
        replayed = messages.SegmentRevealRequest(TERMS.id, 1, 0, scene.root(1, 0), said_by(VERIFIERS[0], round=0))
        assert await scene.order(messages.UNVEIL, replayed) == "FF-APP-083"
        made = replace(replayed, round=0, trace=scene.root(0))
        assert await scene.order(messages.UNVEIL, made) == "ok"  # what it was made for

    against(attack)


def test_a_start_that_names_other_verifiers_takes_the_first_ones_out(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await trained(scene)
        await scene.opened(0)
        unveil = messages.SegmentRevealRequest(TERMS.id, 0, 0, scene.root(0, 0), said_by(VERIFIERS[1]))
        mine = replace(scene.start, verifiers=(STRANGER.public,))
        for party in (scene.fellow, scene.stranger, scene.verifier):
            assert await scene.refused(party, messages.START, mine) == "FF-APP-041"
        assert await scene.refused(scene.verifier, messages.UNVEIL, unveil) == "ok"
        named = tuple(key.public for key in VERIFIERS[:1])
        assert await scene.order(messages.START, replace(scene.start, verifiers=named)) == "ok"
        assert await scene.refused(scene.verifier, messages.UNVEIL, unveil) == "FF-APP-041"
        assert await scene.order(messages.UNVEIL, unveil) == "FF-APP-083"
        assert await scene.order(messages.UNVEIL, replace(unveil, blind=said_by(VERIFIERS[0]))) == "ok"

    against(attack)


def test_a_member_that_is_out_gets_no_object_any_more(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        share = await scene.round(0)
        asked = (share.manifest.id, 0)
        assert await scene.refused(scene.fellow, objects.CHUNK, asked) == "ok"
        left = messages.MembersUpdate(TERMS.id, (scene.home.address, scene.verifier.address))
        for party in (scene.fellow, scene.stranger, scene.verifier):
            assert await scene.refused(party, messages.MEMBERS, left) == "FF-APP-041"
        assert await scene.refused(scene.fellow, objects.CHUNK, asked) == "ok"
        assert await scene.order(messages.MEMBERS, left) == "ok"
        for method in (objects.CHUNK, objects.BEGIN, objects.PUT, objects.FINISH):
            assert await scene.refused(scene.fellow, method, asked) == "FF-APP-042"
        for party in (scene.home, scene.verifier):
            assert await scene.refused(party, objects.CHUNK, asked) == "ok"
        everybody = (*left.members, scene.fellow.address)
        assert await scene.order(messages.MEMBERS, messages.MembersUpdate(TERMS.id, everybody)) == "ok"
        scene.state = scene.process.worker.state

    against(attack)


def test_a_lease_key_is_of_one_lease_and_gone_with_it(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        first, start = scene.provider.lease_key.public, scene.start
        assert await scene.order(messages.PROPOSE, scene.proposal) == "ok"
        assert scene.provider.lease_key.public == first  # asked again: the same lease
        assert await scene.order(messages.END, messages.LeaseEndRequest(TERMS.id)) == "ok"
        assert await scene.order(messages.PROPOSE, scene.proposal) == "ok"
        assert scene.provider.lease_key.public != first
        assert await scene.order(messages.START, start) == "FF-APP-082"
        wrapped = wrap(LeaseKey().public, TERMS.id, JOB_KEY)
        assert await scene.order(messages.START, replace(scene.start, wrapped_key=wrapped)) == "FF-APP-082"
        assert await scene.order(messages.START, scene.start) == "ok"

    against(attack)


def test_what_was_opened_is_opened_alike_after_a_crash(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await trained(scene)
        opened = await scene.opened(0)
        unveil = messages.SegmentRevealRequest(TERMS.id, 0, 0, scene.root(0, 0), said_by(VERIFIERS[0]))
        shown = await scene.call(scene.home, messages.UNVEIL, encode(unveil))
        scene.provider._lease._workspace.worker = None  # type: ignore[union-attr]  # as after a restart
        assert await scene.order(messages.START, scene.start) == "ok"
        assert await scene.opened(0) == opened
        assert await scene.call(scene.home, messages.UNVEIL, encode(unveil)) == shown
        assert scene.process.worker.asked.count("OpenSegmentCommand") == 1
        later = await scene.opened(0, 1)  # the worker has lost its way, and goes it again
        assert later.start.index == 1
        assert scene.process.worker.trained == [0, 0]

    against(attack)


def test_what_was_opened_is_served_while_the_worker_is_gone(against: Any) -> None:
    """A worker's death must not make its peer look as if it withheld, nor let verifiers wait for a new one."""

    async def attack(scene: Scene) -> None:
        await trained(scene)
        opened = await scene.opened(0)
        unveil = messages.SegmentRevealRequest(TERMS.id, 0, 0, scene.root(0, 0), said_by(VERIFIERS[0]))
        shown = await scene.call(scene.home, messages.UNVEIL, encode(unveil))
        scene.provider._end_worker()  # what the watch does when it finds it dead
        assert scene.provider._lease is None
        for party in (scene.home, scene.verifier):
            assert await scene.call(party, messages.UNVEIL, encode(unveil)) == shown
            chunk = encode((opened.state.id, 0))
            assert opened.state.size == 0 or await scene.refused(party, objects.CHUNK, chunk) == "ok"
        assert await scene.refused(scene.stranger, messages.UNVEIL, unveil) == "FF-APP-041"
        assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 0, 0)) == "FF-APP-041"
        assert await scene.order(messages.END, messages.LeaseEndRequest(TERMS.id)) == "ok"
        assert await scene.order(messages.UNVEIL, unveil) == "FF-APP-041"
        assert list((scene.provider._folder / "private").iterdir()) == []

    against(attack)


def test_openings_lie_sealed_and_go_when_no_audit_can_ask_for_them(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        await scene.round(0)
        private = scene.provider._folder / "private"
        vault = SealedFileStore(private, derive(NS_OBJECT_KEY, JOB_KEY, b"vault", ME.public))
        (name,) = [n for n in vault.names() if "-audit-" in n]
        assert vault.load(name, SealedOpening)
        for raw in filter(Path.is_file, private.rglob("*")):
            assert TERMS.id not in raw.read_bytes()
        await trained(scene, 1)
        assert name in vault.names()
        assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 1, 1)) == "ok"
        assert name not in vault.names()
        unveil = messages.SegmentRevealRequest(TERMS.id, 0, 0, scene.root(0, 0), said_by(VERIFIERS[0]))
        assert await scene.order(messages.UNVEIL, unveil) == "FF-APP-084"

    against(attack)
