"""Defines canaries: segments known to be false that are shown to a verifier as any other, and their proofs.

A verifier of another class of machine than the node's never has the same bits, so it may say "holds" of whatever it is
shown. Forced errors make it look (Teutsch, Reitwiessner: A scalable verification solution for blockchains, section
4.4; docs/concepts/audits.md). The node falsifies the trace that it had committed to in one leaf: the end of the segment
gets the weights of another border of the same round. So hashes alone show that whoever says that it holds has said it
of two different amounts of work.

    true trace      border 0 .. border b .. border i .. | statistics | payload     committed to before the draw
    planted trace   the same, but border b has the weights of border i             signed, under a namespace of its own

What hashes do not show is that border i itself is true. A node that meant to have an honest verifier say "holds" of
its true end would have had to commit to that end as border i before anything was drawn, and is false in the two
segments that meet there. Which i belongs to b is fixed, so that one such lie serves for few draws.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.core import limits, merkle
from farflung.core.codec import encode
from farflung.core.commitments import BorderRoots, commitment_digest, is_commitment_signed, leaf_count, planted_digest
from farflung.core.ids import Hash, PeerId
from farflung.ledger.transactions import Canary, PlantedTrace, VerdictFinding, is_verdict_signed

SEGMENTS_LEAST: Final = 4  # of a round: with fewer no border is neither an outer one nor one of the segment's own


def source_of(segment: int, segments: int) -> int:
    """The border whose weights are shown as the end of `segment`: not its start or end, nor the round's."""
    end = segment + 1
    return end + 1 if end + 1 < segments else end - 2


def planted(plant: PlantedTrace) -> BorderRoots:
    """The end of the segment as it is shown: of other work."""
    return replace(plant.end, params=plant.source.params)


def planted_root(plant: PlantedTrace) -> Hash:
    """The root of the falsified trace: the true one with one other leaf."""
    index, leaf = plant.end.index, merkle.leaf_hash(plant.end.index, encode(planted(plant)))
    return merkle.root_of_hashes((*plant.leaves[:index], leaf, *plant.leaves[index + 1 :]))


def plant_fault(plant: PlantedTrace, job: Hash, node: PeerId, round: int, segment: int) -> str:
    """Why this is no plant of this segment of the node's round, or the empty text."""
    segments = len(plant.leaves) - leaf_count(0)
    if not SEGMENTS_LEAST <= segments <= limits.SEGMENTS or not 0 <= segment < segments:
        return f"{len(plant.leaves)} leaves have no segment {segment} to plant in"
    places = (segment + 1, source_of(segment, segments))
    for border, index in zip((plant.end, plant.source), places, strict=True):
        if (border.round, border.index) != (round, index):
            return f"border {border.index} of round {border.round} is not border {index} of round {round}"
        if merkle.leaf_hash(index, encode(border)) != plant.leaves[index]:
            return f"border {index} is not the one that the node committed to"
    if plant.end.params == plant.source.params or plant.end.steps == plant.source.steps:
        return "both borders have the same weights, or count the same steps"
    if merkle.root_of_hashes(plant.leaves) != plant.trace:
        return "the leaves are not those of the true trace"
    return _signature_fault(plant, job, node, round)


def _signature_fault(plant: PlantedTrace, job: Hash, node: PeerId, round: int) -> str:
    truth = plant.truth
    said = (job, node, round, truth.payload, truth.weight)
    promise = commitment_digest(*said, plant.trace, truth.nonce)
    if not is_commitment_signed(node, truth.signature, job, round, promise):
        return "the node did not sign the true trace"
    asked = planted_digest(*said, planted_root(plant), plant.nonce)
    if not is_commitment_signed(node, plant.signature, job, round, asked):
        return "the node did not sign the planted trace"
    return ""


def fault(canary: Canary, chain: Hash, job: Hash) -> str:
    """Why this proves nothing of its verifier on this chain and job, or the empty text."""
    said = canary.verdict.verdict
    if (said.chain, said.job) != (chain, job):
        return "the verdict is of another chain or job"
    wrong = plant_fault(canary.plant, job, said.node, said.round, said.segment)
    if wrong:
        return wrong
    if said.trace != planted_root(canary.plant):
        return "the verdict is of another trace"
    return "" if is_verdict_signed(canary.verdict) else "its verifier did not sign the verdict"


def is_perjury(canary: Canary) -> bool:
    """Whether the verifier said that the false segment holds. Whoever is unsure says less, and is not punished."""
    return canary.verdict.verdict.finding == VerdictFinding.HOLDS
