"""docs/strategies.md has each strategy of the registry once, with all of its options and none besides."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from scalebench.core.config_files import strategy_option_defaults
from scalebench.strategies.registry import BUILT_IN_STRATEGIES
from tests.conftest import ROOT

FIELDS = ["is", "exchanges", "over", "keeps", "options", "source"]
BY_NAME = "by name"  # where the strategies of an entry differ in a default


class Entry(NamedTuple):
    names: list[str]
    fields: dict[str, str]

    @property
    def options(self) -> dict[str, str]:
        """Name -> default, as they are told: `bucket_cap_mb` (25.0)."""
        return dict(re.findall(r"`(\w+)` \(([^),]+)[^)]*\)", self.fields["options"]))


def entries(page: str) -> list[Entry]:
    """The third headings that are names of strategies, each with the table below it."""
    actual = []
    for head, body in re.findall(r"^### (`.*)\n((?:(?!#).*\n)*)", page, flags=re.MULTILINE):
        rows = re.findall(r"^\| (\w+) \| (.+) \|$", body, flags=re.MULTILINE)
        actual.append(Entry(re.findall(r"`(\w+)`", head), dict(rows)))
    return actual


ENTRIES = entries((ROOT / "docs/strategies.md").read_text(encoding="utf-8"))


def test_each_strategy_once() -> None:
    named = [name for entry in ENTRIES for name in entry.names]
    assert len(named) == len(set(named))
    assert set(named) == set(BUILT_IN_STRATEGIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.names[0])
def test_an_entry_has_its_fields(entry: Entry) -> None:
    assert list(entry.fields) == FIELDS
    assert entry.fields["options"] == "none" or entry.options


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.names[0])
def test_options_are_those_of_the_yaml(entry: Entry) -> None:
    defaults = {name: shown(strategy_option_defaults(name)) for name in entry.names if name in BUILT_IN_STRATEGIES}
    for name, own in defaults.items():
        assert set(own) == set(entry.options), name
    for option, reported in entry.options.items():
        values = {own[option] for own in defaults.values()}
        assert len(values) > 1 if reported == BY_NAME else values <= {reported}, option


def shown(options: dict[str, Any]) -> dict[str, str]:
    """As a YAML has them."""
    arguments = {True: "true", False: "false", None: "null"}
    return {
        key: arguments[value] if value is None or isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def test_what_the_pages_form_is() -> None:
    """The reader above sees a missing entry, option, field and default."""
    page = (
        "## Group\n\n### `a`, `b`\n\n| | |\n| --- | --- |\n| is | x |\n| options | `k` (1.0): what; `l` (by name) |\n\n"
    )
    ((names, fields),) = entries(page + "### Not one\n\ntext\n")
    assert names == ["a", "b"] and Entry(names, fields).options == {"k": "1.0", "l": "by name"}
