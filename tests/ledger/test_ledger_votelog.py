"""The vote log: what was logged comes back, what a crash tore is dropped, and no damage passes for a crash."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from farflung.core import limits
from farflung.core.errors import RunError
from farflung.core.io import durable_files
from farflung.ledger.io import votelog
from farflung.ledger.io.votelog import VoteLog
from farflung.ledger.sdbft import votelog_format

VOTES = [b"vote %d" % number for number in range(5)]


class Killed(BaseException):
    """What the failpoint would have done to the process."""


def kill_at(patch: pytest.MonkeyPatch, name: str) -> None:
    def die() -> None:
        raise Killed

    patch.setattr(durable_files, "_die", die)
    patch.setenv("FARFLUNG_FAILPOINT", name)
    durable_files._passed.clear()


def logged(path: Path, *batches: list[bytes]) -> bytes:
    log = VoteLog(path)
    for batch in batches:
        log.append(batch)
    log.close()
    return path.read_bytes()


def reload(path: Path) -> tuple[bytes, ...]:
    log = VoteLog(path)
    log.close()
    return log.records


def test_records_come_back_in_order(tmp_path: Path):
    logged(tmp_path / "votes", VOTES[:1], [], VOTES[1:4], VOTES[4:])
    assert reload(tmp_path / "votes") == tuple(VOTES)
    assert reload(tmp_path / "votes") == tuple(VOTES)
    logged(tmp_path / "votes", [b""], [bytes(2000)])
    assert reload(tmp_path / "votes") == (*VOTES, b"", bytes(2000))


def test_a_new_log_replaces_the_old_one(tmp_path: Path):
    log = VoteLog(tmp_path / "votes")
    log.append(VOTES)
    log.begin(VOTES[3:])
    log.append([b"later"])
    log.close()
    assert reload(tmp_path / "votes") == (*VOTES[3:], b"later")
    assert os.listdir(tmp_path) == ["votes"]


def test_nobody_else_may_read_it(tmp_path: Path):
    logged(tmp_path / "votes", VOTES)
    assert (tmp_path / "votes").stat().st_mode & 0o777 == 0o600


def test_records_beyond_a_frame_are_begun_with_in_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "VOTE_FRAME_BYTES", 100)
    log = VoteLog(tmp_path / "votes")
    records = [bytes([number]) * 40 for number in range(9)]
    log.begin(records)
    log.append([b"x" * 80])
    with pytest.raises(RunError, match="FF-LEDG-321"):
        log.append([b"x" * 120])
    log.close()
    assert reload(tmp_path / "votes") == (*records, b"x" * 80)


def test_a_full_log_takes_nothing_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = VoteLog(tmp_path / "votes")
    log.append(VOTES)
    monkeypatch.setattr(limits, "VOTE_LOG_BYTES", log.size + 60)
    with pytest.raises(RunError, match="FF-LEDG-321"):
        log.append([bytes(60)])
    log.append([b"small"])
    with pytest.raises(RunError, match="FF-LEDG-321"):
        log.begin([bytes(1000)])
    log.close()
    assert reload(tmp_path / "votes") == (*VOTES, b"small")
    monkeypatch.setattr(limits, "VOTE_LOG_BYTES", 100)
    with pytest.raises(RunError, match="FF-LEDG-320"):
        VoteLog(tmp_path / "votes")


# Crashes

APPENDS = ["ledger.votes.write", "ledger.votes.fsync"]
BEGINS = [f"ledger.votes.begin.{point}" for point in ("write", "fsync", "rename", "dirsync")]


def test_every_write_passes_a_failpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FARFLUNG_FAILPOINT_LOG", str(tmp_path / "log"))
    log = VoteLog(tmp_path / "votes")
    log.append(VOTES)
    log.close()
    assert (tmp_path / "log").read_text().split() == BEGINS + APPENDS


@pytest.mark.parametrize("point", APPENDS)
def test_an_append_that_was_cut_short_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
):
    logged(tmp_path / "votes", VOTES[:2])
    log = VoteLog(tmp_path / "votes")
    with monkeypatch.context() as patch:
        kill_at(patch, point)
        with pytest.raises(Killed):
            log.append(VOTES[2:])
    kept = tuple(VOTES[:2] if point.endswith("write") else VOTES)
    logged(tmp_path / "votes", [b"next life"])
    assert reload(tmp_path / "votes") == (*kept, b"next life")


@pytest.mark.parametrize("point", BEGINS)
def test_a_new_log_is_there_whole_or_the_old_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str):
    logged(tmp_path / "votes", VOTES)
    log = VoteLog(tmp_path / "votes")
    with monkeypatch.context() as patch:
        kill_at(patch, point)
        with pytest.raises(Killed):
            log.begin([b"new"])
    assert reload(tmp_path / "votes") == ((b"new",) if point.endswith("dirsync") else tuple(VOTES))


def test_any_prefix_is_a_torn_append_but_not_of_what_the_log_began_with(tmp_path: Path):
    path = tmp_path / "votes"
    logged(path, VOTES)
    begun = len(path.read_bytes())
    assert reload(path) == tuple(VOTES)  # begins anew: all of it is one whole piece now
    whole = logged(path, [b"a", b"b"], [bytes(range(256)) * 4])
    first = begun + len(votelog_format.framed(2, (b"a", b"b")))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size < begun:
            with pytest.raises(RunError, match="FF-LEDG-320"):
                votelog._read(path)
        else:
            assert votelog._read(path) == (*VOTES, *((b"a", b"b") if size >= first else ()))


def test_a_sector_that_never_came_is_torn_in_the_last_append_only(tmp_path: Path):
    path, large = tmp_path / "votes", os.urandom(3000)
    before = len(logged(path, VOTES))
    whole = logged(path, [large])
    begins = -(-len(whole[: whole.index(large)]) // 512) * 512
    for start in range(begins, len(whole), 512):
        path.write_bytes(whole[:start] + bytes(len(whole[start : start + 512])) + whole[start + 512 :])
        assert reload(path) == tuple(VOTES), (before, start)
    followed = whole + votelog_format.framed(3, (b"later",))
    path.write_bytes(followed[:begins] + bytes(512) + followed[begins + 512 :])
    with pytest.raises(RunError, match="FF-LEDG-320"):
        VoteLog(path)
    path.write_bytes(followed[:begins] + bytes(512) + followed[begins + 512 : len(whole) + 9])
    with pytest.raises(RunError, match="FF-LEDG-320"):
        VoteLog(path)
    head = whole.index(large) - 20  # head of the frame, its body's and its record's length
    lost = followed[:head] + bytes(1000) + followed[head + 1000 :]
    path.write_bytes(lost)
    with pytest.raises(RunError, match="FF-LEDG-320"):
        VoteLog(path)
    path.write_bytes(lost[: len(whole)])
    assert reload(path) == tuple(VOTES)


def test_a_flipped_head_is_damage_though_an_append_that_never_came_follows():
    begun, number = votelog_format.begun([b"x" * 600])
    synced, lost = votelog_format.framed(number, (b"y" * 1200,)), bytes(3000)
    assert votelog_format.read_frames(begun + synced + lost) == ((b"x" * 600, b"y" * 1200), None)
    flipped = bytes([*synced[:8], synced[8] ^ 1, *synced[9:]])
    assert votelog_format.read_frames(begun + flipped + lost) == ((b"x" * 600,), len(begun))


def test_a_disk_that_fills_up_is_told_and_nothing_more_is_signed(tmp_path: Path):
    log = VoteLog(tmp_path / "votes")
    log.append(VOTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.size + 30, hard))
        with pytest.raises(RunError, match="FF-CORE-050"):
            log.append([bytes(500)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(RunError, match="FF-LEDG-322"):
        log.append([b"one more"])
    assert reload(tmp_path / "votes") == tuple(VOTES)


# Damage


def test_any_flipped_bit_keeps_a_validator_from_starting(tmp_path: Path):
    """Even in the last vote: a log that forgets is worse than a validator that does not start."""
    path = tmp_path / "votes"
    whole = logged(path, VOTES[:2], VOTES[2:4], VOTES[4:])
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(flipped))
        with pytest.raises(RunError, match="FF-LEDG-320") as caught:
            votelog._read(path)
        assert "new key" in caught.value.hint
    with pytest.raises(RunError, match="FF-LEDG-320"):
        VoteLog(path)
    assert path.read_bytes() == bytes(flipped), "a damaged log stays as it is"


def test_frames_out_of_order_are_damage(tmp_path: Path):
    path = tmp_path / "votes"
    whole = logged(path, VOTES[:1], VOTES[1:2], VOTES[2:3])
    size = len(votelog_format.framed(1, (VOTES[0],)))
    first, second, third = (whole[len(whole) - k * size :][:size] for k in (3, 2, 1))
    begun = whole[: -3 * size]
    for order in ((second, first), (first, first), (first, third), (first, second, second), (third,)):
        path.write_bytes(begun + b"".join(order))
        with pytest.raises(RunError, match="FF-LEDG-320"):
            VoteLog(path)


def test_a_file_that_is_no_vote_log_is_refused(tmp_path: Path):
    for content in (b"", b"something else" * 9, votelog_format.framed(0, ()), votelog_format.framed(0, (b"x", b"0"))):
        (tmp_path / "votes").write_bytes(content)
        with pytest.raises(RunError, match="FF-LEDG-320"):
            VoteLog(tmp_path / "votes")


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path):
    (tmp_path / "votes").mkdir()
    with pytest.raises(RunError, match="FF-LEDG-323"):
        VoteLog(tmp_path / "votes")
