"""YAML files of plugins, broken in every way: they end no command, and only the runs that choose them fail."""

import json
import os

import pytest
from hypothesis import strategies as st

from tests.builders.plugins import clear_plugin_caches, strategy_yaml
from tests.builders.plugins import dists as dists
from tests.fuzz.command_line import MAX_ERROR_LINES, many_examples, run_line, try_examples

RIGHT = json.loads(strategy_yaml("mine"))
KEYS = [*RIGHT, "backends", "processes", "launcher", "requires", "defaults", "hydra", "_target_", "more", "", "a.b"]
SCALARS = st.one_of(
    st.sampled_from([
        None, True, -1, 0, 2**70, 1e308, "", "null", "mine", "ddp", "../ddp", "???", "${gpus}", "${a", "{",
        "${oc.env:HOME}", "${oc.env:NO_SUCH}", "${.name}", "${mine:1}", "\x1b[31m", "two\nlines", "\u202e",
    ]),
    st.text(max_size=10),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=5,
)
CHANGED = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3).map(lambda keys: json.dumps({**RIGHT, **keys}))
TEXTS = st.sampled_from([
    "", "null", "[]", "1", "- a", "---\na: 1\n---\nb: 2\n", "a: b: c", "a: [", "\t a: 1", "%YAML 9.9\n---\na: 1",
    "!!python/object/apply:os.system ['touch ran']", "name: !!python/name:os.system", "name: !mine x",
    "a: &a\n  <<: *a\n", "a: &a [*a]", "2026-13-99", "[" * 5000, "a: " * 500, "# @package _global_\ngpus: 3\n",
    "name: mine\nname: mine\n", "? [1, 2]\n: 3\n", "2026-01-01: 1\n1: 2\n", "defaults:\n- mine\n", "\ufeffname: mine",
    "defaults: [/strategy: ddp]", "defaults: [nothing]", "hydra:\n  mode: MULTIRUN\n",
])  # fmt: skip
BYTES = st.binary(max_size=30) | st.sampled_from([b"\xff\xfea\x00", b"a: \xe4", b"a: \0", b"a\r: 1\r"])


CUT = st.builds(
    lambda text, first, last: (text[:first] + text[last:]).encode(), CHANGED, st.integers(0, 200), st.integers(0, 300)
)
YAMLS = st.one_of(CHANGED.map(str.encode), TEXTS.map(str.encode), BYTES, CUT)


@pytest.fixture
def plugin_yaml(dists, tmp_path, monkeypatch):
    root = dists.strategy("mine")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return next(root.glob("*/conf/strategy/mine.yaml"))


def check_commands():
    run_line(["plugins"], statuses=(0, 1))  # 1: not all of them load
    run_line(["list", "strategies"])


@many_examples(4, 500)
def test_yamls_of_plugins(plugin_yaml, examples):
    def check(content):
        plugin_yaml.write_bytes(content)
        clear_plugin_caches()
        for words in ("strategy=mine", "strategy=simulated", "--multirun strategy=mine,simulated"):
            ending = run_line([*words.split(), "dry_run=true"])
            assert len(ending.err.splitlines()) <= MAX_ERROR_LINES + 1, ending.err  # and one about the plugin
            assert ending.status == 0 or "mine" in words, ending
        check_commands()
        assert os.listdir() == []

    try_examples(check, examples, content=YAMLS)


NAMES = ["ddp", "a b", "-x", "..", "${gpus}"]


@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(each, marks=pytest.mark.slow) for each in ("null", "a=b", "\u202e", "a,b", "[a]"))]
)
def test_names_of_yamls(plugin_yaml, name):
    plugin_yaml.rename(plugin_yaml.with_name(f"{name}.yaml"))
    clear_plugin_caches()
    assert run_line(["strategy=simulated", "dry_run=true"]).status == 0
    run_line([f"strategy={name}", "dry_run=true"])
    check_commands()
    assert os.listdir() == []
