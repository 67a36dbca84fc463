"""One hostile provider among honest ones: it is out with a reason, and the others finish every round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from attack_run import EVE, HONEST, ROUND, Hostile, Run, Twist
from attack_world import (
    BOUND,
    LAYOUT,
    MEMBERS,
    SPEC,
    STRANGER,
    SYNCED,
    TERMS,
    hostile_bodies,
    hostile_values,
    soaked,
    within,
)

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.codec import encode
from farflung.core.crypto import digest
from farflung.core.errors import PolicyError
from farflung.core.events import ProcessExitEvent
from farflung.core.ids import Hash, PeerId
from farflung.net.io.connection import Connection
from farflung.peers.protocol import calls, messages
from farflung.peers.requester.coordinator import RoundTask
from farflung.peers.rundir.journal import Journal
from farflung.peers.transfer import objects
from farflung.store.sealed_objects import ObjectManifest
from farflung.train.contribution_trace import LoggedStatistics, TrainingStatistics
from farflung.train.run_log import AcceptSetRecord, CommitmentsRecord, payload_hash
from farflung.verify.commitment_check import commit, sign_root

replace = msgspec.structs.replace


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Runs a network with these twists and checks what must hold; `accepted_last`: what ROUND took before it."""
    monkeypatch.setattr(calls, "REDIAL", Backoff.every(0.0))

    def run(
        reason: str,
        *,
        train: Twist | None = None,
        reveal: Twist | None = None,
        merge: Twist | None = None,
        accepted_last: bool = False,
    ) -> Run:
        async def test() -> None:
            scene.append(Run(tmp_path))
            twists = {messages.TRAIN: train, messages.REVEAL: reveal, messages.MERGE: merge}
            scene[0].eve.twists = {method: twist for method, twist in twists.items() if twist is not None}
            await scene[0].go()
            scene[0].check(reason, accepted_last=accepted_last)

        scene: list[Run] = []
        within(20, test)
        return scene[0]

    return run


def payload_of(eve: Hostile, **about: Any) -> bytes:
    """A payload for another place in the run than that of the hostile member in this round."""
    place = SYNCED.about(eve.worker.state, LAYOUT, EVE.public)._replace(**about)
    return SYNCED.codec(0).encode(None, np.ones(LAYOUT.size, np.float32), LAYOUT, place)[1]


def test_honest_members_alone_finish(tmp_path: Path) -> None:
    async def test() -> None:
        run = Run(tmp_path)
        await run.go()
        assert run.left == []
        for record in run.log.records:
            if isinstance(record, AcceptSetRecord):
                assert len(record.contributions) == len(MEMBERS)
        run.check_honest()
        assert len(run.concluded) == SPEC.rounds * len(MEMBERS)
        assert {e.finding for e in run.concluded.values()} == {"holds"}
        assert run.rehired == []
        assert not run.evidence.exists()

    within(20, test)


# Commitments


def promised(commitment: Callable[[Hostile], Any]) -> Twist:
    return lambda eve, _, said: replace(said, commitment=commitment(eve))


HASH = digest("test/1", b"a payload")
OTHER_JOB = digest("test/1", b"another job")


@pytest.mark.whole
@pytest.mark.parametrize(
    "commitment",
    soaked(
        [
            lambda _: commit(STRANGER, TERMS.id, ROUND, HASH, 16, HASH),
            lambda _: replace(commit(STRANGER, TERMS.id, ROUND, HASH, 16, HASH), peer=EVE.public),
            lambda _: commit(EVE, TERMS.id, ROUND - 1, HASH, 16, HASH),
            lambda _: commit(EVE, TERMS.id, ROUND + 1, HASH, 16, HASH),
            lambda _: commit(EVE, OTHER_JOB, ROUND, HASH, 16, HASH),
            lambda _: commit(HONEST[0], TERMS.id, ROUND, HASH, 16, HASH),
            lambda _: replace(commit(HONEST[0], TERMS.id, ROUND, HASH, 16, HASH), peer=EVE.public),
            lambda _: replace(commit(EVE, TERMS.id, ROUND, HASH, 16, HASH), signature=b""),
            lambda _: long_commitment(3_000_000),
            lambda _: long_commitment(0),
        ],
        [
            "another key's",
            "another key's under the own name",
            "of the round before",
            "of the round after",
            "of another job",
            "copied",
            "copied under the own name",
            "unsigned",
            "longer than the log takes",
            "empty",
        ],
        "another key's under the own name, of the round before, of another job, unsigned, longer than the log takes",
    ),
)
def test_a_commitment_that_is_not_the_peers_own_for_this_round(
    attacked: Any, commitment: Callable[[Hostile], Any]
) -> None:
    attacked("FF-APP-053", train=promised(commitment))


