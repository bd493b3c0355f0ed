"""Sightings come by the watch, by listings and by answers to writes, in any order: what is kept is always the truth."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpudev.adapters.kubernetes.cache.reflector import Store

Object = dict[str, Any]


def thing(name: str, version: int, value: str = "") -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


class Kept:
    """A shelf, and what it told of changes."""

    def __init__(self) -> None:
        self.now: dict[str, str] = {}
        self.told = 0
        self.shelf: Store[str] = Store(lambda item: item["value"] or None, self._changed)

    def _changed(self, name: str, old: str | None, new: str | None) -> None:
        assert self.now.get(name) == old
        assert old != new
        self.told += 1
        if new is None:
            del self.now[name]
        else:
            self.now[name] = new


def test_an_answer_shows_at_once_and_the_watch_repeats_nothing() -> None:
    kept = Kept()
    kept.shelf.replace({}, "10")
    kept.shelf.put(thing("a", 11, "new"), is_write_response=True)
    assert kept.now == {"a": "new"}
    kept.shelf.put(thing("a", 11, "new"))
    assert kept.told == 1


def test_an_answer_that_comes_after_the_watch_told_of_its_end_changes_nothing() -> None:
    kept = Kept()
    kept.shelf.replace({}, "10")
    kept.shelf.put(thing("a", 11, "new"))
    kept.shelf.remove(thing("a", 12, "new"))
    kept.shelf.put(thing("a", 11, "new"), is_write_response=True)
    assert kept.now == {}


def test_an_answer_does_not_let_the_watch_skip_what_lies_between() -> None:
    kept = Kept()
    kept.shelf.replace({}, "10")
    kept.shelf.put(thing("a", 15, "new"), is_write_response=True)
    assert kept.shelf.version == "10"
    kept.shelf.advance(thing("", 13))
    assert kept.shelf.version == "13"


def test_a_listing_from_before_an_answer_does_not_take_it_away() -> None:
    kept = Kept()
    kept.shelf.replace({}, "10")
    kept.shelf.put(thing("a", 15, "new"), is_write_response=True)
    assert kept.shelf.replace({}, "14") == []
    assert kept.now == {"a": "new"}
    assert kept.shelf.replace({}, "16") == ["new"]
    assert kept.now == {}


def test_what_changes_nothing_we_keep_is_not_told() -> None:
    kept = Kept()
    kept.shelf.put(thing("a", 11, "same"))
    kept.shelf.put(thing("a", 12, "same"))
    assert kept.told == 1
    kept.shelf.put(thing("a", 11, "older"))
    assert kept.now == {"a": "same"}


@given(
    moves=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", ""])), max_size=30),
    data=st.data(),
)
def test_whatever_the_order_of_sightings_the_truth_is_kept(moves: list[tuple[str, str]], data: st.DataObject) -> None:
    """`moves`: name and value of each write at versions 1, 2, …; an empty value deletes."""
    history: list[tuple[str, Object]] = []
    states: list[dict[str, tuple[int, str]]] = [{}]
    for name, value in moves:
        now = dict(states[-1])
        version = len(states)
        if value:
            what = "MODIFIED" if name in now else "ADDED"
            now[name] = (version, value)
            history.append((what, thing(name, version, value)))
        else:
            _, last = now.pop(name, (0, "never"))
            history.append(("DELETED", thing(name, version, last)))
        states.append(now)
    kept, at = Kept(), 0
    while at < len(history):
        match data.draw(st.sampled_from(["watch", "watch", "answer", "list"])):
            case "watch":
                what, item = history[at]
                kept.shelf.remove(item) if what == "DELETED" else kept.shelf.put(item)
                at += 1
            case "answer":
                what, item = history[data.draw(st.integers(0, len(history) - 1))]
                if what != "DELETED":
                    kept.shelf.put(item, is_write_response=True)
            case _:
                at = data.draw(st.integers(at, len(history)))
                kept.shelf.replace(states[at], str(at))
    assert kept.now == {name: value for name, (_, value) in states[-1].items()}
