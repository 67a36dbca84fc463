"""The farflung group: several meshes in one process, over real sockets and TLS on loopback."""

import threading
from pathlib import Path
from typing import Any

import pytest
from app_sync import adamw, flat, net, together, train
from app_sync_mesh import book_of, key_of, meshed

from farflung.core.errors import FarflungError
from farflung.sync import SparseLoCo, connect, new_key, unsafe_key
from farflung.sync.address_book import load_key, members
from farflung.sync.exchange_channel import CHANNEL_BITS
from farflung.sync.mesh_group import Mesh
from farflung.sync.payload_assembly import AHEAD, PIECE, PayloadAssembly, PayloadPiece


def test_everybody_gets_everybody_s_payload_small_and_of_many_pieces() -> None:
    sizes, channel = (1, PIECE, 3 * PIECE + 17), 1 << CHANNEL_BITS

    def work(mesh: Mesh) -> tuple[int, int]:
        for tag in range(2):
            own = bytes([mesh.rank + tag]) * sizes[mesh.rank]
            found = mesh.exchange(channel + tag, own, max(sizes), 3)
            assert {rank: len(data) for rank, data in found.payloads.items()} == dict(enumerate(sizes))
            assert all(set(data) == {rank + tag} for rank, data in found.payloads.items())
            assert found.missing == {}
            assert found.bytes_down > sum(sizes) - sizes[mesh.rank] or tag
        mesh.exchange(channel + 2, b"x", 1, 3)  # everybody is here once all has come to everybody
        return mesh.nbytes

    for rank, (up, down) in enumerate(meshed(3, work)):
        assert 2 * 2 * sizes[rank] < up < 2 * 2 * sizes[rank] * 1.01 + 20_000
        assert 2 * (sum(sizes) - sizes[rank]) < down < 2 * (sum(sizes) - sizes[rank]) * 1.01 + 20_000


def test_a_method_trains_over_the_mesh_and_payloads_cross_encrypted() -> None:
    def work(mesh: Mesh) -> Any:
        model = net()
        sync = SparseLoCo(model, adamw(model), sync_every=2, topk=16, chunk=256, group=mesh)
        reports = train(sync, model, mesh.rank, range(6))
        sync.check()
        assert all(r.bytes_up > 2 * r.payload_bytes for r in reports)
        return flat(model).tolist()

    first, *others = meshed(3, work)
    assert all(other == first for other in others)


@pytest.mark.slow
def test_a_peer_that_is_late_is_left_out_and_still_ends_with_the_same_bits() -> None:
    late = threading.Event()

    def work(mesh: Mesh) -> Any:
        model = net()
        sync = SparseLoCo(model, adamw(model), sync_every=1, topk=16, chunk=256, min_quorum=2, group=mesh)
        train(sync, model, mesh.rank, range(1))
        if mesh.rank == 2:
            assert late.wait(100)
        (report,) = train(sync, model, mesh.rank, range(1, 2))
        if mesh.rank == 0:
            late.set()
        (after,) = train(sync, model, mesh.rank, range(2, 3))
        return report.accepted, dict(report.left_out), after.accepted, flat(model).tolist()

    first, *others = meshed(3, work, deadline=5.0)
    assert first[0] == (0, 1)
    assert "nothing within 5 s" in first[1][2]
    assert all(other[0] == first[0] and other[3] == first[3] for other in others)


def test_without_a_quorum_every_member_fails_alike() -> None:
    gone = threading.Barrier(2, timeout=30)

    def work(mesh: Mesh) -> str:
        if mesh.rank == 1:
            gone.wait()
            return ""
        with pytest.raises(FarflungError, match="FF-SYNC-010: 1 contributions came, 2 are needed") as caught:
            mesh.exchange(0, b"x", 1, 2)
        gone.wait()
        return caught.value.cause

    assert "rank 1" in meshed(2, work, deadline=0.5)[0]


def test_who_is_at_a_far_exchange_is_told_so_instead_of_waiting_for_it() -> None:
    """Verdicts that are asked for cost memory: only those near the first member's own exchange are kept."""

    def work(mesh: Mesh) -> str:
        if mesh.rank == 0:
            mesh.exchange(0, b"x", 1, 1)
            assert set(mesh._table.of(0).decisions) == {0}
            return ""
        with pytest.raises(FarflungError) as caught:
            mesh.exchange(AHEAD + 1, b"y", 1, 1)
        return str(caught.value) + caught.value.cause

    assert f"exchange {AHEAD + 1} is far from 0" in meshed(2, work, deadline=1.0)[1]


