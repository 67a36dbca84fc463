"""Faults that other projects' users reported, and attacks, tried on farflung: one line for each kind of them.

    python bench/field.py [--quick] [--out FILE]

A line's value is how many of the kind's inputs do not have the right outcome; the goal is none. Each input is a test
(tests/field and beside what it is about): the reports' inputs in our own words, and others of the same kind. With
--quick those that take longer are left out, and the line says how many.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reporting import Row, at_most, load, show

ROOT = Path(__file__).resolve().parents[1]


class Kind(NamedTuple):
    """One kind of fault: what it is, the reports of it by project and number, and the files of its tests."""

    name: str
    reports: str
    files: tuple[str, ...]


KINDS = (
    Kind(
        "state that is not where it is looked for",
        "pytorch #75666, #79334, #102721; hivemind #417; slime #1546; KempnerForge #51; timm #2003",
        (
            "field/test_field_pytorch_75666.py",
            "sync/test_sync_state.py",
            "sync/test_sync_failed_exchanges.py",
            "train/test_train_job_state.py",
        ),
    ),
    Kind(
        "hidden state that convicts honest peers",
        "accelerate #114, composer #12, Megatron-LM #6858",
        (
            "field/test_field_accelerate_114.py",
            "attack/test_attack_hidden_state.py",
            "verify/test_verify_audit_verdict.py",
        ),
    ),
    Kind(
        "a tensor that only some peers train",
        "pytorch #41101, #28294; NeMo-Automodel #935; templar #503",
        (
            "sync/test_sync_untrained_tensors.py",
            "compress/test_compress_trained_tensors.py",
            "train/test_train_unused_tensors.py",
            "attack/test_attack_abstention.py",
        ),
    ),
    Kind("poison in every round", "attack T9", ("attack/test_attack_poisoned_training.py",)),
    Kind(
        "numbers outside a format's range",
        "hivemind #545, #476, #560; knnlm #6; flower #7693, #7708",
        (
            "field/test_field_hivemind_545.py",
            "field/test_field_hivemind_476.py",
            "field/test_field_flower_7693.py",
            "compress/test_compress_tensor_range.py",
        ),
    ),
    Kind(
        "exchanges and settings that do not belong together",
        "apex #46, detectron2 #2486, lightning #450, hivemind #443, prime-diloco #13, pytorch #38174",
        ("sync/test_sync_exchange_channel.py",),
    ),
    Kind(
        "files of another version",
        "hivemind #446, composer #829",
        ("field/test_field_hivemind_446.py", "core/test_core_file_header.py", "old/test_old_first.py"),
    ),
    Kind("input that is left out", "code2prompt #30, files-to-prompt #76", ("field/test_field_code2prompt_30.py",)),
    Kind("peaks outside the training step", "unsloth #5168, transformers #8476", ("field/test_field_unsloth_5168.py",)),
    Kind("tied weights", "transformers #38870, gemma #8", ("field/test_field_transformers_38870.py",)),
    Kind("errors that are no sentences", "FF-VERI-115", ("house/test_house_error_texts.py",)),
    Kind(
        "folders and files from elsewhere",
        "attacks A4, A6, A11, L1 to L3, L6, L7",
        (
            "attack/test_attack_links.py",
            "attack/test_attack_toml.py",
            "attack/test_attack_folder.py",
            "attack/test_attack_receipts.py",
            "attack/test_attack_keys.py",
            "attack/test_attack_open_files.py",
            "attack/test_attack_worker_log.py",
        ),
    ),
    Kind("processes killed at a start", "attack A7", ("local/test_local_network_supervisor_worker.py",)),
    Kind(
        "replies larger than the job",
        "attack A3",
        ("attack/test_attack_replies.py", "core/test_core_value_count.py", "train/test_train_reply_bounds.py"),
    ),
    Kind(
        "a model that outlives its agent, or reads the host",
        "attacks A8, A9",
        ("attack/test_attack_orphans.py", "attack/test_attack_sandbox_reads.py"),
    ),
)


class Count(NamedTuple):
    """How many of a kind's inputs were tried, how many of them went wrong, and how many could not be tried here."""

    tried: int
    wrong: int
    skipped: int


def tried(kind: Kind, quick: bool) -> Count:
    """Runs a kind's tests. A file that is missing, and a run that tries nothing, is one input that went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "--tier", "all", f"--junitxml={report}"]
        marks = ["-m", "not slow and not whole"] if quick else []
        files = [f"tests/{file}" for file in kind.files]
        ended = subprocess.run([*command, *marks, *files], cwd=ROOT, capture_output=True, text=True)
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    skipped = sum(case.find("skipped") is not None for case in cases)
    wrong = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    is_broken = not cases or ended.returncode > 1
    if wrong or is_broken:
        sys.stderr.write(ended.stdout[-4000:] + ended.stderr[-2000:])
    return Count(len(cases) - skipped, max(wrong, int(is_broken)), skipped)


def rows(quick: bool) -> Iterator[Row]:
    """One line a kind."""
    for kind in KINDS:
        found = tried(kind, quick)
        told = f"{found.tried} inputs tried, {found.skipped} not to be tried here; {kind.reports}"
        yield at_most(kind.name, found.wrong, "inputs", 0, told)


def main() -> None:
    """Tries, prints, and keeps what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the inputs that take longer: a minute")
    parser.add_argument("--out", type=Path, help="add the lines to this file")
    asked = parser.parse_args()
    before = load()
    for row in rows(asked.quick):
        show("field", row, before, asked.out)


if __name__ == "__main__":
    main()
