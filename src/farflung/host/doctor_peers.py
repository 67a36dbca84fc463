"""Decides why a peer is not met, whose side that is, and whether two NATs can be opened for each other."""

from __future__ import annotations

from typing import Final

from farflung.host import doctor_lines as lines
from farflung.host.doctor_relays import CODE_AWAY, CODE_KEY
from farflung.host.findings import MISSED, Fault, Finding, Side, State, brief
from farflung.host.netseen import NetSeen, PeerSeen, RelaySeen

CODE_RECORD: Final = "FF-HOST-098"
CODE_PEER: Final = "FF-HOST-099"
CLOCKS: Final = 60.0  # seconds by which two clocks may disagree (limits.CLOCK_SECONDS)
_THERE: Final = "on the peer's computer, farflung check --net"


def examine(seen: NetSeen) -> list[Finding]:
    """The peer's record, the way to it, and the two NATs; nothing where no peer was named."""
    found: list[Finding] = []
    if seen.peer is not None:
        found = [record(seen.peer, seen.relays), *_way(seen.peer)]
    if seen.theirs is not None:
        found.append(pair(seen, seen.theirs))
    return found


def record(peer: PeerSeen, relays: tuple[RelaySeen, ...] = ()) -> Finding:
    """What the directory holds of it."""
    key = peer.peer[:8]
    if peer.failed:
        cause = f"the ledger at {peer.ledger} does not tell: {peer.why} ({peer.failed})"
        return Finding(
            "record", State.UNKNOWN, MISSED, cause, "farflung check --net --peer KEY --ledger HOST:PORT,KEY"
        )
    if not peer.is_listed:
        return _unlisted(peer, key)
    if not peer.is_signed:
        cause = "the directory holds a record of it that it did not sign: it was changed there, or on the way"
        return _fails(
            "record", f"{key} has no record that counts", cause, "ask who runs the ledger", Fault.NO_RECORD
        )
    if peer.left < -CLOCKS:
        return _expired(peer, key, relays)
    if peer.ahead > CLOCKS:
        cause = f"it begins in {peer.ahead:.0f} s by this clock: one of the two clocks is wrong"
        step = "the line clock tells about this one; on the peer's, timedatectl set-ntp true"
        side = _whose_clock(relays)
        return _fails("record", f"the record of {key} is of the future", cause, step, Fault.WRONG_CLOCK, side)
    measured = f"{key} is at {'; '.join(peer.places)}; its record ends in {max(0.0, peer.left):.0f} s"
    return Finding("record", State.OK, measured)


def _unlisted(peer: PeerSeen, key: str) -> Finding:
    if peer.is_registered is False:
        cause = f"the ledger at {peer.ledger} has no node of this key: mistyped, of another ledger, or never joined"
        return _fails(
            "record", f"{key} is not known", cause, "ask the peer for its key and its ledger", Fault.NO_RECORD
        )
    cause = (
        "a record lives ten minutes and is told anew while the peer runs and reaches the ledger: it does not"
    )
    if peer.is_registered:
        cause = f"its node is on the ledger, and its record is gone: {cause}"
    return _fails("record", f"{key} has no record any more", cause, _THERE, Fault.EXPIRED_RECORD)


def _expired(peer: PeerSeen, key: str, relays: tuple[RelaySeen, ...]) -> Finding:
    ago = -peer.left
    measured = f"the record of {key} ended {ago:.0f} s ago"
    side = _whose_clock(relays)
    if side is Side.HERE:
        cause = "this computer's clock is wrong, as the line clock says; by the ledger's it still counts"
        return _fails("record", measured, cause, "timedatectl set-ntp true", Fault.EXPIRED_RECORD, Side.HERE)
    cause = (
        "the peer has not told a new one since: it is off, does not reach the ledger, or its clock is behind"
    )
    return _fails("record", measured, cause, _THERE, Fault.EXPIRED_RECORD)


def _whose_clock(relays: tuple[RelaySeen, ...]) -> Side:
    """This computer, where all relays say that its clock is wrong; else the peer."""
    skews = [one.skew for one in relays if one.skew is not None]
    return Side.HERE if skews and all(abs(skew) > CLOCKS for skew in skews) else Side.PEER


