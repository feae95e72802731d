"""Unknown names get the nearest known one, or all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import nearest, no_such

KNOWN = ["mirrored", "ddp", "ddp_gloo"]


@pytest.mark.parametrize(
    ("word", "found"), [("mirorred", "mirrored"), ("dpd", "ddp"), ("ddp_glo", "ddp_gloo"), ("zzz", None), ("", None)]
)
def test_the_nearest_name(word: str, found: str | None) -> None:
    assert nearest(word, KNOWN) == found


def test_a_near_name_is_offered_alone() -> None:
    assert no_such("strategy", "mirorred", KNOWN) == "no strategy 'mirorred'; did you mean 'mirrored'?"


def test_without_a_near_name_all_are_listed_in_order() -> None:
    assert no_such("verb", "zzz", iter(KNOWN)) == "no verb 'zzz'; known: ddp, ddp_gloo, mirrored"


def test_nothing_known() -> None:
    assert no_such("option", "x", []) == "no option 'x'; known: none"


@given(st.sampled_from(KNOWN), st.data())
def test_a_letter_too_few_is_always_near(name: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(name) - 1))
    assert nearest(name[:index] + name[index + 1 :], [name]) == name
