"""Tags of any text survive GCP's labels."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.adapters.gcp.labels import EXACT_PREFIX, labels_from_tags, readable_value, tags_from_labels, update_labels
from gpudev.domain.errors import Invalid
from gpudev.ports.cloud import OWNER_TAG

KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
VALUE = re.compile(r"[a-z0-9_-]{0,63}")

fitting = st.dictionaries(st.from_regex(KEY, fullmatch=True), st.from_regex(VALUE, fullmatch=True), max_size=5)
anything = st.dictionaries(
    st.one_of(st.sampled_from([OWNER_TAG, "disk-name", f"{EXACT_PREFIX}00"]), st.text(max_size=20)),
    st.one_of(st.emails(), st.text(max_size=30), st.from_regex(VALUE, fullmatch=True)),
    max_size=4,
)


@given(tags=anything)
def test_all_tags_are_read_as_they_were_written(tags: dict[str, str]) -> None:
    assert tags_from_labels(labels_from_tags(tags)) == tags


@given(tags=anything)
def test_every_label_is_one_that_gcp_allows(tags: dict[str, str]) -> None:
    labels = labels_from_tags(tags)
    assert len(labels) <= 64
    assert all(KEY.fullmatch(key) and VALUE.fullmatch(value) for key, value in labels.items())


@given(tags=fitting)
def test_what_fits_is_a_label_as_it_stands(tags: dict[str, str]) -> None:
    assert {key: labels_from_tags(tags)[key] for key in tags if not key.startswith(EXACT_PREFIX)} == {
        key: value for key, value in tags.items() if not key.startswith(EXACT_PREFIX)
    }


@given(first=anything, second=anything)
def test_setting_tags_keeps_the_others(first: dict[str, str], second: dict[str, str]) -> None:
    assert tags_from_labels(update_labels(labels_from_tags(first), second)) == first | second


@given(tags=anything)
def test_setting_the_same_tags_again_changes_nothing(tags: dict[str, str]) -> None:
    assert update_labels(labels_from_tags(tags), tags) == labels_from_tags(tags)


def test_a_name_with_an_at_sign_can_be_seen_in_a_console() -> None:
    assert re.fullmatch(
        r"ada_lovelace_example_com--[a-z2-7]{8}", labels_from_tags({OWNER_TAG: "Ada.Lovelace@example.com"})[OWNER_TAG]
    )


def test_the_longest_user_name_fits() -> None:
    tags = {OWNER_TAG: "A" + "b.@+" * 63 + "-z", "disk-name": "d" * 63}
    assert len(tags[OWNER_TAG]) == 255
    assert tags_from_labels(labels_from_tags(tags)) == tags


@pytest.mark.parametrize("name", ["ada.b@x", "ADA.B@X", "ada-b_x", "ada_b.x"])
def test_a_stand_in_is_no_other_persons_name(name: str) -> None:
    others = {"ada_b_x", "ada.b@x", "ADA.B@X", "ada-b_x", "ada_b.x"} - {name}
    assert readable_value(name) not in {readable_value(other) for other in others} | others


def test_a_label_that_was_changed_by_hand_counts() -> None:
    labels = labels_from_tags({OWNER_TAG: "ada@example.com", "disk-name": "default"})
    assert tags_from_labels({**labels, OWNER_TAG: "grace"}) == {OWNER_TAG: "grace", "disk-name": "default"}
    assert tags_from_labels({key: value for key, value in labels.items() if key != OWNER_TAG}) == {
        "disk-name": "default"
    }
    renamed = update_labels({**labels, OWNER_TAG: "grace"}, {"disk-name": "data"})
    assert renamed == {OWNER_TAG: "grace", "disk-name": "data"}


@pytest.mark.parametrize("damage", ["removed", "shortened", "changed"])
def test_a_name_whose_exact_text_was_damaged_is_nobodys(damage: str) -> None:
    name = "ada@a-rather-long-name-that-needs-several-labels.example.com"
    labels = labels_from_tags({OWNER_TAG: name})
    chunks = sorted(key for key in labels if key.startswith(EXACT_PREFIX))
    assert len(chunks) > 2
    match damage:
        case "removed":
            del labels[chunks[1]]
        case "shortened":
            labels[chunks[1]] = labels[chunks[1]][:-1]
        case "changed":
            labels[chunks[1]] = (
                "a" + labels[chunks[1]][1:] if labels[chunks[1]][0] != "a" else "b" + labels[chunks[1]][1:]
            )
    assert tags_from_labels(labels) == {OWNER_TAG: readable_value(name)}


def test_labels_of_other_alphabets_that_others_made_are_kept() -> None:
    assert tags_from_labels(update_labels({"équipe": "compilateurs"}, {"disk-name": "data"})) == {
        "équipe": "compilateurs",
        "disk-name": "data",
    }
    assert update_labels({"équipe": "compilateurs"}, {"disk-name": "data"})["équipe"] == "compilateurs"


def test_more_than_gcp_can_hold_is_refused() -> None:
    with pytest.raises(Invalid):
        labels_from_tags({"notes": "Ä" * 3000})
    with pytest.raises(Invalid):
        labels_from_tags({f"label-{number}": "x" for number in range(65)})