def _fails(
    name: str,
    measured: str,
    cause: str,
    step: str,
    fault: Fault,
    side: Side = Side.PEER,
    code: str = CODE_RECORD,
) -> Finding:
    return Finding(name, State.FAILS, measured, cause, step, code, (), fault, side)


def _way(peer: PeerSeen) -> list[Finding]:
    if peer.is_met:
        how = "through the relay" if peer.is_relayed else "directly"
        return [Finding("peer", State.OK, f"answers {how} at {peer.over} after {brief(peer.seconds)}")]
    if not peer.code:
        return []
    if peer.code in ("FF-NET-045", "FF-NET-050") or (
        peer.code == "FF-NET-073" and peer.cause == "it declined"
    ):
        measured = f"is there ({peer.over}), and does not admit this key"
        return [Finding("peer", State.OK, measured)]
    return [_unmet(peer)]


def _unmet(peer: PeerSeen) -> Finding:
    place = peer.over
    match peer.code:
        case "FF-NET-070":
            cause = f"its record names a relay that cannot be reached: {peer.cause}"
            step = f"farflung check --net --relay {place.partition(',')[0]}"
            return _fails("peer", f"not met at {place}", cause, step, Fault.RELAY_DOWN, Side.RELAY, CODE_AWAY)
        case "FF-NET-071":
            cause = "the relay that its record names does not know it: it has lost that relay, or uses another one now"
            return _fails("peer", f"not met at {place}", cause, _THERE, Fault.PEER_ABSENT, code=CODE_PEER)
        case "FF-NET-073":
            cause = "it is attached to the relay and does not come: it hangs, or cannot open another connection to it"
            return _fails("peer", f"not met at {place}", cause, _THERE, Fault.PEER_ABSENT, code=CODE_PEER)
        case "FF-NET-072":
            cause = f"the relay refuses: {peer.cause}"
            step = f"farflung check --net --relay {place.partition(',')[0]}"
            fault = Fault.WRONG_CLOCK if "minute" in peer.cause else Fault.NOT_ADMITTED
            return _fails("peer", f"not met at {place}", cause, step, fault, Side.UNKNOWN, CODE_PEER)
        case "FF-NET-004":
            cause = f"somebody else answers at its place: {peer.cause}"
            return _fails("peer", f"not met at {place}", cause, _THERE, Fault.WRONG_KEY, code=CODE_KEY)
    if peer.is_relayed:
        cause = f"the way through the relay breaks: {peer.cause} ({peer.code})"
        step = f"farflung check --net --relay {place.partition(',')[0]}"
        return _fails("peer", f"not met at {place}", cause, step, Fault.PEER_ABSENT, Side.UNKNOWN, CODE_PEER)
    cause = (
        f"nobody gets in there: {peer.cause}; it is off, or a firewall or a NAT of its side drops who comes"
    )
    return _fails(
        "peer",
        f"not met at {place}",
        cause,
        f"{_THERE} --listen PORT",
        Fault.FIREWALL_ON_ACCEPT,
        code=CODE_PEER,
    )


def pair(mine: NetSeen, theirs: NetSeen) -> Finding:
    """What the NATs of two computers mean for each other, by the checks of both."""
    kinds = [lines.nat(seen.relays) for seen in (mine, theirs)]
    hard = [kind.fault is Fault.SYMMETRIC_NAT for kind in kinds]
    if all(hard):
        measured = "both NATs are symmetric: your connections stay on a relay, which is expected and no fault"
        step = "nothing has to be done; or forward a port on one side, for a direct way"
        cause = "neither side can tell from which port the other one will call"
        return Finding("pair", State.SLOW, measured, cause, step, "", (), Fault.SYMMETRIC_NAT, Side.BOTH)
    if any(kind.state is State.UNKNOWN for kind in kinds):
        side = "this" if kinds[0].state is State.UNKNOWN else "the other"
        return Finding(
            "pair", State.UNKNOWN, MISSED, f"the NAT of {side} side is not known", kinds[0].step or lines.ASK
        )
    if any(hard):
        which = "this side's NAT" if hard[0] else "the other side's NAT"
        measured = f"{which} is symmetric, and one of the two only: a direct way may open"
        return Finding("pair", State.OK, measured)
    return Finding("pair", State.OK, "both sides can open a direct way")
