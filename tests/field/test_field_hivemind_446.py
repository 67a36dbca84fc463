"""hivemind #446, composer #829: a checkpoint of another version.

Every form that outlives a process is written by the product; its version is then changed, or a bit of what it holds.
The first is told with both versions and what to do, the second is called damaged; neither is taken for the other.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from app_sync import Table
from ledger_world import genesis
from msgspec.structs import replace
from net_tolls import CHAIN, R, toll
from torch import nn

from farflung.app.cli import init
from farflung.app.explorer import ledger_export
from farflung.core import events
from farflung.core.attestations import Attestation
from farflung.core.codec import Wire, encode
from farflung.core.crypto import local_key
from farflung.core.errors import FarflungError, SpecError, VersionError
from farflung.core.file_header import file_of
from farflung.core.ids import ZERO_HASH
from farflung.core.release import VERSION
from farflung.core.tensor_layout import TensorLayout
from farflung.job import dataset, terms_file
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec, JobTerms, ModelSpec
from farflung.ledger import genesis_file, snapshot
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.votelog import VoteLog
from farflung.ledger.sdbft.votelog_format import framed
from farflung.ledger.table_rows import JobRow
from farflung.local.jobs import base_run
from farflung.net import monthly_quota
from farflung.net.io.monthly_quota import MonthlyQuota
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.peers.keys import files as key_files
from farflung.peers.node.sealed_files import PrivateCheckpoint, SealedFileStore
from farflung.peers.program import trace
from farflung.peers.rundir import attestations, folder, inputs
from farflung.peers.rundir.archive import RunLog, read_entries
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.peers.rundir.runs import resolve_again
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import seal
from farflung.sync import DeMo, GradientSync, LocalSGD
from farflung.sync.address_book import load_key, new_key
from farflung.train import inner_state, model_file, public_state
from farflung.train.inner_state import InnerState
from farflung.train.public_state import PublicState
from farflung.train.run_log import RunStartRecord
from farflung.verify import evidence
from farflung.watch.io import event_log
from farflung.watch.io.event_log import EventLog

OWNER = local_key(3, "requester")
MODEL = ModelSpec(layers=1, width=8, heads=1, context=4, vocabulary=16)
SPEC = JobSpec(rounds=2, model=MODEL)
LAYOUT = TensorLayout.of(gpt_shapes(MODEL))
TERMS = JobTerms(SPEC, ZERO_HASH, ZERO_HASH, LAYOUT, OWNER.public, ZERO_HASH)
STATE = PublicState(1, np.zeros(LAYOUT.size, np.float32))
IDENTITY = RunIdentity(folder.FORMAT, 0.0, "", "/")
LINE = re.compile(rb"farflung ([a-z-]+) [0-9]+ [^ ]+ ([0-9a-f]{16}\n)")


class Form(NamedTuple):
    """How the product writes a file of this form at a path, and how it reads it."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    version: Callable[[bytes], bytes] = lambda data: LINE.sub(rb"farflung \1 987 9.8.7 \2", data, 1)
    is_named: bool = True  # whether the file says which program wrote it
    damaged: str = "FF-"  # the code where its last byte is another; empty: it is passed over


def _bytes(write: Callable[[], bytes]) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(write())


def _read(read: Callable[[bytes], Any]) -> Callable[[Path], Any]:
    return lambda path: read(path.read_bytes())


def _run_log(path: Path) -> None:
    log = RunLog(path, OWNER)
    log.write(RunStartRecord(ZERO_HASH, OWNER.public, ZERO_HASH, 2))
    log.close()


def _reframed(data: bytes) -> bytes:
    """A run log whose first record is another, with its checksum."""
    size = int.from_bytes(data[:4], "little")
    head = LINE.sub(rb"farflung \1 987 9.8.7 \2", data[8 : 8 + size])
    return len(head).to_bytes(4, "little") + zlib.crc32(head).to_bytes(4, "little") + head + data[8 + size :]


def _json(data: bytes) -> bytes:
    return json.dumps(json.loads(data) | {"format": 987, "program": "9.8.7"}).encode()


def _passes(path: Path) -> None:
    store = ReceiptStore(path.parent / "till")
    asyncio.run(store.open(toll()))
    (found,) = (path.parent / "till").glob("*.pass")
    path.write_bytes(found.read_bytes())


