"""Planted segments for tests: a node's true trace, what it signs when it is asked to plant, and a verifier's word."""

from __future__ import annotations

from collections.abc import Sequence

from ledger_world import JOB, NONCE, PAYLOAD, World
from msgspec.structs import replace

from farflung.core import merkle
from farflung.core.codec import encode
from farflung.core.commitments import BorderRoots, commitment_digest, number, planted_digest
from farflung.core.crypto import NS_ACK, NS_SPEC, SigningKey, digest
from farflung.core.ids import Hash
from farflung.ledger import canaries, transactions

SEGMENT, SEGMENTS, WEIGHT = 1, 5, 512
END, SOURCE = 2, 3  # the border after SEGMENT, and the one whose weights are shown there
PLANTING = digest(NS_SPEC, b"planting")


def borders(round: int = 0, segments: int = SEGMENTS, work: bytes = b"work") -> list[BorderRoots]:
    """Of a round in which every segment changed everything."""

    def root(part: bytes, index: int) -> Hash:
        return digest(NS_SPEC, work, part, bytes([index]))

    return [
        BorderRoots(round, i, 4 * i, root(b"params", i), root(b"optimizer", i), root(b"residual", i))
        for i in range(segments + 1)
    ]


def leaves_of(rows: Sequence[BorderRoots]) -> tuple[Hash, ...]:
    """With statistics and payload."""
    data = [*map(encode, rows), b"statistics", PAYLOAD]
    return tuple(merkle.leaf_hash(index, leaf) for index, leaf in enumerate(data))


def signed_plant(
    node: SigningKey,
    rows: Sequence[BorderRoots],
    segment: int = SEGMENT,
    *,
    job: Hash = JOB,
    source: int | None = None,
    signer: SigningKey | None = None,
) -> transactions.PlantedTrace:
    """What a node answers: both traces under its signature (or `signer`'s), for the round that the borders are of."""
    leaves, round = leaves_of(rows), rows[0].round
    place = canaries.source_of(segment, len(rows) - 1) if source is None else source
    truth = transactions.CommitmentOpening(PAYLOAD, WEIGHT, NONCE, transactions.Signature(bytes(64)))
    trace = merkle.root_of_hashes(leaves)
    bare = transactions.PlantedTrace(truth, trace, leaves, rows[segment + 1], rows[place], PLANTING, truth.signature)
    return sign_plant(signer or node, bare, node, job=job, round=round)


def sign_plant(
    key: SigningKey, plant: transactions.PlantedTrace, node: SigningKey, *, job: Hash = JOB, round: int = 0
) -> transactions.PlantedTrace:
    """The same under fresh signatures, by `key` in the name of `node`."""
    said = (job, node.public, round, plant.truth.payload, plant.truth.weight)
    promise = commitment_digest(*said, plant.trace, plant.truth.nonce)
    asked = planted_digest(*said, canaries.planted_root(plant), plant.nonce)
    true, false = (key.sign(NS_ACK, job, number(round), each) for each in (promise, asked))
    return replace(plant, truth=replace(plant.truth, signature=true), signature=false)


def plant(node: SigningKey, *, job: Hash = JOB, round: int = 0) -> transactions.PlantedTrace:
    """An honest one."""
    return signed_plant(node, borders(round), job=job)


def found(
    world: World,
    verifier: SigningKey,
    node: SigningKey,
    made: transactions.PlantedTrace | None = None,
    /,
    **change: object,
) -> transactions.Canary:
    """The verifier says that the node's planted segment holds, unless a test changes it."""
    made = made or plant(node)
    terms: dict[str, object] = {"segment": SEGMENT, "finding": transactions.VerdictFinding.HOLDS, "excess": 300}
    terms["trace"] = canaries.planted_root(made)
    return transactions.Canary(made, world.verdict(verifier, node, **(terms | change)))


def perjury(
    world: World,
    verifier: SigningKey,
    node: SigningKey,
    made: transactions.PlantedTrace | None = None,
    /,
    **change: object,
) -> transactions.JobPerjury:
    """What is brought before the law then."""
    canary = found(world, verifier, node, made, **change)
    return transactions.JobPerjury(canary.verdict.verdict.job, canary)
