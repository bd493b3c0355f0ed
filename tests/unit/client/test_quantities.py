"""Durations and sizes as people write them."""

import pytest

from gpudev.cli.options import is_id, parse_gigabytes, parse_hours


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("4", 4),
        ("0.5", 0.5),
        ("90m", 1.5),
        ("90min", 1.5),
        ("2h", 2),
        ("1h30", 1.5),
        ("1h30m", 1.5),
        ("1 h 30 min", 1.5),
        ("1d", 24),
        ("1d12h", 36),
        ("2H", 2),
        (" 2h ", 2),
        ("1  h   30", 1.5),
        (".5", 0.5),
        ("0.3333333333333333", 1 / 3),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, hours: float) -> None:
    assert parse_hours(text) == hours


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "0h", "-1", "nan", "inf", "x", "h", "1d12", "30m1h", "1e3", "2w", "1" * 20),
        *("1 2", "1  2", "1 30", "1 0 h", "1. 5", "\N{ARABIC-INDIC DIGIT THREE}h"),
    ],
)
def test_anything_else_is_no_duration(text: str) -> None:
    assert parse_hours(text) is None


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [("10", 10), ("10G", 10), ("10gb", 10), ("10 GiB", 10), ("2T", 2048), ("2TB", 2048)],
)
def test_sizes_are_read_as_people_write_them(text: str, gigabytes: int) -> None:
    assert parse_gigabytes(text) == gigabytes


@pytest.mark.parametrize(
    "text", ["", "0", "0G", "-1", "1.5G", "10M", "G", "10X", "1" * 20, "1 0", "\N{ARABIC-INDIC DIGIT THREE}G"]
)
def test_anything_else_is_no_size(text: str) -> None:
    assert parse_gigabytes(text) is None


@pytest.mark.parametrize("text", ["dead", "DEAD", "2024-01", "3f2a9c1e-0000-4000-8000-000000000000"])
def test_four_hex_digits_may_be_an_id(text: str) -> None:
    assert is_id(text)


@pytest.mark.parametrize("text", ["", "abc", "ab-1", "1-2-3", "----", "g123", "0" * 33])
def test_what_the_api_takes_for_no_id_is_a_name(text: str) -> None:
    assert not is_id(text)
