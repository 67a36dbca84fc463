"""Implements a light client: it holds a trusted committee, and trusts what that committee certified.

From one epoch to the next it takes one receipt: the row of the next committee, under a header of the epoch it trusts.
Nothing is skipped. A committee whose seats ended long ago has no stake left to lose, so that it could sign a second
history: who slept longer than `unbonding_ms` must take a newer point from a source it trusts (`check_age`). Pure:
it never asks a clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from farflung.core.codec import Wire
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import BlockHeader, Genesis, is_final
from farflung.ledger.row_receipt import LedgerReceipt, opened, refused
from farflung.ledger.state_transition import genesis_header
from farflung.ledger.table_rows import Row
from farflung.ledger.validators import CommitteeRow
from farflung.ledger.votes import NO_CERTIFICATE, QuorumCertificate


class TrustedCommittee(Wire, frozen=True):
    """Who certifies epoch `epoch` of `chain`. `root`: the header that the epoch began behind; `time`: its time."""

    chain: Hash
    epoch: int
    root: Hash
    committee: tuple[PeerId, ...]
    time: int


def trust_in(genesis: Genesis) -> TrustedCommittee:
    """What follows from a genesis that one knows. Raises VerificationError FF-LEDG-060."""
    header = genesis_header(genesis)
    return TrustedCommittee(genesis.chain, 0, header.id, genesis.validators, genesis.time)


def check(trust: TrustedCommittee, receipt: LedgerReceipt) -> Row:
    """The row that the receipt proves to who trusts this committee.

    Raises VerificationError: FF-LEDG-071 other chain, -072 not certified by this committee, -073 to -076 as
    `proof.opened`.
    """
    check_header(trust, receipt.header, receipt.certificate, receipt.genesis)
    return opened(receipt)


def check_header(
    trust: TrustedCommittee, header: BlockHeader, certificate: QuorumCertificate, chain: Hash | None = None
) -> None:
    """Whether the trusted committee made the header final. `chain`: as whoever shows it says, beside the header.

    Raises VerificationError FF-LEDG-071 other chain, -072 not certified by this committee.
    """
    if header.chain != trust.chain or chain not in (None, trust.chain):
        raise refused("FF-LEDG-071", "it is of another chain")
    is_root = header.id == trust.root and header.height == 0 and certificate == NO_CERTIFICATE
    if not is_root and not (header.epoch == trust.epoch and is_final(header, certificate, trust.committee)):
        raise refused("FF-LEDG-072", f"its block is not certified by the committee of epoch {trust.epoch}")


def follow(trust: TrustedCommittee, receipt: LedgerReceipt) -> TrustedCommittee:
    """The next epoch's committee. Raises what `check` raises, and FF-LEDG-253: it proves something else."""
    row = check(trust, receipt)
    if not isinstance(row, CommitteeRow) or row.epoch != trust.epoch + 1:
        raise refused("FF-LEDG-253", f"it does not name the committee of epoch {trust.epoch + 1}")
    return TrustedCommittee(trust.chain, row.epoch, receipt.header.id, row.members, receipt.header.time)


def follow_steps(trust: TrustedCommittee, steps: Iterable[LedgerReceipt], epoch: int) -> TrustedCommittee:
    """Follows `steps` up to an epoch; those behind it are not looked at. Raises what `follow` raises."""
    for receipt in steps:
        if trust.epoch >= epoch:
            break
        trust = follow(trust, receipt)
    return trust


def check_age(seen_ms: int, now_ms: int, period_ms: int) -> None:
    """Raises PolicyError FF-LEDG-254 when the newest certified header that one saw is older than `unbonding_ms`.

    All are milliseconds of the ledger's time; a ledger of a local network has a time of its own.
    """
    if now_ms - seen_ms > period_ms:
        raise PolicyError(
            "FF-LEDG-254",
            "what is known of the ledger is too old to go on from",
            cause=f"the committee of {(now_ms - seen_ms) // 86_400_000} days ago may have got its stake back",
            hint="take a newer block's hash from a source that you trust",
        )
