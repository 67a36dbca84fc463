"""Writes and reads a job's terms as a run and its export keep them; their hash is the job's id, and not the file's."""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.file_header import HEAD_BYTES, FileFormat, file_of, value_of
from farflung.core.release import JOB_FORMAT
from farflung.job.spec import JobTerms

FORMAT: Final = FileFormat("terms", JOB_FORMAT)
BYTES: Final = limits.LOG_RECORD_BYTES + HEAD_BYTES  # of a file, at most


def write(terms: JobTerms) -> bytes:
    """The file of these terms."""
    return file_of(FORMAT, terms)


def read(data: bytes) -> JobTerms:
    """The terms in a file. Raises VersionError FF-CORE-095, ProtocolError FF-CORE-020, FF-CORE-096."""
    return value_of(FORMAT, data, JobTerms, limits.LOG_RECORD_BYTES)
