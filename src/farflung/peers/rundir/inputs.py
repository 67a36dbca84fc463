"""Reads and writes a run's fixed inputs in its folder: terms, model source, resolved configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.errors import ProtocolError, RunError, VerificationError
from farflung.core.file_header import FileFormat, check_json
from farflung.core.io.durable_files import write_atomic
from farflung.core.release import VERSION
from farflung.core.tensor_layout import TensorLayout
from farflung.job import terms_file
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import ResolvedJob
from farflung.job.spec import JobSpec, JobTerms
from farflung.job.text_files import DataAccount
from farflung.peers.rundir.bounded_read import read_file
from farflung.peers.rundir.folder import RunFolder

ACCOUNT_BYTES = 64 * limits.KIB
# One without a number is of its first form.
RESOLVED: Final = FileFormat("resolved.json")
_ACCOUNT: Final = FileFormat("data-account")


def module_source(folder: RunFolder) -> bytes:
    """The user's model source, or nothing. Raises RunError FF-APP-161."""
    return read_file(folder.module_file, limits.MODULE_BYTES, os.O_NOFOLLOW) if folder.module_file.exists() else b""


def known_layout(spec: JobSpec) -> TensorLayout | None:
    """The model's tensors as far as they are known without building it: of the built-in GPT."""
    return TensorLayout.of(gpt_shapes(spec.model)) if spec.model.kind == "gpt" else None


def read_terms(folder: RunFolder, spec: JobSpec) -> JobTerms:
    """The terms that were fixed for this spec.

    Raises RunError FF-APP-022, FF-APP-161, VerificationError FF-APP-023, VersionError FF-CORE-095.
    """
    path = folder.terms_file
    try:
        terms = terms_file.read(read_file(path, terms_file.BYTES, os.O_NOFOLLOW))
    except ProtocolError as error:
        raise damaged(path, f"{error.message}: {error.cause}") from error
    if terms.spec != spec:
        raise RunError(
            "FF-APP-022",
            "the run was started with another configuration",
            cause="terms.bin does not agree with run.json",
            hint="start a new run with `farflung run`",
        )
    return terms


def write_account(folder: RunFolder, account: DataAccount) -> None:
    """What the plan tells of the data set."""
    named = {"format": _ACCOUNT.version, "program": VERSION, **msgspec.structs.asdict(account)}
    write_atomic(folder.account_file, msgspec.json.encode(named), "run.account")


def read_account(folder: RunFolder) -> DataAccount:
    """What is to be told of the data set. Raises RunError FF-APP-161, VerificationError FF-APP-023,
    VersionError FF-CORE-095.
    """
    if not folder.account_file.exists():
        return DataAccount()
    try:
        data = read_file(folder.account_file, ACCOUNT_BYTES, os.O_NOFOLLOW)
        check_json(_ACCOUNT, data, 0)
        return msgspec.json.decode(data, type=DataAccount)
    except (ValueError, RecursionError) as error:
        raise damaged(folder.account_file, str(error)) from error


def damaged(path: Path, cause: str) -> VerificationError:
    """The error FF-APP-023."""
    return VerificationError(
        "FF-APP-023",
        f"{path.name} is damaged",
        cause=cause[:300],
        hint=f"restore {path} from a copy; without one, start a new run with `farflung run`",
    )


def plain(value: Any) -> Any:
    """Structs as dictionaries, for files that people and their tools read."""
    if isinstance(value, Wire):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


def write_resolved(folder: RunFolder, resolved: ResolvedJob) -> None:
    """The resolved configuration with the origin of each value."""
    named = {"format": RESOLVED.version, "program": VERSION}
    text = {**named, "spec": plain(resolved.spec), "deadline": resolved.deadline, "origins": resolved.origins}
    write_atomic(folder.resolved_file, msgspec.json.format(msgspec.json.encode(text), indent=2), "run.resolved")
