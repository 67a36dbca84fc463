"""What is no plain text is refused, or left out and told, with the command that makes text of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from farflung.core.errors import SpecError
from farflung.job import text_files
from farflung.job.io import job_files
from farflung.job.spec import DataSpec, ModelSpec

PROSE = "All happy families are alike; each unhappy family is unhappy in its own way.\n" * 40
ROWS = "".join(json.dumps({"id": n, "text": f"{n} green bottles", "tag": "x"}) + "\n" for n in range(40)).encode()
NESTED = "".join(json.dumps({"my body": f"{n} green bottles"}) + "\n" for n in range(40)).encode()


def refusal(path: str, base: Path = Path("/nowhere")) -> SpecError:
    with pytest.raises(SpecError) as error:
        job_files.read_data(DataSpec(path=path, heldout=0.25), ModelSpec(context=4), base)
    return error.value


@pytest.mark.parametrize(
    ("name", "data", "code", "hint"),
    [
        ("d.jsonl", ROWS, "FF-JOB-025", "jq -r .text d.jsonl > data.txt"),
        ("d.NDJSON", ROWS, "FF-JOB-025", "jq -r .text d.NDJSON"),
        ("d.json", ROWS, "FF-JOB-025", "jq -r .text d.json"),
        ("my d.jsonl", NESTED, "FF-JOB-025", "jq -r '.[\"my body\"]' 'my d.jsonl' > data.txt, or another column"),
        ("d.jsonl", b"1\n2\n3\n" * 20, "FF-JOB-025", "rename it to .txt"),
        ("d.parquet", b"PAR1" + bytes(range(256)) * 9, "FF-JOB-021", "pandas.read_parquet"),
        ("d.txt.gz", gzip.compress(PROSE.encode(), mtime=0) * 3, "FF-JOB-021", "gzip -dk d.txt.gz"),
        ("d.zst", b"\x28\xb5\x2f\xfd" + bytes(range(256)) * 9, "FF-JOB-021", "zstd -d d.zst"),
        ("d.zip", b"PK\x03\x04" + bytes(range(256)) * 9, "FF-JOB-021", "unzip d.zip"),
    ],
)
def test_a_file_that_is_no_plain_text_is_refused_with_what_makes_text_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, code: str, hint: str
) -> None:
    (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    error = refusal(name, tmp_path)
    assert (error.code, hint in error.hint) == (code, True), error.hint
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path / "jobs")  # the command names the file where it lies
    assert code == "FF-JOB-025" or str(tmp_path / name) in refusal(name, tmp_path).hint.replace("'", "")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("d.txt", ROWS),
        ("d.json", b'{\n  "a": [1, 2],\n  "b": "c"\n}\n' * 9),
        ("d.json", b'{"only": "one"}\n' + b" " * 99),
    ],
)
def test_text_and_json_that_is_no_row_of_records_is_taken(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert job_files.read_data(DataSpec(path=name, heldout=0.25), ModelSpec(context=4), tmp_path).dataset.train.size


def test_records_in_a_folder_are_left_out_and_told(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "rows.jsonl").write_bytes(ROWS)
    assert refusal("d", tmp_path).code == "FF-JOB-020"
    assert "jq" in refusal("d", tmp_path).cause
    (tmp_path / "d" / "prose.txt").write_text(PROSE)
    read = job_files.read_data(DataSpec(path="d", heldout=0.25), ModelSpec(context=4), tmp_path)
    (left,) = read.account.left_out
    assert (left.reason, left.files, left.first) == ("records", 1, "rows.jsonl")
    assert "a record a line" in text_files.told(left)
    assert read.dataset.train.size + read.dataset.heldout.size == len(PROSE)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("https://example.com/x.txt", "curl -LO https://example.com/x.txt"),
        ("https:/example.com/x.txt", "curl -LO https://example.com/x.txt"),
        ("s3://bucket/x.txt", "copy it to this computer"),
        ("hf://datasets/owner/data/train.txt", "hf download owner/data --repo-type dataset"),
        ("https://huggingface.co/datasets/owner/data", "hf download owner/data --repo-type dataset"),
        ("roneneldan/TinyStories", "hf download roneneldan/TinyStories --repo-type dataset"),
    ],
)
def test_data_that_is_elsewhere_is_refused_with_what_brings_it_here(tmp_path: Path, path: str, hint: str) -> None:
    error = refusal(path, tmp_path)
    assert error.code == "FF-JOB-010"
    assert hint in error.hint


def test_a_path_of_two_names_is_a_path_where_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "data").write_text(PROSE)
    assert job_files.read_data(DataSpec(path="owner/data"), ModelSpec(context=4), tmp_path).dataset.train.size
    assert "looked for in" in refusal("owner/parts/data.txt", tmp_path).hint