def long_commitment(size: int) -> Any:
    """Well signed, but no digest."""
    made = commit(EVE, TERMS.id, ROUND, HASH, 16, HASH)
    number = ROUND.to_bytes(8, "little")
    from farflung.core.crypto import NS_ACK

    return replace(made, digest=bytes(size), signature=EVE.sign(NS_ACK, TERMS.id, number, bytes(size)))


@pytest.mark.parametrize(
    "changes",
    [
        {"statistics": TrainingStatistics((1e308, 1e308), 0.1, 16)},
        {"statistics": TrainingStatistics((2.0,) * 100_000, 0.1, 16)},
        {"seconds": -1.0},
        {"seconds": 1e300},
    ],
)
def test_statistics_that_cannot_be(attacked: Any, changes: dict[str, Any]) -> None:
    attacked("FF-APP-060", train=lambda _eve, _order, said: replace(said, **changes))


# Payloads


@pytest.mark.slow
@pytest.mark.parametrize("weight", [SPEC.round_tokens + 1, -1, (1 << 64) - 1])
def test_a_weight_that_is_not_earned(attacked: Any, weight: int) -> None:
    attacked("FF-APP-054", reveal=changed(weight=weight))


@pytest.mark.parametrize("weight", [SPEC.round_tokens + 1, 0])
def test_a_weight_that_is_not_earned_though_committed(attacked: Any, weight: int) -> None:
    def train(eve: Hostile, _order: Any, said: messages.TrainReply) -> messages.TrainReply:
        return eve.promise(said, eve.worker.payload(ROUND), weight)

    attacked("FF-APP-360", train=train)


def test_other_figures_in_the_log_than_those_that_were_committed(attacked: Any) -> None:
    """They are integers in its opening, and stand under its trace: neither can be changed by itself."""
    attacked("FF-APP-355", reveal=changed(stated=LoggedStatistics(1, 1)))


def test_other_statistics_than_those_that_were_committed(attacked: Any) -> None:
    kinder: dict[str, TrainingStatistics] = {}

    def train(_eve: Hostile, _order: Any, said: messages.TrainReply) -> messages.TrainReply:
        kinder["it"] = replace(said.statistics, losses=tuple(x / 2 for x in said.statistics.losses))
        return replace(said, statistics=kinder["it"])

    def reveal(_eve: Hostile, _order: Any, shown: messages.RevealReply) -> messages.RevealReply:
        told = replace(shown.share.contribution, stated=kinder["it"].stated)
        return messages.RevealReply(replace(shown.share, contribution=told))

    attacked("FF-APP-355", train=train, reveal=reveal)


def changed(**fields: Any) -> Twist:
    """A reveal with other fields in its contribution."""

    def reveal(_eve: Hostile, _order: Any, shown: messages.RevealReply) -> messages.RevealReply:
        return messages.RevealReply(replace(shown.share, contribution=replace(shown.share.contribution, **fields)))

    return reveal


@pytest.mark.whole
@pytest.mark.parametrize(
    "fields",
    [{"payload": HASH}, {"object": HASH}, {"nonce": HASH}, {"peer": HONEST[0].public}, {"object": b"x" * 100_000}],
)
def test_a_payload_that_is_not_the_committed_one(attacked: Any, fields: dict[str, Any]) -> None:
    attacked("FF-APP-054", reveal=changed(**fields))


