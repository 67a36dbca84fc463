"""A job on others' computers waits for no sleeping home, and is checked by two where the network has two."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.app.cli.job_options import flags_of
from farflung.app.cli.lend import price_note
from farflung.app.cli.run_on import audit_line, round_line, stake_line
from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.core.money import Credits
from farflung.core.units import Seconds
from farflung.job.open_network import may_hire_fewer_verifiers
from farflung.ledger.transactions import LeaseRole
from farflung.local.jobs.resolve import resolve
from farflung.local.network import remote_start
from farflung.market.provider_offer import Capabilities, OfferListing
from farflung.peers.requester.lease_negotiation import StandingAsks
from farflung.peers.requester.market_survey import survey
from farflung.peers.rundir.genesis import stake_of
from farflung.plan.run_price import price

CAN = Capabilities(2, 4 << 30, 9 << 30, 10**11, 1, "Linux", "x86_64", "2.13.0")


@pytest.mark.parametrize(
    ("preset", "flags", "quorum", "verifiers"),
    [
        ("local", {}, 0.75, 3),  # 5 providers
        ("local", {"network.providers": "3"}, 1.0, 3),  # a third away would be too many for a quorum
        ("local", {"churn.quorum": "1"}, 1.0, 3),
        ("local", {"churn.quorum": "0.6", "network.verifiers": "1"}, 0.6, 1),
        ("tiny", {}, 1.0, 2),
        ("tiny", {"network.providers": "4"}, 0.75, 2),
        ("tiny", {"audit.rate": "0", "audit.probation": "0"}, 1.0, 1),  # nobody is audited
    ],
)
def test_only_a_job_on_others_computers_has_the_safe_defaults(
    preset: str, flags: dict[str, str], quorum: float, verifiers: int
) -> None:
    resolved, identity = resolve(None, preset, flags, cheat="none", is_open=True)
    assert (resolved.spec.churn.quorum, resolved.spec.network.verifiers) == (quorum, verifiers)
    assert (f"quorum = {quorum}" in identity.text) or quorum == 1
    local, _ = resolve(None, preset, flags, cheat="none")
    assert local.spec.churn.quorum == float(flags.get("churn.quorum", 1))
    assert local.spec.network.verifiers == int(flags.get("network.verifiers", 1 if preset == "tiny" else 3))


VERIFIER, PROVIDER, AWAY, OWN, STRANGER = (PeerId(bytes([i]) * 32) for i in range(1, 6))


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ((VERIFIER,), ""),
        ((AWAY,), ""),  # it is waited for
        ((VERIFIER, PROVIDER), "02020202 lends to train"),
        ((OWN,), "your own account"),
        ((STRANGER, PROVIDER), f"{STRANGER.hex()} is no node of this network; 02020202 lends to train"),
    ],
)
def test_a_named_key_that_cannot_check_is_refused_before_anything_is_locked(named: Any, wrong: str) -> None:
    async def node(key: PeerId) -> Any:
        return None if key == STRANGER else SimpleNamespace(node=key)

    def listed(key: PeerId) -> list[OfferListing]:
        return [OfferListing(key, Credits(1), Credits(10**9), CAN)]

    ledger: Any = SimpleNamespace(own=OWN, node=node)
    asks = StandingAsks({LeaseRole.TRAIN: listed(PROVIDER), LeaseRole.AUDIT: listed(VERIFIER) + listed(OWN)}, {})
    check = remote_start.check_named(named, asks, ledger)
    if not wrong:
        asyncio.run(check)
        return
    with pytest.raises(PolicyError, match="FF-APP-680") as refused:
        asyncio.run(check)
    assert wrong in refused.value.cause


def test_a_job_that_names_its_verifiers_says_so_before_yes_and_waits_for_them_by_name() -> None:
    keys = f"{VERIFIER.hex()},{AWAY.hex()}"
    job, _ = resolve(None, "tiny", {"audit.verifiers": keys}, cheat="none", is_open=True)
    asks = {LeaseRole.TRAIN: [VERIFIER, PROVIDER, OWN], LeaseRole.AUDIT: [VERIFIER, STRANGER]}
    of = {role: [OfferListing(key, Credits(1), Credits(9), CAN) for key in each] for role, each in asks.items()}
    found = survey(job.spec, StandingAsks(of, {}), 0, stake_of(job.spec))
    assert (found.stake, found.away, found.is_enough) == (0, (AWAY,), False)
    assert (found.providers.online, found.verifiers.online) == (2, 1)  # a named one trains not in the job
    assert remote_start.online_text(found) == "2 of 2 providers, 1 of 2 verifiers online (away: 03030303)"
    fast = replace(of[LeaseRole.TRAIN][2], capabilities=replace(CAN, flops=9 * CAN.flops))
    unlike = {**of, LeaseRole.TRAIN: [of[LeaseRole.TRAIN][1], fast]}
    found = survey(job.spec, StandingAsks(unlike, {}), 0, stake_of(job.spec))
    assert remote_start.online_text(found).endswith("; 2 offers → 1 similar")
    mine = {role: [replace(ask, owner=OWN) for ask in each] for role, each in of.items()}
    mine[LeaseRole.AUDIT] = [replace(mine[LeaseRole.AUDIT][0], peer=key) for key in (VERIFIER, AWAY)]
    found = survey(job.spec, StandingAsks(mine, {}), 0, stake_of(job.spec))
    assert (found.verifiers.fitting, found.providers.online) == (2, 0)  # both are of one owner, whose others train not
    assert "a weaker proof" in audit_line(2, is_named=True)
    assert "none" in stake_line(found.stake)
    assert not may_hire_fewer_verifiers(job)


@pytest.mark.parametrize(
    ("online", "flags", "verifiers"),
    [(1, {}, 1), (2, {}, 2), (9, {}, 2), (0, {}, None), (1, {"network.verifiers": "2"}, None)],
)
def test_a_second_verifier_is_hired_where_the_network_has_one(
    online: int, flags: dict[str, str], verifiers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(role: LeaseRole, count: int) -> list[OfferListing]:
        keys = [PeerId(bytes([role + 1, i]) * 16) for i in range(count)]
        return [OfferListing(key, Credits(1), Credits(10**9), CAN) for key in keys]

    async def read_asks(_ledger: Any, _directory: Any) -> StandingAsks:
        return StandingAsks(
            {LeaseRole.TRAIN: asks(LeaseRole.TRAIN, 2), LeaseRole.AUDIT: asks(LeaseRole.AUDIT, online)}, {}
        )

    async def directory() -> Any:
        return None

    monkeypatch.setattr(remote_start, "read_asks", read_asks)
    monkeypatch.setattr(remote_start, "any_of", lambda _reaches: directory)
    job, _ = resolve(None, "tiny", flags, cheat="none", is_open=True)
    ledger: Any = SimpleNamespace()
    wanted = remote_start.notice_of(job.spec, price(job.spec), 0)
    found = remote_start._found(ledger, (), job, wanted, Seconds(0), lambda _line: None)
    if verifiers is None:
        with pytest.raises(PolicyError, match="FF-APP-562"):
            asyncio.run(found)
        return
    survey = asyncio.run(found)
    assert (survey.verifiers.wanted, survey.is_enough) == (verifiers, True)
    assert ("FF-APP-603" in audit_line(survey.verifiers.wanted)) == (verifiers == 1)


def test_what_a_person_agrees_to_names_the_quorum() -> None:
    assert "75 % of the tokens" in round_line(0.75)
    assert "every provider" in round_line(1.0)


def test_a_job_that_waits_for_nodes_is_announced_to_those_who_lend(monkeypatch: pytest.MonkeyPatch) -> None:
    online, told = [0], list[Any]()

    async def read_asks(_ledger: Any, _directory: Any) -> StandingAsks:
        listed = {
            role: [
                OfferListing(PeerId(bytes([role + 1, i]) * 16), Credits(1), Credits(10**9), CAN)
                for i in range(online[0])
            ]
            for role in LeaseRole
        }
        return StandingAsks(listed, {})

    async def announce(_seat: Any, notice: Any) -> None:
        told.append(notice)
        online[0] = 9

    async def directory() -> Any:
        return None

    monkeypatch.setattr(remote_start, "read_asks", read_asks)
    monkeypatch.setattr(remote_start, "announce", announce)
    monkeypatch.setattr(remote_start, "any_of", lambda _reaches: directory)
    monkeypatch.setattr(remote_start, "LOOK_SECONDS", 0.0)
    job, _ = resolve(None, "tiny", {}, cheat="none", is_open=True)
    wanted = remote_start.notice_of(job.spec, price(job.spec), 7)
    ledger: Any = SimpleNamespace()
    assert asyncio.run(remote_start._found(ledger, (), job, wanted, Seconds(600), lambda _line: None)).is_enough
    assert told == [wanted]
    network = job.spec.network
    assert (wanted.providers, wanted.verifiers, wanted.worker_bytes) == (network.providers, network.verifiers, 7)
    assert wanted.token_flop > 0


@pytest.mark.parametrize(
    ("given", "value"),
    [('"net:a"', "net:a"), ("net:a", "net:a"), ('"a","b"', '"a","b"'), ('"', '"'), ("[1, 2]", "[1, 2]"), ('""', "")],
)
def test_a_value_that_was_copied_with_its_quotes_is_the_same(given: str, value: str) -> None:
    assert flags_of((f"model.start = {given}",)) == {"model.start": value}


@pytest.mark.parametrize(("price", "is_said"), [(10**6, False), (10**9, False), (10**12, True)])
def test_an_ask_in_what_once_were_micro_credits_is_noted(price: int, is_said: bool) -> None:
    assert ("in credits" in price_note(price)) == is_said
