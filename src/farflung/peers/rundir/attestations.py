"""Stores the nodes' attestations (what software they run) in the run's folder, one labelled JSON file each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from farflung.core import limits
from farflung.core.attestations import NOT_A_PROOF, Attestation, attestation_hash
from farflung.core.errors import ProtocolError
from farflung.core.file_header import FileFormat, check_json
from farflung.core.ids import PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.release import VERSION
from farflung.peers.rundir.bounded_read import read_file
from farflung.peers.rundir.folder import RunFolder
from farflung.watch.attestation_table import AttestationRecord

_FORM: Final = FileFormat("attestation")  # one without a number is of its first form


def facts(said: Attestation) -> dict[str, Any]:
    """An attestation for tools; `hash` is what the node's lease on the ledger names."""
    return {
        "format": _FORM.version,
        "program": VERSION,
        "label": NOT_A_PROOF,
        "hash": attestation_hash(said).hex(),
        "job": said.job.hex(),
        "node": said.node.hex(),
        "image": said.image.hex(),
        "python": said.python,
        "torch": said.torch,
        "system": said.system,
        "machine": said.machine,
        "threads": said.threads,
        "sandbox": said.sandbox,
    }


def read(folder: RunFolder) -> tuple[AttestationRecord, ...]:
    """What was kept, ascending by node; of a stranger's folder perhaps. Raises ProtocolError FF-APP-419,
    VersionError FF-CORE-095.
    """
    found = itertools.islice(folder.attestations.glob("*.json"), limits.ATTESTED_NODES)
    return tuple(_read(path) for path in sorted(found))


def _read(path: Path) -> AttestationRecord:
    data = read_file(path, limits.ATTESTED_BYTES, os.O_NOFOLLOW)
    try:
        check_json(_FORM, data, 0)
        return msgspec.json.decode(data, type=AttestationRecord)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(
            "FF-APP-419",
            f"{path.name[:80]} is no attestation",
            cause=str(error)[:200],
            hint="restore the run's folder from a copy",
        ) from error


def keep(folder: RunFolder, attested: Mapping[PeerId, Attestation]) -> None:
    """Writes those of nodes that were hired; the newest of each stays. Raises RunError FF-CORE-050."""
    folder.attestations.mkdir(mode=0o700, exist_ok=True)
    for node, said in attested.items():
        text = msgspec.json.format(msgspec.json.encode(facts(said)), indent=2)
        write_atomic(folder.attestations / f"{node.hex()}.json", text, "run.attestation")