@pytest.mark.parametrize("field", ["nonce", "trace"])
def test_a_value_longer_than_the_log_takes_though_committed(attacked: Any, field: str) -> None:
    from farflung.core.crypto import NS_ACK
    from farflung.verify.commitment_check import commitment_digest, nonce_of

    giant, number = Hash(bytes(3_900_000)), ROUND.to_bytes(8, "little")

    def train(eve: Hostile, _order: Any, said: messages.TrainReply) -> messages.TrainReply:
        payload, trace = payload_hash(eve.worker.payload(ROUND)), eve.worker.trace_of(b"").root
        place, nonce = (TERMS.id, EVE.public, ROUND), nonce_of(EVE, TERMS.id, ROUND)
        trace, nonce = (giant, nonce) if field == "trace" else (trace, giant)
        promise = commitment_digest(*place, payload, SPEC.round_tokens, trace, nonce)
        signature = EVE.sign(NS_ACK, TERMS.id, number, promise)
        made = replace(said.commitment, digest=promise, signature=signature)
        return replace(said, commitment=made, payload=payload, trace=trace, nonce=nonce)

    attacked("FF-APP-360", train=train)


@pytest.mark.parametrize("field", ["payload", "trace", "nonce"])
def test_a_commitment_that_its_maker_does_not_open_to_the_coordinator(attacked: Any, field: str) -> None:
    """Nothing could be judged of it, were its maker to show no more."""
    attacked("FF-APP-360", train=lambda _eve, _order, said: replace(said, **{field: HASH}))


def test_a_name_of_a_sandbox_longer_than_the_log_takes(attacked: Any) -> None:
    attacked("FF-APP-054", reveal=changed(sandbox="x" * 3_900_000))


def test_another_payload_than_the_committed_one_in_a_sound_object(attacked: Any) -> None:
    def reveal(eve: Hostile, _order: Any, shown: messages.RevealReply) -> messages.RevealReply:
        manifest = eve.put(payload_of(eve, round=ROUND))
        told = replace(shown.share.contribution, object=manifest.id)
        return messages.RevealReply(replace(shown.share, contribution=told, manifest=manifest))

    attacked("FF-APP-050", reveal=reveal)


def test_a_manifest_that_is_not_the_contributions_object(attacked: Any) -> None:
    def reveal(eve: Hostile, _order: Any, shown: messages.RevealReply) -> messages.RevealReply:
        return messages.RevealReply(replace(shown.share, manifest=eve.put(b"another object")))

    attacked("FF-APP-054", reveal=reveal)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (ObjectManifest(HASH, BOUND + 1, (HASH,)), "FF-APP-055"),
        (ObjectManifest(HASH, limits.OBJECT_BYTES, (HASH,) * limits.OBJECT_CHUNKS), "FF-APP-055"),
        (ObjectManifest(HASH, -1, ()), "FF-STOR-001"),
        (ObjectManifest(HASH, BOUND, (HASH,) * 1000), "FF-STOR-001"),
        (ObjectManifest(HASH, BOUND, (Hash(b""),)), "FF-STOR-001"),
    ],
)
def test_a_manifest_over_its_bounds(attacked: Any, manifest: ObjectManifest, code: str) -> None:
    def reveal(_eve: Hostile, _order: Any, shown: messages.RevealReply) -> messages.RevealReply:
        told = replace(shown.share.contribution, object=manifest.id)
        return messages.RevealReply(replace(shown.share, contribution=told, manifest=manifest))

    attacked(code, reveal=reveal)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("make", "code"),
    soaked(
        [
            (lambda eve: b"", "FF-COMP-001"),
            (lambda eve: flipped(payload_of(eve), 0), "FF-COMP-003"),
            (lambda eve: flipped(payload_of(eve), 5), "FF-COMP-005"),
            (lambda eve: flipped(payload_of(eve), 30), "FF-COMP-006"),
            (lambda eve: payload_of(eve, round=ROUND - 1), "FF-COMP-007"),
            (lambda eve: payload_of(eve, base_root=HASH), "FF-COMP-008"),
            (lambda eve: payload_of(eve, peer=HONEST[0].public), "FF-COMP-009"),
            (lambda eve: payload_of(eve)[:-1], "FF-COMP-010"),
            (lambda eve: payload_of(eve)[:-4] + b"\xff" * 4, "FF-COMP-017"),
        ],
        ["empty", "magic", "codec", "layout", "other round", "other state", "copied", "cut", "NaN"],
        "empty, other round, NaN",
    ),
)
def test_a_payload_that_does_not_decode_though_committed(
    attacked: Any, make: Callable[[Hostile], bytes], code: str
) -> None:
    made = {}

    def train(eve: Hostile, _order: Any, said: messages.TrainReply) -> messages.TrainReply:
        made["it"] = make(eve)
        return eve.promise(said, made["it"])

    attacked(code, train=train, reveal=lambda eve, _, shown: eve.opened(shown, made["it"]))