def test_a_peer_that_never_comes_is_named() -> None:
    book = book_of(2)
    with pytest.raises(FarflungError, match="FF-SYNC-011: rank 1"):
        connect(book, key_of(book, 0), join_seconds=0.3)


def test_a_stranger_is_not_let_in() -> None:
    book, stranger = book_of(3), unsafe_key(8, 0)
    forged = [book[0], (stranger.public.hex(), *book[2][1:])]  # at a port that is free
    refused: list[str] = []

    def intrude() -> None:
        with pytest.raises(FarflungError, match="FF-SYNC-011") as caught:
            connect(forged, stranger, join_seconds=0.5)
        refused.append(caught.value.cause)

    def one(rank: int) -> None:
        with connect(book[:2], key_of(book, rank), join_seconds=30) as mesh:
            if rank == 0:
                thread = threading.Thread(target=intrude)
                thread.start()
                thread.join(30)
            mesh.exchange(0, b"x", 1, 2)

    together(2, one)
    assert refused
    assert "FF-NET-045" in refused[0]  # turned away at the door, before it could ask for anything


def test_only_loopback_is_bound_without_being_told() -> None:
    key = unsafe_key(7, 0)
    with pytest.raises(FarflungError, match="FF-NET-042"):
        connect([(key.public.hex(), "0.0.0.0", 40000)], key)


@pytest.mark.parametrize(
    "piece",
    [
        PayloadPiece(AHEAD + 1, 10, 0, bytes(10)),
        PayloadPiece(0, 2 * PIECE + 1, 0, bytes(PIECE)),
        PayloadPiece(0, 0, 0, b""),
        PayloadPiece(0, 10, 1, bytes(9)),
        PayloadPiece(0, 10, 0, bytes(9)),
        PayloadPiece(0, 10, 0, bytes(11)),
        PayloadPiece(0, PIECE + 1, 2 * PIECE, bytes(1)),
        PayloadPiece(0, PIECE + 1, -PIECE, bytes(PIECE)),
    ],
)
def test_pieces_that_lie_nowhere_are_refused_before_anything_is_kept(piece: PayloadPiece) -> None:
    assembly = PayloadAssembly()
    assembly.begin(0, 2 * PIECE)
    with pytest.raises(FarflungError, match="FF-SYNC-014"):
        assembly.add(1, piece)
    assert not assembly._open
    assert not assembly._whole


def test_pieces_may_come_twice_and_in_any_order() -> None:
    assembly = PayloadAssembly()
    assembly.begin(0, 2 * PIECE)
    data = bytes(range(256)) * (PIECE // 256) + b"rest"
    last, first = PayloadPiece(0, len(data), PIECE, data[PIECE:]), PayloadPiece(0, len(data), 0, data[:PIECE])
    assert not assembly.add(1, last)
    assert not assembly.add(1, last)
    assert assembly.add(1, first)
    assert not assembly.add(1, first)
    held = assembly.get(0, 1)
    assert held is not None
    assert held.data == data


def test_what_is_over_is_forgotten() -> None:
    assembly = PayloadAssembly()
    for tag in range(6):
        assembly.begin(tag, 10)
        assembly.put(0, b"x", tag)
    assert [tag for tag in range(6) if assembly.get(tag, 0)] == [3, 4, 5]


def test_a_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    public = new_key(path)
    assert load_key(path).public.hex() == public
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FarflungError, match="FF-SYNC-012"):
        new_key(path)
    path.write_text("no key")
    with pytest.raises(FarflungError, match="FF-SYNC-012"):
        load_key(path)
    with pytest.raises(FarflungError, match="FF-SYNC-012"):
        load_key(tmp_path / "none")


def test_an_address_book_that_cannot_be_right_is_refused() -> None:
    own, other = unsafe_key(7, 0), unsafe_key(7, 1)
    good = (own.public.hex(), "127.0.0.1", 40000)
    for entries in (
        [(other.public.hex(), "127.0.0.1", 40000)],
        [good, good],
        [good, ("zz", "127.0.0.1", 1)],
        [good, ("00", "127.0.0.1", 1)],
        [good, (other.public.hex(), "", 1)],
        [good, (other.public.hex(), "127.0.0.1", 0)],
    ):
        with pytest.raises(FarflungError, match="FF-SYNC-013"):
            members(entries, own.public)
