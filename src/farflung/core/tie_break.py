"""Computes the tie-break order of asks for one job; ledger rules and market clearing must use the same.

The cheaper ask comes first. Of equal asks it is drawn anew for each job, by a hash: would the lower account come first,
whoever made keys until one begins with zeros would win every tie, verifiers' seats among them. Accounts are in rows
before a job's id is known; the requester may try ids, and chooses between equals, which costs nobody anything.
"""

from __future__ import annotations

from farflung.core.crypto import NS_TURN, digest
from farflung.core.ids import Hash, PeerId


def rank(job: Hash, peer: PeerId) -> Hash:
    """Where a peer stands among those that ask the same for this job: the least is first."""
    return digest(NS_TURN, job, peer)
