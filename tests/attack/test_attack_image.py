"""A node that says one thing of its software to the ledger and another with its work; one that a job does not want."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_run import HONEST, Hostile, Run
from attack_world import MEMBERS, REQUESTER, TERMS

from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.release import JOB_FORMAT
from farflung.ledger.transactions import LeaseRole
from farflung.peers.node.policy import LeasePolicy
from farflung.peers.protocol import messages
from farflung.train.run_log import AcceptSetRecord

replace = msgspec.structs.replace
MINE, OTHER = Hash(b"m" * 32), Hash(b"o" * 32)
CHAIN = Hash(b"c" * 32)
OFFERED = {key.public: Hash(bytes([n]) * 32) for n, key in enumerate(MEMBERS, 1)}
WANTED = replace(TERMS, spec=replace(TERMS.spec, network=replace(TERMS.spec.network, image="mine")), image=MINE)


def tagged(folder: Path) -> Run:
    """A run whose nodes tag what they submit with what their offers attest."""
    run = Run(folder, attested=OFFERED)
    for member in run.members:
        member.lease.attests = OFFERED[member.key.public]
    return run


def test_each_submission_names_what_its_node_attested(tmp_path: Path) -> None:
    run = tagged(tmp_path)
    asyncio.run(run.go())
    assert not run.left
    accepted = [c for r in run.log.records if isinstance(r, AcceptSetRecord) for c in r.contributions]
    assert len(accepted) == TERMS.spec.rounds * len(MEMBERS)
    assert all(c.attests == OFFERED[c.peer] for c in accepted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tag",
    [OTHER, ZERO_HASH, Hash(b""), Hash(bytes(10**5)), OFFERED[HONEST[0].public]],
    ids=["other", "none", "empty", "long", "another's"],
)
def test_a_submission_that_names_another_attestation_is_refused(tmp_path: Path, tag: Hash) -> None:
    def reveal(_member: Hostile, _order: Any, said: messages.RevealReply) -> messages.RevealReply:
        told = replace(said.share.contribution, attests=tag)
        return replace(said, share=replace(said.share, contribution=told))

    run = tagged(tmp_path)
    run.eve.twists[messages.REVEAL] = reveal
    asyncio.run(run.go())
    run.check("FF-APP-416", accepted_last=False)


def judged(terms: Any, own: Hash = OTHER) -> None:
    """What a node with this image says to a proposal of these terms."""
    units = terms.spec.rounds * terms.spec.round_tokens
    policy = LeasePolicy(CHAIN, LeaseRole.TRAIN, 1, terms.stake, 2**40, lambda: own)
    policy.judge(
        REQUESTER.public,
        messages.LeaseOfferRequest(JOB_FORMAT, CHAIN, terms, 100, 1 << 29, 1, terms.stake, units, 10**9),
    )


def test_a_node_refuses_a_job_for_another_image_and_says_what_to_do() -> None:
    judged(TERMS)
    judged(WANTED, MINE)
    with pytest.raises(PolicyError) as refused:
        judged(WANTED, OTHER)
    said = refused.value
    assert (said.code, bool(said.cause), bool(said.hint)) == ("FF-APP-417", True, True)
    assert MINE[:4].hex() in said.cause
    assert OTHER[:4].hex() in said.cause


@pytest.mark.parametrize("terms", [replace(TERMS, image=MINE), replace(WANTED, image=ZERO_HASH)])
def test_terms_that_name_an_image_unasked_or_ask_for_none_are_refused(terms: Any) -> None:
    with pytest.raises(PolicyError) as refused:
        judged(terms, MINE)
    assert refused.value.code == "FF-APP-073"
    assert "image" in refused.value.cause


def test_the_image_that_a_job_asks_for_is_under_its_id() -> None:
    assert len({TERMS.id, WANTED.id, replace(WANTED, image=OTHER).id}) == 3
