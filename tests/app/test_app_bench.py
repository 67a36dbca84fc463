"""`farflung bench compress`: any file ends in figures or in a clear error, and the figures are those of the codecs."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from farflung.app.cli.main import main
from farflung.app.codec_bench import chart, run_payloads, vectors
from farflung.app.codec_bench import measure as codec_bench_measure
from farflung.app.codec_bench.measure import CONFIGS, CodecConfig, CodecResult, coefficients, measure, support_floor
from farflung.app.codec_bench.vectors import BenchVector
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, UsageError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.io.durable_files import read_records
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job import terms_file
from farflung.job.spec import JobSpec, JobTerms, ModelSpec, SyncSpec
from farflung.peers.rundir.archive import RunLog
from farflung.peers.rundir.folder import RunFolder
from farflung.train import public_state, worker_messages
from farflung.train.run_log import AcceptSetRecord, Contribution, Record, RunStartRecord, payload_hash
from farflung.train.sync_arithmetic import Sync

PLENTY = 1 << 20


def saved(path: Path, tensors: dict[str, NDArray[Any]]) -> Path:
    safetensors.numpy.save_file(tensors, path)
    return path


def noise(*shape: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def raw(path: Path, head: dict[str, Any] | bytes, data: bytes = b"") -> Path:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


# A stranger's file


def test_all_tensors_of_a_small_file_are_measured_in_the_order_of_their_names(tmp_path: Path) -> None:
    tensors = {"b": noise(7, 5), "a": noise(3, seed=1), "c": np.array(2.0, np.float32)}
    (one,) = vectors.from_model(saved(tmp_path / "m.safetensors", tensors), PLENTY, 1).items
    assert [tensor.shape for tensor in one.layout.tensors] == [(3,), (7, 5), ()]
    assert one.values.tolist() == [*tensors["a"], *tensors["b"].reshape(-1), 2.0]


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_other_floating_point_types_are_read_as_float32(kind: Any, tmp_path: Path) -> None:
    values = noise(64).astype(kind)
    (one,) = vectors.from_model(saved(tmp_path / "m", {"a": values}), PLENTY, 1).items
    assert one.values.tolist() == values.astype(np.float32).tolist()


def test_bf16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    values = noise(64)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    head = {"a": {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}}
    (one,) = vectors.from_model(raw(tmp_path / "m", head, halves.tobytes()), PLENTY, 1).items
    assert one.values.view(np.uint32).tolist() == [int(half) << 16 for half in halves]


def test_of_a_large_file_whole_rows_are_drawn_by_the_seed(tmp_path: Path) -> None:
    rows = np.arange(1, 1001, dtype=np.float32)[:, None].repeat(10, axis=1)
    path = saved(tmp_path / "m", {"a": rows, "b": 0 - rows})
    one, again, other = (vectors.from_model(path, 555, seed) for seed in (1, 1, 2))
    (drawn,) = one.items
    assert 500 < drawn.layout.size <= 555
    assert one.whole == 20_000
    for tensor, place in drawn.layout.slices():
        taken = np.abs(drawn.values[place].reshape(tensor.shape))
        assert (taken == taken[:, :1]).all()
        assert (np.diff(taken[:, 0]) == 1).all()
    assert drawn.values.tobytes() == again.items[0].values.tobytes()
    assert drawn.values.tobytes() != other.items[0].values.tobytes()
    assert any("drawn by seed 1" in note for note in one.notes)


def test_a_tensor_whose_rows_are_all_too_long_gives_what_was_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", {"a": noise(2, 1000)})
    assert vectors.from_model(path, 64, 1).items[0].layout.size == 64


def test_what_cannot_be_measured_is_left_out_and_said(tmp_path: Path) -> None:
    bad = noise(8)
    bad[3] = np.nan
    tensors = {"a": noise(8), "b": bad, "c": np.arange(9), "d": np.zeros((0, 4), np.float32)}
    found = vectors.from_model(saved(tmp_path / "m", tensors), PLENTY, 1)
    assert found.items[0].layout.size == 8
    assert any("1 tensors hold no floating-point" in note for note in found.notes)
    assert any("1 tensors hold NaN" in note for note in found.notes)


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"{", "FF-APP-190"),
        (b"[]", "FF-APP-190"),
        (b"[" * 100_000, "FF-APP-190"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}}, "FF-APP-190"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}}, "FF-APP-190"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}, "FF-APP-190"),
        ({"a": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}, "FF-APP-190"),
        ({"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 16]}}, "FF-APP-190"),
        ({"a": {"dtype": "F32", "shape": [2] * 9, "data_offsets": [0, 2048]}}, "FF-APP-190"),
        ({"a": {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}}, "FF-APP-190"),
        ({"a": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}, "FF-APP-191"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, "FF-APP-191"),  # all zero
        ({}, "FF-APP-191"),
        ({"__metadata__": {"a": "b"}}, "FF-APP-191"),
    ],
)
def test_a_bad_file_is_refused_with_one_clear_error(head: Any, code: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        vectors.from_model(raw(tmp_path / "m", head, bytes(16)), PLENTY, 1)
    assert error.value.code == code


def test_more_tensors_than_any_model_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors.limits, "TENSORS", 2)
    path = saved(tmp_path / "m", {name: noise(4) for name in "abc"})
    with pytest.raises(UsageError, match="more than 2 tensors"):
        vectors.from_model(path, PLENTY, 1)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "short").write_bytes(b"1234567")
    (tmp_path / "long").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    for name in ("pipe", "short", "long", "nothing", "."):
        with pytest.raises(UsageError) as error:
            vectors.from_model(tmp_path / name, PLENTY, 1)
        assert error.value.code == "FF-APP-190", name
        assert (error.value.cause == "it is a folder, a pipe or a device") == (name in ("pipe", "."))


@given(data=st.data())
@settings(max_examples=200)
def test_a_damaged_file_ends_in_finite_vectors_or_in_one_of_two_errors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(safetensors.numpy.save({"a": noise(4, 6), "b": noise(30, seed=2), "c": np.arange(5)}))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        found = vectors.from_model(path, data.draw(st.integers(1, 60)), 1)
    except UsageError as error:
        if error.code not in ("FF-APP-190", "FF-APP-191"):
            raise
        return
    for one in found.items:
        assert np.isfinite(one.values).all()
        assert one.values.any()
        assert one.values.shape == (one.layout.size,)


# Figures

GAUSS = BenchVector("g", TensorLayout.of({"a": (256, 256), "b": (100,)}), noise(256 * 256 + 100))


@pytest.fixture(scope="module")
def measured() -> tuple[CodecResult, ...]:
    """All codecs on Gaussian numbers; many seconds, so once."""
    return measure([GAUSS])


@pytest.mark.whole
def test_every_codec_has_a_row_and_none_is_better_than_its_floor_on_gaussian_numbers(
    measured: tuple[CodecResult, ...],
) -> None:
    rows = measured
    assert [row.codec for row in rows] == [way.name for way in CONFIGS]
    for row in rows:
        assert row.error is not None, row
        if row.codec != "dense fp32":  # the floor is of real numbers, and these have 32 bits themselves
            assert row.error >= 0.999 * row.error_floor, row.codec
        assert row.bits == pytest.approx(8 * row.bytes / GAUSS.layout.size)
        assert row.below_float32 == pytest.approx(32 / row.bits)


@pytest.mark.whole
def test_float32_is_exact_and_fewer_bits_are_worse(measured: tuple[CodecResult, ...]) -> None:
    rows = {row.codec: row for row in measured}
    assert (rows["dense fp32"].error, rows["dense fp32"].cosine) == (0, pytest.approx(1))
    errors = [rows[f"dense {name}"].error for name in ("fp32", "bf16", "8-bit", "4-bit", "2-bit", "1-bit")]
    assert errors == sorted(errors)  # type: ignore[type-var]


def test_errors_are_relative_and_scale_free() -> None:
    for scale in (1e-30, 1e30):
        scaled = BenchVector("s", GAUSS.layout, GAUSS.values * np.float32(scale))
        (row,) = measure([scaled], [CodecConfig("dense fp32")])
        assert row.error == 0


def test_what_is_sent_of_a_sparse_vector_is_counted_and_measured() -> None:
    values = np.zeros(8192, np.float32)
    values[[5, 4096 + 9]] = 3.0, 4.0
    one = BenchVector("s", TensorLayout.of({"a": (2, 4096)}), values)
    (row,) = measure([one], [CodecConfig("top 1 fp32", 32, 1)])
    assert (row.error, row.cosine) == (0, pytest.approx(1))
    assert row.coefficient == pytest.approx(8 * row.bytes / 2)
    assert row.support_floor == pytest.approx(12)  # log2 of 4096 places


def test_a_codec_that_cannot_send_a_vector_says_why_in_its_row() -> None:
    one = BenchVector("v", TensorLayout.of({"a": (100,)}), noise(100))
    (row,) = measure([one], [CodecConfig("low_rank 4", rank=4)])
    assert row.error is None
    assert "no tensor of the model has factors" in row.why


def test_the_floor_of_a_support_is_the_logarithm_of_the_number_of_supports() -> None:
    assert support_floor(4096, 64) == pytest.approx(math.log2(math.comb(4096, 64)) / 64)
    assert support_floor(4096, 64) == pytest.approx(7.36, abs=0.005)
    assert support_floor(10, 10) == pytest.approx(0)


def test_coefficients_are_those_of_each_chunk_and_small_tensors_are_one() -> None:
    layout = TensorLayout.of({"a": (10,), "b": (3, 4096), "c": (5000,), "d": (90,)})
    assert coefficients(layout, 64) == 3 * 64 + (64 + 64) + 64
    assert coefficients(TensorLayout.of({"a": (10,)}), 64) == 10


# A run


def finished(root: Path, sync: SyncSpec, rounds: int = 8, peers: int = 2) -> RunFolder:
    """A run's folder with the exported log of `rounds` rounds of made-up changes, one a peer and round."""
    spec = JobSpec(rounds=rounds, model=ModelSpec(layers=1, width=32, heads=2, context=32), sync=sync)
    layout = TensorLayout.of({"a": (64, 64), "b": (40,)})
    how, coordinator = Sync.of(spec), SigningKey(bytes([9] * 32))
    public = how.initial(noise(layout.size))
    first = public.root(layout)
    terms = JobTerms(spec, Hash(ZERO_HASH), Hash(ZERO_HASH), layout, coordinator.public, first)
    export = root / "export"
    for name in ("payloads", "blocks", "receipts"):
        (export / name).mkdir(parents=True)
    for name in ("genesis.bin", "../model.safetensors"):
        (export / name).write_bytes(b"")
    (export / "terms.bin").write_bytes(terms_file.write(terms))
    (export / "initial.bin").write_bytes(public_state.pack(public, layout))
    records: list[Record] = [RunStartRecord(terms.id, coordinator.public, first, rounds)]
    keys = [SigningKey(bytes([i + 1] * 32)).public for i in range(peers)]
    for round in range(rounds):
        parts = []
        for i, peer in enumerate(keys):
            end = public.params + np.float32(0.01) * noise(layout.size, seed=100 * round + i)
            sent = how.encode(public, None, None, end, layout, peer)
            parts.append(worker_messages.AcceptedPayload(peer, 1, sent.payload))
            (export / "payloads" / f"{payload_hash(sent.payload).hex()}.bin").write_bytes(sent.payload)
        zero = Hash(ZERO_HASH)
        taken = [Contribution(p.peer, 1, payload_hash(p.payload), zero, zero, zero, "t") for p in parts]
        records.append(AcceptSetRecord(round, tuple(taken)))
        public = how.apply(public, layout, parts)
    log = RunLog(export / "rounds.log", coordinator)
    for record in records:
        log.write(record)
    log.close()
    return RunFolder(root)


