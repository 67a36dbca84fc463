"""Defines the error tree. Every error that a person can meet has a code, a cause and a next step.

    FarflungError
    ├── UsageError          exit 2   what was asked cannot be understood
    │   └── SpecError                a job file, flag or environment value is wrong
    ├── NetworkError        exit 3   a peer cannot be reached, or does not speak as it must
    │   └── ProtocolError            bytes from elsewhere break a rule; the connection is closed
    ├── PolicyError         exit 4   understood, and refused: price, limit, permission
    ├── VerificationError   exit 5   a hash, signature, proof or re-computation does not agree
    └── RunError            exit 1   the work itself failed: training, disk, a process that died
        └── VersionError             a file was written by another version of farflung

Codes are `FF-<PACKAGE>-<NUMBER>`, are never re-used, and are listed in `docs/errors.md`.
"""

from __future__ import annotations


def _printable(text: str) -> str:
    """A cause may quote a peer or a user's own code: nothing in it moves a cursor or begins a line."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def type_and_text(error: BaseException) -> str:
    """`ValueError: what it says` of an error that is not ours; its type alone where it says nothing."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class FarflungError(Exception):
    """The root of the tree. `code`, `cause` and `hint` are what a person sees; `exit_code` ends the process."""

    exit_code = 1

    def __init__(self, code: str, message: str, *, cause: str = "", hint: str = "") -> None:
        super().__init__(f"{code}: {message}" + (f" ({cause})" if cause else ""))
        self.code = code
        self.message = message
        self.cause = cause
        self.hint = hint

    def lines(self) -> list[str]:
        """The error as a person reads it: what, why, and one command or change to try."""
        head = [f"error[{self.code}]: {self.message}"]
        if self.cause:
            head.append(f"  cause: {self.cause}")
        if self.hint:
            head.append(f"  try:   {self.hint}")
        return [_printable(line) for line in head]

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return self.lines()


class UsageError(FarflungError):
    """What was asked cannot be understood."""

    exit_code = 2


class SpecError(UsageError):
    """A job file, flag or environment value is wrong."""


class NetworkError(FarflungError):
    """A peer cannot be reached, or does not speak as it must."""

    exit_code = 3


class ProtocolError(NetworkError):
    """Bytes from elsewhere break a rule of their format."""


class PolicyError(FarflungError):
    """Understood, and refused: price, limit or permission."""

    exit_code = 4


class VerificationError(FarflungError):
    """A hash, signature, proof or re-computation does not agree."""

    exit_code = 5


class RunError(FarflungError):
    """The work itself failed: training, disk, or a process that died."""


class VersionError(RunError):
    """A file was written by another version of farflung; nothing says that it is damaged."""
