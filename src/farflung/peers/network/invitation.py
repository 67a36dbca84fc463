"""Writes and reads an invitation: about 200 characters, which are all the trust that whoever joins a network needs.

    farflung1 + base64url( length of the body, 2 bytes | checksum, 4 bytes | body )

The body is the canonical encoding of an `Invitation`. It names the chain, so that no seat can show another network, and
the key of each seat, so that nobody else can answer for it. The length tells a cut text from an altered one.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_INVITATION, digest
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.core.release import UPGRADE

FORMAT: Final = 1
_PREFIX: Final = "farflung1"
_ANY_VERSION: Final = re.compile(r"farflung(\d{1,9})")
_SUM_BYTES: Final = 4
_HEAD_BYTES: Final = 2 + _SUM_BYTES
_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]*")
_INVISIBLE: Final = re.compile("[\\s\u200b-\u200f\u2060\ufeff]+")  # what pasting adds
_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{limits.NETWORK_NAME_CHARACTERS - 1}}}")
_HOST: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9.:_-]{{0,{limits.HOST_CHARACTERS - 1}}}|::[A-Za-z0-9.:]{{0,40}}")
_ASK: Final = "ask whoever sent it for a new one: farflung network invite prints it"


class Seat(Wire, frozen=True):
    """A validator of a network: its key, and where it is reached."""

    key: PeerId
    host: str
    port: int


class Invitation(Wire, frozen=True):
    """What leads to a network. `chain` is the hash of its genesis.

    `token` lifts a bound of the network's faucet, empty: it has none. `expires`: seconds since 1970, 0: never.
    """

    format: int
    name: str
    chain: Hash
    seats: tuple[Seat, ...]
    token: bytes = b""
    expires: int = 0


def is_invitation(text: str) -> bool:
    """Whether a text is meant as an invitation, of whatever version, and not as a network's name."""
    return _ANY_VERSION.match(_INVISIBLE.sub("", text[: limits.INVITATION_CHARACTERS])) is not None


def token_of(text: str) -> bytes:
    """The token that an invitation brings for the faucet; empty for a network's name. Raises as `read`."""
    return read(text).token if is_invitation(text) else b""


def is_name(text: str) -> bool:
    """Whether a network can have this name: lower-case letters, digits and hyphens, and it is no invitation."""
    return _NAME.fullmatch(text) is not None and _ANY_VERSION.match(text) is None


def is_place(host: str, port: int) -> bool:
    """Whether this may be a host and its port."""
    return _HOST.fullmatch(host) is not None and 0 < port < 1 << 16


def write(invitation: Invitation) -> str:
    """The text of an invitation. Raises UsageError FF-APP-525 for one that nobody could use."""
    _check_values(invitation)
    body = encode(invitation)
    data = len(body).to_bytes(2, "little") + _checksum(body) + body
    return _PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def read(text: str, now: float | None = None) -> Invitation:
    """The invitation that a text is; spaces and line breaks in it do not count. `now`: seconds since 1970.

    Raises UsageError: FF-APP-520 it is none, 521 of another version, 522 cut, 523 altered, 524 expired, 525 unusable.
    """
    said = _INVISIBLE.sub("", text) if len(text) <= limits.INVITATION_CHARACTERS else ""
    version = _ANY_VERSION.match(said)
    if version is None:
        raise UsageError(
            "FF-APP-520",
            "this is not an invitation",
            cause=f"an invitation is one word of about 200 characters that begins with {_PREFIX}",
            hint="paste the whole word that `farflung network open` or `network invite` printed",
        )
    if not said.startswith(_PREFIX):
        raise _other_version(f"it is of format {version[1]}, and this farflung reads format {FORMAT}")
    found = _decoded(_body(said.removeprefix(_PREFIX)))
    _check_values(found)
    moment = time.time() if now is None else now
    if found.expires and moment >= found.expires:
        days = int(moment - found.expires) // 86_400
        raise UsageError(
            "FF-APP-524",
            f"the invitation to {found.name} has expired",
            cause=f"it ended {f'{days} days' if days else 'less than a day'} ago by this computer's clock",
            hint=_ASK,
        )
    return found


def _body(text: str) -> bytes:
    """The bytes that the checksum covers. Raises UsageError FF-APP-522, FF-APP-523."""
    if _ALPHABET.fullmatch(text) is None:
        raise _altered("it holds characters that no invitation has")
    whole = text[: len(text) - 1] if len(text) % 4 == 1 else text
    try:
        data = base64.urlsafe_b64decode(whole + "=" * (-len(whole) % 4))
    except binascii.Error as error:  # pragma: no cover: the alphabet and the length were checked
        raise _altered(str(error)) from error
    size = int.from_bytes(data[:2], "little")
    if len(data) < _HEAD_BYTES or len(data) - _HEAD_BYTES < size <= limits.INVITATION_BYTES:
        raise UsageError(
            "FF-APP-522",
            "the invitation is cut off",
            cause=f"{len(text) + len(_PREFIX)} characters came, and more belong to it",
            hint="paste the whole word: it may go on in the next line",
        )
    body = data[_HEAD_BYTES:]
    if len(body) != size or _checksum(body) != data[2:_HEAD_BYTES]:
        raise _altered("its checksum does not fit")
    if base64.urlsafe_b64encode(data).decode().rstrip("=") != text:
        raise _altered("its last character is not the one that was written")
    return body


def _decoded(body: bytes) -> Invitation:
    try:
        found = decode(body, Invitation, limits.INVITATION_BYTES, values=limits.REPLY_VALUES)
    except FarflungError as error:
        raise _other_version("what it holds is not what this farflung writes") from error
    if found.format != FORMAT:
        raise _other_version(f"it is of format {found.format}, and this farflung reads format {FORMAT}")
    return found


def _check_values(invitation: Invitation) -> None:
    """Raises UsageError FF-APP-525."""
    seats = invitation.seats
    fault = ""
    if not is_name(invitation.name):
        fault = f"its network's name {invitation.name[:40]!r} is not made of lower-case letters, digits and hyphens"
    elif len(invitation.chain) != ID_BYTES or any(len(seat.key) != ID_BYTES for seat in seats):
        fault = "a key or a hash in it has not 32 bytes"
    elif not 1 <= len(seats) <= limits.INVITATION_SEATS:
        fault = f"it names {len(seats)} seats, and 1 to {limits.INVITATION_SEATS} are possible"
    elif bad := [seat for seat in seats if not is_place(seat.host, seat.port)]:
        fault = f"{bad[0].host[:60]!r} with port {bad[0].port} is no place on a network"
    elif len(invitation.token) > limits.TOKEN_BYTES or invitation.expires < 0:
        fault = f"its token has more than {limits.TOKEN_BYTES} bytes, or its end lies before 1970"
    if fault:
        raise UsageError("FF-APP-525", "the invitation leads nowhere", cause=fault, hint=_ASK)


def _checksum(body: bytes) -> bytes:
    return digest(NS_INVITATION, body)[:_SUM_BYTES]


def _altered(cause: str) -> UsageError:
    return UsageError("FF-APP-523", "the invitation is not as it was written", cause=cause, hint=_ASK)


def _other_version(cause: str) -> UsageError:
    return UsageError(
        "FF-APP-521",
        "the invitation was written by another version of farflung",
        cause=cause,
        hint=f"ask for an invitation of this version; or {UPGRADE}",
    )
