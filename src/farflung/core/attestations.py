"""Defines a node's statement of its software and machine at the start of a lease.

It names the digest of the code, the interpreter, libraries, machine and sandbox.

It is the node's word, bound by its signature on the offer that names its hash, and nothing more: whoever lies about its
work can lie here. So it is shown with `NOT_A_PROOF` wherever it is shown, and no rule of the ledger looks at it; what
moves money are audits. It serves whoever looks later: which code was stated, and that it was this node that did.
"""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_ATTESTATION, digest
from farflung.core.ids import Hash, PeerId

NOT_A_PROOF: Final = "not a proof of work"


class Attestation(Wire, frozen=True):
    """One node's, for one lease. `image`: digest of farflung's own source files (host.io.code_digest)."""

    chain: Hash
    job: Hash
    node: PeerId
    image: Hash
    python: str
    torch: str
    system: str
    machine: str
    threads: int
    sandbox: str


def attestation_hash(attestation: Attestation) -> Hash:
    """What the node's offer, and then its lease, names of it."""
    return digest(NS_ATTESTATION, encode(attestation))


def is_of_lease(attestation: Attestation, chain: Hash, job: Hash, node: PeerId, named: Hash) -> bool:
    """Whether it is of this node in this job, as its offer names it, and short enough to be kept."""
    texts = (attestation.python, attestation.torch, attestation.system, attestation.machine, attestation.sandbox)
    return (
        (attestation.chain, attestation.job, attestation.node) == (chain, job, node)
        and attestation_hash(attestation) == named
        and all(len(text) <= limits.ATTESTED_CHARACTERS for text in texts)
    )