def _read_passes(path: Path) -> None:
    (found,) = (path.parent / "till").glob("*.pass")
    found.write_bytes(path.read_bytes())
    list(ReceiptStore(path.parent / "till").load(R.public, CHAIN))


def _sealed(path: Path) -> None:
    store = SealedFileStore(path.parent, OWNER.seed)
    store.save("one", PrivateCheckpoint(1, b"inner", None))
    (path.parent / "one.sealed").rename(path)


def _open_sealed(path: Path) -> None:
    (path.parent / "one.sealed").write_bytes(path.read_bytes())
    SealedFileStore(path.parent, OWNER.seed).load("one", PrivateCheckpoint)


OBJECT, CHUNKS = seal(OWNER.seed, b"what is stored")


def _object(path: Path) -> None:
    DiskObjectStore(path.parent).put(OBJECT, CHUNKS)
    path.write_bytes((path.parent / f"{OBJECT.id.hex()}.manifest").read_bytes())


def _read_object(path: Path) -> None:
    (path.parent / f"{OBJECT.id.hex()}.manifest").write_bytes(path.read_bytes())
    try:
        DiskObjectStore(path.parent).manifest(OBJECT.id)
    finally:
        DiskObjectStore(path.parent).put(OBJECT, CHUNKS)  # whatever it was, it is repaired
        assert DiskObjectStore(path.parent).manifest(OBJECT.id) == OBJECT


def _graph(path: Path) -> None:
    path.write_bytes(trace.headed(trace._GRAPH, b"\x91\x01"))


def _run_file(name: str, read: Callable[[RunFolder], Any]) -> Callable[[Path], Any]:
    """Reads a run's folder whose file of this name has these bytes."""

    def call(path: Path) -> Any:
        place = path.parent / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(path.read_bytes())
        return read(RunFolder(path.parent))

    return call


def _attested(path: Path) -> None:
    said = Attestation(ZERO_HASH, ZERO_HASH, OWNER.public, ZERO_HASH, "3", "2", "Linux", "x86_64", 1, "bwrap")
    attestations.keep(RunFolder(path.parent), {OWNER.public: said})
    (found,) = (path.parent / "attestations").iterdir()
    path.write_bytes(found.read_bytes())


def _events(path: Path) -> None:
    log = EventLog(path)
    log.append(events.RunStartEvent(run="r", name="n", seed=1, version=VERSION, python="3", torch="2"))
    log.close()


def _later_events(data: bytes) -> bytes:
    return data.replace(b'"format":2', b'"format":987').replace(VERSION.encode(), b"9.8.7")


def _identity(path: Path) -> None:
    made = folder.create(path.parent / "made", IDENTITY)
    made.unlock()
    path.write_bytes(made.identity_file.read_bytes())


def _ledger(path: Path) -> None:
    LedgerStore.open(path, genesis()).close()


def _votes(path: Path) -> None:
    log = VoteLog(path)
    log.append((b"a vote",))
    log.close()


def _later_votes(data: bytes) -> bytes:
    first = framed(0, (b"farflung-votes/1", b"0", VERSION.encode()))
    assert data.startswith(first)
    return framed(0, (b"farflung-votes/987", b"0", b"9.8.7")) + data[len(first) :]


def _book(path: Path) -> None:
    path.write_bytes(file_of(monthly_quota.FORM, monthly_quota.count(monthly_quota.EMPTY, 1, 1, 0.0)))


def _model_version(data: bytes) -> bytes:
    return data.replace(b'\\"format\\":1', b'\\"format\\":9')


def _key(path: Path) -> None:
    key_files.new_account(path)


def _base(path: Path) -> None:
    kept = base_run.BaseWeights((), LAYOUT)
    path.write_bytes(base_run.file_of(base_run._BASE, kept))


def _terms(run: RunFolder) -> JobTerms:
    return inputs.read_terms(run, SPEC)


