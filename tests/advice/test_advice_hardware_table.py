"""The table of cards: what its columns say of each other, what makers say, and how a card is found by name."""

from __future__ import annotations

import csv
import math
from collections import Counter
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.hardware import card_table
from farflung.advice.hardware.card import (
    LANE_BYTES,
    Card,
    ComputeUnits,
    FactorPrecision,
    FigureOrigin,
    MakerSupport,
    software,
)
from farflung.advice.io.card_files import FILE, read
from farflung.core import limits
from farflung.core.errors import UsageError

TABLE = read()
TEXT = FILE.read_text(encoding="utf-8")
ROWS = list(csv.DictReader(StringIO(TEXT)))


def card(name: str) -> Card:
    return TABLE.find(name)


def changed(name: str, /, **fields: str) -> str:
    """The table with one row, in which fields are other ones."""
    row = next(row for row in ROWS if row["name"] == name)
    out = StringIO()
    writer = csv.DictWriter(out, card_table.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerow({**row, **fields})
    return out.getvalue()


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        card_table.parse(text)
    assert caught.value.code == "FF-PLAN-030"
    return caught.value


# The file


def test_the_table_has_every_kind_that_a_network_of_homes_meets() -> None:
    assert len(TABLE.cards) >= 100
    makers = Counter(one.maker for one in TABLE.cards)
    assert {"NVIDIA": 80, "AMD": 45, "Intel": 6, "Apple": 12}.items() <= {
        maker: min(count, {"NVIDIA": 80, "AMD": 45, "Intel": 6, "Apple": 12}[maker]) for maker, count in makers.items()
    }.items()
    for name in (
        "RX 580", "RX 9070 XT", "GTX 1660", "GTX 1660 Ti", "RTX 5090", "A100 SXM 80GB", "H100 SXM 80GB", "MI300X",
        "M1", "M4 Max", "Arc B580", "L40S", "T4", "V100 SXM2 32GB", "P100 PCIe 16GB", "B200", "MI325X", "MI100",
    ):  # fmt: skip
        assert card(name)


def test_the_file_is_what_the_parser_reads_back_field_by_field() -> None:
    for row, one in zip(ROWS, TABLE.cards, strict=True):
        assert (one.name, one.source) == (row["name"], row["source"])
        assert one.vector_fp32 == pytest.approx(float(row["vector_fp32"]) * 1e12)
        assert one.memory_bytes == float(row["memory_gb"]) * 1e9


def test_the_stated_fp32_rate_is_shaders_times_clock_within_3_per_cent() -> None:
    for one in TABLE.cards:
        assert one.per_clock * one.shaders * one.boost == pytest.approx(one.vector_fp32, rel=0.03), one.name


def test_the_stated_bandwidth_is_bus_times_data_rate_within_2_per_cent() -> None:
    for one in TABLE.cards:
        assert one.bus_bits * one.data_rate / 8 == pytest.approx(one.bandwidth, rel=0.02), one.name


# FLOP that the matrix units of one generation do in a clock, for each shader: 16-bit factors, sums in float32, dense.
# GeForce cards do half of what the professional ones of the same chip do.
PER_SHADER = {
    ("NVIDIA", "Volta"): {16},
    ("NVIDIA", "Turing"): {8, 16},
    ("NVIDIA", "Ampere"): {4, 8, 32},
    ("NVIDIA", "Ada"): {4, 8},
    ("NVIDIA", "Blackwell"): {4, 8, 64},
    ("NVIDIA", "Hopper"): {32},
    ("AMD", "RDNA 3"): {8},
    ("AMD", "RDNA 4"): {16},
    ("AMD", "CDNA"): {16},
    ("AMD", "CDNA 2"): {16},
    ("AMD", "CDNA 3"): {32},
    ("AMD", "CDNA 4"): {64},
    ("Intel", "Xe"): {16},
    ("Intel", "Xe 2"): {16},
}
# Their makers state the tensor rates of these at a lower clock than the boost of their shaders.
LOWER = {"RTX 4000 Ada": 0.766, "H100 PCIe 80GB": 0.92, "H100 SXM 80GB": 0.92, "H200 SXM 141GB": 0.92, "B200": 0.94}
LOWER |= dict.fromkeys(("H100 NVL 94GB", "H200 NVL 141GB"), 0.86)


def test_matrix_units_of_one_generation_do_the_same_in_a_clock() -> None:
    for one in TABLE.cards:
        if one.matrix_fp16:
            rate = one.matrix_fp16 / (one.shaders * one.boost) / LOWER.get(one.name, 1.0)
            known = PER_SHADER[one.maker, one.family]
            assert min(abs(rate / each - 1) for each in known) < 0.03, (one.name, rate)


def test_no_matrix_rate_is_one_with_sparsity() -> None:
    published = {  # dense, TFLOP/s: data sheets and whitepapers
        "A100 SXM 80GB": 312, "A30": 165, "A10": 125, "A40": 149.7, "L4": 121, "L40S": 362, "L40": 181, "T4": 65,
        "V100 SXM2 32GB": 125, "H100 SXM 80GB": 989.4, "H100 PCIe": 756, "RTX 3090": 71, "RTX 3080 10GB": 59.5,
        "RTX 3070": 40.6, "RTX 4090": 165.2, "RTX 4080": 97.5, "RTX 5090": 209.5, "RTX 5080": 112.6,
        "RTX 5070 Ti": 87.9, "RTX 5070": 61.7, "RTX 2080 Ti": 53.8, "RTX 2070": 29.9, "Quadro RTX 6000": 130.5,
        "RTX A6000": 154.8, "RTX 6000 Ada": 364.2, "B200": 2250, "MI100": 184.6, "MI250X": 383, "MI300X": 1307.4,
        "RX 7900 XTX": 122.8, "RX 9070 XT": 195, "RTX 2000 Ada": 48, "RTX 4000 Ada": 81.9,
        "Radeon PRO W7700": 56.5,
    }  # fmt: skip
    for name, rate in published.items():
        assert card(name).matrix_fp16 == pytest.approx(rate * 1e12, rel=0.01), name


def test_figures_that_were_compared_with_a_second_source_are_that_sources() -> None:
    """Sellers' copies of NVIDIA's data sheets: 224 GB/s; 265 W of the board, of which 230 are the graphics'."""
    assert card("RTX 2000 Ada").bandwidth == 224e9
    watts = {name: card(f"Quadro RTX {name}").watts for name in ("4000", "5000", "6000", "8000")}
    assert watts == {"4000": 125, "5000": 230, "6000": 260, "8000": 260}


def test_every_row_names_its_source_and_what_is_computed() -> None:
    for one in TABLE.cards:
        assert any(year in one.source for year in map(str, range(2014, 2027))), one.name
        for field in one.derived:
            assert one.origin(field) is FigureOrigin.DERIVED
    assert card("RTX 3090").origin("vector_fp32") is FigureOrigin.TABLE
    assert card("RTX 3060 Ti").origin("matrix_fp16") is FigureOrigin.DERIVED


def test_names_and_their_aliases_are_each_of_one_card() -> None:
    said = [name for one in TABLE.cards for name in (one.name, *one.also)]
    assert len(set(said)) == len(said)
    for one in TABLE.cards:
        for name in (one.name, *one.also):
            assert TABLE.find(name) is one
    assert "M1" in card("M1").also


def test_cards_on_eight_and_four_lanes_are_known_as_such() -> None:
    lanes = {name: card(name).lanes for name in ("RTX 4060", "RX 6600 XT", "RX 7600", "B580", "RTX 5060 Ti 16GB")}
    assert set(lanes.values()) == {8}
    assert card("RX 6500 XT").lanes == 4
    assert card("RTX 3090").lanes == 16
    assert card("M2 Ultra").is_unified
    assert card("M2 Ultra").link == 0
    assert card("RTX 3090").link == pytest.approx(31.5e9, rel=0.001)  # 4.0 x16
    assert LANE_BYTES[3] * 16 == pytest.approx(15.76e9, rel=0.001)


# Rates


def test_matrix_and_shader_rates_stand_apart() -> None:
    ti, titan = card("GTX 1660 Ti"), card("RTX 3090")
    assert ti.matrix_fp16 == 0
    assert ti.rate(FactorPrecision.FP16)[1] is ComputeUnits.VECTOR
    assert ti.rate(FactorPrecision.FP16).flops == pytest.approx(2 * ti.vector_fp32, rel=0.001)
    assert titan.rate(FactorPrecision.FP16) == (titan.matrix_fp16, ComputeUnits.MATRIX, FigureOrigin.TABLE)
    assert titan.rate(FactorPrecision.FP32) == (titan.vector_fp32, ComputeUnits.VECTOR, FigureOrigin.TABLE)


def test_fp32_of_an_nvidia_card_is_not_that_of_tf32() -> None:
    assert card("A100 SXM 80GB").rate(FactorPrecision.FP32).flops == 19.5e12
    assert card("MI300X").rate(FactorPrecision.FP32).flops == pytest.approx(163.4e12)


def test_without_bfloat16_in_hardware_its_rate_is_that_of_float32() -> None:
    for name in ("RTX 2080 Ti", "V100 SXM2 16GB", "RX 580", "GTX 1080 Ti"):
        one = card(name)
        assert one.has_bf16 is False
        assert one.rate(FactorPrecision.BF16).flops == one.vector_fp32


def test_half_precision_that_is_slower_than_single_is_not_used() -> None:
    one = card("GTX 1080 Ti")
    assert one.vector_fp16 == pytest.approx(one.vector_fp32 / 64, rel=0.001)
    assert one.rate(FactorPrecision.FP16).flops == one.vector_fp32


def test_matrix_units_that_are_not_known_are_neither_zero_nor_reckoned_with() -> None:
    one = card_table.parse(changed("A2", matrix_fp16="?", matrix_bf16="?")).cards[0]
    assert one.matrix_fp16 is None
    assert one.rate(FactorPrecision.FP16).units is ComputeUnits.VECTOR


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RTX 3090", "CUDA 8.6"),
        ("GTX 1080 Ti", "CUDA 6.1, PyTorch before 2.15"),
        ("V100 SXM2 16GB", "CUDA 7.0, PyTorch before 2.15"),
        ("GTX 1660", "CUDA 7.5"),
        ("RX 580", "none"),
        ("RX 6800 XT", "ROCm unofficial"),
        ("RX 7900 XTX", "ROCm"),
        ("M1", "MPS"),
        ("Arc B580", "XPU"),
    ],
)
def test_what_software_runs_is_said(name: str, words: str) -> None:
    assert software(card(name)) == words