def flipped(payload: bytes, place: int) -> bytes:
    return payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]


def test_a_payload_sealed_under_another_key(attacked: Any) -> None:
    def reveal(eve: Hostile, _order: Any, shown: messages.RevealReply) -> messages.RevealReply:
        manifest = eve.put(eve.worker.payload(ROUND), b"\x01" * 32)
        told = replace(shown.share.contribution, object=manifest.id)
        return messages.RevealReply(replace(shown.share, contribution=told, manifest=manifest))

    attacked("FF-STOR-005", reveal=reveal)


def test_an_object_that_is_withheld(attacked: Any) -> None:
    made = {}

    def train(eve: Hostile, _order: Any, said: messages.TrainReply) -> messages.TrainReply:
        made["it"], eve.withholds = payload_of(eve), True
        return eve.promise(said, made["it"])

    run = attacked("FF-APP-034", train=train, reveal=lambda eve, _, shown: eve.opened(shown, made["it"]))
    assert run.eve.twists  # its replica never got it: it says so, and that is no excuse


def test_a_maker_that_refuses_chunks_is_no_trouble_while_its_replica_serves(tmp_path: Path) -> None:
    async def test() -> None:
        run = Run(tmp_path)
        run.eve.withholds = True
        await run.go()
        assert [e for e in run.events if isinstance(e, ProcessExitEvent)] == []

    within(20, test)


@pytest.mark.slow
@pytest.mark.parametrize("replica", [STRANGER.public, b"x" * 3_900_000])
def test_a_replica_that_nobody_asked_for_never_reaches_the_members(attacked: Any, replica: PeerId) -> None:
    def reveal(_eve: Hostile, _order: Any, shown: messages.RevealReply) -> messages.RevealReply:
        return messages.RevealReply(replace(shown.share, replica=replica))

    attacked("FF-APP-054", reveal=reveal)


# Roots


def test_a_wrong_root_expels(attacked: Any) -> None:
    def merge(_eve: Hostile, _order: Any, _said: Any) -> messages.MergeReply:
        return messages.MergeReply(HASH, sign_root(EVE, TERMS.id, ROUND, HASH))

    attacked(HASH[:4].hex(), merge=merge, accepted_last=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sign",
    soaked(
        [
            lambda root: sign_root(STRANGER, TERMS.id, ROUND, root),
            lambda root: sign_root(EVE, TERMS.id, ROUND - 1, root),
            lambda root: sign_root(EVE, OTHER_JOB, ROUND, root),
            lambda _root: b"",
        ],
        ["another key", "another round", "another job", "none"],
        "another key, another round",
    ),
)
def test_a_root_that_the_peer_did_not_sign(attacked: Any, sign: Callable[[Hash], Any]) -> None:
    def merge(_eve: Hostile, _order: Any, said: messages.MergeReply) -> messages.MergeReply:
        return replace(said, signature=sign(said.root))

    attacked("FF-APP-056", merge=merge, accepted_last=True)


# Anything else


def failing(_eve: Hostile, _order: Any, _said: Any) -> Any:
    raise PolicyError("FF-APP-041", "\x1b[2Jno\n")


def babbling(_eve: Hostile, _order: Any, _said: Any) -> Any:
    raise PolicyError("not a code", "at all")