FORMS: dict[str, Form] = {
    "terms": Form(_bytes(lambda: terms_file.write(TERMS)), _run_file("terms.bin", _terms)),
    "genesis": Form(_bytes(lambda: genesis_file.write(genesis())), _read(genesis_file.read)),
    "base weights": Form(_base, _run_file("base.bin", base_run.kept_base)),
    "graph": Form(_graph, _run_file("graph.bin", trace.graph_bytes)),
    "evidence": Form(_bytes(lambda: evidence.write(encode((1, 2)))), _read(evidence.read), damaged="FF-CORE-096"),
    "sealed": Form(_sealed, _open_sealed, damaged="FF-APP-040"),
    "object's manifest": Form(_object, _read_object, damaged="FF-STOR-013"),
    "relay's pass": Form(_passes, _read_passes, damaged=""),
    "month's book": Form(_book, lambda path: MonthlyQuota(path, 1 << 40), damaged="FF-NET-151"),
    "account's key": Form(_key, key_files.read_account, damaged="FF-APP-260"),
    "key of a mesh": Form(new_key, load_key, damaged="FF-SYNC-012"),
    "run log": Form(_run_log, read_entries, _reframed, damaged=""),
    "run.json": Form(_identity, _run_file("run.json", lambda run: run.read_identity()), _json, damaged="FF-APP-011"),
    "attestation": Form(
        _attested, _run_file("attestations/a.json", attestations.read), _json, damaged="FF-APP-419"
    ),
    "event log, watched": Form(_events, lambda path: list(event_log.read(path)), _later_events, damaged=""),
    "event log, gone on with": Form(_events, lambda path: EventLog(path).close(), _later_events, damaged="FF-CORE-085"),
    "export of a ledger": Form(
        _bytes(lambda: b"".join(ledger_export.lines_of(Chain(genesis())))), ledger_export.chain_of,
        lambda data: data.replace(b'"format":2', b'"format":987').replace(VERSION.encode(), b"9.8.7"),
        damaged="FF-APP-281",
    ),
    "vote log": Form(_votes, lambda path: VoteLog(path).close(), _later_votes, damaged="FF-LEDG-320"),
    "model": Form(_bytes(lambda: model_file.write(TERMS, STATE)), _read(model_file.read), _model_version, False, ""),
    "data set": Form(
        _bytes(lambda: dataset.pack(dataset.Dataset(*2 * (np.arange(9, dtype=np.uint8),)))),
        _read(dataset.unpack), lambda data: data[:4] + b"\7" + data[5:], False, "",
    ),
    "snapshot": Form(
        _bytes(lambda: public_state.pack(STATE, LAYOUT)), _read(lambda data: public_state.unpack(data, LAYOUT)),
        lambda data: data[:7] + b"\7" + data[8:], False, "FF-TRAIN-070",
    ),
    "inner state": Form(
        _bytes(lambda: inner_state.pack(InnerState(), SPEC.optimizer, LAYOUT)),
        _read(lambda data: inner_state.unpack(data, SPEC.optimizer, LAYOUT)),
        lambda data: data[:7] + b"\7" + data[8:], False, "FF-TRAIN-070",
    ),
}  # fmt: skip


@pytest.fixture
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Form, Path]:
    form = FORMS[request.param]
    path = tmp_path / "file"
    form.write(path)
    path.chmod(0o600)
    return form, path


every_form = pytest.mark.parametrize("written", FORMS, indirect=True)


@every_form
def test_another_version_is_told_with_both_programs_and_what_to_do(written: tuple[Form, Path]) -> None:
    form, path = written
    later = form.version(path.read_bytes())
    assert later != path.read_bytes()
    path.write_bytes(later)
    with pytest.raises(VersionError, match="FF-CORE-095") as caught:
        form.read(path)
    text = " ".join(caught.value.lines())
    assert f"; this is farflung {VERSION}" in text
    assert "written by farflung 9.8.7" in text or not form.is_named
    assert caught.value.hint
    assert "damaged" not in text
    assert path.read_bytes() == later


@every_form
def test_a_changed_byte_is_no_other_version(written: tuple[Form, Path]) -> None:
    form, path = written
    data = bytearray(path.read_bytes())
    data[-2 if data.endswith(b"\n") else -1] ^= 0x41
    path.write_bytes(bytes(data))
    if not form.damaged:
        form.read(path)
        return
    with pytest.raises(FarflungError, match=form.damaged) as caught:
        form.read(path)
    assert caught.value.code != "FF-CORE-095"


class LongerTerms(Wire, frozen=True):
    """Terms with a field more, as a later build may have them."""

    spec: JobSpec
    dataset: bytes
    more: int = 7


