"""Computes what a ledger of several validators sends beyond one of a single validator, from its message formats.

With n seats, f = (n - 1) // 3, a quorum q > 2n / 3, and T transactions, one after the other (docs/protocol/sdbft):

    views        2 T: a block that holds a transaction is final by the votes for it, while an empty one follows already
    of each      n - 1 proposals; n (n - 1) votes FINALIZE and (n - 1)^2 NOTARIZE, since a proposal is its leader's;
                 2 n (n - 1) quorums of q signatures: of each of the two kinds, each seat sends all others one
    of each T    (f + 1) (n - 1) pending transactions: f + 1 validators are handed it, and each tells all others;
                 f clients' questions more, and one for the ledger's time
    at the end   n chains of 2 T blocks are read and compared, and one more for the export
    pairs        n (n - 1) / 2, with 4 statuses each; f more for each party; n - 1 of the one that is killed, which
                 pulls the blocks of a view or two

Nothing is counted of time-outs: on a computer that is too busy for `delta_ms` more views pass, and more is sent.
"""

from __future__ import annotations

from typing import Final

from farflung.core.codec import Wire, encode
from farflung.core.ids import ZERO_HASH, PeerId, Signature
from farflung.core.units import Bytes
from farflung.job.spec import JobSpec
from farflung.ledger.block import Block, BlockHeader
from farflung.ledger.sdbft.replica_messages import BlockProposal, ReplicaStatus, VoteMessage, VoteQuorum
from farflung.ledger.votes import QuorumCertificate, SignedVote, Vote, VoteKind, faults, is_quorum
from farflung.plan.run_traffic import DIAL

TOLD: Final = 87  # of a message without an answer: frame, method and TLS record; and what acknowledges it
STATUSES: Final = 4  # of a pair that meet
CHANNELS: Final = 6  # two relays': opened, claimed from, closed
TX: Final = 280  # a transaction of a run, on the average
PENDING: Final = 16  # of the message that carries one
ASKED: Final = 700  # by a client of one validator more: its nonce, and what became of the transaction; with answers
HEAD: Final = 150  # the question for the ledger's time, and its answer, but for header and certificate
_KEY: Final = PeerId(ZERO_HASH)
_HEADER: Final = BlockHeader(ZERO_HASH, 100, 0, 100_000, _KEY, ZERO_HASH, ZERO_HASH, ZERO_HASH)
_VOTE: Final = Vote(ZERO_HASH, 0, 100, VoteKind.FINALIZE, ZERO_HASH)
_SIGNATURE: Final = Signature(bytes(64))
_SIGNED: Final = SignedVote(_VOTE, 0, _SIGNATURE)


def quorum_of(seats: int) -> int:
    """The least number of seats that are a quorum."""
    return next(count for count in range(1, seats + 1) if is_quorum(count, seats))


def transactions(spec: JobSpec) -> int:
    """Of a whole run: each node comes and goes; the job is made, given out, finished and settled; one a round; and,
    where members are reached through relays, what these are paid by.
    """
    nodes = spec.network.providers + spec.verifiers
    return 2 * nodes + 4 + spec.rounds + (CHANNELS if spec.hidden else 0)


def view_bytes(seats: int) -> int:
    """Bytes of one view in which nothing goes wrong and no transaction is."""
    others = seats - 1
    bits = bytes((seats + 7) // 8)
    quorum = VoteQuorum(_VOTE, bits, (_SIGNATURE,) * quorum_of(seats))
    return (
        others * _told(BlockProposal(_HEADER, (), _SIGNED))
        + (seats + others) * others * _told(VoteMessage(_SIGNED))
        + 2 * seats * others * _told(quorum)
    )


def chain_bytes(seats: int, count: int) -> int:
    """Bytes of a chain of so many transactions; of several seats, with an empty block behind each."""
    certificate = QuorumCertificate(VoteKind.FINALIZE, 100, bytes((seats + 7) // 8), (_SIGNATURE,) * quorum_of(seats))
    empty = len(encode(Block(_HEADER, (), certificate)))
    return count * (TX + empty * (2 if seats > 1 else 1))


def committee_bytes(spec: JobSpec, seats: int) -> Bytes:
    """All that a run sends because its ledger has so many validators; 0 where it has one."""
    if seats == 1:
        return Bytes(0)
    count, others, more = transactions(spec), seats - 1, faults(seats)
    parties = spec.network.providers + spec.verifiers + 2  # requester and supervisor
    handed = (more + 1) * others * (TX + PENDING + TOLD)
    asked = more * (TX + ASKED) + HEAD + chain_bytes(seats, 1) // 2
    read = (seats + 1) * chain_bytes(seats, count) - chain_bytes(1, count)
    pairs = seats * others // 2 + more * parties + others
    met = pairs * DIAL + (seats + 1) * others // 2 * STATUSES * _told(ReplicaStatus(0, 100, 100, 100, ZERO_HASH))
    return Bytes(2 * count * view_bytes(seats) + count * (others * TX + handed + asked) + read + met + _pulled(seats))


def _pulled(seats: int) -> int:
    """What the killed one is given when it is back: by each other seat, the blocks that it missed."""
    return (seats - 1) * chain_bytes(seats, 1)


def _told(message: Wire) -> int:
    return len(encode(message)) + TOLD
