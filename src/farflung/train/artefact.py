"""Writes the trained model as one file, and computes the name under which the ledger records it."""

from __future__ import annotations

from farflung.core.crypto import NS_OUTPUT, digest
from farflung.core.ids import Hash
from farflung.job.spec import JobTerms
from farflung.train import model_file as train_model_file
from farflung.train.public_state import PublicState


def model_file(terms: JobTerms, public: PublicState) -> bytes:
    """The trained tensors and what is needed to use them, as safetensors: the same state gives the same bytes."""
    return train_model_file.write(terms, public)


def model_hash(data: bytes) -> Hash:
    """The digest under which a model file stands on the ledger."""
    return digest(NS_OUTPUT, data)
