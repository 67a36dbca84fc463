"""Classifies a member's failure (a lost connection, a death, or an error it sent) and gives the error to report."""

from __future__ import annotations

from farflung.core.errors import FarflungError, NetworkError, ProtocolError, RunError
from farflung.net.messages import RemoteError


def is_lost_line(error: FarflungError) -> bool:
    """Whether a member could not be reached any more, as opposed to what it said."""
    return isinstance(error, NetworkError) and not isinstance(error, RemoteError | ProtocolError)


def as_failure(error: FarflungError | None) -> FarflungError:
    """Why a run cannot go on: what the last provider said. An error that it sent is no fault of the network."""
    if error is None:
        return RunError(
            "FF-APP-052", "all providers are gone", hint="`farflung resume` goes on when they are back"
        )
    if isinstance(error, RemoteError):
        return RunError(error.code, error.message, cause=error.cause, hint=error.hint)
    return error
