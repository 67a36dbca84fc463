"""What nodes say they run lies in the run's folder, and is called what it is."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from farflung.app.attested import keep
from farflung.app.folder import RunFolder
from farflung.core.attestations import NOT_A_PROOF, Attestation, attestation_hash
from farflung.core.ids import Hash, PeerId

NODE = PeerId(b"n" * 32)
SAID = Attestation(
    Hash(b"c" * 32), Hash(b"j" * 32), NODE, Hash(b"i" * 32), "3.11.7", "2.13.0", "Linux", "x86_64", 1, "bwrap"
)


def test_the_newest_word_of_each_node_is_kept_with_its_label_and_the_hash_that_its_lease_names(
    tmp_path: Path,
):
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
