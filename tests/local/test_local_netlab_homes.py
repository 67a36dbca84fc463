"""What a home of the laboratory can be, as it is written, and where its parts are."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core.errors import UsageError
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, parse_home
from farflung.local.netlab.homes import BOUNDS
from farflung.local.netlab.nat_rules import rules
from farflung.local.netlab.self_check import LabMeasurement, expected

MIXED = NetworkLab(
    [
        EmulatedHome(hosts=3),
        EmulatedHome(nat=NatType.NONE, hosts=2),
        EmulatedHome(carrier=1),
        EmulatedHome(carrier=1, nat=NatType.NONE),
        EmulatedHome(carrier=2),
    ],
    2,
    carriers=[NatType.SYMMETRIC, NatType.FULL_CONE],
)


def test_a_home_is_written_as_pairs_and_keeps_the_rest() -> None:
    home = parse_home("up=20, down=100,rtt=40,loss=0.005,nat=symmetric,hosts=2")
    assert home == EmulatedHome(up=20, down=100, rtt=40, loss=0.005, nat=NatType.SYMMETRIC, hosts=2)
    assert parse_home("") == EmulatedHome()


@given(st.fixed_dictionaries({"up": st.floats(0, 1000), "rtt": st.floats(0, 4000), "nat": st.sampled_from(NatType)}))
def test_what_is_written_is_what_is_read(fields: dict[str, object]) -> None:
    home = parse_home(",".join(f"{key}={value}" for key, value in fields.items()))
    assert {key: asdict(home)[key] for key in fields} == fields


@pytest.mark.parametrize("text", ["up", "rate=3", "up=fast", "hosts=1.5", "nat=conical", "up=1,up=2", "=4"])
def test_what_says_nothing_about_a_home_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_home(text)
    assert caught.value.code == "FF-LAB-001"
    assert caught.value.hint


def test_a_value_out_of_bounds_is_refused_at_both_ends(subtests: pytest.Subtests) -> None:
    for key in BOUNDS:
        with subtests.test(key=key):
            least, most = BOUNDS[key]
            for value in (
                least - 1,
                most + 1,
                *((float("nan"),) if key not in ("hosts", "carrier", "mtu", "seed") else ()),
            ):
                with pytest.raises(UsageError) as caught:
                    EmulatedHome(**{key: value})  # type: ignore[arg-type]
                assert caught.value.code == "FF-LAB-002"


def test_trains_are_for_lines_that_lose_nothing() -> None:
    assert EmulatedHome(train=8).train == 8
    with pytest.raises(UsageError, match="FF-LAB-002"):
        EmulatedHome(loss=0.01, train=8)


def test_loss_that_no_burst_of_this_length_gives_is_refused() -> None:
    assert EmulatedHome(loss=0.9, burst=9)
    assert EmulatedHome(loss=0.6)  # each packet by its own chance
    with pytest.raises(UsageError) as caught:
        EmulatedHome(loss=0.9, burst=3)
    assert caught.value.code == "FF-LAB-002"


def test_every_place_has_an_address_of_its_own() -> None:
    places = [who for who in MIXED.everybody if who != "bb"]
    addresses = [MIXED.address(who) for who in places] + [MIXED.second_address(n) for n in (1, 2)]
    assert len(set(addresses)) == len(addresses)
    assert MIXED.address("h1.3").startswith("192.168.1.")


def test_the_public_address_is_the_hosts_its_routers_or_its_carriers() -> None:
    assert MIXED.public_address(1) == MIXED.address("r1")
    assert MIXED.public_address(2) == MIXED.address("h2")
    assert MIXED.public_address(3) == MIXED.public_address(4) == MIXED.address("c1")
    assert MIXED.public_address(5) == MIXED.address("c2")


@pytest.mark.parametrize("who", ["h6", "h1.4", "h0", "s3", "c3", "r9", "bb ", "", "h1;reboot"])
def test_a_name_that_nobody_has_is_refused(who: str) -> None:
    with pytest.raises(UsageError) as caught:
        MIXED.address(who)
    assert caught.value.code == "FF-LAB-005"


def test_a_home_behind_a_carrier_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        NetworkLab([EmulatedHome(carrier=1)])
    assert caught.value.code == "FF-LAB-005"


@pytest.mark.parametrize("nat", NatType)
def test_every_router_that_does_nat_drops_strays_and_the_others_do_nothing(nat: NatType) -> None:
    text = rules(nat)
    assert bool(text) == (nat is not NatType.NONE)
    if text:
        assert "hook input priority 0; policy drop;" in text
        assert 'iifname "wan" drop' in text
        assert ("fully-random" in text) == (nat is NatType.SYMMETRIC)


def test_of_two_nats_in_a_row_the_stricter_one_shows() -> None:
    assert expected(EmulatedHome(nat=NatType.FULL_CONE, carrier=1), [NatType.SYMMETRIC]) is NatType.SYMMETRIC
    assert expected(EmulatedHome(nat=NatType.SYMMETRIC, carrier=1), [NatType.FULL_CONE]) is NatType.SYMMETRIC
    assert expected(EmulatedHome(nat=NatType.NONE), [NatType.FULL_CONE]) is NatType.NONE


def test_a_finding_says_whether_the_line_or_the_machine_is_to_blame() -> None:
    told = [
        str(LabMeasurement(1, "rate up", "20", got, agrees, why))
        for got, agrees, why in (("20", True, ""), ("9", False, ""), ("9", False, "the sender stood still"))
    ]
    assert [line.split("got ")[1] for line in told] == [
        "20: ok",
        "9: wrong",
        "9: not to be trusted (the sender stood still)",
    ]
