"""Ids, units, money and the codec: one text form, one byte form, whole amounts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import events, units
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import (
    FarflungError,
    NetworkError,
    PolicyError,
    ProtocolError,
    RunError,
    SpecError,
    UsageError,
    VerificationError,
)
from farflung.core.events.plan import FileCount
from farflung.core.events.work_class import LossProbeCounts
from farflung.core.ids import short, text
from farflung.core.money import CREDIT, MAX_CREDITS, Credits, add, checked, format_credits, parse_credits, sub, times

FEW = settings(max_examples=50)
AMOUNT = st.integers(0, MAX_CREDITS)


@given(raw=st.binary(min_size=32, max_size=32))
@FEW
def test_an_id_has_one_text_form(raw: bytes) -> None:
    assert bytes.fromhex(text(raw)) == raw
    assert text(raw).startswith(short(raw))


def test_quantities_print_with_three_digits_and_a_unit() -> None:
    assert units.format_bytes(0) == "0 B"
    assert units.format_bytes(999) == "999 B"
    assert units.format_bytes(18_300_000) == "18.3 MB"
    assert units.format_bytes(5e15) == "5 PB"
    assert units.format_bytes(5e21) == "5000 EB"
    assert units.format_bytes(348.93e15, digits=4) == "348.9 PB"
    assert units.format_count(868_000) == "868 k"
    assert units.format_count(12) == "12"
    assert units.format_rate(14_200_000) == "14.2 Mbit/s"
    assert units.format_share(Fraction(1, 8)) == "12.5 %"
    assert units.format_share(1) == "100 %"
    assert units.format_seconds(0.31) == "0.31 s"
    assert units.format_seconds(52) == "52 s"
    assert units.format_seconds(130) == "2 min 10 s"
    assert units.format_seconds(3 * 3600 + 300) == "3 h 05 min"


@given(amount=st.integers(0, 10**18 - 1))
@FEW
def test_an_amount_reads_back_as_it_was_written(amount: int) -> None:
    assert parse_credits(format_credits(amount)) == amount


def test_what_is_no_amount_is_refused(subtests: pytest.Subtests) -> None:
    for bad in ["", "-1", "+1", "1.", ".5", "1.0000000000001", "1e3", "1,5", "٣", "1" * 13, "nan"]:
        with subtests.test(bad=bad):
            with pytest.raises(UsageError, match="FF-CORE-011"):
                parse_credits(bad)


@given(left=AMOUNT, right=AMOUNT)
@FEW
def test_money_neither_wraps_nor_goes_below_zero(left: int, right: int) -> None:
    a, b = Credits(left), Credits(right)
    if left + right <= MAX_CREDITS:
        assert sub(add(a, b), b) == a
    else:
        with pytest.raises(PolicyError, match="FF-CORE-010"):
            add(a, b)
    if left < right:
        with pytest.raises(PolicyError, match="FF-CORE-010"):
            sub(a, b)


@given(price=AMOUNT, count=st.integers(-3, 1 << 40))
@FEW
def test_a_product_is_exact_or_refused(price: int, count: int) -> None:
    if 0 <= price * count <= MAX_CREDITS:
        assert times(Credits(price), count) == price * count
    else:
        with pytest.raises(PolicyError, match="FF-CORE-010"):
            times(Credits(price), count)


def test_the_range_of_amounts_has_hard_ends() -> None:
    assert checked(MAX_CREDITS) == MAX_CREDITS
    for bad in (-1, MAX_CREDITS + 1):
        with pytest.raises(PolicyError):
            checked(bad)
    assert format_credits(-3 * CREDIT // 2) == "-1.500000"
    assert format_credits(500) == "0.0000000005"  # of a token, at what a market pays
    assert format_credits(MAX_CREDITS) == "9223372.036854775807"


class Inner(Wire, frozen=True):
    items: tuple[int, ...] = ()


class Sample(Wire, frozen=True, tag="sample"):
    number: int
    name: str
    raw: bytes
    flag: bool
    real: float
    inner: Inner
    maybe: int | None = None


SAMPLES = st.builds(
    Sample,
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.text(max_size=20),
    st.binary(max_size=40),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(Inner, st.lists(st.integers(0, 300), max_size=5).map(tuple)),
    st.none() | st.integers(0, 9),
)
GOOD = Sample(1, "a", b"x", True, 1.5, Inner((1, 2)))


@given(value=SAMPLES)
@FEW
def test_a_value_has_one_byte_string(value: Sample) -> None:
    data = encode(value)
    assert decode(data, Sample, len(data)) == value
    assert encode(decode(data, Sample, len(data))) == data


@given(value=SAMPLES, place=st.integers(0, 10**6), bit=st.integers(0, 7))
@FEW
def test_a_flipped_bit_never_decodes_to_the_same_value(value: Sample, place: int, bit: int) -> None:
    data = bytearray(encode(value))
    data[place % len(data)] ^= 1 << bit
    try:
        other = decode(bytes(data), Sample, len(data))
    except ProtocolError:
        return
    assert encode(other) == bytes(data) != encode(value)


@given(data=st.binary(max_size=60))
@FEW
def test_noise_raises_protocol_errors_only(data: bytes) -> None:
    try:
        value = decode(data, Sample, 60)
    except ProtocolError:
        return
    assert encode(value) == data


def code(data: bytes, kind: type[Any] = Sample, limit: int = 1000) -> str:
    with pytest.raises(ProtocolError) as error:
        decode(data, kind, limit)
    return error.value.code


def test_too_long_is_refused_before_decoding() -> None:
    assert code(encode(GOOD), limit=len(encode(GOOD)) - 1) == "FF-CORE-020"
    assert code(b"\xc1" * 100, limit=99) == "FF-CORE-020"


def test_integers_that_are_not_minimal_are_refused() -> None:
    assert decode(b"\x91\x91\x05", Inner, 9) == Inner((5,))
    for long in (b"\xcc\x05", b"\xcd\x00\x05", b"\xce\x00\x00\x00\x05", b"\xd0\x05"):
        assert code(b"\x91\x91" + long, Inner) == "FF-CORE-022"
    assert code(b"\x91\xdc\x00\x01\x05", Inner) == "FF-CORE-022"  # a 16-bit length where a nibble does


def test_wrong_type_field_count_and_trailing_bytes_are_refused() -> None:
    assert code(encode(("sample", 1, "a", b"x", True, 1.5, ((1,),)))) in {"FF-CORE-021", "FF-CORE-022"}
    assert code(encode(("other", 1, "a", b"x", True, 1.5, ((1,),), None))) == "FF-CORE-021"
    assert code(encode(("sample", "1", "a", b"x", True, 1.5, ((1,),), None))) == "FF-CORE-021"
    assert code(encode(("sample", 1, "a", b"x", True, 1.5, ((1,),), None, 0))) in {"FF-CORE-021", "FF-CORE-022"}
    assert code(encode(GOOD) + b"\x00") == "FF-CORE-021"
    assert code(b"\x91" * 100_000, Inner, 1 << 20) == "FF-CORE-021"


def test_text_that_is_not_utf8_is_refused() -> None:
    assert code(encode(GOOD).replace(b"\xa1a", b"\xa1\xff")) == "FF-CORE-021"


def test_left_out_defaults_are_not_canonical() -> None:
    assert code(b"\x90", Inner) == "FF-CORE-022"


class Nest(Wire, frozen=True, tag="nest"):
    inner: tuple[Nest, ...]
    real: float


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_floats_that_are_not_finite_are_refused_wherever_they_hide(bad: float) -> None:
    sample = msgspec.structs.replace(GOOD, real=bad)
    assert code(encode(sample)) in {"FF-CORE-022", "FF-CORE-023"}
    for kind, value in (
        (tuple[Sample, ...], (sample,)),
        (dict[str, float], {"a": bad}),
        (list[float], [bad]),
        (list[float | None], [bad]),
        (dict[str, tuple[tuple[int, float], ...]], {"a": ((1, bad),)}),
        (tuple[Nest | int, ...], (Nest((Nest((), bad),), 0.5),)),
        (Any, (1, [bad])),
    ):
        assert code(encode(value), kind) == "FF-CORE-023"


def test_keys_in_another_order_or_twice_are_refused() -> None:
    assert decode(b"\x82\xa1a\x01\xa1b\x02", dict[str, int], 99) == {"a": 1, "b": 2}
    assert code(b"\x82\xa1b\x02\xa1a\x01", dict[str, int]) == "FF-CORE-022"
    assert code(b"\x82\xa1a\x01\xa1a\x01", dict[str, int]) == "FF-CORE-022"


def test_errors_show_code_cause_and_next_step_and_end_with_their_own_status() -> None:
    error = PolicyError("FF-X-1", "no", cause="why", hint="do this")
    assert error.lines() == ["error[FF-X-1]: no", "  cause: why", "  try:   do this"]
    assert RunError("FF-X-1", "no").lines() == ["error[FF-X-1]: no"]
    tree = {UsageError: 2, SpecError: 2, NetworkError: 3, ProtocolError: 3, PolicyError: 4, VerificationError: 5}
    assert {kind: kind("c", "m").exit_code for kind in tree} == tree
    assert (FarflungError.exit_code, RunError.exit_code) == (1, 1)


def _example(kind: type[Any]) -> Any:
    by_type = {
        "int": 3,
        "float": 1.25,
        "str": "x",
        "bool": True,
        "SentBytesByKind": events.SentBytesByKind(1, 2, 3, 4),
        "LossProbeCounts": LossProbeCounts(5, 6),
    }
    pairs, counted = {"int": (3, 4), "float": (0.5, -0.25)}, FileCount("hidden", 2, 9, "a")
    values = {}
    for field in msgspec.structs.fields(kind):
        name = getattr(field.type, "__name__", str(field.type))
        of = str(field.type).removeprefix("tuple[").split(",")[0]
        pair = (counted, counted) if "FileCount" in of else pairs.get(of, ("p", "q"))
        values[field.name] = pair if "tuple" in str(field.type) else by_type.get(name, 1.5)
    return kind(**values)


def test_every_event_survives_json_and_is_one_line(subtests: pytest.Subtests) -> None:
    for kind in events.AnyEvent.__args__:
        with subtests.test(kind=kind):
            event = _example(kind)
            line = events.to_json(event)
            assert events.from_json(line) == event
            assert "\n" not in line
            assert f'"event":"{kind.__struct_config__.tag}"' in line
