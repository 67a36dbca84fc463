"""A whole network, from the command line: what it says, what it leaves behind, and that it says it twice alike."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from app_trees import Ended

from farflung.core.money import MICRO
from farflung.ledger import genesis_file
from farflung.ledger.block import read_block
from farflung.ledger.chain import Chain
from farflung.ledger.table_rows import KeyRow

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("tree")]

ROUND_PRICE = 2 * 2 * 32 * 3 * MICRO  # peers, sequences, context, steps; a millionth of a credit a token

RESULT_KEYS = {
    "event", "loss", "loss_start", "loss_unigram", "bytes_sent", "bytes_by", "bytes_ring_bf16", "segments_audited",
    "caught", "paid", "slashed", "refunded", "sum", "model_hash", "ledger_root", "seconds",
}  # fmt: skip


@pytest.mark.guarantee
def test_a_run_ends_with_one_object_that_says_everything(tiny: Any) -> None:
    _, ended = tiny
    result = ended.result
    assert set(result) >= RESULT_KEYS
    assert result["sum"] == 0
    assert result["loss"] < result["loss_start"]
    assert result["bytes_sent"] == sum(result["bytes_by"].values())
    assert set(result["bytes_by"]) == {"sync", "audit", "join", "control", "relay"}
    assert result["bytes_by"]["audit"] > 0
    assert result["bytes_ring_bf16"] == 9 * 2 * 1 * 2 * plan(ended)["parameters"]
    for_training, for_audits = paid(ended)
    assert for_training == result["rounds"] * ROUND_PRICE
    assert result["paid"] == for_training + for_audits
    assert result["paid"] + result["refunded"] == plan(ended)["escrow"]
    assert result["segments_audited"] >= 2  # the first contribution of each
    assert for_audits == MICRO * sum(e["tokens"] for e in ended.events if e["event"] == "audit")
    assert (result["caught"], result["slashed"], result["burnt"]) == ([], 0, 0)
    assert result["loss_baseline"] > 0


def paid(ended: Any) -> tuple[int, int]:
    """Micro-credits for training and for audits."""
    roles = {e["peer"]: e["role"] for e in ended.events if e["event"] == "process"}
    settled = [(roles[e["peer"]], e["paid"]) for e in ended.events if e["event"] == "settled"]
    return tuple(sum(amount for r, amount in settled if r == role) for role in ("provider", "verifier"))  # type: ignore[return-value]


def plan(ended: Any) -> dict[str, Any]:
    return next(e for e in ended.events if e["event"] == "plan")


def test_the_stages_come_in_the_order_of_the_way_of_the_data(tiny: Any) -> None:
    _, ended = tiny
    order = [e["event"] for e in ended.events]
    stages = ["plan", "funded", "matched", "joined", "round", "settled", "result"]
    places = [order.index(stage) for stage in stages]
    assert places == sorted(places)
    started = [e for e in ended.events if e["event"] == "process"]
    assert {e["role"] for e in started} == {"validator", "provider", "verifier", "requester", "worker"}
    # ledger, requester, 2 providers and a verifier with a worker each, the supervisor's own worker
    assert len({e["pid"] for e in started}) == 9


def test_a_round_is_opened_when_the_one_before_is_closed_and_everybody_arrives_in_between(tiny: Any) -> None:
    _, ended = tiny
    told = [e for e in ended.events if e["event"] in ("opened", "arrived", "round")]
    rounds = plan(ended)["rounds"]
    assert [(e["event"], e["round"]) for e in told if e["event"] != "arrived"] == [
        (kind, r) for r in range(rounds) for kind in ("opened", "round")
    ]
    for r in range(rounds):
        of_round = [e for e in told if e["round"] == r]
        assert [of_round[0]["event"], of_round[-1]["event"]] == ["opened", "round"]
        came = sorted((e["peer"], e["phase"]) for e in of_round[1:-1])
        assert came == sorted((p, f) for p in of_round[0]["peers"] for f in ("train", "reveal", "merge"))
        assert of_round[0]["waited"] <= of_round[-1]["seconds"]


def test_nobody_is_left_behind(tiny: Any) -> None:
    _, ended = tiny
    for event in ended.events:
        if event["event"] == "process":
            with pytest.raises(ProcessLookupError):
                os.kill(event["pid"], 0)


def test_the_model_is_handed_over_with_all_its_tensors(tiny: Any) -> None:
    command, ended = tiny
    tensors = safetensors.numpy.load_file(command.runs / ended.result["run"] / "model.safetensors")
    assert sum(t.size for t in tensors.values()) == plan(ended)["parameters"]
    assert "blocks.0.qkv.weight" in tensors


@pytest.mark.guarantee
def test_a_second_reader_finds_everything_true(tiny: Any) -> None:
    command, ended = tiny
    checked = command("verify-run", ended.result["run"], "--json")
    assert checked.code == 0, checked.errors
    report = checked.events[0]
    assert report["rounds"] == report["merges"] == 3
    assert report["commitments"] == 6
    assert report["receipts"] == 7  # the job; of two providers and a verifier the lease and the node
    assert report["paid"] == ended.result["paid"]
    assert report["model_hash"] == ended.result["model_hash"]
    assert report["ledger_root"] == ended.result["ledger_root"]


def test_a_second_reader_trains_the_whole_run_again_to_the_same_bits(tiny: Any) -> None:
    command, ended = tiny
    checked = command("verify-run", ended.result["run"], "--audit", "1", "--seed", "3", "--json")
    assert checked.code == 0, checked.errors
    report = checked.events[0]
    found = report["again"]
    segments = 6 * 3  # of two peers' three rounds of three steps
    assert (found["drawn"], found["equal"], found["untold"]) == (segments, segments, 0)
    assert (found["trained"], found["contributions"]) == (6, 6)
    assert "6 contributions to be trained" in checked.errors
    assert report["receipt_files"] == 4
    assert command("verify-run", ended.result["run"], "--seed", "3").code == 2


@pytest.mark.guarantee
def test_every_party_has_a_receipt_that_holds_without_any_network(tiny: Any) -> None:
    command, ended = tiny
    folder = command.runs / ended.result["run"] / "export" / "receipts"
    files = sorted(folder.glob("*.receipt"))
    assert [f.stem for f in files] == ["provider-0", "provider-1", "requester", "verifier-0"]
    checked = [command("receipt", "verify", str(file), "--json").events[0] for file in files]
    assert sum(said["jobs"][0]["lease"]["paid"] for said in checked if said["jobs"][0]["lease"]) == ended.result["paid"]
    assert {said["jobs"][0]["state"] for said in checked} == {"settled"}
    wrong = command("receipt", "verify", str(files[0]), "--genesis", "00" * 32)
    assert wrong.code == 5, wrong.lines


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("rounds.log", "FF-"),
        ("terms.bin", "FF-"),
        ("initial.bin", "FF-"),
        ("payloads", "FF-VERI-019"),
        ("blocks", "FF-"),
        ("receipts", "FF-"),
        ("../model.safetensors", "FF-VERI-04"),
    ],
)
def test_the_second_reader_finds_one_flipped_bit_anywhere(
    tiny: Any, command: Callable[..., Ended], tmp_path: Path, name: str, code: str
) -> None:
    place, ended = tiny
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(place.runs / ended.result["run"], copy)
    target = copy / "export" / name
    target = next(iter(sorted(target.iterdir()))) if target.is_dir() else target
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(bytes(data))
    checked = command("verify-run", str(copy))
    assert checked.code == 5, checked.lines
    assert f"error[{code}" in checked.errors
    assert "Traceback" not in checked.errors


@pytest.mark.soak  # two runs of one seed: test_app_screen
def test_another_folder_gives_the_same_bits(tiny: Any, farflung: Any) -> None:
    command, ended = tiny
    elsewhere = farflung.runs / "else where"
    shutil.copytree(command.runs / ended.result["run"], elsewhere / "first")
    second = farflung("run", "--preset", "tiny", "--json", "--out", str(elsewhere / "x"))
    again = second.result
    said = [event for event in second.events if event["event"] == "repeated"]
    assert [(event["run"], event["differs"]) for event in said] == [("first", [])]
    assert (again["model_hash"], again["ledger_root"]) == (ended.result["model_hash"], ended.result["ledger_root"])


@pytest.mark.soak
def test_another_seed_gives_other_bits(tiny: Any, farflung: Any) -> None:
    other, one = farflung("run", "--preset", "tiny", "--json", "--seed", "2").result, tiny[1].result
    assert other["model_hash"] != one["model_hash"]
    assert other["ledger_root"] != one["ledger_root"]


def test_everybody_proved_a_node_key_that_its_account_put_on_the_ledger(tiny: Any) -> None:
    command, ended = tiny
    export = command.runs / ended.result["run"] / "export"
    genesis = genesis_file.read((export / "genesis.bin").read_bytes())
    chain = Chain(genesis)
    for block in sorted(export.glob("blocks/*")):
        chain.adopt(read_block(block.read_bytes()))
    machines = {"requester", "provider", "verifier"}
    accounts = {event["peer"] for event in ended.events if event["event"] == "process" and event["role"] in machines}
    held = {row.account.hex(): row for row in chain.state.rows(KeyRow)}
    assert set(held) == accounts
    assert {row.epoch for row in held.values()} == {1}
    assert not {row.node.hex() for row in held.values()} & accounts
