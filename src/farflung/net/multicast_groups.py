"""Decides who may be in a group at a relay: a roster signed by the group's owner, and a member's signed join.

A connection that begins with "FFG1" belongs to a group. What one member sends into it once, the relay gives to all
others (`multicast_frames`), so that a payload takes its maker's uplink once (requirement T2).

    join    = "FFG1" | length (2 bytes, big endian, <= limits.FAN_JOIN_BYTES) | SignedJoin in core.codec
    answer  = "FFG1" | status (1 byte)

A group is its owner's key and a name, so nobody can take another's. A roster counts from its epoch on and replaces all
before it: who is not in it is cut. The relay need not be told of a group beforehand, for each join carries the roster;
it forgets a group when its last member is gone.

Theory: the relay is trusted with nothing but the line. It could keep a member out or let a stranger in, and a stranger
would hear ciphertext under a key that was not given to it.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_FAN_JOIN, NS_GROUP, NS_ROSTER, SigningKey, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, Hash, PeerId, Signature
from farflung.core.relay_passes import SignedRelayPass
from farflung.net.certificates import Credential, Identity, NodeCertificate, credential_of, signer_of

MAGIC: Final = b"FFG1"
HEAD_BYTES: Final = len(MAGIC) + 2
ANSWER_BYTES: Final = len(MAGIC) + 1
NONCE_BYTES: Final = 16
_INTEGERS: Final = range(1 << 63)

MemberT = TypeVar("MemberT")


class GroupJoinStatus(enum.IntEnum):
    """The relay's answer to a join. After JOINED come frames; after anything else the relay closes."""

    JOINED = 0
    MALFORMED = 1
    ELSEWHERE = 2  # the join is for another relay
    STALE = 3  # its time is over, or further ahead than any join's may be
    FORGED = 4  # not signed by the member, or the roster not by the owner
    BARRED = 5  # the relay does not serve this key, or not this owner
    REPLAYED = 6
    FULL = 7  # of groups, or of joins to remember
    OUTSIDE = 8  # the member is not in the roster
    OUTDATED = 9  # the relay has heard of a newer roster, or of another one of the same epoch
    VOID = 10  # the member's node key, or the owner's, does not count: over, replaced or revoked
    UNPAID = 11  # the relay copies for a pass only, and none was shown
    NO_HOLDER = 12  # the pass is not for this member
    LAPSED = 13  # the pass is over, not yet begun, or longer than any may be
    USED_UP = 14  # the pass's bytes, or its payer's channel
    UNFUNDED = 15  # the payer has no open channel with the relay, or one at a lower price
    OWING = 16  # the member's receipts for what was carried are missing
    MISMATCHED = 17  # the pass is not the group owner's, or another one than the group runs under


class Roster(Wire, frozen=True):
    """Who is in a group from `epoch` on, as its owner says. A member's place in `members` is its number in frames."""

    owner: PeerId
    name: Hash
    epoch: int
    members: tuple[PeerId, ...]

    @property
    def group(self) -> Hash:
        """The group's id."""
        return digest(NS_GROUP, self.owner, self.name)


class SignedRoster(Wire, frozen=True):
    """A roster and its owner's signature under NS_ROSTER, by the node key of `certificate` if there is one."""

    roster: Roster
    signature: Signature
    certificate: NodeCertificate | None = None


class GroupJoin(Wire, frozen=True):
    """One member's wish to be connected. `expires` counts seconds since 1970.

    `toll`: the owner's pass that this member counts and signs under, at a relay that asks for one.
    """

    relay: PeerId
    group: Hash
    presenter: PeerId
    nonce: bytes
    expires: int
    toll: SignedRelayPass | None = None


class SignedGroupJoin(Wire, frozen=True):
    """A join with the roster that it refers to, and the member's signature under NS_FAN_JOIN over the join."""

    join: GroupJoin
    roster: SignedRoster
    signature: Signature
    certificate: NodeCertificate | None = None


class AdmittedJoin(NamedTuple):
    """What a join that may be followed says, and who says it, with which node key."""

    join: GroupJoin
    roster: SignedRoster
    who: Identity


def sign_roster(own: SigningKey | Credential, name: Hash, epoch: int, members: tuple[PeerId, ...]) -> SignedRoster:
    """The roster of `own`'s group `name`, members in the order of their keys."""
    credential = credential_of(own)
    roster = Roster(credential.account, name, epoch, tuple(sorted(members)))
    return SignedRoster(roster, credential.node.sign(NS_ROSTER, encode(roster)), credential.certificate)


