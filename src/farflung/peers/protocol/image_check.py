"""Checks that a node runs the farflung that a job asks for, on both sides of a lease: the node's word, not a proof."""

from __future__ import annotations

from collections.abc import Callable

from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.job.spec import JobTerms


def check_image(terms: JobTerms, image: Callable[[], Hash]) -> None:
    """Whether a node with this image may work on the job. Raises PolicyError FF-APP-417."""
    if terms.image != ZERO_HASH and (own := image()) != terms.image:
        raise PolicyError(
            "FF-APP-417",
            "the job is for nodes with its requester's farflung",
            cause=f"it names the image {terms.image[:4].hex()}, the node runs {own[:4].hex()}",
            hint='install the same version here; the requester may set network.image = "any"',
        )
