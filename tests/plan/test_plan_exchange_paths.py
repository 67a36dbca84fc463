"""What a plan foresees of a round's exchange: the round's own choice, and the bytes that it moves over whose line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds
from farflung.job.spec import AuditSpec, JobSpec, NetworkSpec
from farflung.plan import exchange_choice, exchange_paths
from farflung.plan.exchange_choice import ExchangeForecast, ExchangeMember, ExchangeRound, ExchangeWay
from farflung.plan.exchange_paths import HERE, RunLinks, foreseen, moved
from farflung.plan.link_syntax import Link
from farflung.plan.run_traffic import FAN_PUSH, all_relayed, on_wire, traffic

HOME = Link(20e6, 100e6, Seconds(0.04))
HOMES = RunLinks(HOME, is_apart=True, told="homes")
LAYOUT = TensorLayout.of({"a.weight": (512, 512), "b.bias": (512,)})
REQUESTER = -1


class Fixed:
    """A codec whose payloads have one length."""

    def expect(self, layout: TensorLayout) -> float:
        return 100_000.0


def spec(providers: int = 5, hidden: int = 2, rate: float = 0.0) -> JobSpec:
    return JobSpec(rounds=3, network=NetworkSpec(providers=providers, hidden=hidden), audit=AuditSpec(4, rate, 0))


def transfers(members: int, forecast: ExchangeForecast) -> list[tuple[int, int]]:
    """Who sends a payload to whom, one by one, where nothing is copied."""
    peers, via = range(members), forecast.via
    if forecast.way is ExchangeWay.GATHER:
        return [(i, j) for i in peers for j in (*peers, REQUESTER) if i != j]
    pushed = [(i, via) for i in peers if i != via]
    fetched = [(via, j) for j in peers for _ in range(members - 1) if j != via]
    return pushed + fetched + ([] if via == REQUESTER else [(via, REQUESTER)] * members)


def relayed(hidden: set[int], pair: tuple[int, int]) -> float:
    """Whoever is dialled first makes the connection; the requester dials a hidden member at the relay."""
    count = len(hidden.intersection(pair))
    return 1.0 if count == 2 or (count and REQUESTER in pair) else count / 2


@given(st.integers(2, 9), st.data())
def test_each_way_moves_what_its_transfers_move_one_by_one(members: int, data: st.DataObject) -> None:
    hidden = data.draw(st.integers(0, members))
    ways = [
        ExchangeForecast(ExchangeWay.GATHER, Seconds(1.0)),
        ExchangeForecast(ExchangeWay.PEER, Seconds(1.0)),
        ExchangeForecast(ExchangeWay.PEER, Seconds(1.0), 0),
    ]
    for forecast in ways:
        made, said = transfers(members, forecast), moved(members, hidden, forecast)
        lines = range(members)
        assert said.sent == said.most == len(made)
        assert said.up == max(sum(sender == line for sender, _ in made) for line in lines)
        assert said.down == max(sum(taker == line for _, taker in made) for line in lines) == members - 1
        # whichever of the members collects is as likely to be hidden as any other
        turned = [{(i + turn) % members for i in range(hidden)} for turn in lines]
        through = sum(relayed(behind, pair) for behind in turned for pair in made) / members
        assert said.relayed == pytest.approx(through)


@given(st.integers(2, 200), st.integers(1, 200))
def test_by_fan_out_a_payload_leaves_its_maker_once_and_the_relay_gives_it_to_all_others(
    members: int, hidden: int
) -> None:
    said = moved(members, hidden, ExchangeForecast(ExchangeWay.FAN, Seconds(1.0)))
    assert (said.sent, said.up, said.down) == (members, 1, members - 1)
    assert said.relayed == said.most == members * members  # all others, and the requester


@pytest.mark.parametrize("lines", [HERE, HOMES])
def test_the_plan_chooses_what_the_first_round_chooses(lines: RunLinks) -> None:
    for providers, hidden in ((2, 0), (2, 1), (5, 2), (5, 5), (9, 9)):
        parties = [ExchangeMember(lines.member, 100_000)] * providers
        relay = lines.relay if hidden else None
        round = ExchangeRound(parties, lines.requester, relay, hidden == providers)
        assert foreseen(spec(providers, hidden), lines, 100_000) == exchange_choice.choose(round, may_fan=bool(hidden))


def test_bytes_follow_the_way_and_without_a_relay_nothing_is_copied() -> None:
    plan, pairs = (traffic(spec(), LAYOUT, 1, Fixed(), each) for each in (HERE, RunLinks(can_copy=False)))
    assert plan.forecast.way is ExchangeWay.FAN is not pairs.forecast.way
    once = 5 * (100_000 + 7 * 44 + FAN_PUSH)
    assert (plan.sync_round, plan.up_round) == (once, once // 5)
    assert plan.sync_relayed == 3 * 5 * once  # each frame to four members and the requester
    assert plan.sync_most == pairs.sync == pairs.sync_most > 4 * plan.sync
    assert pairs.up_round == on_wire(100_000)  # by the requester, on a line that is never the slowest
    nobody = traffic(spec(hidden=0), LAYOUT, 1, Fixed())
    assert nobody.forecast.way is not ExchangeWay.FAN
    assert (nobody.relay, nobody.relay_most) == (0, 0)


def test_where_nobody_listens_the_relay_sends_every_copy() -> None:
    plan = traffic(spec(hidden=5), LAYOUT, 1, Fixed(), HOMES)
    assert plan.forecast.way is ExchangeWay.FAN
    assert all_relayed(plan).relay == 5 * plan.sync + plan.join + plan.audit
    assert plan.relay_most >= plan.relay


def test_a_group_has_no_more_members_than_it_may() -> None:
    assert foreseen(spec(exchange_paths.limits.FAN_MEMBERS - 1, 3), HOMES, 100_000).way is ExchangeWay.FAN
    assert foreseen(spec(exchange_paths.limits.FAN_MEMBERS, 3), HOMES, 100_000).way is not ExchangeWay.FAN
