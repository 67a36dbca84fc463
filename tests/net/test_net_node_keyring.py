"""Which node keys count: rotation with an overlap, revocation, and a registry that lags or goes back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.crypto import local_key
from farflung.core.errors import ProtocolError
from farflung.core.ids import PeerId
from farflung.net.certificates import FOREVER, Identity, bare
from farflung.net.node_keyring import Keyring, RegisteredKeys

ACCOUNT = local_key(9, "account").public
NODES = [ACCOUNT, *(local_key(9, "node", i).public for i in range(1, 6))]  # of epoch 0, 1, 2 ...
NOW = 1_800_000_000
OVERLAP = NOW + 600


def key(epoch: int, node: PeerId | None = None, begins: int = 0, expires: int = FOREVER) -> Identity:
    return Identity(ACCOUNT, NODES[epoch] if node is None else node, epoch, begins, expires)


def row(epoch: int, previous: int, until: int = OVERLAP, void: int = 0) -> RegisteredKeys:
    return RegisteredKeys(ACCOUNT, epoch, NODES[epoch], previous, NODES[previous], until, void)


def ring(*rows: RegisteredKeys) -> Keyring:
    made = Keyring()
    made.learn(rows)
    return made


@pytest.mark.parametrize("late", [0, limits.CLOCK_SECONDS - 1])
def test_a_certificate_lasts_for_its_time_and_a_minute_of_clocks_that_disagree(late: int) -> None:
    mine = key(1, begins=NOW, expires=NOW + 100)
    ring().check(mine, NOW - late)
    ring().check(mine, NOW + 99 + late)
    with pytest.raises(ProtocolError, match=r"FF-NET-102.*not begun"):
        ring().check(mine, NOW - limits.CLOCK_SECONDS - 1)
    with pytest.raises(ProtocolError, match=r"FF-NET-102.*ended"):
        ring().check(mine, NOW + 100 + limits.CLOCK_SECONDS)


def test_of_an_unknown_account_every_certified_key_and_its_own_count() -> None:
    for epoch in range(4):
        ring().check(key(epoch), NOW)


def test_after_a_rotation_the_old_key_counts_until_the_overlap_ends() -> None:
    rotated = ring(row(2, 1))
    for now in (NOW, OVERLAP - 1, OVERLAP, OVERLAP + 10_000):
        rotated.check(key(2), now)
    rotated.check(key(1), OVERLAP - 1)
    with pytest.raises(ProtocolError, match=r"FF-NET-103.*overlap"):
        rotated.check(key(1), OVERLAP)


def test_the_accounts_own_key_is_replaced_like_any_other() -> None:
    first = ring(row(1, 0))
    first.check(bare(ACCOUNT), OVERLAP - 1)
    with pytest.raises(ProtocolError, match="FF-NET-103"):
        first.check(bare(ACCOUNT), OVERLAP)


def test_a_key_of_an_earlier_epoch_never_comes_back() -> None:
    for epoch in (0, 1):
        with pytest.raises(ProtocolError, match=r"FF-NET-103.*replaced"):
            ring(row(3, 2)).check(key(epoch), NOW)


def test_a_second_key_of_the_same_epoch_does_not_count() -> None:
    rotated = ring(row(3, 2))
    for epoch in (2, 3):
        with pytest.raises(ProtocolError, match="FF-NET-103"):
            rotated.check(key(epoch, NODES[5]), NOW)


def test_a_newer_key_counts_before_the_registry_is_heard_again() -> None:
    ring(row(1, 0)).check(key(2), NOW)


def test_a_revoked_epoch_and_all_before_it_are_void_within_the_overlap_too() -> None:
    revoked = ring(row(2, 1, void=3))
    for epoch in (0, 1, 2):
        with pytest.raises(ProtocolError, match=r"FF-NET-103.*revoked"):
            revoked.check(key(epoch), NOW)
    revoked.check(key(3), NOW)
    only_the_old = ring(row(2, 1, void=2))
    only_the_old.check(key(2), NOW)
    with pytest.raises(ProtocolError, match="FF-NET-103"):
        only_the_old.check(key(1), NOW)


def test_a_registry_that_goes_back_gives_no_key_back() -> None:
    stale = ring(row(2, 1, void=2), row(1, 0))
    with pytest.raises(ProtocolError, match="FF-NET-103"):
        stale.check(key(1), NOW)
    stale.check(key(2), NOW)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(NOW - 5, NOW + 5), st.integers(0, 6)).filter(
            lambda each: each[1] < each[0]
        ),
        max_size=6,
    ),
    st.integers(0, 5),
)
def test_what_was_once_revoked_stays_so_whatever_is_learnt(said: list[tuple[int, int, int, int]], epoch: int) -> None:
    known, void, highest = Keyring(), 0, 0
    for each in said:
        known.learn([row(*each)])
        void, highest = max(void, each[3]), max(highest, each[0])
        is_refused = bool(known.fault(key(epoch), NOW))
        assert is_refused or epoch >= void
        assert epoch <= highest or is_refused == (epoch < void)


def test_a_full_keyring_learns_no_new_account_and_keeps_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEYRING", 1)
    other = NODES[5]
    full = ring(row(1, 0), RegisteredKeys(other, 1, NODES[4], 0, other, 0, 9))
    assert full.fault(Identity(other, NODES[4], 1), NOW) == ""
    full.learn([row(1, 0, void=2)])
    assert full.fault(key(1), NOW)
