"""Joins a network by an invitation or by a name that this computer remembers.

The invitation is all the trust there is: who answers proves a key that it names, and the genesis must hash to the chain
that it names. From the genesis on, light proofs show the rest (ledger.light_client). A seat is asked for its card and
for its head. A head is judged: below a block that was proved before, here or by another seat, it shows the past.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError, PolicyError, VerificationError
from farflung.core.ids import ID_BYTES, Hash, PeerId, short
from farflung.core.release import UPGRADE, VERSION
from farflung.core.units import Seconds, format_seconds
from farflung.ledger.block import BlockHeader, Genesis
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, genesis_from, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of
from farflung.peers.network.card import CARD, NetworkCard, read_card, version_order
from farflung.peers.network.invitation import Invitation, is_invitation, read
from farflung.peers.network.network_file import NetworkFile, genesis_of, load, name_for, networks_folder, save
from farflung.peers.process.config import HexId, LedgerConfig, ListenerConfig

SEAT_SECONDS: Final = 10.0  # for one seat's answers
OTHERS_SECONDS: Final = 1.0  # for the other seats, once one has answered
BEHIND_MS: Final = 120_000  # by ledger time, that a seat may be behind another one
BEHIND_BLOCKS: Final = 1  # which it may be in any case: between two blocks of an idle ledger lies half an hour


@dataclass(frozen=True)
class KnownNetwork:
    """A network that answers. `name`: on this computer. `seats`: those that answered first.

    `notes`: lines for a person, about a seat or a clock that is not as it should be.
    """

    name: str
    genesis: Genesis
    seats: tuple[ListenerConfig, ...]
    relays: tuple[ListenerConfig, ...]
    card: NetworkCard
    notes: tuple[str, ...] = ()

    @property
    def chain(self) -> Hash:
        """The chain's id."""
        return self.genesis.chain

    @property
    def ledger(self) -> LedgerConfig:
        """Its seats, as roles and clients are told of them."""
        first, *others = self.seats
        return LedgerConfig(first.peer, first.host, first.port, tuple(others))


class _SeatReport(NamedTuple):
    """What one seat showed."""

    seat: ListenerConfig
    genesis: Genesis
    head: BlockHeader
    card: NetworkCard


async def join(text: str) -> KnownNetwork:
    """The network that `text` names: an invitation, or the name of a network that this computer remembers.

    Writes its file. Raises UsageError FF-APP-520 .. 525, 528, 529, 531; NetworkError FF-APP-532 (no seat answers),
    VerificationError FF-APP-527 (it is not who it says), 533 (it shows the past), PolicyError FF-APP-534 (this version
    does not take part).
    """
    known, genesis = _known(text)
    reports, faults = await _asked(known, genesis)
    fresh, notes = _fresh(known, reports)
    if not fresh:
        raise _nobody(known, faults)
    best = fresh[0]
    _check_version(best.card)
    answered = [report.seat for report in fresh]
    said = [ListenerConfig(HexId(seat.key), seat.host, seat.port) for seat in best.card.seats]
    seats = _without_doubles([*answered, *known.seats, *said])[: limits.NETWORK_SEATS]
    relays = tuple(ListenerConfig(HexId(each.key), each.host, each.port) for each in best.card.relays)
    file = NetworkFile(known.name, known.chain, seats, relays, max(best.head.height, known.seen))
    save(file, best.genesis)
    notes += [f"{_named(seat)} does not answer: {error.message}" for seat, error in faults]
    notes += [*_clock_notes(best.card), *version_notes(best.card)]
    return KnownNetwork(file.name, best.genesis, seats, relays, best.card, tuple(notes))


def invited_file(invitation: Invitation) -> NetworkFile:
    """What this computer knows of the network of an invitation: its file, with the invitation's seats before others.

    Raises UsageError FF-APP-529, 531.
    """
    seats = tuple(ListenerConfig(HexId(seat.key), seat.host, seat.port) for seat in invitation.seats)
    name = name_for(invitation.name, invitation.chain)
    if not (networks_folder() / f"{name}.toml").exists():
        return NetworkFile(name, invitation.chain, seats)
    file = load(name)
    return file._replace(seats=_without_doubles([*seats, *file.seats]))


def _known(text: str) -> tuple[NetworkFile, Genesis | None]:
    """What is known of the network, and its genesis if that is."""
    if not is_invitation(text) and len(text.strip()) <= limits.NETWORK_NAME_CHARACTERS:
        file = load(text.strip())
        return file, genesis_of(file)
    file = invited_file(read(text))
    is_here = (networks_folder() / f"{file.name}.genesis").exists() and (
        networks_folder() / f"{file.name}.toml"
    ).exists()
    return file, genesis_of(file) if is_here else None


async def _asked(
    file: NetworkFile, genesis: Genesis | None
) -> tuple[list[_SeatReport], list[tuple[ListenerConfig, FarflungError]]]:
    """Who answered, and who did not."""
    endpoint = Endpoint(SigningKey(secrets.token_bytes(ID_BYTES)), serve_nothing, ByteCounter())
    try:
        asked = {asyncio.create_task(_ask(endpoint, seat, file.chain, genesis)): seat for seat in file.seats}
        await _enough(set(asked))
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await endpoint.close()
    reports, faults = [], []
    for task, seat in asked.items():
        said = NetworkError("FF-APP-290", "no answer yet") if task.cancelled() else task.result()
        if isinstance(said, _SeatReport):
            reports.append(said)
        else:
            faults.append((seat, said))
    return reports, faults


