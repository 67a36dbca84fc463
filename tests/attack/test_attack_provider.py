"""Strangers, fellow members and a hostile requester against one provider: each gets a code, the lease goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_lease import FACTS, FELLOW, GENESIS, ME, ORDERS, PROPOSAL, UNITS, Process, Scene
from attack_world import (
    BOUND,
    DATA,
    JOB_KEY,
    REQUESTER,
    SPEC,
    STRANGER,
    TERMS,
    VERIFIERS,
    Party,
    Worker,
    hostile_bodies,
    hostile_values,
    within,
)

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import NS_OBJECT, SigningKey, digest, local_key
from farflung.core.ids import Hash, Signature
from farflung.core.relay_passes import RelayPass, SignedRelayPass, sign_pass
from farflung.core.tensor_layout import TensorLayout, TensorSpec
from farflung.host import lease
from farflung.host.worker_limits import GIB, WorkerLimits
from farflung.job.spec import JobTerms
from farflung.ledger.earnings_tally import SignedEarningsTally, make_tally, sign_tally
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.messages import MessageKind
from farflung.peers.node import agent as role
from farflung.peers.node import training_lease
from farflung.peers.node.sealed_files import PrivateCheckpoint, SealedFileStore
from farflung.peers.protocol import messages
from farflung.peers.protocol.job_key import LeaseKey, wrap
from farflung.peers.transfer import objects
from farflung.store.sealed_objects import ObjectManifest, seal
from farflung.train.run_log import Contribution, payload_hash
from farflung.verify.blind_commitment import BlindCommitment, blind

replace = msgspec.structs.replace

NIL = Hash(bytes(32))
UNTRACED = (Hash(bytes(32)), Hash(bytes(32)), "none")  # nonce, trace and sandbox, where nobody looks at them


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


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ((64 * limits.MIB).to_bytes(8, "little"), "FF-TRAIN-091"),
        (b"\x09\0\0\0\0\0\0\0" + bytes(9), "FF-TRAIN-090"),
        (b"\x09\0\0\0\0\0\0\0" + bytes(3), "FF-TRAIN-090"),
    ],
    ids=["too long", "unreadable", "unfinished"],
)
def test_a_worker_whose_model_replies_for_it_is_ended_and_the_slot_is_free(
    against: Any, monkeypatch: pytest.MonkeyPatch, lie: bytes, code: str
) -> None:
    monkeypatch.setattr(role, "WATCH_SECONDS", 0.01)

    async def attack(scene: Scene) -> None:
        await scene.begin()
        scene.process.lie = lie
        monkeypatch.setattr(limits, "REPLY_SECONDS", 0.02)
        assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 0, 0)) == code
        monkeypatch.setattr(limits, "REPLY_SECONDS", 60.0)
        watching = asyncio.create_task(scene.provider.watch())
        while scene.provider._process is not None:  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.01)
        watching.cancel()
        assert scene.provider._slot is None

    against(attack)


def test_only_the_requester_of_the_lease_gives_orders(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        for method in ORDERS:
            assert await scene.refused(scene.home, method, b"") == "FF-APP-041"  # nobody has a lease yet
        await scene.begin()
        said = blind(VERIFIERS[0], TERMS.id, 0, ME.public, 0, BorderRoots(0, 1, 1, NIL, NIL, NIL))
        orders = {
            messages.START: scene.start,
            messages.TRAIN: messages.TrainRequest(TERMS.id, 0, 0),
            messages.REVEAL: messages.RevealRequest(TERMS.id, 0, FELLOW.public),
            messages.MERGE: messages.MergeRequest(TERMS.id, 0, ()),
            messages.OPEN: messages.SegmentOpenRequest(TERMS.id, 0, 0),
            messages.PLANT: messages.SegmentOpenRequest(TERMS.id, 0, 0),
            messages.UNVEIL: messages.SegmentRevealRequest(TERMS.id, 0, 0, NIL, said),
            messages.MEMBERS: messages.MembersUpdate(TERMS.id, (scene.stranger.address, scene.fellow.address)),
            messages.PASSES: messages.RelayPassesUpdate(TERMS.id, (toll_of(STRANGER, ME, STRANGER),)),
            messages.VOUCH: voucher_of(STRANGER),
            messages.END: messages.LeaseEndRequest(TERMS.id),
        }
        assert orders.keys() == set(ORDERS)
        for party in (scene.stranger, scene.fellow):
            for method, message in orders.items():
                assert await scene.refused(party, method, message) == "FF-APP-041"
        assert scene.process.worker.trained == []
        assert scene.provider._lease is not None
        assert not scene.provider._lease.allows(STRANGER.public)

    against(attack)


def voucher_of(signer: SigningKey, job: Hash = TERMS.id, node: SigningKey = ME) -> messages.VoucherUpdate:
    """Seven units in this job, by this key's word."""
    tally, (voucher,) = make_tally(GENESIS.chain, job, 0, [(node.public, 7)])
    return messages.VoucherUpdate(job, SignedEarningsTally(tally, (sign_tally(signer, tally),)), voucher)


