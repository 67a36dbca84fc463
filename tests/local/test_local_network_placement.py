"""Where the processes of a run are: the job knows nothing of it, and a home is reached through the relay only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from app_trees import Farflung
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.errors import PolicyError
from farflung.job.spec import JobSpec, NetworkSpec
from farflung.local.jobs import resolve
from farflung.local.netlab import NatType
from farflung.local.network.placement import (
    LINE,
    SERVERS,
    LoopbackPlacement,
    NetlabPlacement,
    homes_event,
    homes_of,
    placement_of,
)
from farflung.plan import link_syntax


def spec_of(providers: int = 5, verifiers: int = 2, hidden: int = 2) -> JobSpec:
    return JobSpec(network=NetworkSpec(providers, verifiers, hidden))


@given(st.integers(1, 64), st.integers(1, 16))
@settings(max_examples=20)
def test_each_provider_and_verifier_has_a_home_and_the_first_two_a_symmetric_nat(
    providers: int, verifiers: int
) -> None:
    homes = homes_of(spec_of(providers, verifiers))
    nodes = [f"provider-{i}" for i in range(providers)] + [f"verifier-{i}" for i in range(verifiers)]
    assert list(homes) == nodes
    assert [name for name, home in homes.items() if home.nat is NatType.SYMMETRIC] == nodes[: min(2, providers)]
    assert {home.nat for home in homes.values()} <= {NatType.SYMMETRIC, NatType.PORT_RESTRICTED}
    assert {(home.up, home.down, home.rtt, home.loss) for home in homes.values()} == {(20, 100, 40, 0)}
    NetlabPlacement(homes)  # they are not more than a laboratory can hold


def test_each_process_is_started_in_a_place_of_its_own() -> None:
    homes = homes_of(spec_of())
    housing = NetlabPlacement(homes, 3)
    ways = {name: housing.way(name) for name in (*SERVERS, "relay-2", "relay-3", *homes)}
    assert len(set(ways.values())) == len(ways) == 3 + 2 + 5 + 2
    assert ways["provider-0"][-1].endswith("-h1")
    assert ways["verifier-1"][-1].endswith("-h7")
    assert {LoopbackPlacement().way(name) for name in ways} == {()}


def test_a_run_says_of_its_homes_what_they_are() -> None:
    said = homes_event(homes_of(spec_of(3, 1)))
    assert said is not None
    assert said.names == ("provider-0", "provider-1", "provider-2", "verifier-0")
    assert said.routers == ("symmetric", "symmetric", "port_restricted", "port_restricted")
    assert (said.up, said.down, said.rtt) == (LINE.up, LINE.down, LINE.rtt)
    assert homes_event({}) is None


def test_a_plan_reckons_with_the_laboratorys_lines_and_with_what_the_owner_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    homes = NetlabPlacement(homes_of(spec_of()))
    assert homes.network.is_apart
    assert homes.network.member == link_syntax.parse("20/100/40ms") == link_syntax.parse(homes.line("verifier-1"))
    assert (
        link_syntax.parse(homes.line("requester")) == homes.network.requester == link_syntax.parse(homes.line("relay"))
    )
    monkeypatch.setenv("FARFLUNG_UP_MBIT", "5")
    assert homes.network.member == link_syntax.parse("5/100/40ms")
    assert "the caps in network.toml" in homes.network.told
    assert LoopbackPlacement().network.member == link_syntax.parse(LoopbackPlacement().line("provider-0"))
    assert not LoopbackPlacement().network.is_apart


def test_without_root_homes_are_refused_and_loopback_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PolicyError) as refused:
        placement_of(spec_of(), 2, in_homes=True)
    assert (refused.value.code, refused.value.cause) == ("FF-APP-135", "needs root on Linux")
    assert not placement_of(spec_of(), 2, in_homes=False).homes


def test_a_machine_that_cannot_make_homes_says_so_and_begins_nothing(farflung: Farflung) -> None:
    ended = farflung("run", "--preset", "tiny", "--lab", PATH="")
    said = ended.refusal("FF-APP-135", 4)
    assert "needs " in said
    assert "a run without --lab has the same result" in said
    assert farflung.newest() is None


def test_a_run_remembers_that_it_was_in_homes() -> None:
    _, identity = resolve.resolve(None, "tiny", {})
    assert identity.lab is False
    assert identity.relays == 2
    assert "lab" not in identity.text  # it is no part of the job
    assert "relays" not in identity.text