def test_every_card_has_at_most_one_makers_software() -> None:
    for one in TABLE.cards:
        kinds = [one.capability is not None, one.rocm is not None, one.has_mps, one.has_xpu]
        assert sum(kinds) == 1, one.name
        assert one.rocm in (None, MakerSupport.YES, MakerSupport.UNOFFICIAL, MakerSupport.NO)


# Slips of the pen


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("vector_fp32", "53.6"),
        ("shaders", "1496"),
        ("boost_mhz", "1965"),
        ("per_clock", "4"),
        ("bandwidth", "963"),
        ("bus_bits", "348"),
        ("data_rate", "15.9"),
    ],
)
def test_a_slip_of_the_pen_in_a_column_that_others_give_is_found(column: str, value: str) -> None:
    error = refused(changed("GeForce RTX 3090", **{column: value}))
    assert "line 2" in error.message
    assert "GeForce RTX 3090" in error.cause


@given(
    column=st.sampled_from(["vector_fp32", "shaders", "boost_mhz", "bandwidth", "bus_bits", "data_rate"]),
    row=st.sampled_from(ROWS),
    factor=st.one_of(st.floats(0.2, 0.9), st.floats(1.1, 5.0)),
)
@settings(max_examples=80, deadline=None)
def test_any_figure_that_is_a_tenth_off_is_found(column: str, row: dict[str, str], factor: float) -> None:
    whole = column in ("shaders", "bus_bits")
    value = float(row[column]) * factor
    refused(changed(row["name"], **{column: str(round(value)) if whole else repr(value)}))


