"""farflung's network through many minutes of breaking lines and dying programs; each follows from its seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim_net import PeerNode
from sim_net_story import tell

HERE = Path(__file__).parent
TOGETHER = 10


@pytest.mark.whole
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(TOGETHER, 100, TOGETHER))]
)
def test_whatever_breaks_calls_end_once_and_peers_meet_again(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        tell(seed)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_whatever_breaks_calls_end_once_and_peers_meet_again_in_many_more_worlds() -> None:
    for seed in range(1000, 3000):
        tell(seed)


@pytest.mark.slow
def test_the_same_seed_tells_the_same_story_in_every_process() -> None:
    def told(salt: str) -> str:
        done = subprocess.run(
            [sys.executable, str(HERE / "sim_net_story.py"), "3"],
            env=os.environ | {"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    first = told("1")
    assert first == told("2")
    assert first.count("\n") > 100
    assert tell(3).world.trace() == tell(3).world.trace() != tell(4).world.trace()


def test_a_story_that_goes_wrong_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = PeerNode._begin

    async def open_house(node: PeerNode) -> None:
        node.admit = None
        await begin(node)

    monkeypatch.setattr(PeerNode, "_begin", open_house)
    with pytest.raises(AssertionError, match=r"again: .* tests/sim/sim_net_story.py \d+"):
        [tell(seed) for seed in range(10)]
