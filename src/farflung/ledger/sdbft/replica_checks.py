"""Defines the checks of signatures and roots that a replica delegates.

A shell may compute them elsewhere or beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farflung.core.ids import PeerId
from farflung.ledger.block import BlockHeader, txs_root
from farflung.ledger.transactions import SignedTx
from farflung.ledger.votes import QuorumCertificate, SignedVote, Vote, has_quorum, is_vote_signed


def has_txs(header: BlockHeader, txs: tuple[SignedTx, ...]) -> bool:
    """Whether these are the transactions that the header names: others could be sent under a leader's vote."""
    return txs_root(txs) == header.txs


@dataclass(frozen=True, slots=True)
class ReplicaChecks:
    """The functions; a shell that has checked every message before puts in ones that say yes."""

    is_vote_signed: Callable[[SignedVote, Sequence[PeerId]], bool] = is_vote_signed
    has_quorum: Callable[[QuorumCertificate, Vote, Sequence[PeerId]], bool] = has_quorum
    has_txs: Callable[[BlockHeader, tuple[SignedTx, ...]], bool] = has_txs
