from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.config import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("7", 7.0),
        (" 250 us ", 2.5e-4),
    ],
)
def test_parse_duration_reads_number_and_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 parsec", "1e3s", "nan", "inf", "1s2s", "\uff11s"])
def test_parse_duration_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4KiB", 4096),
        ("64GiB", 64 << 30),
        ("1TB", 10**12),
        ("1.5MiB", 3 << 19),
        ("2Gi", 2 << 30),
    ],
)
def test_parse_size_reads_binary_and_decimal_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["64G", "1K", "-4KiB", "4XiB", "GiB", "", "0x10", "1 2"])
def test_parse_size_refuses_ambiguous_or_wrong_units(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_parse_size_refuses_more_than_a_signed_64_bit_number() -> None:
    with pytest.raises(ValueError, match="larger than any memory"):
        parse_size("999999999999PiB")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (8 << 30, "8GiB"),
        (8 * 10**9, "8GB"),
        (1500 * 10**6, "1500MB"),
        (1000, "1000B"),
        (4096, "4KiB"),
        (9999 << 20, "9999MiB"),
        (1234567, "1234567B"),
        (0, "0B"),
    ],
)
def test_format_size_is_short_where_it_can_be(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(min_value=0, max_value=(1 << 62)))
def test_format_size_is_read_back_exactly(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(min_value=0, max_value=86_400_000))
def test_format_duration_is_read_back(milliseconds: int) -> None:
    seconds = milliseconds / 1e3
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)
