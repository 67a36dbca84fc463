"""The trained model as a file, and its name on the ledger."""

from __future__ import annotations

from farflung.core.crypto import NS_OUTPUT, digest
from farflung.core.ids import Hash
from farflung.job.spec import Terms
from farflung.train import card
from farflung.train.snapshot import PublicState


def model_file(terms: Terms, public: PublicState) -> bytes:
    """The trained tensors and what is needed to use them, as safetensors: the same state gives the same bytes."""
    return card.write(terms, public)


def model_hash(data: bytes) -> Hash:
    """The digest under which a model file stands on the ledger."""
    return digest(NS_OUTPUT, data)