def owner_of(signed: SignedRoster) -> Identity | None:
    """Who signed a roster that is well formed and its owner's own; None: it is not."""
    roster = signed.roster
    members = roster.members
    is_well_formed = (
        len(roster.owner) == len(roster.name) == ID_BYTES
        and roster.epoch in _INTEGERS
        and 0 < len(members) <= limits.FAN_MEMBERS
        and all(len(member) == ID_BYTES for member in members)
        and all(one < other for one, other in itertools.pairwise(members))
    )
    if not is_well_formed:
        return None
    return signer_of(roster.owner, signed.certificate, signed.signature, NS_ROSTER, encode(roster))


def sign_join(own: SigningKey | Credential, join: GroupJoin, roster: SignedRoster) -> bytes:
    """The bytes that open a connection to the relay; `own` is the member's."""
    credential = credential_of(own)
    signature = credential.node.sign(NS_FAN_JOIN, encode(join))
    body = encode(SignedGroupJoin(join, roster, signature, credential.certificate))
    return MAGIC + len(body).to_bytes(2, "big") + body


def read_head(head: bytes) -> int | None:
    """How many bytes follow a join's head of HEAD_BYTES; None: it is no head of ours, or announces too many."""
    size = int.from_bytes(head[len(MAGIC) :], "big")
    is_ours = len(head) == HEAD_BYTES and head.startswith(MAGIC) and 0 < size <= limits.FAN_JOIN_BYTES
    return size if is_ours else None


def judge(body: bytes, relay: PeerId, now: int) -> AdmittedJoin | GroupJoinStatus:
    """The join and its roster, if it is for this relay, of this minute, and both are signed; else why not."""
    try:
        signed = decode(body, SignedGroupJoin, limits.FAN_JOIN_BYTES)
    except ProtocolError:
        return GroupJoinStatus.MALFORMED
    join, roster = signed.join, signed.roster.roster
    is_well_formed = (
        len(join.relay) == len(join.group) == len(join.presenter) == ID_BYTES
        and len(join.nonce) == NONCE_BYTES
        and join.expires in _INTEGERS
    )
    if not is_well_formed or join.group != roster.group:
        return GroupJoinStatus.MALFORMED
    if join.relay != relay:
        return GroupJoinStatus.ELSEWHERE
    if not now < join.expires <= now + limits.TICKET_SECONDS:
        return GroupJoinStatus.STALE
    who = signer_of(join.presenter, signed.certificate, signed.signature, NS_FAN_JOIN, encode(join))
    if who is None or owner_of(signed.roster) is None:
        return GroupJoinStatus.FORGED
    return AdmittedJoin(join, signed.roster, who) if join.presenter in roster.members else GroupJoinStatus.OUTSIDE


def is_newer(known: Roster | None, said: Roster) -> bool | None:
    """Whether a roster replaces the one that is known; None: it is out of date, or contradicts it."""
    if known is None or said.epoch > known.epoch:
        return True
    return False if said == known else None


def answer(status: GroupJoinStatus) -> bytes:
    """The relay's answer, ANSWER_BYTES long."""
    return MAGIC + bytes([status])


def read_answer(data: bytes) -> GroupJoinStatus | None:
    """What the relay says; None: it is no answer of a relay that has groups."""
    if len(data) != ANSWER_BYTES or not data.startswith(MAGIC) or data[-1] not in set(GroupJoinStatus):
        return None
    return GroupJoinStatus(data[-1])


def skipped(waiting: Mapping[MemberT, int], quiet: Mapping[MemberT, float], full: float) -> list[MemberT]:
    """Who loses what waits for it in a group that has been full for `full` seconds, so that the others go on.

    `waiting`: bytes not yet given to each member; `quiet`: seconds since each one last took some. It is who holds most
    of the bound and either takes nothing at all, or is slow while somebody else has had everything for a while. While
    all are alike behind, nobody is at fault: then the senders wait, as TCP makes them.
    """
    if full < limits.FAN_PATIENCE_SECONDS or not waiting:
        return []
    is_starving = any(not size and quiet[member] >= limits.FAN_PATIENCE_SECONDS for member, size in waiting.items())
    most = max(waiting.values())
    return [
        member
        for member, size in waiting.items()
        if size and 2 * size >= most and (is_starving or quiet[member] >= limits.FAN_PATIENCE_SECONDS)
    ]
