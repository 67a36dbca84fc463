"""Offers as asks: an hour's price and a card's rate give the price of a unit, a job gives the bid."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice import offer_file_market
from farflung.advice.hardware.admission import MachineGrade
from farflung.advice.io import card_files
from farflung.advice.job_work import JobWork, work
from farflung.advice.layouts import host_speed, memory_fit
from farflung.advice.offer_file_market import JobOrder
from farflung.advice.offers.offer_file import HOUR, OfferedHost, parse
from farflung.core.errors import UsageError
from farflung.core.money import CREDIT, Credits
from farflung.core.units import Bytes, Millis
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec
from farflung.market.asks import market
from farflung.market.bids import rules
from farflung.market.work_units import CALIBRATED
from farflung.peers.rundir.inputs import known_layout

NOW = Millis(1_700_000_000_000)
GPT2 = {"model.layers": "12", "model.width": "768", "model.heads": "12", "model.context": "1024", "rounds": "10"}
LARGE = {"model.layers": "24", "model.width": "1024", "model.heads": "16", "model.context": "1024"}
TABLE = card_files.read()


def job(**more: str) -> tuple[JobSpec, JobWork]:
    spec = load(None, preset="local", flags=GPT2 | more, environment={}).spec
    layout = known_layout(spec)
    assert layout is not None
    return spec, work(spec, layout)


def host(name: str, card: str = "RTX 3090", **more: object) -> OfferedHost:
    lines = "".join(f"{key} = {value!r}\n" for key, value in more.items())
    text = {"link": '"40/200/20ms"', "price": '"0.18"'}
    rest = "".join(f"{key} = {value}\n" for key, value in text.items() if key not in more)
    return parse(f'[[host]]\nname = "{name}"\ncard = "{card}"\n{rest}{lines}', TABLE)[0]


def order(members: int = 2, **more: object) -> JobOrder:
    plain = JobOrder(members, 0, NOW, Credits(1), Credits(5 * CREDIT))
    return msgspec.structs.replace(plain, **more)


def offer(
    *hosts: OfferedHost, ordered: JobOrder | None = None, flags: dict[str, str] | None = None
) -> offer_file_market.OfferedJob:
    return offer_file_market.offered(*job(**(flags or {})), hosts, ordered or order())


@given(price=st.integers(0, 10**9), name=st.sampled_from(("RTX 4090", "RTX 3060 12GB", "GTX 1660")))
def test_whoever_is_paid_his_ask_for_an_hours_work_has_his_hours_price(price: int, name: str) -> None:
    one = msgspec.structs.replace(host("a", name), price=Credits(price))
    ask, units = offer_file_market.asked(one), HOUR * host_speed.rate(one) / CALIBRATED
    assert price <= ask * units + 1e-6 * price
    assert (ask - 1) * units < price + 1e-6 * price or ask == 0


def test_the_derivation_of_an_ask_by_hand() -> None:
    # 71.16 TFLOP/s x 0.4 = 28.464: 10^15 FLOP take 35.13 s, of an hour for 0.18 credits.
    assert offer_file_market.asked(host("a")) == 1_756_604_835
    assert offer_file_market.asked(host("a", cards=2, price="0.36")) == 1_756_604_835


def test_the_highest_price_on_the_slowest_card_is_still_an_ask() -> None:
    slowest = min(TABLE.cards, key=lambda card: host_speed.rate(host("a", card.name)))
    (standing,) = offer_file_market.standing(offer(host("a", slowest.name, price="9" * 6)))
    assert standing.ask.price > 10**15


def test_a_price_that_makes_no_ask_is_refused_with_its_host_and_field() -> None:
    absurd = host("greedy", price="9223372", utilisation=1e-9)
    with pytest.raises(UsageError) as refused:
        offer_file_market.standing(offer(host("fair"), absurd))
    assert refused.value.code == "FF-MARK-014"
    assert "host greedy" in refused.value.message
    assert "price is 9223372.000000 credits an hour" in refused.value.cause
    assert "utilisation" in refused.value.hint


def test_a_bid_has_the_jobs_work_money_and_memory() -> None:
    found = offer(host("a"), ordered=order(4, spares=1, stake=Credits(7), cards=("x",)))
    spec, asks = found.spec, found.work
    bid = offer_file_market.bid(found)
    assert (bid.members, bid.spares, bid.stake, bid.cards) == (4, 1, 7, ("x",))
    assert bid.work.units == spec.rounds == 10
    assert bid.work.each.steps == spec.sync.steps
    assert bid.work.each.flop == pytest.approx(asks.flop(spec.round_tokens), abs=1)
    assert bid.price == spec.round_tokens
    assert bid.memory_bytes == memory_fit.need(asks, host("other"), spec.sync)
    assert bid.work.each.up_bytes > bid.work.each.down_bytes > 0


def test_who_is_alone_sends_nothing() -> None:
    found = offer(host("a"), ordered=order(1))
    each = offer_file_market.bid(found).work.each
    assert (each.up_bytes, each.down_bytes) == (0, 0)
    assert next(iter(found.paces.values())).exchange == 0.0


def test_memory_is_enough_in_the_market_where_the_plan_finds_room(subtests: pytest.Subtests) -> None:
    for ram in [None, 64, 256]:
        for cards in [1, 2, 4]:
            for name in ["GTX 1660", "RTX 3060 12GB", "RTX 3090"]:
                with subtests.test(ram=ram, cards=cards, name=name):
                    more = {"cards": cards} | ({} if ram is None else {"memory_gb": ram})
                    one = host("a", name, **more)
                    found = offer(one, flags=LARGE)
                    own = memory_fit.room(
                        found.work,
                        found.work.with_outer(found.spec.sync),
                        one,
                        memory_fit.replica(one),
                        found.work.batch,
                    )
                    (standing,) = offer_file_market.standing(found)
                    assert (standing.host.memory_bytes >= offer_file_market.bid(found).memory_bytes) == own.fits


def test_a_card_just_too_small_is_too_small() -> None:
    found = offer(host("a"))
    need = memory_fit.need(found.work, host("a"), found.spec.sync)
    for memory, is_enough in ((need, True), (need - 1, False)):
        card = msgspec.structs.replace(host("a").card, memory_bytes=Bytes(memory))
        one = msgspec.structs.replace(host("a"), card=card)
        (standing,) = offer_file_market.standing(offer(one))
        assert (standing.host.memory_bytes >= need) == is_enough


def test_cards_of_one_owner_are_one_owners_in_the_market() -> None:
    three = [host(name, owner=owner) for name, owner in (("a", "ann"), ("b", "bob"), ("c", "ann"))]
    owners = [one.ask.owner for one in offer_file_market.standing(offer(*three))]
    assert owners[0] == owners[2] != owners[1]


def test_the_order_of_the_file_changes_nothing() -> None:
    hosts = [host(name, price=price) for name, price in (("a", "0.2"), ("b", "0.1"), ("c", "0.1"))]
    assert offer_file_market.standing(offer(*hosts)) == offer_file_market.standing(offer(*reversed(hosts)))


def kept(rule: str, *hosts: OfferedHost, **more: object) -> list[str]:
    """Who meets one of the rules that a quote has beyond a bid's."""
    found = offer(*hosts, ordered=order(**more))
    asks = market(offer_file_market.standing(found))
    (rule_,) = [each for each in offer_file_market.also(found, asks) if each.name == rule]
    peers = zip(asks.asks.peers, rule_.met, strict=True)
    return sorted(found.hosts[peer].name for peer, is_met in peers if is_met)


