"""Defines transactions: a person signs a list of operations that happen all together or not at all (L1).

A transaction names its chain (the genesis hash), its sender's next nonce and the time after which it is void, so
that it can neither be replayed nor wait for ever. All amounts are pico-credits, all times ledger milliseconds.
An offer is the one thing signed by somebody else than the sender: a node's half of a lease.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from farflung.core.canon.program import CanonicalProgram
from farflung.core.codec import Wire, encode
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import (
    NS_COORDINATOR,
    NS_LEAVING,
    NS_OFFER,
    NS_TX,
    NS_TX_ID,
    NS_VERDICT,
    SigningKey,
    digest,
    is_signed,
)
from farflung.core.ids import ZERO_HASH, Hash, PeerId, Signature
from farflung.core.relay_passes import SignedRelayPass, SignedRelayReceipt
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.earnings_tally import JobAttest, SettleMany
from farflung.ledger.exclusions import Appeal, AppealVote, HostTampered
from farflung.ledger.motions import Motion, MotionVote
from farflung.ledger.pinpoint_game import Challenge, Descend, FirstMove, OpenVerdict, Pinpoint, ProveElement, ShowTile
from farflung.ledger.validators import ValidatorAccuse, ValidatorJoin, ValidatorLeave

VERSION = 1


class Transfer(Wire, frozen=True, tag="transfer"):
    """The sender pays `amount` (at least 1) to `to`, whose account is opened if it is new."""

    to: PeerId
    amount: int


class NodeRegister(Wire, frozen=True, tag="node_register"):
    """The sender lends hardware. Again: sets caps, price and expiry, and raises the stake to at least `stake`."""

    caps: Hash
    unit_price: int
    stake: int
    expires: int


class NodeLeave(Wire, frozen=True, tag="node_leave"):
    """The sender stops lending and gets its stake back; refused while it holds an open lease."""


class JobCreate(Wire, frozen=True, tag="job_create"):
    """The sender (requester) puts `escrow` behind the job whose terms hash to `job`."""

    job: Hash
    escrow: int
    unit_price_max: int
    rounds: int
    deadline: int


class LeaseRole(IntEnum):
    """What a lease is for."""

    TRAIN = 0
    AUDIT = 1


class LeaseOffer(Wire, frozen=True):
    """A node's promise: up to `units_max` units of `job` at `unit_price`, backed by `stake`, until `expires`.

    A unit is a token trained on and accepted, or, in an AUDIT lease, a token trained again by a verifier. `attests` is
    the hash of what the node says it runs (core.attestations; zero: nothing): its word, and not a proof of work.
    """

    chain: Hash
    job: Hash
    node: PeerId
    unit_price: int
    stake: int
    units_max: int
    expires: int
    role: LeaseRole = LeaseRole.TRAIN
    attests: Hash = ZERO_HASH


class SignedLeaseOffer(Wire, frozen=True):
    """An offer under its node's signature (NS_OFFER)."""

    offer: LeaseOffer
    signature: Signature


class ClearingPrice(Wire, frozen=True):
    """Whose standing ask sets the price of all offers of one role in a schedule (rules.clearing)."""

    role: LeaseRole
    setter: PeerId


class JobSchedule(Wire, frozen=True, tag="job_schedule"):
    """The requester takes offers: one lease each, the node's stake locked. Again: adds replacements.

    `clearings`: one for each role among the offers, in the order of roles.
    """

    job: Hash
    offers: tuple[SignedLeaseOffer, ...]
    clearings: tuple[ClearingPrice, ...]


class Progress(Wire, frozen=True, tag="progress"):
    """The requester records one round: root of the public state after it, accepted contributions, units earned."""

    job: Hash
    round: int
    root: Hash
    contributions: Hash
    units: tuple[tuple[PeerId, int], ...]


class JobDraw(Wire, frozen=True, tag="job_draw"):
    """The requester fixes what all workers committed to in one round, before anybody can know what is audited of it.

    `commitments` is the digest over all commitments of the round. The round is drawn from the id of the block that
    carries this (verify.audit_sample).
    """

    job: Hash
    round: int
    commitments: Hash


