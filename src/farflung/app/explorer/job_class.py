"""Derives the class of a job from its terms, which must hash to the job's id in the ledger's row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from farflung.core.errors import FarflungError, RunError, VerificationError, VersionError
from farflung.core.ids import Hash
from farflung.job import proof_class, terms_file
from farflung.job.spec import JobTerms
from farflung.watch.phrases import clean

# A ledger holds the hash of a job's terms alone. Who has not got them is to take nothing for proven.
UNKNOWN: Final = f"{proof_class.UNPROVEN}, by what is known here: a ledger has the hash of its terms alone"
COLUMNS: Final = 300  # of a class with its reason


def read_terms(path: Path) -> JobTerms:
    """Terms from a file, as a run and its export hold them. Raises RunError FF-APP-345, VersionError FF-CORE-095."""
    try:
        with path.open("rb") as file:
            return terms_file.read(file.read(terms_file.BYTES + 1))
    except VersionError:
        raise
    except (OSError, FarflungError) as error:
        raise RunError(
            "FF-APP-345",
            f"{path.name} holds no terms of a job",
            cause=str(error)[:200],
            hint="a run keeps them in its folder, and its export: terms.bin",
        ) from error


def work(job: Hash, terms: JobTerms | None) -> str:
    """The class in words; without the terms of this very job nothing counts as proven."""
    return clean(proof_class.label(terms), COLUMNS) if terms is not None and terms.id == job else UNKNOWN


def check_named(terms: JobTerms, jobs: Iterable[Hash]) -> None:
    """Raises VerificationError FF-APP-346 unless these are the terms of one of the jobs."""
    if terms.id not in set(jobs):
        raise VerificationError(
            "FF-APP-346",
            "these are the terms of another job",
            cause=f"they hash to {terms.id.hex()}",
            hint="take terms.bin from the run whose job the file names",
        )
