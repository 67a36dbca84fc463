"""The library over torch.distributed: processes of gloo on this machine, cases of one size in the same processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Two processes and four, each of which imports torch; all cases of a size in the same ones.
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("ranks")]

Said = dict[str, list[dict[str, Any]]]  # of each case what each rank said
PROGRAM = Path(__file__).parents[1] / "support" / "app_sync_ranks.py"


def ranks(tmp_path: Path, size: int, *cases: str) -> Said:
    """Runs cases one after the other in `size` processes; ends them after four minutes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "APP_SYNC_FOLDER": str(tmp_path / "saved")}
    named = ",".join(cases)
    commands = [[sys.executable, str(PROGRAM), named, str(rank), str(size), str(tmp_path)] for rank in range(size)]
    logs = [(tmp_path / f"{rank}.log").open("w+") for rank in range(size)]
    children = [
        subprocess.Popen(command, env=environment, stderr=log, stdout=log)
        for command, log in zip(commands, logs, strict=True)
    ]
    try:
        codes = [child.wait(240) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
        said = []
        for log in logs:
            log.seek(0)
            said.append(log.read())
            log.close()
    assert codes == [0] * size, "\n".join(said)[-3000:]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    return {case: [each[case] for each in found] for case in cases}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Said:
    return ranks(tmp_path_factory.mktemp("pair"), 2, "methods", "checkpoint", "ddp")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Said:
    return ranks(tmp_path_factory.mktemp("four"), 4, "trouble", "islands")


def far(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.mark.slow
def test_all_methods_end_with_the_same_bits_on_every_rank(pair: Said) -> None:
    first, *others = pair["methods"]
    for other in others:
        for name, case in first.items():
            assert case["end"] == other[name]["end"], name
    for name in ("sparse_loco", "muloco", "dgc", "powersgd"):
        assert len(first[name]["up"]) >= 4
        assert all(up >= payload for up, payload in zip(first[name]["up"], first[name]["payload"], strict=True))


@pytest.mark.whole
def test_a_rank_with_other_parameters_is_named_and_a_broken_payload_is_left_out_by_all(four: Said) -> None:
    first, *others = four["trouble"]
    for other in others:
        assert other == first
    assert "FF-SYNC-006: parameters of rank 1 differ" in first["differs"]
    assert "FF-COMP" in first["left"][0]["1"]
    assert "the bound is" in first["left"][1]["1"]
    assert first["left"][2] == {}


@pytest.mark.slow
def test_a_run_goes_on_from_a_distributed_checkpoint_bit_for_bit(pair: Said) -> None:
    first, second = pair["checkpoint"]
    assert first["whole"] == first["parts"] == second["whole"] == second["parts"]


@pytest.mark.slow
def test_gradients_pass_the_ddp_hook(pair: Said) -> None:
    first, second = pair["ddp"]
    for name, case in first.items():
        assert case["end"] == second[name]["end"], name
        assert case["loss"] < 1.6, name
    assert far(first["exact"]["end"], first["plain"]["end"]) < 1e-6
    assert far(first["dense 8"]["end"], first["plain"]["end"]) < 5e-3


@pytest.mark.slow
def test_only_what_passes_between_islands_is_compressed(four: Said) -> None:
    first, *others = four["islands"]
    for other in others:
        assert other["8 bit"]["end"] == first["8 bit"]["end"]
    assert far(first["exact"]["end"], first["one machine"]["end"]) < 1e-5
    assert 0 < far(first["8 bit"]["end"], first["one machine"]["end"]) < 5e-3
    assert first["8 bit"]["bytes"] < 0.5 * first["exact"]["bytes"]