class VerdictFinding(IntEnum):
    """What an audit found of one segment and the encoding behind it."""

    HOLDS = 0  # the same, or within the tolerance
    UNPAID = 1  # between one and two tolerances: not paid, and not punished
    FALSE = 2  # beyond twice the tolerance, or a payload that the work does not give
    WITHHELD = 3  # the committed state was not opened in time


DAMNING: Final = (VerdictFinding.FALSE, VerdictFinding.WITHHELD)  # what a node can be slashed for


class Verdict(Wire, frozen=True):
    """One verifier's finding on one contribution. `excess`: distance in thousandths of the tolerance.

    `trace` is the contribution's committed root, `result` what the verifier itself computed and had committed to
    before it saw what the node claims (verify.blind_commitment).
    """

    chain: Hash
    job: Hash
    round: int
    node: PeerId
    segment: int
    trace: Hash
    verifier: PeerId
    finding: VerdictFinding
    excess: int
    result: Hash


class SignedVerdict(Wire, frozen=True):
    """A verdict under its verifier's signature (NS_VERDICT)."""

    verdict: Verdict
    signature: Signature


class CommitmentOpening(Wire, frozen=True):
    """The rest of what the node had committed to, under its own signature: with `trace` it gives the digest
    (core.commitments), so that nobody is punished for what it did not say.
    """

    payload: Hash
    weight: int
    nonce: Hash
    signature: Signature


class JobSlash(Wire, frozen=True, tag="job_slash"):
    """Verifiers of the job agree that `node` lied or withheld: stake and pay are lost, its lease ends.

    `evidence` is the hash of all that was opened (verify.evidence), kept outside the ledger. `terms` and `program` open
    the id of a proven job (core.canon.program); without them the job counts as one without a graph.
    """

    job: Hash
    node: PeerId
    claim: CommitmentOpening
    verdicts: tuple[SignedVerdict, ...]
    evidence: Hash
    terms: Hash = ZERO_HASH
    program: CanonicalProgram = CanonicalProgram()


class PlantedTrace(Wire, frozen=True):
    """What a node answers when it is asked to falsify a trace: its true one, and the weights that it shows as its end.

    `truth` is what it had committed to with `trace`, `leaves` are the hashes of all leaves of that, `end` the border
    after the segment and `source` the one whose weights take the place of its own. `nonce` and `signature` are of
    core.claims.planted_digest with the falsified trace (ledger.canaries).
    """

    truth: CommitmentOpening
    trace: Hash
    leaves: tuple[Hash, ...]
    end: BorderRoots
    source: BorderRoots
    nonce: Hash
    signature: Signature


class Canary(Wire, frozen=True):
    """A plant, and what a verifier who did not know it for one found of it."""

    plant: PlantedTrace
    verdict: SignedVerdict


class JobPerjury(Wire, frozen=True, tag="job_perjury"):
    """A verifier of the job signed that a falsified segment holds: its stake and pay are lost, its lease ends."""

    job: Hash
    canary: Canary


class JobFinish(Wire, frozen=True, tag="job_finish"):
    """The requester ends the work: `root` is the last recorded round's, `output` names the artefact."""

    job: Hash
    root: Hash
    output: Hash


class JobSettle(Wire, frozen=True, tag="job_settle"):
    """After JobFinish: pays every lease for its units, refunds the rest of the escrow, unlocks the stakes."""

    job: Hash


class JobCancel(Wire, frozen=True, tag="job_cancel"):
    """Before JobFinish: the same payment for recorded progress and the same refund."""

    job: Hash


class JobCoordinate(Wire, frozen=True, tag="job_coordinate"):
    """The requester's process with this mark coordinates the job, in this term: the next one, or the one it holds.

    What else the requester says of a job that has terms counts only in a transaction that says so.
    """

    job: Hash
    term: int
    mark: Hash


def coordinator_of(job: Hash) -> PeerId:
    """The name under which the registry of keys has a job's term: its epoch is the term, its node the mark."""
    return PeerId(digest(NS_COORDINATOR, job))


class JobLeave(Wire, frozen=True, tag="job_leave"):
    """A node ends its own lease: it is paid for what is recorded, its stake is free.

    In a job that goes on it gives notice first, and says the same again when its last round is recorded and the window
    after that is over.
    """

    job: Hash


