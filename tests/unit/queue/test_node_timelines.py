"""The index of windows against a plain dictionary, with blocks so small that they split and vanish all the time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev.planning.queue import node_timelines
from gpudev.planning.queue.node_timelines import FOREVER, WindowIndex
from support.planner.plan_properties import it_says_what_the_reference_says, real_planner
from support.planner.situations import Situation, situations

keys = st.integers(0, 60)
lengths = st.integers(1, 20)


@settings(max_examples=150, deadline=None)
@given(st.sets(keys), st.lists(st.tuples(keys, lengths), max_size=80))
def test_it_finds_what_a_dictionary_has(first: set[int], changes: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_timelines, "_BLOCK", 2)
        index, model = WindowIndex((key, FOREVER) for key in first), dict.fromkeys(first, FOREVER)
        for key, length in changes:
            if key in model:
                index.remove(key)
                del model[key]
            else:
                index.add(key, length)
                model[key] = length
            for wanted in (1, length, 20, FOREVER):
                fitting = sorted((k, own) for k, own in model.items() if own >= wanted)
                assert list(index.all_at_least(wanted)) == fitting
                assert index.first_at_least(wanted) == (fitting[0][0] if fitting else None)


def test_it_stays_right_while_thousands_come_and_go() -> None:
    dice = random.Random(3)
    model = dict.fromkeys(range(0, 3000, 3), FOREVER)
    index = WindowIndex(model.items())
    for _ in range(6000):
        key = dice.randrange(3000)
        if key in model:
            index.remove(key)
            del model[key]
        else:
            model[key] = dice.randrange(1, 1000)
            index.add(key, model[key])
    for wanted in (1, 500, 999, FOREVER):
        assert index.first_at_least(wanted) == min((k for k, own in model.items() if own >= wanted), default=None)
        assert list(index.all_at_least(wanted)) == sorted((k, own) for k, own in model.items() if own >= wanted)


@settings(max_examples=100, deadline=None)
@given(situations(at_most=12))
def test_the_plan_does_not_depend_on_the_size_of_blocks(situation: Situation) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_timelines, "_BLOCK", 1)
        it_says_what_the_reference_says(real_planner, situation)
