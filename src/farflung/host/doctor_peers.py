"""Decides why a peer cannot be reached, whose side that is, and whether two NATs can be opened for each other."""

from __future__ import annotations

from typing import Final

from farflung.host import doctor_line as lines
from farflung.host.doctor_relays import CODE_AWAY, CODE_KEY
from farflung.host.findings import MISSED, FaultSide, FindingState, NetworkFault, ProbeFinding, brief
from farflung.host.net_readings import NetReadings, PeerReading, RelayReading

CODE_RECORD: Final = "FF-HOST-098"  # a peer has no record that counts
CODE_PEER: Final = "FF-HOST-099"  # a peer is not met
CLOCKS: Final = 60.0  # seconds by which two clocks may disagree (limits.CLOCK_SECONDS)
_THERE: Final = "on the peer's computer, farflung check --net"


def examine(seen: NetReadings) -> list[ProbeFinding]:
    """The peer's record, the way to it, and the two NATs; nothing where no peer was named."""
    found: list[ProbeFinding] = []
    if seen.peer is not None:
        found = [record(seen.peer, seen.relays), *_way(seen.peer)]
    if seen.theirs is not None:
        found.append(pair(seen, seen.theirs))
    return found


def record(peer: PeerReading, relays: tuple[RelayReading, ...] = ()) -> ProbeFinding:
    """What the directory holds of it."""
    key = peer.peer[:8]
    if peer.failed:
        cause = f"the ledger at {peer.ledger} does not tell: {peer.why} ({peer.failed})"
        return ProbeFinding(
            "record", FindingState.UNKNOWN, MISSED, cause, "farflung check --net --peer KEY --ledger HOST:PORT,KEY"
        )
    if not peer.is_listed:
        return _unlisted(peer, key)
    if not peer.is_signed:
        cause = "the directory holds a record for this peer that it did not sign: it was changed there, or on the way"
        return _fails(
            "record", f"{key} has no record that counts", cause, "ask who runs the ledger", NetworkFault.NO_RECORD
        )
    if peer.left < -CLOCKS:
        return _expired(peer, key, relays)
    if peer.ahead > CLOCKS:
        cause = f"it begins in {peer.ahead:.0f} s by this clock: one of the two clocks is wrong"
        step = "the line clock tells about this one; on the peer's, timedatectl set-ntp true"
        side = _whose_clock(relays)
        return _fails("record", f"the record of {key} is of the future", cause, step, NetworkFault.WRONG_CLOCK, side)
    measured = f"{key} is at {'; '.join(peer.places)}; its record ends in {max(0.0, peer.left):.0f} s"
    return ProbeFinding("record", FindingState.OK, measured)


def _unlisted(peer: PeerReading, key: str) -> ProbeFinding:
    if peer.is_registered is False:
        cause = f"the ledger at {peer.ledger} has no node of this key: mistyped, of another ledger, or never joined"
        return _fails(
            "record", f"{key} is not known", cause, "ask the peer for its key and its ledger", NetworkFault.NO_RECORD
        )
    cause = "a record lives ten minutes and is renewed while the peer runs and reaches the ledger: it does not"
    if peer.is_registered:
        cause = f"its node is on the ledger, and its record is gone: {cause}"
    return _fails("record", f"{key} has no record any more", cause, _THERE, NetworkFault.EXPIRED_RECORD)


def _expired(peer: PeerReading, key: str, relays: tuple[RelayReading, ...]) -> ProbeFinding:
    ago = -peer.left
    measured = f"the record of {key} ended {ago:.0f} s ago"
    side = _whose_clock(relays)
    if side is FaultSide.HERE:
        cause = "this computer's clock is wrong, as the line clock says; by the ledger's it still counts"
        return _fails(
            "record", measured, cause, "timedatectl set-ntp true", NetworkFault.EXPIRED_RECORD, FaultSide.HERE
        )
    cause = "the peer has not renewed it since: it is off, does not reach the ledger, or its clock is behind"
    return _fails("record", measured, cause, _THERE, NetworkFault.EXPIRED_RECORD)


def _whose_clock(relays: tuple[RelayReading, ...]) -> FaultSide:
    """This computer, where all relays say that its clock is wrong; else the peer."""
    skews = [one.skew for one in relays if one.skew is not None]
    return FaultSide.HERE if skews and all(abs(skew) > CLOCKS for skew in skews) else FaultSide.PEER