def notice_of(job: Hash, node: PeerId) -> PeerId:
    """The name under which the registry of keys has a node's notice: its epoch is the first round without the node."""
    return PeerId(digest(NS_LEAVING, job, node))


class KeyCertify(Wire, frozen=True, tag="key_certify"):
    """`node` speaks for the sender on the network, as the key of `epoch`, to `expires`; the key before to `until`.

    Both are seconds since 1970. The certificate that `node` itself shows (net.certificates) is another paper.
    """

    node: PeerId
    epoch: int
    expires: int
    until: int


class KeyRevoke(Wire, frozen=True, tag="key_revoke"):
    """No key of the sender of `epoch` or earlier speaks for it any more; 0 is the account's own key."""

    epoch: int


class ChannelOpen(Wire, frozen=True, tag="channel_open"):
    """The sender puts `amount` behind what `relay` carries for it, at `price` a GiB. Again: adds, and may end later."""

    relay: PeerId
    amount: int
    price: int
    expires: int


class PassReceipts(Wire, frozen=True):
    """What was carried under one pass: the pass, and the last receipt of each of its parties that signed."""

    signed: SignedRelayPass
    receipts: tuple[SignedRelayReceipt, ...]


class ChannelClaim(Wire, frozen=True, tag="channel_claim"):
    """The sender (relay) is paid for these passes of `payer`, by ascending serial; no earlier one can follow."""

    payer: PeerId
    passages: tuple[PassReceipts, ...]


class ChannelClose(Wire, frozen=True, tag="channel_close"):
    """The sender (relay) carries no more for `payer`, who gets the rest back."""

    payer: PeerId


Op = (
    Transfer
    | NodeRegister
    | NodeLeave
    | JobCreate
    | JobSchedule
    | Progress
    | JobDraw
    | JobSlash
    | JobPerjury
    | JobFinish
    | JobSettle
    | JobCancel
    | JobCoordinate
    | JobLeave
    | KeyCertify
    | KeyRevoke
    | ChannelOpen
    | ChannelClaim
    | ChannelClose
    | SettleMany
    | JobAttest
    | DisputeAnswer
    | JuryVote
    | ValidatorJoin
    | ValidatorLeave
    | ValidatorAccuse
    | Motion
    | MotionVote
    | Challenge
    | Pinpoint
    | FirstMove
    | Descend
    | OpenVerdict
    | ShowTile
    | ProveElement
    | HostTampered
    | Appeal
    | AppealVote
)


class Tx(Wire, frozen=True):
    """What is signed. `expires` 0: never; otherwise void in a block of that time or later."""

    version: int
    chain: Hash
    sender: PeerId
    nonce: int
    expires: int
    fee: int
    ops: tuple[Op, ...]


class SignedTx(Wire, frozen=True):
    """A transaction under its sender's signature (NS_TX)."""

    tx: Tx
    signature: Signature


def make_tx(chain: Hash, sender: PeerId, nonce: int, *ops: Op, fee: int = 0, expires: int = 0) -> Tx:
    """A transaction of the current version."""
    return Tx(VERSION, chain, sender, nonce, expires, fee, ops)


def sign_tx(key: SigningKey, tx: Tx) -> SignedTx:
    """The transaction under `key`'s signature."""
    return SignedTx(tx, key.sign(NS_TX, encode(tx)))


def sign_offer(key: SigningKey, offer: LeaseOffer) -> SignedLeaseOffer:
    """The offer under its node's signature."""
    return SignedLeaseOffer(offer, key.sign(NS_OFFER, encode(offer)))


def sign_verdict(key: SigningKey, verdict: Verdict) -> SignedVerdict:
    """The verdict under its verifier's signature."""
    return SignedVerdict(verdict, key.sign(NS_VERDICT, encode(verdict)))


def is_verdict_signed(signed: SignedVerdict) -> bool:
    """Whether the verifier that the verdict names signed it."""
    return is_signed(signed.verdict.verifier, signed.signature, NS_VERDICT, encode(signed.verdict))


def tx_id(tx: Tx | SignedTx) -> Hash:
    """The transaction's name. The signature has no part in it, so that no second signature makes a second name."""
    return digest(NS_TX_ID, encode(tx.tx if isinstance(tx, SignedTx) else tx))
