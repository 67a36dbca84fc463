"""code2prompt #30, files-to-prompt #76: files in UTF-16 counted as binary, and vanished from the input unseen."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from farflung.app.cli import plan_offers
from farflung.app.cli.main import main
from farflung.core import limits
from farflung.core.errors import FarflungError
from farflung.core.events import FileCount, PlanEvent
from farflung.job.io import job_files, text_folders
from farflung.job.spec import DataSpec, JobSpec, ModelSpec
from farflung.job.text_files import REASONS, DataAccount
from farflung.local.network import prepare
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import read_account, write_account
from farflung.plan.machine import MachineMeasurements
from farflung.watch import data_text, event_lines, screen_progress
from farflung.watch.fold import RunTimeline

TEXT = "Zeile eins, naïve; 日本語 🙂\r\n" * 100
PLAIN = TEXT.encode()
MODEL = ModelSpec(context=4)
PLAN = PlanEvent(
    name="n", run="r", model="m", parameters=1, rounds=1, steps=1, peers=2, tokens=1, sync_bytes=1, ring_bytes=1,
    memory_bytes=1, seconds=1.0, price=1, escrow=1, data_bytes=1, sync="s",
)  # fmt: skip


def read(path: Path, limit: int = 0) -> job_files.DataReading:
    return job_files.read_data(DataSpec(path=str(path), heldout=0.25, limit=limit), MODEL, Path("/nowhere"))


def made_of(found: job_files.DataReading) -> bytes:
    return bytes(np.concatenate([found.dataset.train, found.dataset.heldout]))


def reasons(counts: tuple[FileCount, ...]) -> dict[str, tuple[int, int, str]]:
    return {count.reason: (count.files, count.bytes, count.first) for count in counts}


@pytest.mark.parametrize("coding", ["utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_text_is_decoded_by_its_byte_order_mark_alone_and_in_a_folder(coding: str, tmp_path: Path) -> None:
    marked = TEXT.encode(coding) if coding[-2:].isdigit() else ("\ufeff" + TEXT).encode(coding)
    (tmp_path / "a.txt").write_bytes(marked)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_bytes(marked)
    for path in (tmp_path / "a.txt", tmp_path / "folder"):
        found = read(path)
        assert made_of(found) == PLAIN
        assert found.account.files == 1
        assert not found.account.left_out
        assert reasons(found.account.noted) == {"decoded": (1, len(marked), "a.txt")}
    tokens, account = job_files.read_tokens(tmp_path / "folder", MODEL)
    assert bytes(tokens) == PLAIN
    assert reasons(account.noted) == {"decoded": (1, len(marked), "a.txt")}


KINDS: dict[str, tuple[bytes, str]] = {  # what a file holds, and what is told of it; "": nothing
    "plain": (PLAIN, ""),
    "marked UTF-8": (b"\xef\xbb\xbf" + PLAIN, ""),
    "Latin-1 prose": (
        "À côté du château, où l'été s'achève. ".encode("latin-1") * 9 + b"and plain ascii" * 30,
        "bytes",
    ),
    "control bytes": (b"\x1b[1mbold\x1b[0m \x07 line\x0c\n" * 40, ""),
    "a zero byte at the end": (PLAIN + b"\0", "with zeros"),
    "a zero byte in 1,000": (b"a" * 999 + b"\0", "with zeros"),
    "two in 1,999": (b"a" * 1997 + b"\0\0", "zeros"),
    "a zero byte in a UTF-16 text": (("a\0" + TEXT).encode("utf-16"), "with zeros"),
    "UTF-16 without a mark": (TEXT.encode("utf-16-le"), "zeros"),
    "UTF-16 that is cut in a character": (TEXT.encode("utf-16")[:-1], "mark"),
    "UTF-16 with half a pair": (b"\xff\xfe\x00\xd8a\x00" * 9, "mark"),
    "UTF-32 out of range": (b"\xff\xfe\0\0" + b"\xff" * 40, "mark"),
    "compressed": (bytes(n * n % 251 + 1 for n in range(999)) * 3, "encoding"),
    "Shift-JIS": (("日本語の文章です。" * 40).encode("shift-jis"), "encoding"),
    "empty": (b"", "empty"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_of_a_folder_is_in_the_data_or_counted_with_the_reason(kind: str, tmp_path: Path) -> None:
    data, reason = KINDS[kind]
    (tmp_path / "it").write_bytes(data)
    (tmp_path / "other").write_bytes(PLAIN * 9)
    account = read(tmp_path).account
    counted = {reason: (1, len(data), "it")} if reason else {}
    is_in = reason in ("", "bytes", "with zeros")
    assert account.files == 1 + is_in
    assert reasons(account.left_out) == ({} if is_in else counted)
    noted = reasons(account.noted)
    noted.pop("decoded", None)
    assert noted == (counted if is_in else {})
    if reason in ("zeros", "encoding", "mark"):  # named alone it is refused with the same words
        with pytest.raises(FarflungError, match="FF-JOB-021") as caught:
            read(tmp_path / "it")
        assert caught.value.cause in REASONS[reason]
        assert f"-t UTF-8 {shlex.quote(str(tmp_path / 'it'))}" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32-le", "UTF-32LE"),
        ("utf-32-be", "UTF-32BE"),
        ("latin-1", "LATIN1"),
    ],
)
def test_the_hint_for_a_text_in_another_encoding_is_a_command_that_makes_utf_8(
    written: str, said: str, tmp_path: Path
) -> None:
    path, text = tmp_path / "été à lire.txt", "é à ü " * 400
    path.write_bytes(text.encode(written))
    with pytest.raises(FarflungError, match="FF-JOB-021") as caught:
        read(path)
    command = (caught.value.hint or "").split("`")[1]
    assert command.split()[:5] == ["iconv", "-f", said, "-t", "UTF-8"]
    if shutil.which("iconv") is not None:
        subprocess.run(["sh", "-c", command], check=True)
        assert made_of(read(tmp_path / "été à lire.utf8.txt")) == text.encode()


def test_a_stray_zero_byte_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(PLAIN + b"\0" + PLAIN)
    assert made_of(read(tmp_path)) == PLAIN + b"\0" + PLAIN


def hidden_file(folder: Path) -> None:
    (folder / ".hidden").write_bytes(b"12345")


def hidden_folder(folder: Path) -> None:
    (folder / ".git" / "objects").mkdir(parents=True)
    (folder / ".git" / "objects" / "b").write_bytes(b"123")
    (folder / ".git" / "config").write_bytes(b"12")


def link_to_a_folder(folder: Path) -> None:
    (folder / "more").symlink_to(folder.parent)


def link_in_a_circle(folder: Path) -> None:
    (folder / "more").symlink_to("more")


def dead_link(folder: Path) -> None:
    (folder / "more").symlink_to("nowhere")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "more")


@pytest.mark.parametrize(
    ("makes", "reason", "count"),
    [
        (hidden_file, "hidden", (1, 5, ".hidden")),
        (hidden_folder, "hidden", (2, 5, ".git/config")),
        (link_to_a_folder, "link", (1, 0, "more")),
        (link_in_a_circle, "dead link", (1, 0, "more")),
        (dead_link, "dead link", (1, 0, "more")),
        (pipe, "special", (1, 0, "more")),
    ],
)
def test_what_a_folder_holds_beside_files_is_counted(
    makes: Callable[[Path], None], reason: str, count: tuple[int, int, str], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_bytes(PLAIN)
    makes(folder)
    found = read(folder)
    assert made_of(found) == PLAIN
    assert reasons(found.account.left_out) == {reason: count}
    (folder / "a.txt").unlink()
    with pytest.raises(FarflungError, match="FF-JOB-020") as caught:
        read(folder)
    assert REASONS[reason] in caught.value.cause


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.txt").write_bytes(PLAIN)
    (tmp_path / "data" / "b.txt").symlink_to("../a.txt")
    assert made_of(read(tmp_path / "data")) == PLAIN


def test_more_hidden_files_than_are_counted_are_said_to_be_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farflung.job.text_files.HIDDEN_FILES", 3)
    monkeypatch.setattr(text_folders, "HIDDEN_FILES", 3)
    (tmp_path / ".git").mkdir()
    for number in range(5):
        (tmp_path / ".git" / str(number)).write_bytes(b"1")
    (tmp_path / "a.txt").write_bytes(PLAIN)
    account = read(tmp_path).account
    assert reasons(account.left_out) == {"hidden": (3, 3, ".git/0")}
    (said,) = data_text.lines(account.within(PLAN))
    assert said == "left out: .git/0 and 2 or more other files, 3 B: hidden, by a dot before a name"


def test_the_limit_says_what_it_cuts(tmp_path: Path) -> None:
    for name, size in {"a": 50, "b": 60, "c": 500}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    found = read(tmp_path, limit=120)
    assert found.account.files == 2
    assert reasons(found.account.left_out) == {"limit": (1, 500, "c")}
    for path in (tmp_path, tmp_path / "c"):
        with pytest.raises(FarflungError, match="FF-JOB-020") as caught:
            read(path, limit=10)
        assert "over data.limit" in caught.value.cause
        assert "raise data.limit" in caught.value.hint
    np.save(tmp_path / "t.npy", np.arange(40, dtype=np.uint8))
    assert reasons(read(tmp_path / "t.npy", limit=10).account.noted) == {"tokens": (1, 168, "t.npy")}
    assert not read(tmp_path / "t.npy").account.noted


def test_text_that_is_too_large_as_utf8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(("語" * 40).encode("utf-16"))  # 82 bytes, and 120 in UTF-8
    monkeypatch.setattr(limits, "TEXT_BYTES", 100)
    with pytest.raises(FarflungError, match="FF-JOB-012"):
        read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(PLAIN)
    (tmp_path / "b.txt").write_bytes(PLAIN)
    (tmp_path / "b.txt").chmod(0)
    with pytest.raises(FarflungError, match=r"FF-JOB-011: cannot read .*b\.txt"):
        read(tmp_path)


def test_names_that_are_no_text_are_told_in_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(PLAIN)
    (tmp_path / os.fsdecode(b"\xff\x1b[2J.bin")).write_bytes(bytes(40))
    (count,) = read(tmp_path).account.left_out
    event = DataAccount(1, (count,)).within(PLAN)
    assert json.dumps(count.first)
    assert "\x1b" not in "".join(event_lines.lines(event, RunTimeline()))


def test_the_plan_names_what_is_left_out_before_its_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_bytes(PLAIN)
    for number in range(3):
        (tmp_path / "d" / f"b{number}").write_bytes(TEXT.encode("utf-16-le"))
    (tmp_path / "job.toml").write_text('[data]\npath = "d"\n[model]\ncontext = 64\n')
    monkeypatch.setattr("farflung.app.cli.run.machine", lambda: MachineMeasurements(2, 1.5e11, 8 << 30))
    main(["plan", "job.toml"])
    main(["plan", "job.toml", "--json"])
    *rows, last = capsys.readouterr().out.splitlines()
    said = next(place for place, row in enumerate(rows) if "left out: b0 and 2 other files" in row)
    price = next(place for place, row in enumerate(rows) if "credits" in row)
    assert said < price
    assert any("of data in 1 file" in row for row in rows)
    size = 3 * len(TEXT.encode("utf-16-le"))
    assert json.loads(last)["left_out"] == [{"reason": "zeros", "files": 3, "bytes": size, "first": "b0"}]
    assert json.loads(last)["data_files"] == 1


def test_a_run_keeps_the_account_of_its_data_for_the_plan_that_comes_later(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_bytes(PLAIN)
    (tmp_path / "d" / "b.bin").write_bytes(bytes(99))
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.terms_file.write_bytes(b"")
    spec = JobSpec(data=DataSpec(path="d"), model=MODEL)
    asyncio.run(prepare.read_inputs(folder, spec, tmp_path, None))  # type: ignore[arg-type]
    event = read_account(RunFolder(folder.root)).within(PLAN)
    assert reasons(event.left_out) == {"zeros": (1, 99, "b.bin")}
    timeline = RunTimeline(plan=event)
    shown = "\n".join("".join(span.text for span in row.spans) for row in screen_progress.plan(timeline, 0.0, 100))
    assert "left out of the data: 1 file, 99 B (zeros)" in shown


def test_a_run_without_an_account_has_none_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_account(folder) == DataAccount()
    whole = DataAccount(2, (FileCount("hidden", 1, 5, "x"),))
    write_account(folder, whole)
    assert read_account(folder) == whole
    for bad in (b"", b"[" * 60_000, b'{"files": "two"}'):
        folder.account_file.write_bytes(bad)
        with pytest.raises(FarflungError, match="FF-APP-023"):
            read_account(folder)
    folder.account_file.write_bytes(b" " * 70_000)
    with pytest.raises(FarflungError, match="FF-APP-161"):
        read_account(folder)


def test_a_plan_over_offers_names_what_is_left_out_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(PLAIN * 9)
    (tmp_path / "b.bin").write_bytes(bytes(99))
    (tmp_path / "job.toml").write_text('[data]\npath = "."\n' + "# a comment\n" * 20)
    offers = Path(__file__).resolve().parents[2] / "examples" / "offers" / "six_hosts.toml"
    main(["plan", str(tmp_path / "job.toml"), "--offers", str(offers)])
    told = capsys.readouterr().out
    assert "left out: b.bin, 99 B: no text" in told
    assert told.index("left out") < told.index("credits")
    account = plan_offers.account(JobSpec(data=DataSpec(path=".")), tmp_path)
    assert reasons(account.left_out) == {"zeros": (1, 99, "b.bin")}
