"""Servers of snapshots that lie: each is known by the first wrong piece, and costs nothing but that piece."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack_snapshot import Honest, contents, fetched, grown, incoming, trust
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import local_key
from farflung.core.errors import ProtocolError, VerificationError
from farflung.ledger import snapshot
from farflung.ledger.block import vote_for
from farflung.ledger.snapshot import Rows, SnapshotManifest, check_chunk, check_manifest, chunk_of, manifest_of
from farflung.ledger.votes import QuorumCertificate, VoteKind, certificate_of, sign_vote

pytestmark = pytest.mark.usefixtures("small_chunks")


def refused(code: str, manifest: SnapshotManifest) -> None:
    with pytest.raises(VerificationError, match=code) as caught:
        check_manifest(manifest, trust(manifest))
    assert caught.value.hint


def test_an_honest_snapshot_is_taken(tmp_path: Path):
    chain = grown()
    again = fetched(tmp_path, Honest(chain))
    assert (again.head, again.state.root) == (chain.head, chain.state.root)
    assert contents(again.state) == contents(chain.state)


# Manifests


def honest() -> SnapshotManifest:
    chain = grown()
    return manifest_of(chain.state, chain.head, chain.certificate)


def test_a_manifest_that_nobody_certified_is_refused():
    manifest = honest()
    header = manifest.header
    forger = local_key(8, "forger")
    signed = certificate_of([sign_vote(forger, 0, vote_for(header, 1, VoteKind.FINALIZE))], 1)
    notarized = replace(manifest.certificate, kind=VoteKind.NOTARIZE)
    for certificate in (signed, notarized, QuorumCertificate(VoteKind.FINALIZE, 1, b"\0", ())):
        refused("FF-LEDG-325", replace(manifest, certificate=certificate))
    for change in ({"height": header.height + 1}, {"state": header.txs}, {"epoch": 1}, {"chain": header.id}):
        with pytest.raises(VerificationError, match=r"FF-LEDG-32[56]"):
            check_manifest(replace(manifest, header=replace(header, **change)), trust(manifest))


def test_a_manifest_of_other_tables_is_refused_before_anything_is_hashed():
    manifest = honest()
    first, second, *rest = manifest.tables
    lists = (
        (first, *rest),
        (first, second, *rest, second),
        (second, first, *rest),
        (replace(first, rows=first.rows + 2), second, *rest),
        (replace(first, rows=-1), second, *rest),
        (replace(first, rows=limits.TABLE_ROWS + 1, chunks=b""), second, *rest),
        (replace(first, chunks=first.chunks[:-1]), second, *rest),
        (replace(first, chunks=first.chunks + bytes(32)), second, *rest),
        (replace(first, chunks=b""), second, *rest),
    )
    for tables in lists:
        refused("FF-LEDG-324", replace(manifest, tables=tables))


def test_a_manifest_with_another_hash_or_count_is_refused():
    manifest = honest()
    first, *rest = manifest.tables
    assert first.rows % 2 == 0
    swapped = first.chunks[32:64] + first.chunks[:32] + first.chunks[64:]
    for listing in (
        replace(first, chunks=swapped),
        replace(first, chunks=bytes(32) + first.chunks[32:]),
        replace(first, rows=first.rows - 1),
    ):
        refused("FF-LEDG-326", replace(manifest, tables=(listing, *rest)))


def test_a_manifest_of_an_epoch_that_the_steps_do_not_reach_is_refused(tmp_path: Path):
    """Its committee would be whatever the server says."""
    manifest = honest()
    later = replace(manifest, header=replace(manifest.header, epoch=1))
    with pytest.raises(VerificationError, match="FF-LEDG-325"):
        incoming(tmp_path).begin(later, ())


# Chunks


def hostile(rows: Rows, other: Rows) -> dict[str, Rows]:
    """What a liar can make of a chunk of two rows."""
    return {
        "none": (),
        "missing": rows[:1],
        "too many": (*rows, rows[0]),
        "reordered": rows[::-1],
        "another chunk": other,
        "one changed": (rows[0], bytes([rows[1][0]]) + rows[1][1:-1] + bytes([rows[1][-1] ^ 1])),
        "empty rows": (b"", b""),
        "oversized": (rows[0], bytes(limits.ROW_BYTES + 1)),
        "moved border": (rows[0] + rows[1][:1], rows[1][1:]),
    }


def test_a_wrong_chunk_is_refused_and_nothing_of_it_is_kept(tmp_path: Path):
    chain = grown()
    at = incoming(tmp_path)
    at.begin(manifest_of(chain.state, chain.head, chain.certificate), ())
    wanted = list(at.missing())
    rows, other = chunk_of(chain.state, "accounts", 1), chunk_of(chain.state, "accounts", 0)
    assert rows is not None
    assert other is not None
    for name, lie in hostile(rows, other).items():
        with pytest.raises(VerificationError, match=r"FF-LEDG-32[78]"):
            at.put("accounts", 1, lie)
        assert list(at.missing()) == wanted, name
    for number in (-1, 99, 1 << 60):
        with pytest.raises(VerificationError, match="FF-LEDG-327"):
            at.put("accounts", number, rows)
    at.put("accounts", 1, rows)
    assert list(at.missing()) == [each for each in wanted if each != ("accounts", 1)]


@given(st.data())
@settings(max_examples=60)
def test_any_other_bytes_are_refused(data: st.DataObject):
    chain = grown()
    listing = manifest_of(chain.state, chain.head, chain.certificate).tables[0]
    rows = chunk_of(chain.state, "accounts", 0)
    assert rows is not None
    lie = data.draw(st.lists(st.binary(max_size=60) | st.sampled_from(rows), max_size=3).map(tuple))
    if lie != rows:
        with pytest.raises(VerificationError, match=r"FF-LEDG-32[78]"):
            check_chunk(listing, 0, lie)


@given(st.binary(max_size=300), st.integers(0, 1 << 30))
@settings(max_examples=60)
def test_no_bytes_read_as_a_manifest_do_harm(noise: bytes, place: int):
    whole = encode(honest())
    at = place % len(whole)
    for data in (noise, whole[:at], whole[:at] + noise + whole[at + len(noise) :]):
        try:
            manifest = decode(data, SnapshotManifest, limits.CONTROL_BYTES)
            check_manifest(manifest, trust(honest()))
        except (ProtocolError, VerificationError):
            continue
        assert data == whole


# Servers


class Liar(Honest):
    """Honest but for one chunk."""

    wrong, asked = 3, 0

    def chunk(self, height: int, table: str, number: int) -> Rows | None:
        self.asked += 1
        rows = super().chunk(height, table, number)
        return rows and (rows if self.asked != self.wrong else (*rows[:-1], b"\x93"))


class Forgetful(Honest):
    """Holds its snapshots for one chunk only: an endless one, for who begins anew each time."""

    def chunk(self, height: int, table: str, number: int) -> Rows | None:
        self.snapshots = snapshot.SnapshotCache()
        return None


def test_a_liar_is_known_by_its_first_wrong_chunk_and_another_server_goes_on(tmp_path: Path):
    chain = grown()
    liar = Liar(chain)
    with pytest.raises(VerificationError, match="FF-LEDG-328"):
        fetched(tmp_path, liar)
    assert liar.asked == liar.wrong
    honest = Honest(chain)
    assert fetched(tmp_path, honest).state.root == chain.state.root
    assert honest.sent == len(list(incoming(tmp_path / "count", chain).missing())) - (liar.wrong - 1)


def test_a_server_that_never_gives_a_chunk_gives_nothing(tmp_path: Path):
    with pytest.raises(LookupError):
        fetched(tmp_path, Forgetful(grown()))
    assert not (tmp_path / "ledger.db").exists() or incoming(tmp_path).manifest is not None
