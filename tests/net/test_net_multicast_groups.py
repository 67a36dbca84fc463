"""Who may be in a group at a relay: rosters and joins alone, without a socket."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_FAN_JOIN, NS_ROSTER, NS_TICKET, SigningKey, local_key
from farflung.core.ids import Hash, PeerId, Signature
from farflung.core.relay_passes import RelayPass, sign_pass
from farflung.net import multicast_groups
from farflung.net.certificates import Credential, bare, certify
from farflung.net.multicast_groups import (
    AdmittedJoin,
    GroupJoin,
    GroupJoinStatus,
    SignedGroupJoin,
    SignedRoster,
    sign_join,
    sign_roster,
    skipped,
)

OWNER, A, B, OTHER, R = (local_key(16, name) for name in ("owner", "a", "b", "other", "relay"))
NAME = Hash(bytes(32))
NOW = 1_800_000_000
ROSTER = sign_roster(OWNER, NAME, 7, (A.public, B.public, OWNER.public))
JOIN = GroupJoin(R.public, ROSTER.roster.group, A.public, bytes(16), NOW + 60)


def judged(
    join: GroupJoin = JOIN, roster: SignedRoster = ROSTER, key: SigningKey = A
) -> AdmittedJoin | GroupJoinStatus:
    return multicast_groups.judge(sign_join(key, join, roster)[multicast_groups.HEAD_BYTES :], R.public, NOW)


def changed(**fields: object) -> GroupJoin:
    return msgspec.structs.replace(JOIN, **fields)


def test_a_join_comes_back_with_its_roster() -> None:
    data = sign_join(A, JOIN, ROSTER)
    assert multicast_groups.read_head(data[: multicast_groups.HEAD_BYTES]) == len(data) - multicast_groups.HEAD_BYTES
    assert judged() == AdmittedJoin(JOIN, ROSTER, bare(A.public))


def test_the_largest_group_fits_into_a_join() -> None:
    many = tuple(PeerId(bytes([n, *bytes(30), 1])) for n in range(limits.FAN_MEMBERS - 1))
    credential, most = Credential(B, certify(A, B.public, 1)), (1 << 63) - 1
    roster = sign_roster(OWNER, NAME, most, (*many, A.public))
    keys, numbers = many[: limits.PASS_HOLDERS], (limits.PASS_BYTES, most, most, most)
    toll = RelayPass(Hash(bytes(32)), OWNER.public, R.public, most, most, keys, *numbers)
    join = changed(toll=sign_pass(OWNER, toll))
    found = multicast_groups.judge(sign_join(credential, join, roster)[multicast_groups.HEAD_BYTES :], R.public, NOW)
    assert isinstance(found, AdmittedJoin)
    assert len(found.roster.roster.members) == limits.FAN_MEMBERS


@pytest.mark.parametrize(
    ("join", "status"),
    [
        (changed(relay=OTHER.public), GroupJoinStatus.ELSEWHERE),
        (changed(expires=NOW), GroupJoinStatus.STALE),
        (changed(expires=NOW + limits.TICKET_SECONDS + 1), GroupJoinStatus.STALE),
        (changed(nonce=bytes(15)), GroupJoinStatus.MALFORMED),
        (changed(expires=-1), GroupJoinStatus.MALFORMED),
        (changed(group=Hash(bytes(32))), GroupJoinStatus.MALFORMED),
        (changed(presenter=B.public), GroupJoinStatus.FORGED),
    ],
)
def test_a_join_that_breaks_a_rule_is_refused(join: GroupJoin, status: GroupJoinStatus) -> None:
    assert judged(join) is status


def test_a_join_signed_for_something_else_or_with_a_foreign_roster_is_refused() -> None:
    other = SignedGroupJoin(JOIN, ROSTER, A.sign(NS_TICKET, encode(JOIN)))
    assert multicast_groups.judge(encode(other), R.public, NOW) is GroupJoinStatus.FORGED
    forged = SignedRoster(ROSTER.roster, OTHER.sign(NS_ROSTER, encode(ROSTER.roster)))
    assert judged(roster=forged) is GroupJoinStatus.FORGED
    # Somebody else's group of the same name is another group.
    taken = sign_roster(OTHER, NAME, 7, (A.public,))
    assert judged(roster=taken) is GroupJoinStatus.MALFORMED
    assert taken.roster.group != ROSTER.roster.group


def test_who_is_not_in_the_roster_stays_outside() -> None:
    assert judged(changed(presenter=OTHER.public), key=OTHER) is GroupJoinStatus.OUTSIDE


@pytest.mark.parametrize("members", [(), (B.public, B.public), (PeerId(b"short"),)])
def test_a_roster_that_is_empty_or_names_somebody_twice_is_none(members: tuple[PeerId, ...]) -> None:
    assert not multicast_groups.owner_of(sign_roster(OWNER, NAME, 1, members))
    unsorted = msgspec.structs.replace(ROSTER.roster, members=tuple(reversed(ROSTER.roster.members)))
    assert not multicast_groups.owner_of(SignedRoster(unsorted, OWNER.sign(NS_ROSTER, encode(unsorted))))


def test_a_roster_counts_when_it_is_newer_and_never_beside_another_of_its_epoch() -> None:
    newer = sign_roster(OWNER, NAME, 8, (A.public,)).roster
    rival = sign_roster(OWNER, NAME, 7, (A.public,)).roster
    assert multicast_groups.is_newer(None, newer) is True
    assert multicast_groups.is_newer(ROSTER.roster, newer) is True
    assert multicast_groups.is_newer(ROSTER.roster, ROSTER.roster) is False
    assert multicast_groups.is_newer(ROSTER.roster, rival) is None
    assert multicast_groups.is_newer(newer, ROSTER.roster) is None


@given(st.binary(max_size=400))
@settings(max_examples=200)
def test_any_bytes_are_refused_without_an_exception(body: bytes) -> None:
    assert multicast_groups.judge(body, R.public, NOW) is GroupJoinStatus.MALFORMED
    assert multicast_groups.read_head(body[: multicast_groups.HEAD_BYTES]) is None or body.startswith(
        multicast_groups.MAGIC
    )


@given(st.data())
@settings(max_examples=100)
def test_a_join_with_any_byte_changed_is_refused(data: st.DataObject) -> None:
    body = bytearray(encode(SignedGroupJoin(JOIN, ROSTER, A.sign(NS_FAN_JOIN, encode(JOIN)))))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(multicast_groups.judge(bytes(body), R.public, NOW), GroupJoinStatus)


def test_an_answer_of_another_form_is_none_of_ours() -> None:
    for status in GroupJoinStatus:
        assert multicast_groups.read_answer(multicast_groups.answer(status)) is status
    assert multicast_groups.read_answer(b"FFG1\xff") is None
    assert multicast_groups.read_answer(b"FFR1\x00") is None
    assert isinstance(ROSTER.signature, bytes)
    assert Signature(ROSTER.signature) == ROSTER.signature


PATIENCE = limits.FAN_PATIENCE_SECONDS


def test_nobody_is_skipped_while_all_are_alike_behind_or_before_patience_ends() -> None:
    assert skipped({"a": 9, "b": 9}, {"a": 0.1, "b": 0.0}, 99.0) == []
    assert skipped({"a": 9, "b": 0}, {"a": 99.0, "b": 99.0}, PATIENCE / 2) == []
    assert skipped({}, {}, 99.0) == []


def test_who_takes_nothing_is_skipped_and_so_is_who_lets_another_starve() -> None:
    assert skipped({"a": 9, "b": 8}, {"a": PATIENCE, "b": 0.0}, PATIENCE) == ["a"]
    assert skipped({"slow": 9, "fast": 0}, {"slow": 0.0, "fast": PATIENCE}, PATIENCE) == ["slow"]
    assert skipped({"slow": 9, "little": 1, "fast": 0}, {"slow": 0.0, "little": 9.0, "fast": 9.0}, PATIENCE) == ["slow"]
