"""Text that is made to fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.cli import output

words = st.lists(st.text("abc,;()日", min_size=1, max_size=12), max_size=30)


@given(words, st.integers(1, 60), st.integers(1, 60))
def test_wrapping_loses_no_word_and_keeps_to_the_width(told: list[str], width: int, first: int) -> None:
    lines = output.wrap(" ".join(told), width, first)
    assert " ".join(lines).split() == told
    for number, line in enumerate(lines):
        room = width if number else first
        assert output.cut(line, room) == line or " " not in line, "only a word that is too long goes over"


@given(words, st.integers(1, 80))
def test_splitting_loses_nothing_but_a_pause(told: list[str], width: int) -> None:
    text = " ".join(told)
    fits, rest = output.split(text, width)
    assert output.cut(fits, width) == fits
    assert text.startswith(fits)
    assert text.endswith(rest)
    assert set(text[len(fits) : len(text) - len(rest)]) <= set(" ,;")


@pytest.mark.parametrize(
    ("width", "fits", "rest"),
    [
        (80, "position 3, expected in about 40 min (20 to 55 min), at the latest 14:05", ""),
        (55, "position 3, expected in about 40 min (20 to 55 min)", "at the latest 14:05"),
        (40, "position 3, expected in about 40 min", "(20 to 55 min), at the latest 14:05"),
        (20, "position 3", "expected in about 40 min (20 to 55 min), at the latest 14:05"),
        (5, "", "position 3, expected in about 40 min (20 to 55 min), at the latest 14:05"),
    ],
)
def test_a_sentence_is_split_where_it_pauses(width: int, fits: str, rest: str) -> None:
    text = "position 3, expected in about 40 min (20 to 55 min), at the latest 14:05"
    assert output.split(text, width) == (fits, rest)