def test_a_field_that_makes_no_sense_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    for column, value in [
        ("name", ""),
        ("year", "1999"),
        ("year", "2020.5"),
        ("memory_gb", "-24"),
        ("memory_gb", "nan"),
        ("memory_gb", "inf"),
        ("vector_fp16", "many"),
        ("vector_fp16", "?"),
        ("matrix_fp16", "-1"),
        ("matrix_fp16", "0"),
        ("matrix_fp16", ""),
        ("watts", "0"),
        ("watts", "-"),
        ("watts", "1e9"),
        ("pcie", "9"),
        ("pcie", "-"),
        ("lanes", "-"),
        ("lanes", "64"),
        ("cuda", "eight"),
        ("rocm", "maybe"),
        ("mps", "no"),
        ("xpu", "?"),
        ("bf16", "-"),
        ("bf16", "no"),
        ("kind", "toy"),
        ("derived", "everything"),
        ("source", " "),
    ]:
        with subtests.test(column=column, value=value):
            error = refused(changed("GeForce RTX 3090", **{column: value}))
            wanted = {"pcie": "lanes"} if value == "-" else {}
            assert error.message.endswith(wanted.get(column, column))


@pytest.mark.slow
@given(st.text(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_other_text_is_refused_as_a_table(text: str) -> None:
    refused(text)
    refused(",".join(card_table.COLUMNS) + "\n" + text + ",x\n")


def test_a_table_that_is_too_long_or_names_a_card_twice_is_refused() -> None:
    assert "characters" in refused(TEXT + "\n" * limits.CARD_TABLE_CHARACTERS).cause
    other = changed("T4").splitlines()[1]
    assert len(card_table.parse(changed("A2") + other + "\n").cards) == 2
    twice = changed("A2") + changed("T4", also="NVIDIA A2").splitlines()[1] + "\n"
    assert "NVIDIA A2 is also A2" in refused(twice).cause


# Names


def test_a_card_is_found_by_the_names_of_people_and_drivers(subtests: pytest.Subtests) -> None:
    for said, name in [
        ("rtx 3090", "GeForce RTX 3090"),
        ("3090", "GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("Tesla T4", "T4"),
        ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("AMD Instinct MI300X", "Instinct MI300X"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770 16GB"),
        ("Apple M1 Max", "M1 Max 32-core"),
        ("Radeon VII", "Radeon VII"),
    ]:
        with subtests.test(said=said, name=name):
            assert card(said).name == name


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "RTX 3080 Mobile",
        "RTX 2080 with Max-Q Design",
        "RX 6800M",
        "A100X",
        "",
        "-",
    ],
)
def test_another_card_with_the_same_number_is_not_taken_for_it(said: str) -> None:
    with pytest.raises(UsageError) as caught:
        TABLE.find(said)
    assert caught.value.code == "FF-PLAN-031"


def test_an_unknown_card_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UsageError) as caught:
        TABLE.find("RTX 3009")
    assert caught.value.code == "FF-PLAN-031"
    assert "GeForce RTX 3090" in caught.value.cause
    assert caught.value.exit_code == 2


def test_a_name_of_several_variants_asks_which_unless_its_memory_says_so() -> None:
    with pytest.raises(UsageError) as caught:
        TABLE.find("NVIDIA GeForce RTX 3060")
    assert caught.value.code == "FF-PLAN-032"
    assert "GeForce RTX 3060 8GB, GeForce RTX 3060 12GB" in caught.value.cause
    assert TABLE.find("NVIDIA GeForce RTX 3060", 12 << 30).name == "GeForce RTX 3060 12GB"
    assert TABLE.find("NVIDIA GeForce RTX 3060", 8 << 30).name == "GeForce RTX 3060 8GB"
    with pytest.raises(UsageError, match="FF-PLAN-031"):
        TABLE.find("NVIDIA GeForce RTX 3060", 48 << 30)


@pytest.mark.slow
@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_name_is_answered_with_a_card_or_an_error_of_one_code(said: str) -> None:
    try:
        found = TABLE.find(said).name
    except UsageError as error:
        found = error.code
    assert found in {"FF-PLAN-031", "FF-PLAN-032", *(one.name for one in TABLE.cards)}


def test_a_very_long_name_is_not_compared_with_anything() -> None:
    with pytest.raises(UsageError, match="FF-PLAN-031"):
        TABLE.find("RTX 3090 " * 100_000)
    with pytest.raises(UsageError, match="FF-PLAN-031"):
        TABLE.find("RTX 3090" + " " * limits.CARD_NAME_CHARACTERS)


def test_no_rate_is_a_nan_and_all_are_above_zero() -> None:
    for one in TABLE.cards:
        for precision in FactorPrecision:
            rate = one.rate(precision)
            assert math.isfinite(rate.flops)
            assert rate.flops > 0