def test_a_provider_keeps_only_vouchers_that_pay_it(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        kept = scene.provider._folder / "vouchers"
        bad = [voucher_of(STRANGER), voucher_of(REQUESTER, node=FELLOW)]
        good = voucher_of(REQUESTER)
        bad.append(replace(good, voucher=replace(good.voucher, credit=replace(good.voucher.credit, units=8))))
        for said in bad:
            assert await scene.order(messages.VOUCH, said) == "FF-LEDG-240"
        assert await scene.order(messages.VOUCH, voucher_of(REQUESTER, NIL)) == "FF-APP-305"
        assert not kept.exists()
        assert await scene.order(messages.VOUCH, good) == "ok"
        assert [path.name for path in kept.iterdir()] == [TERMS.id.hex()]

    against(attack)


def toll_of(payer: SigningKey, *holders: SigningKey) -> SignedRelayPass:
    """A pass at one relay, from now on."""
    named, now = tuple(sorted(key.public for key in holders)), int(time.time())
    terms = (local_key(9, "relay").public, 1, 1, named, 1 << 30, 0, now, now + limits.PASS_SECONDS)
    return sign_pass(payer, RelayPass(NIL, payer.public, *terms))


def test_a_requester_cannot_make_a_provider_show_passes_that_others_pay_for(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        good = toll_of(REQUESTER, ME, REQUESTER)
        forged = replace(good, signature=Signature(bytes(64)))
        bad = [
            (toll_of(STRANGER, ME, REQUESTER),),
            (good, forged),
            (toll_of(REQUESTER, FELLOW, REQUESTER),),
            (good,) * 100,
        ]
        for passes in bad:
            assert await scene.order(messages.PASSES, messages.RelayPassesUpdate(TERMS.id, passes)) == "FF-APP-241"
        relay, payer = good.toll.relay, scene.provider.endpoint.payer
        assert payer.find(relay, REQUESTER.public) is None
        assert await scene.order(messages.PASSES, messages.RelayPassesUpdate(NIL, (good,))) == "FF-APP-057"
        assert await scene.order(messages.PASSES, messages.RelayPassesUpdate(TERMS.id, (good,))) == "ok"
        assert payer.find(relay, REQUESTER.public) == good

    against(attack)


def test_a_requesters_passes_are_shown_for_as_long_as_they_count_and_its_lease_lasts(against: Any) -> None:
    """One without an end would stand before all others, in every later lease, and no relay would take it."""

    async def attack(scene: Scene) -> None:
        await scene.begin()
        good = toll_of(REQUESTER, ME, REQUESTER)
        endless = replace(good.toll, serial=2, expires=2**62)
        over = replace(good.toll, serial=3, begins=0, expires=limits.PASS_SECONDS)
        early = replace(good.toll, serial=4, begins=2**61, expires=2**61 + limits.PASS_SECONDS)
        relay, payer = good.toll.relay, scene.provider.endpoint.payer
        assert await scene.order(messages.PASSES, messages.RelayPassesUpdate(TERMS.id, (good,))) == "ok"
        for toll in (endless, over, early):
            bad = sign_pass(REQUESTER, toll)
            assert await scene.order(messages.PASSES, messages.RelayPassesUpdate(TERMS.id, (bad,))) == "FF-APP-241"
            payer.put(bad)  # had it got in before, or lapsed since
        assert payer.find(relay, REQUESTER.public) == good
        assert payer.find_of(REQUESTER.public, relay) == good
        other = toll_of(STRANGER, ME, REQUESTER)
        payer.put(other)
        assert await scene.order(messages.END, messages.LeaseEndRequest(TERMS.id)) == "ok"
        assert list(payer._passes.values()) == [other]

    against(attack)


def test_a_lease_is_not_taken_over_by_whoever_proposes_the_same_job(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        for party in (scene.fellow, scene.stranger):
            assert await scene.refused(party, messages.PROPOSE, PROPOSAL) == "FF-APP-094"
            assert await scene.refused(party, messages.TRAIN, messages.TrainRequest(TERMS.id, 0, 0)) == "FF-APP-041"

    against(attack)


def test_a_stranger_cannot_propose_a_job_in_its_requesters_name(against: Any) -> None:
    """The offer would bind the node to a lease whose orders only the stranger may give."""

    async def attack(scene: Scene) -> None:
        for party in (scene.fellow, scene.stranger):
            assert await scene.refused(party, messages.PROPOSE, PROPOSAL) == "FF-APP-094"
            assert scene.provider._slot is None
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"

    against(attack)


def test_a_second_job_is_refused_while_the_first_is_leased(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        other = replace(PROPOSAL, terms=replace(TERMS, dataset=digest(NS_OBJECT, b"another")))
        assert await scene.order(messages.PROPOSE, other) == "FF-APP-046"
        theirs = replace(PROPOSAL, terms=replace(TERMS, requester=STRANGER.public))
        assert await scene.refused(scene.stranger, messages.PROPOSE, theirs) == "FF-APP-046"
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"  # the same again: the same lease

    against(attack)


def terms(**changes: Any) -> JobTerms:
    return replace(TERMS, spec=replace(SPEC, **changes))


def shaped(*shapes: tuple[int, ...]) -> messages.LeaseOfferRequest:
    layout = TensorLayout(tuple(TensorSpec(f"t{i}", shape) for i, shape in enumerate(shapes)))
    model = replace(SPEC.model, kind="module", module="m.py:build")
    return replace(PROPOSAL, terms=replace(terms(model=model), layout=layout))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("proposal", "code"),
    [
        (replace(PROPOSAL, chain=Hash(bytes(32))), "FF-APP-044"),
        (replace(PROPOSAL, unit_price=9), "FF-APP-045"),
        (replace(PROPOSAL, unit_price=-(1 << 63)), "FF-APP-045"),
        (replace(PROPOSAL, units_max=UNITS - 1), "FF-APP-073"),
        (replace(PROPOSAL, stake=1001), "FF-APP-073"),
        (replace(PROPOSAL, stake=-1), "FF-APP-073"),
        (replace(PROPOSAL, dataset_bytes=-(1 << 62)), "FF-APP-073"),
        (replace(PROPOSAL, dataset_bytes=1 << 62), "FF-APP-073"),
        (replace(PROPOSAL, worker_bytes=0), "FF-APP-073"),
        (replace(PROPOSAL, worker_bytes=1 << 61), "FF-APP-073"),
        (replace(PROPOSAL, worker_bytes=(1 << 40) + 1), "FF-APP-048"),
        (replace(PROPOSAL, terms=terms(rounds=0)), "FF-JOB-004"),
        (replace(PROPOSAL, terms=terms(batch=-1)), "FF-JOB-004"),
        (replace(PROPOSAL, terms=terms(budget="1e9")), "FF-JOB-004"),
        (replace(PROPOSAL, terms=terms(sync=replace(SPEC.sync, topk=1 << 40))), "FF-JOB-004"),
        (replace(PROPOSAL, terms=terms(name="../../x")), "FF-JOB-004"),
        (replace(PROPOSAL, terms=terms(model=replace(SPEC.model, width=8))), "FF-APP-073"),
        (shaped(), "FF-CORE-040"),
        (shaped((0,)), "FF-CORE-040"),
        (shaped((-4, -4)), "FF-CORE-040"),
        (shaped((1 << 36,) * 8), "FF-CORE-040"),
        (shaped((1,) * 9), "FF-CORE-040"),
        (shaped((1 << 20, 1 << 16)), "FF-APP-048"),
    ],
)
def test_a_proposal_that_does_not_hold_is_refused_and_takes_no_slot(
    against: Any, proposal: messages.LeaseOfferRequest, code: str
) -> None:
    async def attack(scene: Scene) -> None:
        assert await scene.order(messages.PROPOSE, proposal) == code
        assert scene.provider._slot is None

    against(attack)


@pytest.mark.parametrize("planned", [1, 1 << 29, 1 << 40])
def test_a_worker_is_bounded_by_what_its_requester_planned(
    against: Any, monkeypatch: pytest.MonkeyPatch, planned: int
) -> None:
    bounds: list[WorkerLimits] = []
    monkeypatch.setattr(role, "start_worker", lambda *given: bounds.append(given[2]) or Process(ME))

    async def attack(scene: Scene) -> None:
        assert await scene.order(messages.PROPOSE, replace(PROPOSAL, worker_bytes=planned)) == "ok"
        assert [each.data for each in bounds] == [2 * planned + GIB]

    against(attack)


def test_when_no_worker_can_be_started_the_slot_is_free_again(against: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Process:
        raise role.RunError("FF-HOST-001", "the worker process cannot be started")

    async def attack(scene: Scene) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(role, "start_worker", fail)
            assert await scene.order(messages.PROPOSE, PROPOSAL) == "FF-HOST-001"
        assert scene.provider._slot is None

    against(attack)


def test_a_lease_without_its_worker_can_be_ended(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        scene.process.terminate()
        scene.provider._process = scene.provider._pipe = None
        assert await scene.order(messages.START, scene.start) == "FF-APP-049"
        assert await scene.order(messages.END, messages.LeaseEndRequest(TERMS.id)) == "ok"
        assert scene.provider._slot is None

    against(attack)


def test_orders_out_of_their_order_get_a_code(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"
        train = messages.TrainRequest(TERMS.id, 0, 0)
        assert await scene.order(messages.TRAIN, train) == "FF-APP-057"  # before the start
        assert await scene.order(messages.MERGE, messages.MergeRequest(TERMS.id, 0, ())) == "FF-APP-057"
        reveal = messages.RevealRequest(TERMS.id, 0, FELLOW.public)
        assert await scene.order(messages.REVEAL, reveal) == "FF-APP-035"
        assert await scene.order(messages.START, scene.start) == "ok"
        assert await scene.order(messages.REVEAL, reveal) == "FF-APP-035"  # before training
        for round in (-1, 1, 1 << 40, -(1 << 63), (1 << 64) - 1):
            assert await scene.order(messages.TRAIN, replace(train, round=round)) == "FF-APP-057"
            assert await scene.order(messages.MERGE, messages.MergeRequest(TERMS.id, round, ())) == "FF-APP-057"
        assert await scene.order(messages.TRAIN, train) == "ok"
        for round in (-1, 1):
            assert await scene.order(messages.REVEAL, replace(reveal, round=round)) == "FF-APP-035"
        share = await scene.round(0)
        merged = scene.process.worker.state
        again = messages.MergeRequest(TERMS.id, 0, (share,))
        # A connection was lost: the same answer once more.
        assert await scene.order(messages.MERGE, again) == "ok"
        assert scene.process.worker.state is merged
        assert await scene.order(messages.TRAIN, train) == "FF-APP-057"  # a round that is over
        assert scene.process.worker.trained == [0]

    against(attack)


def test_an_order_of_another_job_is_refused(against: Any) -> None:
    other = Hash(bytes(32))

    async def attack(scene: Scene) -> None:
        await scene.begin()
        for method, message in {
            messages.START: replace(scene.start, job=other),
            messages.TRAIN: messages.TrainRequest(other, 0, 0),
            messages.REVEAL: messages.RevealRequest(other, 0, FELLOW.public),
            messages.MERGE: messages.MergeRequest(other, 0, ()),
            messages.OPEN: messages.SegmentOpenRequest(other, 0, 0),
            messages.UNVEIL: messages.SegmentRevealRequest(
                other, 0, 0, NIL, BlindCommitment(VERIFIERS[0].public, NIL, Signature(bytes(64)))
            ),
            messages.MEMBERS: messages.MembersUpdate(other, ()),
            messages.END: messages.LeaseEndRequest(other),
        }.items():
            assert await scene.order(method, message) == "FF-APP-057"

    against(attack)


def test_a_start_that_lies_is_refused_before_anything_is_fetched(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"
        start = scene.start
        large = ObjectManifest(Hash(bytes(32)), limits.OBJECT_BYTES, (Hash(bytes(32)),) * limits.OBJECT_CHUNKS)
        other = scene.home.put(b"another data set")
        past = messages.PastRound(0, ())
        lies = [
            replace(start, dataset=large),
            replace(start, dataset=other),
            replace(start, dataset=replace(start.dataset, size=len(DATA) + 1)),
            replace(start, module=other),
            replace(start, snapshot=large),
            replace(start, snapshot_round=-1),
            replace(start, snapshot_round=SPEC.rounds + 1),
            replace(start, replay=(replace(past, round=1),)),
            replace(start, replay=tuple(replace(past, round=i) for i in range(SPEC.rounds + 1))),
        ]
        scene.home.asked.clear()
        for lie in lies:
            assert await scene.order(messages.START, lie) == "FF-APP-058"
        mine, other_job = scene.provider.lease_key.public, Hash(bytes(32))
        keys = {
            b"": "FF-APP-082",
            bytes(80): "FF-APP-082",
            JOB_KEY: "FF-APP-082",
            wrap(LeaseKey().public, TERMS.id, JOB_KEY): "FF-APP-082",  # another lease's
            wrap(mine, other_job, JOB_KEY): "FF-APP-082",
            wrap(mine, TERMS.id, JOB_KEY[:31]): "FF-APP-082",
            wrap(mine, TERMS.id, JOB_KEY) + b"\0": "FF-APP-082",
        }
        for wrapped, code in keys.items():
            assert await scene.order(messages.START, replace(start, wrapped_key=wrapped)) == code
        assert scene.home.asked == []
        assert list((scene.provider._folder / "private").iterdir()) == []

    against(attack)


def test_a_start_whose_objects_are_not_there_or_are_not_what_they_say_is_refused(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"
        start = scene.start
        false_snapshot = scene.home.put(b"no public state")
        forged, chunks = seal(b"\x08" * 32, b"sealed under another key")
        scene.home.disk.put(forged, chunks)
        absent, _ = seal(JOB_KEY, b"nowhere")
        cut = replace(start.snapshot, chunks=())
        for snapshot, code in {
            false_snapshot: "FF-TRAIN-070",
            forged: "FF-STOR-005",
            absent: "FF-APP-034",
            cut: "FF-STOR-001",
        }.items():
            assert await scene.order(messages.START, replace(start, snapshot=snapshot)) == code
            assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 0, 0)) == "FF-APP-057"

    against(attack)


def test_a_merge_of_anything_but_the_accepted_payloads_is_refused(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        worker = Worker(FELLOW)
        payload = worker.payload(0)
        manifest = scene.fellow.put(payload)
        accepted = Contribution(FELLOW.public, SPEC.round_tokens, payload_hash(payload), manifest.id, *UNTRACED)
        good = messages.StoredContribution(accepted, manifest, REQUESTER.public)

        def share(data: bytes, **changes: Any) -> messages.StoredContribution:
            put = scene.fellow.put(data)
            said = replace(accepted, payload=payload_hash(data), object=put.id)
            return messages.StoredContribution(replace(said, **changes), put, REQUESTER.public)

        long, _ = seal(JOB_KEY, bytes(BOUND + 1))
        wrong = {
            "FF-APP-036": [replace(good, contribution=replace(accepted, payload=Hash(bytes(32))))],
            "FF-COMP-007": [share(worker.payload(1))],
            "FF-COMP-009": [share(worker.payload(0, STRANGER.public))],
            "FF-COMP-001": [share(b"")],
            "FF-COMP-017": [share(payload[:-4] + b"\xff" * 4)],
            "FF-APP-197": [share(payload, weight=w) for w in (0, -1, SPEC.round_tokens + 1, limits.WEIGHT + 1)],
            "FF-APP-055": [replace(good, manifest=long)],
            "FF-APP-034": [replace(good, manifest=seal(JOB_KEY, b"withheld")[0])],
        }
        for code, shares in wrong.items():
            for bad in shares:
                assert await scene.order(messages.MERGE, messages.MergeRequest(TERMS.id, 0, (bad,))) == code
        assert await scene.order(messages.MERGE, messages.MergeRequest(TERMS.id, 0, (good, good))) == "FF-APP-059"

    against(attack)


def test_objects_are_for_members_only_and_within_bounds(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        small, chunks = seal(JOB_KEY, b"x")
        everything = {
            objects.CHUNK: (small.id, 0),
            objects.BEGIN: small,
            objects.PUT: (small.id, 0, chunks[0]),
            objects.FINISH: encode(small.id),
        }
        for method, message in everything.items():
            assert await scene.refused(scene.home, method, message) == "FF-APP-042"  # no lease
        await scene.begin()
        for method, message in everything.items():
            assert await scene.refused(scene.stranger, method, message) == "FF-APP-042"
        assert await scene.refused(scene.fellow, objects.FINISH, encode(small.id)) == "FF-APP-039"
        assert await scene.refused(scene.fellow, objects.CHUNK, (small.id, 0)) == "FF-STOR-010"
        large, _ = seal(JOB_KEY, bytes(BOUND + 1))
        assert await scene.refused(scene.fellow, objects.BEGIN, large) == "FF-APP-039"
        assert await scene.refused(scene.fellow, objects.BEGIN, small) == "ok"
        assert await scene.refused(scene.fellow, objects.PUT, (small.id, 1, chunks[0])) == "FF-STOR-002"
        assert await scene.refused(scene.fellow, objects.PUT, (small.id, 0, b"lie")) == "FF-STOR-003"
        assert await scene.refused(scene.fellow, objects.PUT, (small.id, 0, bytes(17))) == "FF-STOR-004"
        assert await scene.refused(scene.fellow, objects.FINISH, encode(small.id)) == "FF-STOR-015"
        assert await scene.refused(scene.fellow, "object.delete", b"") == "FF-APP-033"

    against(attack)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_fellow_member_cannot_fill_the_disk(against: Any, is_finished: bool) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        before = scene.provider._disk.size()
        codes = []
        for i in range(2 * objects.LEFT_PER_PEER):
            manifest, chunks = seal(JOB_KEY, bytes([i]) * (BOUND - 16))
            codes.append(await scene.refused(scene.fellow, objects.BEGIN, manifest))
            if codes[-1] == "ok":
                assert await scene.refused(scene.fellow, objects.PUT, (manifest.id, 0, chunks[0])) == "ok"
                if is_finished:
                    assert await scene.refused(scene.fellow, objects.FINISH, encode(manifest.id)) == "ok"
        assert codes == ["ok"] * objects.LEFT_PER_PEER + ["FF-APP-039"] * objects.LEFT_PER_PEER
        assert scene.provider._disk.size() - before < objects.LEFT_PER_PEER * (BOUND + 1000)

    against(attack)


@pytest.mark.slow
def test_addresses_that_are_none_make_a_reveal_fail_with_a_code(against: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_lease, "REPLICA_SECONDS", 0.2)

    async def attack(scene: Scene) -> None:
        await scene.begin()
        start = scene.start
        for host, port in (("a..b", 1), ("x" * 100, 1), ("\0", 1), ("", 70_000), ("127.0.0.1", -1)):
            fake = messages.PeerAddress(STRANGER.public, (EndpointAddress(host, port),))
            assert await scene.order(messages.START, replace(start, members=(fake,))) == "ok"
            assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 0, 0)) == "ok"
            reveal = messages.RevealRequest(TERMS.id, 0, STRANGER.public)
            assert await scene.order(messages.REVEAL, reveal) == "FF-APP-038"
        assert await scene.order(messages.START, start) == "ok"

    against(attack)


def test_an_end_in_the_middle_of_an_order_leaves_nothing_hanging(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        scene.process.is_stuck = True
        trains = [
            asyncio.create_task(scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 0, 0))) for _ in range(3)
        ]
        while len(scene.provider._orders) < 3:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0)
        assert await scene.order(messages.END, messages.LeaseEndRequest(TERMS.id)) == "ok"
        assert await asyncio.gather(*trains) == ["FF-APP-049"] * 3
        for i in range(5):  # whoever gets the closed socket's number is heard
            late = Party(local_key(9, "late", i), scene.home.disk.root)
            assert await scene.refused(late, "round.train", b"") == "FF-APP-041"
            await late.endpoint.close()

    against(attack)


def test_two_orders_to_train_give_one_training(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        train = encode(messages.TrainRequest(TERMS.id, 0, 0))
        replies = await asyncio.gather(*(scene.call(scene.home, messages.TRAIN, train) for _ in range(4)))
        promises = [decode(reply, messages.TrainReply, 10**6) for reply in replies]
        assert len({p.commitment for p in promises}) == 1
        assert scene.process.worker.trained == [0]

    against(attack)


def test_ending_one_job_leaves_the_private_state_of_another(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        vault = SealedFileStore(scene.provider._folder / "private", bytes(32))
        vault.save("0123456789abcdef-000003", PrivateCheckpoint(3, b"of a job that may be resumed here", None))
        other = replace(PROPOSAL, terms=replace(TERMS, dataset=digest(NS_OBJECT, b"another")))
        assert await scene.order(messages.PROPOSE, other) == "ok"
        assert await scene.order(messages.END, messages.LeaseEndRequest(other.terms.id)) == "ok"
        assert vault.names() == ["0123456789abcdef-000003"]
        vault.drop("0123456789abcdef-000003")

    against(attack)


def test_a_promise_whose_payload_was_deleted_is_made_again_from_the_state_before(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        share = await scene.round(0)
        scene.state = scene.process.worker.state
        assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 1, 0)) == "ok"
        result = scene.provider._lease._result  # type: ignore[union-attr]
        assert result is not None
        scene.provider._disk.delete(result.manifest.id)
        scene.provider._lease._workspace.worker = None  # type: ignore[union-attr]  # as after a restart
        assert await scene.order(messages.START, scene.start) == "ok"
        assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 1, 0)) == "ok"
        assert scene.process.worker.trained == [0, 1, 1]
        assert share.contribution.peer == ME.public

    against(attack)


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_provider_that_is_started_again_in_a_round_merges_it_again(against: Any, is_restarted: bool) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        share = await scene.round(0)
        if is_restarted:
            scene.provider._lease._workspace.worker = None  # type: ignore[union-attr]
        # The coordinator crashed before it closed it.
        assert await scene.order(messages.START, scene.start) == "ok"
        assert await scene.order(messages.MERGE, messages.MergeRequest(TERMS.id, 0, (share,))) == "ok"
        assert scene.process.worker.state.round == 1

    against(attack)


def test_the_provider_keeps_its_folder_to_itself(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        await scene.round(0)
        for path in scene.provider._folder.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
        assert scene.provider._folder.stat().st_mode & 0o077 == 0

    against(attack)


def test_no_body_makes_a_provider_stumble(against: Any) -> None:
    """Every method, before and inside a lease, from a stranger, a member and the requester: a code, never -099."""

    async def attack(scene: Scene) -> None:
        share_ = await prepared(scene)
        said = blind(VERIFIERS[0], TERMS.id, 0, ME.public, 0, BorderRoots(0, 1, 1, NIL, NIL, NIL))
        messages_ = {
            messages.PROPOSE: PROPOSAL,
            messages.START: scene.start,
            messages.TRAIN: messages.TrainRequest(TERMS.id, 1, 0),
            messages.REVEAL: messages.RevealRequest(TERMS.id, 1, FELLOW.public),
            messages.MERGE: messages.MergeRequest(TERMS.id, 1, (share_,)),
            messages.OPEN: messages.SegmentOpenRequest(TERMS.id, 0, 0),
            messages.PLANT: messages.SegmentOpenRequest(TERMS.id, 0, 0),
            messages.UNVEIL: messages.SegmentRevealRequest(TERMS.id, 0, 0, NIL, said),
            messages.MEMBERS: messages.MembersUpdate(NIL, scene.start.members),
            messages.END: messages.LeaseEndRequest(NIL),
            objects.BEGIN: seal(JOB_KEY, b"x")[0],
            objects.CHUNK: (share_.manifest.id, 0),
            objects.PUT: (share_.manifest.id, 0, b"data"),
            objects.FINISH: share_.manifest.id,
            "lease.unknown": PROPOSAL,
        }
        for party in scene.parties:
            for seed, (method, message) in enumerate(messages_.items()):
                for body in hostile_bodies(encode(message), seed, 6):
                    await scene.refused(party, method, body)
        for method, message in messages_.items():
            for body in hostile_values(message) if isinstance(message, Wire) else ():
                if len(body) < limits.CONTROL_BYTES:
                    await scene.refused(scene.home, method, body)
        assert scene.provider._slot is not None
        assert scene.provider._slot.state in (lease.LeaseState.ACCEPTED, lease.LeaseState.RUNNING)
        assert await scene.order(messages.START, scene.start) == "ok"

    against(attack)


async def prepared(scene: Scene) -> messages.StoredContribution:
    await scene.begin()
    share = await scene.round(0)
    scene.state = scene.process.worker.state
    assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 1, 0)) == "ok"
    return share


def test_giant_bodies_are_refused_on_the_way_out_and_in(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        nested = b"\x93" * (limits.CONTROL_BYTES - 1)
        for body in (bytes(limits.CONTROL_BYTES), nested):
            for method in (messages.PROPOSE, messages.START, objects.BEGIN):
                assert (await scene.refused(scene.home, method, body)).startswith("FF-CORE-02")
        assert await scene.refused(scene.home, objects.PUT, bytes(limits.BULK_BYTES), MessageKind.SYNC) != "ok"

    against(attack)