def hanging_up(eve: Hostile, _order: Any, said: Any) -> Any:
    assert eve.connection is not None
    eve.connection.close()
    return said


@pytest.mark.whole
@pytest.mark.parametrize(
    ("method", "twist", "reason"),
    [
        ("train", failing, "FF-APP-041 ?[2Jno?"),
        ("train", hanging_up, "FF-NET-046"),
        ("reveal", babbling, "FF-NET-024"),
        ("reveal", hanging_up, "FF-NET-046"),
        ("merge", failing, "FF-APP-041 ?[2Jno?"),
        ("merge", hanging_up, "FF-NET-046"),
    ],
)
def test_errors_and_hanging_up(attacked: Any, method: str, twist: Twist, reason: str) -> None:
    attacked(reason, **{method: twist}, accepted_last=method == "merge")


class Raw:
    """A reply that is these bytes."""

    def __init__(self, body: bytes) -> None:
        self.body = body


@pytest.mark.slow
@pytest.mark.parametrize("method", [messages.TRAIN, messages.REVEAL, messages.MERGE])
def test_no_reply_makes_the_coordinator_stumble(tmp_path: Path, method: str) -> None:
    """Every reply of a member, malformed in many ways: each ends in a refusal of that reply and nothing else."""

    async def test() -> None:
        run = Run(tmp_path)
        bodies: list[bytes] = []
        refused: list[str] = []

        async def probe(said: Any) -> None:
            """Feeds the coordinator's own task with hostile replies, one after the other."""
            bodies.extend(hostile_bodies(encode(said), 1, 8))
            bodies.extend(body for body in hostile_values(said) if len(body) < 200_000)

        honest = run.eve.obey

        async def obey(connection: Connection, asked: str, order: Any) -> Any:
            said = await honest(connection, asked, order)
            if asked == method and not bodies:
                await probe(said)
            return said

        run.eve.obey = obey  # type: ignore[method-assign]
        await run.go()
        tasks, journal = run.tasks, Journal(tmp_path / "later.jsonl", 0.0)
        tasks._job = run.job._replace(journal=journal)
        tasks._told._journal = journal
        work = {messages.TRAIN: tasks.train, messages.REVEAL: tasks.reveal, messages.MERGE: tasks.merge}
        refused = await replies(run, work[method], method, bodies)
        journal.close()
        assert len(refused) == len(bodies) > 30
        assert not [code for code in refused if code.endswith("-099")]

    within(20, test)


class Canned:
    """A connection whose peer answers with these bytes."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def call(self, method: str, _body: bytes, **_: Any) -> bytes:
        if method == objects.CHUNK:
            raise PolicyError("FF-APP-042", "never")
        return self.body


async def replies(run: Run, work: Callable[..., RoundTask], method: str, bodies: list[bytes]) -> list[str]:
    """The code with which each reply is refused; `ok` for one that is taken."""
    codes: list[str] = []
    eve, coordinator, tasks = EVE.public, run.coordinator, run.tasks
    state = replace(coordinator._state, round=0, members=(eve,), commitments={eve: _commitment(run)})
    coordinator._state = state
    tasks._flagged.set()  # the checks of the round have spoken
    run.audits._opened[0, eve] = None  # what a closed round had opened is forgotten
    extra = ((),) if method == messages.MERGE else ()
    for body in bodies:
        tasks._calls.dial = _always(Canned(body))  # type: ignore[assignment]
        coordinator._last_error = None
        await coordinator._guard(eve, work(0, eve, *extra))
        assert coordinator._failure is None  # no peer can end the run
        error = coordinator._last_error
        codes.append(error.code if error is not None else "ok")
    return codes


def _always(connection: Canned) -> Callable[[PeerId], Awaitable[Canned]]:
    async def dial(_peer: PeerId) -> Canned:
        return connection

    return dial


def _commitment(run: Run) -> Any:
    records = [r for r in run.log.records if isinstance(r, CommitmentsRecord)]
    return next(c for c in records[0].commitments if c.peer == EVE.public)
