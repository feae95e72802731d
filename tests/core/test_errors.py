"""Unknown names: the nearest candidate, or all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import nearest_name, unknown_name_message

NAMES = ["mirrored", "ddp", "ddp_gloo"]


@pytest.mark.parametrize(
    ("name", "nearest"), [("mirorred", "mirrored"), ("dpd", "ddp"), ("ddp_glo", "ddp_gloo"), ("zzz", None), ("", None)]
)
def test_the_nearest_name(name: str, nearest: str | None) -> None:
    assert nearest_name(name, NAMES) == nearest


def test_a_near_name_is_suggested() -> None:
    assert unknown_name_message("strategy", "mirorred", NAMES) == "no strategy 'mirorred'; did you mean 'mirrored'?"


def test_without_a_near_name_all_are_listed_in_order() -> None:
    assert unknown_name_message("verb", "zzz", iter(NAMES)) == "no verb 'zzz'; known: ddp, ddp_gloo, mirrored"


def test_no_names_at_all() -> None:
    assert unknown_name_message("option", "x", []) == "no option 'x'; known: none"


@given(st.sampled_from(NAMES), st.data())
def test_a_missing_letter_is_always_near(name: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(name) - 1))
    assert nearest_name(name[:index] + name[index + 1 :], [name]) == name
