"""What a run stages: who cheats is drawn and told to nobody else, and one of four validators is killed at half time."""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.events import AnyEvent, RoundEndEvent, ValidatorKillEvent
from farflung.job.cheat_names import HONEST
from farflung.local.jobs.resolve import resolve
from farflung.local.network.demonstration import Demonstration, staged_configs
from farflung.peers.rundir.genesis import cheater_of


def test_which_provider_cheats_is_drawn_and_told_to_nobody_else() -> None:
    drawn = set()
    for seed in range(1, 21):
        resolved, identity = resolve(f"seed = {seed}", "local", {}, cheat="skip")
        for disputes in (False, True):
            staged = staged_configs(resolved.spec, replace(identity, disputes=disputes))
            assert staged == {f"provider-{cheater_of(resolved.spec)}": {"cheat": "skip", "contests": disputes}}
        assert staged_configs(resolved.spec, replace(identity, cheat=HONEST, disputes=True)) == {}
        drawn.add(cheater_of(resolved.spec))
    assert drawn == set(range(5))


class Told:
    """Processes and journal in one; `runs`: whether there is somebody to kill."""

    def __init__(self, *, runs: bool = True) -> None:
        self.runs, self.killed, self.events = runs, list[str](), list[AnyEvent]()

    def kill(self, name: str) -> bool:
        self.killed.append(name)
        return self.runs

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        self.events.append(event)


def rounds(validators: int, told: Told) -> Told:
    spec = resolve("rounds = 4", "tiny", {})[0].spec
    shown = Demonstration(spec, validators, told, told)
    for round in range(spec.rounds):
        shown.observe(RoundEndEvent(round, 4, 4, 1.0, 1, "", "", 1.0, 1.0, 1))
    return told


def test_one_of_four_validators_is_killed_once_at_half_time() -> None:
    told = rounds(4, Told())
    assert told.killed == ["ledger-4"]
    assert told.events == [ValidatorKillEvent(name="ledger-4", round=2)]


def test_fewer_than_four_are_left_alone_and_who_does_not_run_is_not_told_of() -> None:
    assert rounds(3, Told()).killed == []
    assert rounds(4, Told(runs=False)).events == []
