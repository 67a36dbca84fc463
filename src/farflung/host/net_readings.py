"""Defines the measurements of `farflung check --net` between this computer, relays and peers, as data.

`app.netcheck.check*` fills these structs, `host.doctor_relays` and `host.doctor_line` judge them. Seconds, bytes,
bytes per second and hexadecimal keys throughout.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from farflung.host.machine_readings import CongestionReading

OURS: Final = b"FFN1"  # what a relay of this version says first
_FAMILY: Final = b"FF"
_KEY_BYTES: Final = 32
_QUOTED: Final = 60  # characters of a stranger's words that are shown


class TcpConnectOutcome(StrEnum):
    """What became of a TCP connection."""

    STANDS = "stands"
    REFUSED = "refused"  # somebody at that address says that nobody listens
    SILENT = "silent"
    UNREACHABLE = "unreachable"  # a router says no
    NO_ROUTE = "no route"  # this computer has no way there
    NO_NAME = "no name"
    FAILED = "failed"  # this system does not let us try


class ResponderKind(StrEnum):
    """Who answers the question which version it speaks."""

    UNASKED = "unasked"
    OURS = "ours"
    OTHER_VERSION = "other version"
    HTTP = "http"
    TLS = "tls"
    OTHER = "other"
    CLOSED = "closed"  # it hangs up without a word
    SILENT = "silent"


class RouteTrace(msgspec.Struct, frozen=True):
    """Routers on the way, nearest first ("": one that does not say); `is_end`: the destination itself answered.

    `seconds`: round trips to each, 0 where there was no answer.
    """

    hops: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    is_end: bool = False

    @property
    def length(self) -> int:
        """How far packets get: the number of the last router that answered; one more where the destination did."""
        last = max((n for n, hop in enumerate(self.hops, 1) if hop), default=0)
        return last + self.is_end


class ThroughputReading(msgspec.Struct, frozen=True):
    """How fast bytes arrived, once the transfer had got going."""

    rate: float
    moved: int
    seconds: float


class ObservedAddress(msgspec.Struct, frozen=True):
    """One TCP connection: its own address, and what the other end sees of it."""

    here: tuple[str, int]
    there: tuple[str, int]


class RelayReading(msgspec.Struct, frozen=True):
    """All about one relay. `named`: the key that the user named; `key`: that it has, where it is known."""

    place: str  # host:port, as it was named
    host: str
    port: int
    named: str = ""
    address: str = ""  # that was asked
    families: tuple[int, ...] = ()  # 4, 6: of the addresses that the name has
    way: TcpConnectOutcome = TcpConnectOutcome.SILENT
    words: str = ""  # of the system, where there is no connection
    connect: float = 0.0
    voice: ResponderKind = ResponderKind.UNASKED
    heard: str = ""
    key: str = ""
    code: str = ""  # of the error that the dial ended with
    cause: str = ""
    trips: tuple[float, ...] = ()
    skew: float | None = None  # the relay's clock minus this computer's
    seen: ObservedAddress | None = None
    mtu: int = 0  # bytes of a packet that this system sends there
    is_stalled: bool = False  # small messages pass, and large ones do not arrive
    passing: int = 0  # bytes of the largest packet that was tried and passed; 0: none, or not tried
    is_rated: bool = False  # its rates were to be measured; None: nothing arrived
    up: ThroughputReading | None = None
    down: ThroughputReading | None = None
    loaded: tuple[float, ...] = ()  # round trips beside our own upload
    trail: RouteTrace | None = None  # of TCP to the port, where there is no connection
    other: RouteTrace | None = None  # of TCP to another port of the same address
    udp: RouteTrace | None = None

    @property
    def is_met(self) -> bool:
        """Whether the relay has taken us in."""
        return bool(self.trips)


class PortReachReading(msgspec.Struct, frozen=True):
    """A relay's try to connect to a port here. `is_ours`: this check listened itself; `came`: and somebody came."""

    port: int
    is_ours: bool = True
    came: bool = False
    answer: str = ""  # yes, refused, silent, unreachable; "": could not be asked
    why: str = ""  # not


class LocalNetReading(msgspec.Struct, frozen=True):
    """This computer: the addresses that it would send from, its clock's keeper, and what it sends by itself."""

    system: str  # sys.platform
    ipv4: str = ""
    ipv6: str = ""
    is_kept: bool | None = None  # the kernel says that a time service keeps the clock; None: it does not say
    sending: float = 0.0  # bytes a second of all programs, while the lines were left alone
    device: str = ""  # that has the first of these addresses
    lan: str = ""  # why a node here would not look for peers on its LAN; empty: it would


class PeerReading(msgspec.Struct, frozen=True):
    """One peer: what a ledger's directory holds of it, and what became of dialling it.

    `left`: seconds until its record ends, by this computer's clock, negative once it has; `ahead`: until it begins.
    `is_registered`: whether the ledger has its node; None: it did not say.
    """

    peer: str
    ledger: str  # host:port
    failed: str = ""  # the code of why the ledger could not be asked
    why: str = ""
    is_registered: bool | None = None
    is_listed: bool = False
    is_signed: bool = True
    left: float = 0.0
    ahead: float = 0.0
    places: tuple[str, ...] = ()  # host:port, and which relay's
    is_met: bool = False
    over: str = ""  # the place that answered last
    is_relayed: bool = False
    seconds: float = 0.0  # until it was met
    code: str = ""  # of why it was not
    cause: str = ""


class NetReadings(msgspec.Struct, frozen=True):
    """Everything. `is_cut`: the time was over before all was measured."""

    local: LocalNetReading
    congestion: CongestionReading | None = None
    relays: tuple[RelayReading, ...] = ()
    reach: PortReachReading | None = None
    peer: PeerReading | None = None
    theirs: NetReadings | None = None  # what another computer's check found
    is_cut: bool = False


def voice(data: bytes) -> tuple[ResponderKind, str, str]:
    """Who says this to our question: the kind, its words made harmless, and a relay's key as text."""
    words = "".join(c if c.isprintable() else " " for c in data[:_QUOTED].decode("latin-1")).strip()
    if data[: len(OURS)] == OURS and len(data) >= len(OURS) + _KEY_BYTES:
        return ResponderKind.OURS, OURS.decode(), data[len(OURS) : len(OURS) + _KEY_BYTES].hex()
    if data.startswith(_FAMILY):
        return ResponderKind.OTHER_VERSION, words[: len(OURS)], ""
    if data[:5] in (b"HTTP/", b"<html", b"<HTML", b"<!DOC", b"<!doc"):
        return ResponderKind.HTTP, words.split("  ")[0], ""
    if data[:2] in (b"\x15\x03", b"\x16\x03"):
        return ResponderKind.TLS, "a TLS record", ""
    return (ResponderKind.OTHER, words, "") if data else (ResponderKind.CLOSED, "", "")
