"""Defines per-epoch receipts: one signed root over the earnings of a job's nodes, and a voucher for each.

A tally is *cumulative*: it says what each node has earned since the job began, so that only the largest counts, a
replay changes nothing, and what either side can lose is one epoch. Per-step pay never touches consensus: the ledger
sees a tally only if somebody has to claim by it (`SettleMany`), and then one operation pays many nodes.

Who signs (`ledger.rules.tallies` has the law): the job's requester, or a quorum of its verifiers. A voucher is one
leaf of the tree with its path (core.merkle); with the signed root it is all that a node has to keep.
"""

from __future__ import annotations

from collections.abc import Iterable

from farflung.core import merkle
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_ATTEST, NS_TALLY, SigningKey, is_signed
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId, Signature


class EarningsTally(Wire, frozen=True):
    """What the nodes of `job` have earned up to the end of `epoch`: Merkle root over `count` encoded Credits.

    Epochs count up, so that holders know which voucher of two is the newer one; the law goes by units alone.
    """

    chain: Hash
    job: Hash
    epoch: int
    root: Hash
    count: int


class NodeCredit(Wire, frozen=True):
    """A leaf of a tally: units that `node` has earned since the job began, as in Progress."""

    node: PeerId
    units: int


class EarningsVoucher(Wire, frozen=True):
    """Leaf `index` of a tally, with its path to the root."""

    index: int
    credit: NodeCredit
    path: tuple[Hash, ...]


class PartySignature(Wire, frozen=True):
    """One party's signature over a tally (NS_TALLY) or an OutputAttestation (NS_ATTEST)."""

    signer: PeerId
    signature: Signature


class SignedEarningsTally(Wire, frozen=True):
    """A tally under the mark of its job's requester, or under those of its verifiers."""

    tally: EarningsTally
    marks: tuple[PartySignature, ...]


class SettleMany(Wire, frozen=True, tag="settle_many"):
    """Anybody's claim for the nodes that the vouchers name: their leases count at least these units."""

    signed: SignedEarningsTally
    vouchers: tuple[EarningsVoucher, ...]


class OutputAttestation(Wire, frozen=True):
    """What a verifier signs of a job that has ended well: its last recorded root and its output."""

    chain: Hash
    job: Hash
    root: Hash
    output: Hash


class JobAttest(Wire, frozen=True, tag="job_attest"):
    """A quorum of the job's verifiers ends its verification window early."""

    job: Hash
    marks: tuple[PartySignature, ...]


def make_tally(
    chain: Hash, job: Hash, epoch: int, earned: Iterable[tuple[PeerId, int]]
) -> tuple[EarningsTally, tuple[EarningsVoucher, ...]]:
    """The tally of (node, units since the job began), each node once, and everybody's voucher in the same order."""
    credits = [NodeCredit(node, units) for node, units in earned]
    leaves = [encode(credit) for credit in credits]
    vouchers = (EarningsVoucher(place, credit, merkle.prove(leaves, place)) for place, credit in enumerate(credits))
    return EarningsTally(chain, job, epoch, merkle.root(leaves), len(leaves)), tuple(vouchers)


def is_of(tally: EarningsTally, voucher: EarningsVoucher) -> bool:
    """Whether the voucher is a leaf of this tally."""
    leaf = encode(voucher.credit)
    return merkle.holds(tally.root, tally.count, voucher.index, leaf, voucher.path)


def check_voucher(
    signed: SignedEarningsTally, voucher: EarningsVoucher, about: tuple[Hash, Hash, PeerId, PeerId]
) -> None:
    """Raises VerificationError FF-LEDG-240 unless the voucher will pay: `about` is (chain, job, requester, node)."""
    tally = signed.tally
    chain, job, requester, node = about
    is_marked_by_it = [mark.signer for mark in signed.marks] == [requester] and is_signed_by(signed.marks[0], tally)
    is_ours = (tally.chain, tally.job, voucher.credit.node) == (chain, job, node)
    if not (is_ours and is_marked_by_it and is_of(tally, voucher)):
        raise VerificationError(
            "FF-LEDG-240",
            "this voucher pays nothing",
            cause="it is of another chain, job or node, not signed by the requester, or not of its tally",
            hint="work no further for who gives it: the last good voucher still pays",
        )


def sign_tally(key: SigningKey, tally: EarningsTally) -> PartySignature:
    """`key`'s word for a tally."""
    return PartySignature(key.public, key.sign(NS_TALLY, encode(tally)))


def sign_output(key: SigningKey, said: OutputAttestation) -> PartySignature:
    """`key`'s word for a job's end."""
    return PartySignature(key.public, key.sign(NS_ATTEST, encode(said)))


def is_signed_by(mark: PartySignature, said: EarningsTally | OutputAttestation) -> bool:
    """Whether the mark's signer signed this."""
    namespace = NS_TALLY if isinstance(said, EarningsTally) else NS_ATTEST
    return is_signed(mark.signer, mark.signature, namespace, encode(said))