def test_a_struct_that_changed_without_a_new_number_is_no_damage(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for data in (file_of(terms_file.FORMAT, LongerTerms(SPEC, b"")), encode(LongerTerms(SPEC, b""))):
        run.terms_file.write_bytes(data)
        with pytest.raises(VersionError, match="FF-CORE-095") as caught:
            inputs.read_terms(run, SPEC)
        assert "damaged" not in " ".join(caught.value.lines())


# A ledger is a database


def tampered(path: Path, statement: str, *values: bytes) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_a_ledger_of_another_version_is_told_and_one_of_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    _ledger(path)
    tampered(path, "UPDATE meta SET value = ? WHERE name = 'genesis'", encode(genesis()))  # as before headers
    LedgerStore.open(path, genesis()).close()
    tampered(path, "UPDATE meta SET value = ? WHERE name = 'format'", b"farflung-ledger/987")
    with pytest.raises(VersionError, match="FF-CORE-095") as caught:
        LedgerStore.open(path, genesis())
    assert "form 987, and this farflung reads form 4" in caught.value.cause
    tampered(path, "UPDATE meta SET value = ? WHERE name = 'format'", b"farflung-xedger/3")
    with pytest.raises(FarflungError, match="FF-LEDG-081"):
        LedgerStore.open(path, genesis())


def test_rows_that_are_what_was_written_and_cannot_be_read_are_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chain.db"
    _ledger(path)
    with monkeypatch.context() as patch:
        patch.setitem(snapshot.KINDS, "accounts", JobRow)  # an account has other fields here
        store = LedgerStore.open(path, genesis())
        with pytest.raises(VersionError, match="FF-CORE-095"):
            store.load()
        store.close()
    tampered(path, "UPDATE rows SET row = ? WHERE kind = 'accounts' AND place = 0", b"\x91\x01")
    store = LedgerStore.open(path, genesis())
    with pytest.raises(FarflungError, match="FF-LEDG-081"):
        store.load()
    store.close()


# What a loop of one's own saves


def _local_sgd() -> LocalSGD:
    net = nn.Linear(2, 2)
    return LocalSGD(net, torch.optim.SGD(net.parameters(), lr=0.1), sync_every=2, group=Table(1).groups()[0])


def _about(state: dict[str, Any]) -> dict[str, Any]:
    return state["about"] if "about" in state else state["param_groups"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "make",
    [
        _local_sgd,
        lambda: GradientSync(group=Table(1).groups()[0]),
        lambda: DeMo(nn.Linear(64, 64).parameters(), process_group=Table(1).groups()[0]),
    ],
    ids=["method", "hook", "DeMo"],
)
def test_a_state_dict_of_another_version_is_told(make: Callable[[], Any]) -> None:
    one = make()
    assert _about(one.state_dict())["farflung"] == VERSION
    one.load_state_dict(one.state_dict())
    state = one.state_dict()
    _about(state).update(version=987, farflung="9.8.7")
    with pytest.raises(VersionError, match=r"FF-CORE-095.*written by farflung 9\.8\.7"):
        one.load_state_dict(state)
    assert _about(one.state_dict())["farflung"] == VERSION


# run.json holds the job as text


def test_a_run_whose_job_has_keys_of_another_version_is_told(tmp_path: Path) -> None:
    made = folder.create(tmp_path / "run", replace(IDENTITY, text="rouds = 3\n"))
    made.unlock()
    with pytest.raises(FarflungError, match="rouds"):  # ours: then it is the text that is wrong
        resolve_again(made)
    said = json.loads(made.identity_file.read_bytes()) | {"program": "9.8.7"}
    made.identity_file.write_text(json.dumps(said))
    with pytest.raises(VersionError, match=r"written by farflung 9\.8\.7"):
        resolve_again(made)


def test_a_job_file_that_another_version_began_says_so_where_a_key_is_unknown() -> None:
    text = init.document()
    load(text)
    older = text.replace(f"farflung {VERSION}.", "farflung 9.8.7.", 1).replace("\nrounds", "\nrouds", 1)
    with pytest.raises(SpecError, match=rf"begun by farflung 9\.8\.7; this is farflung {VERSION}"):
        load(older)