async def _enough(asked: set[asyncio.Task[_SeatReport | FarflungError]]) -> None:
    """Until all have answered; once one has shown its network, the others have a second more."""
    loop = asyncio.get_running_loop()
    end, waiting = loop.time() + 2 * SEAT_SECONDS, asked
    while waiting and loop.time() < end:
        done, waiting = await asyncio.wait(waiting, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        if any(isinstance(task.result(), _SeatReport) for task in done):
            end = min(end, loop.time() + OTHERS_SECONDS)


async def _ask(
    endpoint: Endpoint, seat: ListenerConfig, chain: Hash, genesis: Genesis | None
) -> _SeatReport | FarflungError:
    peer = PeerId(bytes(seat.peer))
    [reach] = reaches_of([(peer, seat.host, seat.port)], endpoint)
    try:
        async with asyncio.timeout(SEAT_SECONDS):
            found = genesis or await genesis_from(reach, peer)
            if found.chain != chain:
                raise VerificationError(
                    "FF-APP-527",
                    f"{_named(seat)} is of a network that is not who it says",
                    cause=f"its genesis is of the chain {found.chain.hex()[:12]}, the invitation names "
                    f"{chain.hex()[:12]}",
                    hint="join nothing there; ask the operator for a new invitation",
                )
            card = read_card(await (await reach()).call(CARD, b""), peer, chain)
            own = SigningKey(secrets.token_bytes(ID_BYTES))
            head = await LedgerClient(reach, own, found, patience=0.0).head()
            return _SeatReport(seat, found, head.header, card)
    except TimeoutError:
        return NetworkError("FF-APP-290", f"no answer for {SEAT_SECONDS:g} s")
    except FarflungError as error:
        return error


def _fresh(file: NetworkFile, reports: list[_SeatReport]) -> tuple[list[_SeatReport], list[str]]:
    """The seats that show the present, the newest first, and what is to be said of the others.

    Raises VerificationError FF-APP-533 when all that answer show the past.
    """
    ordered = sorted(reports, key=lambda report: -report.head.height)

    def is_near(head: BlockHeader) -> bool:
        newest = ordered[0].head
        return newest.height - head.height <= BEHIND_BLOCKS or newest.time - head.time <= BEHIND_MS

    fresh = [each for each in ordered if each.head.height >= file.seen and is_near(each.head)]
    old = [each for each in ordered if each not in fresh]
    if old and not fresh:
        raise VerificationError(
            "FF-APP-533",
            f"{_named(old[0].seat)} shows the past",
            cause=f"its newest block is {old[0].head.height}, and block {file.seen} was proved to this computer before",
            hint="wait until it has caught up, or ask the operator whether an old backup was restored there",
        )
    return fresh, [
        f"{_named(each.seat)} shows the past: it is at block {each.head.height}, others at {fresh[0].head.height}"
        for each in old
    ]


def _nobody(file: NetworkFile, faults: list[tuple[ListenerConfig, FarflungError]]) -> FarflungError:
    for _, error in faults:
        if isinstance(error, VerificationError):
            return error
    tried = "; ".join(f"{_named(seat)} ({error.code})" for seat, error in faults)
    return NetworkError(
        "FF-APP-532",
        f"no seat of the network {file.name} answers",
        cause=f"tried {tried}",
        hint="look whether this computer is online; if it is, ask the operator, or for a newer invitation",
    )


def version_notes(card: NetworkCard) -> list[str]:
    """What is said where the network runs a newer farflung than this computer."""
    if version_order(VERSION) >= version_order(card.newest):
        return []
    return [f"the network {card.name} runs farflung {card.newest}, this computer {VERSION}: {UPGRADE}"]


def _check_version(card: NetworkCard) -> None:
    if version_order(VERSION) < version_order(card.least):
        raise PolicyError(
            "FF-APP-534",
            f"the network {card.name} needs farflung {card.least} or newer",
            cause=f"this is farflung {VERSION}; the newest one there is {card.newest}",
            hint=UPGRADE,
        )


def _clock_notes(card: NetworkCard) -> list[str]:
    off = time.time() - card.issued
    if abs(off) <= limits.CLOCK_SECONDS:
        return []
    way = "ahead of" if off > 0 else "behind"
    return [
        f"this computer's clock is {format_seconds(Seconds(abs(off)))} {way} that of seat {short(card.seat)}: "
        "set it by NTP (timedatectl set-ntp true)"
    ]


def _without_doubles(seats: list[ListenerConfig]) -> tuple[ListenerConfig, ...]:
    """One place for each key, the first that is named."""
    found: dict[bytes, ListenerConfig] = {}
    for seat in seats:
        found.setdefault(bytes(seat.peer), seat)
    return tuple(found.values())


def _named(seat: ListenerConfig) -> str:
    return f"seat {short(bytes(seat.peer))} at {seat.host}:{seat.port}"
