"""What nodes say they run lies in the run's folder, and is called what it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.attestations import NOT_A_PROOF, Attestation, attestation_hash
from farflung.core.errors import FarflungError
from farflung.core.ids import Hash, PeerId
from farflung.peers.rundir.attestations import keep, read
from farflung.peers.rundir.folder import RunFolder
from farflung.watch.attestation_table import AttestationRecord, node_rows
from farflung.watch.phrases import columns_of

NODE = PeerId(b"n" * 32)
SAID = Attestation(
    Hash(b"c" * 32), Hash(b"j" * 32), NODE, Hash(b"i" * 32), "3.11.7", "2.13.0", "Linux", "x86_64", 1, "bwrap"
)


def test_the_newest_word_of_each_node_is_kept_with_its_label_and_the_hash_that_its_lease_names(tmp_path: Path):
    for said in (replace(SAID, sandbox="limits"), SAID):
        keep(RunFolder(tmp_path), {NODE: said})
    (kept,) = (tmp_path / "attestations").iterdir()
    facts = json.loads(kept.read_text())
    assert kept.stem == facts["node"] == NODE.hex()
    assert facts["label"] == NOT_A_PROOF == "not a proof of work"
    assert (facts["hash"], facts["sandbox"]) == (attestation_hash(SAID).hex(), "bwrap")
    assert facts["image"] == SAID.image.hex()


def test_every_word_of_an_attestation_is_in_its_hash():
    others = [
        replace(SAID, **{name: 2 if name == "threads" else type(getattr(SAID, name))(b"x" * 32)})
        if name in ("threads", "chain", "job", "node", "image")
        else replace(SAID, **{name: "other"})
        for name in SAID.__struct_fields__
    ]
    assert len({attestation_hash(said) for said in (SAID, *others)}) == 1 + len(SAID.__struct_fields__)


def test_what_was_kept_is_read_again_by_node(tmp_path: Path):
    others = [PeerId(bytes([n]) * 32) for n in (9, 3, 200)]
    keep(RunFolder(tmp_path), {node: replace(SAID, node=node) for node in others})
    found = read(RunFolder(tmp_path))
    assert [each.node for each in found] == [node.hex() for node in sorted(others)]
    assert {(e.image, e.python, e.torch, e.machine, e.sandbox) for e in found} == {
        (SAID.image.hex(), SAID.python, SAID.torch, SAID.machine, SAID.sandbox)
    }


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "FF-APP-419"),
        (b"{}", "FF-APP-419"),
        (b"\xff\xfe", "FF-APP-419"),
        (b'{"x": ' + b"[" * 4000, "FF-APP-419"),
        (b" " * (limits.ATTESTED_BYTES + 1), "FF-APP-161"),
        (None, "FF-APP-161"),
    ],
    ids=["empty", "nothing", "no text", "deep", "long", "pipe"],
)
def test_a_strangers_file_that_is_no_attestation_is_refused(tmp_path: Path, data: bytes | None, code: str):
    folder = RunFolder(tmp_path)
    folder.attestations.mkdir()
    path = folder.attestations / f"{NODE.hex()}.json"
    if data is None:
        os.mkfifo(path)
    else:
        path.write_bytes(data)
    with pytest.raises(FarflungError) as refused:
        read(folder)
    assert refused.value.code == code


TEXT = st.text(max_size=80)


@given(said=st.lists(st.builds(AttestationRecord, *(TEXT,) * 8, st.integers(), TEXT), min_size=1, max_size=3))
def test_a_table_of_nodes_has_its_label_and_its_width_whatever_they_say(said: list[AttestationRecord]):
    rows = [row.text for row in node_rows(said, 80)]
    assert len(rows) == len(said) + 2
    assert NOT_A_PROOF in rows[0]
    assert all(row.isprintable() and columns_of(row) <= 80 for row in rows)


def test_each_node_is_one_row_of_what_it_says():
    kept = AttestationRecord(
        "h", "j", NODE.hex(), SAID.image.hex(), "3.11.7", "2.13.0+cpu", "Linux", "x86_64", 1, "bwrap"
    )
    head, names, row = (each.text for each in node_rows([kept], 80))
    assert "1 node, 1 image" in head
    assert names.split() == ["node", "image", "python", "torch", "machine", "sandbox"]
    assert row.split() == ["6e6e6e6e", "69696969", "3.11.7", "2.13.0+cpu", "Linux", "x86_64", "bwrap"]
    assert "not said" in node_rows([replace(kept, sandbox="")], 80)[-1].text
