"""Defines the records of a vote log: own votes, and the proposals and quorums that they rest on (rule 7).

How these bytes lie in a file, and how a torn write is told from damage: `frames`; how they get there:
ledger.io.votelog.
"""

from __future__ import annotations

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError
from farflung.core.file_header import other_version
from farflung.ledger.sdbft.replica_messages import BlockProposal, VoteMessage, VoteQuorum
from farflung.ledger.sdbft.votelog_format import FORM

Record = VoteMessage | VoteQuorum | BlockProposal


def read_record(data: bytes) -> Record:
    """Reads what `encode(record)` wrote; raises VersionError FF-CORE-095, as its frame was sound."""
    try:
        record: Record = decode(data, Record, limits.COMMITTEE_BYTES)  # type: ignore[arg-type]
    except ProtocolError as error:
        raise other_version(FORM, FORM.version) from error
    return record


def epoch_of(record: Record) -> int:
    """The epoch that a record is of."""
    return record.vote.epoch if isinstance(record, VoteQuorum) else record.signed.vote.epoch