EXACT = SyncSpec(method="local_sgd", codec="dense", value_bits=32)


def test_payloads_of_an_exact_codec_are_the_pseudo_gradients_themselves(tmp_path: Path) -> None:
    found = run_payloads.read(finished(tmp_path / "run", EXACT))
    assert [one.name for one in found.drawn.items] == ["1", "4", "7"]
    for one in found.drawn.items:
        meant = 0.01 * noise(one.layout.size, seed=100 * int(one.name))
        assert one.values == pytest.approx(meant, abs=1e-6)
    assert (found.payloads.total, found.payloads.mean) == (16, pytest.approx(found.payloads.expected))
    assert "exact" in found.drawn.notes[0]


@pytest.mark.whole
def test_of_a_lossy_run_the_change_of_public_state_is_taken_and_said_to_be(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", SyncSpec(method="sparse_loco", codec="topk", value_bits=2, topk=64, chunk=512))
    found = run_payloads.read(run)
    assert [one.name for one in found.drawn.items] == ["0 to 3", "4 to 7"]
    (note,) = found.drawn.notes
    assert "lossy" in note
    assert "its numbers are not 0" in note
    assert found.payloads.mean == pytest.approx(found.payloads.expected, rel=0.25)
    assert found.payloads.coefficient == pytest.approx(8 * found.payloads.mean / coefficients_of(run))


def coefficients_of(run: RunFolder) -> int:
    return coefficients(TensorLayout.of({"a": (64, 64), "b": (40,)}), 64, 512)


def test_a_stepwise_run_is_read_as_well(tmp_path: Path) -> None:
    sync = SyncSpec(method="demo", steps=1, codec="topk", topk=32, value_bits=32, transform="dct")
    assert run_payloads.read(finished(tmp_path / "run", sync)).drawn.items


@pytest.mark.parametrize("name", ["terms.bin", "initial.bin", "rounds.log"])
def test_a_damaged_export_ends_in_an_error(name: str, tmp_path: Path) -> None:
    run = finished(tmp_path / "run", EXACT, rounds=2)
    path = run.export / name
    data = bytearray(path.read_bytes())
    for place in (len(data) // 3, len(data) // 2):
        data[place] ^= 255
    path.write_bytes(data)
    with pytest.raises(FarflungError):
        run_payloads.read(run)


def test_a_payload_that_is_not_the_logged_one_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", EXACT, rounds=2)
    one, other, *_ = sorted((run.export / "payloads").iterdir())
    one.write_bytes(other.read_bytes())
    with pytest.raises(VerificationError) as error:
        run_payloads.read(run)
    assert error.value.code == "FF-APP-192"


def test_a_run_without_rounds_has_nothing_to_measure(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", EXACT, rounds=2)
    log = run.export / "rounds.log"
    ends = [end for _, end in read_records(log)]
    log.write_bytes(log.read_bytes()[: ends[1]])  # the header and the opening
    with pytest.raises(VerificationError) as error:
        run_payloads.read(run)
    assert error.value.code == "FF-APP-192"


# The verb


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(saved(tmp_path / "m.safetensors", {"a": noise(64, 80), "b": noise(64, seed=3)}))


@pytest.mark.whole
def test_the_table_fits_80_columns_and_names_each_codec(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "compress", model, "--numbers", "1000"])
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    assert "a stand-in" in " ".join(shown)
    for way in CONFIGS:
        assert sum(line[:17].strip() == way.name for line in shown) == 1, way.name


def test_the_same_figures_are_an_object(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "compress", model, "--json", "--numbers", "1000", "--seed", "3"])
    said = json.loads(capsys.readouterr().out)
    assert (said["of"], said["whole"]) == ("m.safetensors", 64 * 80 + 64)
    assert said["numbers"] <= 1000
    assert [row["codec"] for row in said["codecs"]] == [way.name for way in CONFIGS]
    assert {"codec", "bytes", "bits", "error", "cosine", "error_floor"} <= set(said["codecs"][0])


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_picture_is_the_same_bytes_each_time(kind: str, start: bytes, measured: tuple[CodecResult, ...]) -> None:
    one, two = (chart.picture(measured, "Codecs", kind) for _ in range(2))
    assert one.startswith(start)
    assert one == two


def test_the_verb_draws_by_the_ending_of_the_file(model: str, tmp_path: Path) -> None:
    path = tmp_path / "one.PNG"
    main(["bench", "compress", model, "--numbers", "1000", "--plot", str(path)])
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "FF-APP-194"),
        (["m", "--recorded", "r"], "FF-APP-194"),
        (["m", "--plot", "x.gif"], "FF-APP-193"),
        (["m", "--plot", "x"], "FF-APP-193"),
        (["--recorded", "nobody"], "FF-APP-014"),
        (["nothing.safetensors"], "FF-APP-190"),
        (["m", "--numbers", "0"], "FF-APP-001"),
    ],
)
def test_what_cannot_be_measured_ends_with_status_2(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "compress", *words])
    shown = capsys.readouterr()
    assert (left.value.code, shown.out) == (2, "")
    assert shown.err.startswith(f"error[{code}]: ")


def test_bench_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench"])
    assert "compress" in capsys.readouterr().err


def test_every_kind_of_codec_is_measured() -> None:
    kinds = {way.name.split()[0] for way in codec_bench_measure.CONFIGS}
    assert kinds == {"dense", "top", "low_rank"}
    assert {way.value_bits for way in codec_bench_measure.CONFIGS} == {1, 2, 4, 8, 16, 32}