def test_without_class_and_deadline_nothing_is_asked_beyond_the_bid() -> None:
    found = offer(host("a"))
    assert offer_file_market.also(found, market(offer_file_market.standing(found))) == ()


def test_a_line_too_slow_for_all_rounds_is_out_before_the_deadline() -> None:
    fast, slow = host("fast", link="400/400/5ms"), host("slow", link="2/20/5ms")
    paces = {one.name: offer(one, ordered=order()).paces[offer_file_market.peer(0)] for one in (fast, slow)}
    assert paces["fast"].compute == paces["slow"].compute
    span = 10 * (paces["slow"].round + paces["fast"].round) / 2
    deadline = Millis(NOW + round(1000 * span))
    assert kept("lines", fast, slow, deadline=deadline) == ["fast"]
    late = Millis(NOW + round(10_001 * paces["slow"].round))
    assert kept("lines", fast, slow, deadline=late) == ["fast", "slow"]


def test_a_deadline_without_time_to_compute_leaves_nobody() -> None:
    found = offer(host("a", link="1000/1000/1ms"), ordered=order(deadline=Millis(NOW + 1500)))
    (deadline,) = [
        r
        for r in rules(offer_file_market.bid(found), market(offer_file_market.standing(found)))
        if r.name == "deadline"
    ]
    assert not deadline.met.any()


WHOLE = {"cores": 8, "memory_gb": 64, "lanes": 16, "link": "900/900/5ms"}


@pytest.mark.parametrize(
    ("rule", "changes"),
    [("cores", {"cores": 1}), ("RAM", {"memory_gb": 40}), ("lanes", {"lanes": 4}), ("upload", {"link": "1/900/5ms"}),
     ("download", {"link": "900/1/5ms"})],
)  # fmt: skip
def test_each_rule_of_a_class_keeps_out_who_misses_it_and_who_does_not_say(
    rule: str, changes: dict[str, object]
) -> None:
    good, bad = host("good", **WHOLE), host("bad", **(WHOLE | changes))
    key = next(iter(changes))
    hosts = [good, bad]
    if key != "link":
        hosts.append(host("silent", **{name: value for name, value in WHOLE.items() if name != key}))
    assert kept(f"{rule} of class A", *hosts, grade=MachineGrade.A) == ["good"]
    needs_little = rule in ("RAM", "lanes")  # of this job: nothing is kept in RAM, nothing crosses the bus
    needed = sorted(each.name for each in hosts if needs_little and (rule == "lanes" or each is not hosts[-1]))
    assert kept(f"{rule} of class B", *hosts, grade=MachineGrade.B) == (needed or ["good"])


def test_class_b_asks_for_the_jobs_need_and_class_a_for_the_rule_of_thumb_too() -> None:
    two = {"cards": 2, "cores": 8, "memory_gb": 96, "link": "900/900/5ms", "lanes": 4}
    found = offer(host("two", **two))
    (pace,) = found.paces.values()
    below = [one.rule for one in pace.admission.findings if one.is_below_thumb and one.state == "ok"]
    assert below == ["lanes", "lanes"]
    assert kept("lanes of class B", host("two", **two), grade=MachineGrade.B) == ["two"]
    assert kept("lanes of class A", host("two", **two), grade=MachineGrade.A) == []
