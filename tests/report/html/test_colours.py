"""Colours of the page: text can be read and lines can be seen in both themes."""

from __future__ import annotations

import itertools
import re

import pytest

from scalebench.report.html.page import read_asset
from scalebench.report.html.plots import COLOUR_COUNT

TEXT = [
    *(("ink", ground) for ground in ("paper", "card", "accent-soft")),
    *(("muted", ground) for ground in ("paper", "card", "accent-soft")),
    *(("accent", ground) for ground in ("paper", "card", "accent-soft")),
    *(("good", "card"), ("bad", "card"), ("warn", "warn-soft")),
]
DARK = r':root\[data-theme="dark"\] {(.*?)}'
# What people without cones for green see: Machado, Oliveira, Fernandes 2009, deuteranomaly of severity 1.
WITHOUT_GREEN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, 1.4.3."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> dict[str, str]:
    text = read_asset("page.css")
    found = re.search(r":root {(.*?)}" if request.param == "light" else DARK, text, flags=re.DOTALL)
    assert found
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", found[1]))


def test_the_measure_itself() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") < 4.5


def test_text_can_be_read(theme: dict[str, str]) -> None:
    low = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in TEXT}
    assert {pair: round(value, 2) for pair, value in low.items() if value < 4.5} == {}


def test_lines_can_be_seen(theme: dict[str, str]) -> None:
    found = {f"c{number}": contrast(theme[f"c{number}"], theme["card"]) for number in range(COLOUR_COUNT)}
    assert {name: round(value, 2) for name, value in found.items() if value < 3} == {}


def test_no_two_colours_are_one_to_those_who_do_not_see_green(theme: dict[str, str]) -> None:
    seen = {}
    for number in range(COLOUR_COUNT):
        colour = linear(theme[f"c{number}"])
        mixed = [sum(a * b for a, b in zip(line, colour, strict=True)) for line in WITHOUT_GREEN]
        seen[number] = [max(0.0, part) ** (1 / 2.2) for part in mixed]
    apart = {
        pair: sum((a - b) ** 2 for a, b in zip(seen[pair[0]], seen[pair[1]], strict=True)) ** 0.5
        for pair in itertools.combinations(range(COLOUR_COUNT), 2)
    }
    assert {pair: round(value, 2) for pair, value in apart.items() if value < 0.1} == {}