def _fails(
    name: str,
    measured: str,
    cause: str,
    step: str,
    fault: NetworkFault,
    side: FaultSide = FaultSide.PEER,
    code: str = CODE_RECORD,
) -> ProbeFinding:
    return ProbeFinding(name, FindingState.FAILS, measured, cause, step, code, (), fault, side)


def _way(peer: PeerReading) -> list[ProbeFinding]:
    if peer.is_met:
        how = "through the relay" if peer.is_relayed else "directly"
        return [ProbeFinding("peer", FindingState.OK, f"answers {how} at {peer.over} after {brief(peer.seconds)}")]
    if not peer.code:
        return []
    if peer.code in ("FF-NET-045", "FF-NET-050") or (peer.code == "FF-NET-073" and peer.cause == "it declined"):
        measured = f"is there ({peer.over}), and does not admit this key"
        return [ProbeFinding("peer", FindingState.OK, measured)]
    return [_unmet(peer)]


def _unmet(peer: PeerReading) -> ProbeFinding:
    place = peer.over
    match peer.code:
        case "FF-NET-070":
            cause = f"its record names a relay that cannot be reached: {peer.cause}"
            step = f"farflung check --net --relay {place.partition(',')[0]}"
            return _fails(
                "peer", f"not met at {place}", cause, step, NetworkFault.RELAY_DOWN, FaultSide.RELAY, CODE_AWAY
            )
        case "FF-NET-071":
            cause = "the relay that its record names does not know it: it has lost that relay, or uses another one now"
            return _fails("peer", f"not met at {place}", cause, _THERE, NetworkFault.PEER_ABSENT, code=CODE_PEER)
        case "FF-NET-073":
            cause = "it is attached to the relay and does not come: it hangs, or cannot open another connection to it"
            return _fails("peer", f"not met at {place}", cause, _THERE, NetworkFault.PEER_ABSENT, code=CODE_PEER)
        case "FF-NET-072":
            cause = f"the relay refuses: {peer.cause}"
            step = f"farflung check --net --relay {place.partition(',')[0]}"
            fault = NetworkFault.WRONG_CLOCK if "minute" in peer.cause else NetworkFault.NOT_ADMITTED
            return _fails("peer", f"not met at {place}", cause, step, fault, FaultSide.UNKNOWN, CODE_PEER)
        case "FF-NET-004":
            cause = f"somebody else answers at its place: {peer.cause}"
            return _fails("peer", f"not met at {place}", cause, _THERE, NetworkFault.WRONG_KEY, code=CODE_KEY)
    if peer.is_relayed:
        cause = f"the way through the relay breaks: {peer.cause} ({peer.code})"
        step = f"farflung check --net --relay {place.partition(',')[0]}"
        return _fails(
            "peer", f"not met at {place}", cause, step, NetworkFault.PEER_ABSENT, FaultSide.UNKNOWN, CODE_PEER
        )
    cause = f"nobody gets in there: {peer.cause}; it is off, or a firewall or a NAT of its side drops who comes"
    return _fails(
        "peer", f"not met at {place}", cause, f"{_THERE} --listen PORT", NetworkFault.FIREWALL_ON_ACCEPT, code=CODE_PEER
    )


def pair(mine: NetReadings, theirs: NetReadings) -> ProbeFinding:
    """What the NATs of two computers mean for each other, by the checks of both."""
    kinds = [lines.nat(seen.relays) for seen in (mine, theirs)]
    hard = [kind.fault is NetworkFault.SYMMETRIC_NAT for kind in kinds]
    if all(hard):
        measured = "both NATs are symmetric: your connections stay on a relay, which is expected and no fault"
        step = "nothing has to be done; or forward a port on one side, for a direct way"
        cause = "neither side can tell from which port the other one will call"
        return ProbeFinding(
            "pair", FindingState.SLOW, measured, cause, step, "", (), NetworkFault.SYMMETRIC_NAT, FaultSide.BOTH
        )
    if any(kind.state is FindingState.UNKNOWN for kind in kinds):
        side = "this" if kinds[0].state is FindingState.UNKNOWN else "the other"
        return ProbeFinding(
            "pair", FindingState.UNKNOWN, MISSED, f"the NAT of {side} side is not known", kinds[0].step or lines.ASK
        )
    if any(hard):
        which = "this side's NAT" if hard[0] else "the other side's NAT"
        measured = f"{which} is symmetric, and one of the two only: a direct way may open"
        return ProbeFinding("pair", FindingState.OK, measured)
    return ProbeFinding("pair", FindingState.OK, "both sides can open a direct way")
