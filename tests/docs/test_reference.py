"""docs/reference is current: what `python -m scripts.docs` writes, complete and of what the code has."""

import dataclasses
import re

from scalebench.analysis.columns import COLUMN_DESCRIPTIONS, FRAME_COLUMNS
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.spec import Config, HardwareSpec, MeasureSpec, SlurmSpec, StopSpec, TrainSpec
from scalebench.strategies.registry import BUILT_IN_STRATEGIES
from scripts import docs
from tests.conftest import ROOT

PAGES = sorted(docs.PAGES.glob("*.md"))
SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def read(page):
    return (docs.PAGES / page).read_text(encoding="utf-8")


def names_of(table):
    """The names in the first column."""
    return [name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)]


def test_pages_are_current_and_each_generated_part_is_in_one():
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    for name, text in texts.items():
        assert docs.update_page(text) == text, f"{name} is of other code: python -m scripts.docs writes it anew"
    names = [name for text in texts.values() for _, name, _ in docs.PART.findall(text)]
    assert sorted(names) == sorted(docs.FORMATS)


def test_each_strategy_once():
    tables = re.findall(r"^\| strategy \|.*?\n\n", read("strategies.md"), re.MULTILINE | re.DOTALL)
    named = [name for table in tables for name in names_of(table)]
    assert len(named) == len(set(named))
    assert set(named) == set(BUILT_IN_STRATEGIES)


def test_options_are_those_of_the_strategies_of_their_section():
    sections = dict(SECTION.findall(read("strategies.md")))
    assert len(sections) > 5
    for heading, text in sections.items():
        strategies, _, options = text.partition("| `strategy.options.` |")
        names = set(names_of(strategies)) - {"simulated"}
        expected = {option for name in names for option in strategy_option_defaults(name)}
        assert set(names_of(options)) == expected, heading


def test_every_key_is_in_the_config_page():
    page = read("config.md")
    sections = {"": page.partition("\n## ")[0], **dict(SECTION.findall(page))}
    groups = {"model", "dataset", "strategy", "hardware", "measure", "train"}  # of Config: sections of their own
    kinds = {Config: "", TrainSpec: "Training", StopSpec: "Training", MeasureSpec: "Measuring"}
    for kind, section in {**kinds, HardwareSpec: "Hardware", SlurmSpec: "Hardware"}.items():
        cells = re.findall(r"`([\w.]+)`", sections[section])
        named = {name for cell in cells for name in (cell, cell.partition(".")[0])}
        prefix = "stop." if kind is StopSpec else ""
        fields = {f"{prefix}{field.name}" for field in dataclasses.fields(kind)}
        assert fields - groups - docs.SKIPPED <= named, kind


def test_every_variable_of_a_user_is_in_the_config_page():
    ours = set("PARENT_PID LAUNCHER ADDRESSES RUN_ID LISTEN_ADDRESS CPUS CXX PYTHON USER_FOLDERS".split())  # processes'
    folders = [ROOT / name for name in ("scalebench", "conf")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml", ".sh")]
    read_names = {name for path in files for name in re.findall(r"SCALEBENCH_([A-Z0-9_]+)\b", path.read_text())}
    assert read_names - ours == set(re.findall(r"`SCALEBENCH_([A-Z0-9_]+)`", read("config.md")))


def test_every_column_is_described():
    limits = {name for name in FRAME_COLUMNS if name.endswith(("_low", "_high"))}
    assert set(COLUMN_DESCRIPTIONS) == set(FRAME_COLUMNS) - limits


def test_cells_are_text_and_a_key_that_holds_others_stands_before_them(tmp_path):
    assert docs.format_table(["a"], [["x | <k>"]]).endswith("| x \\| &lt;k> |")
    assert docs.format_table(["a"], [["(docs/guides/cluster.md)"]]).endswith("| ([cluster](../guides/cluster.md)) |")
    path = tmp_path / "some.yaml"
    path.write_text("# Header.\nkind: a # a or b\nstop: # half\n  seconds: null # minute\n  steps: 1\n")
    assert docs.read_keys(path) == [
        ("kind", "a", "a or b"), ("stop", "", "half"), ("stop.seconds", "null", "minute"), ("stop.steps", "1", ""),
    ]  # fmt: skip
