"""Names -> classes: the built-ins, plugins of installed packages, and what goes wrong with either."""

import dataclasses

import pytest

from scalebench.config.error_messages import explain_unknown_choice
from scalebench.core.errors import InputError, PluginError
from scalebench.strategies import registry
from scalebench.strategies.base import Strategy
from tests.builders.plugins import CODE, strategy_yaml
from tests.builders.plugins import dists as dists
from tests.builders.runs import simulated_config, simulated_spec


def test_a_plugin_is_found_and_loaded(dists):
    registry.strategy_entries.cache_clear()
    entries = registry.strategy_entries()
    assert sorted(entries) == registry.built_in_strategies()
    assert {entry.origin for entry in entries.values()} == {"scalebench"}
    dists.strategy()
    assert registry.find_strategy("mine") == registry.RegistryEntry("mine", "my-plugin")
    loaded = registry.load_strategy("mine")
    assert issubclass(loaded, Strategy) and loaded.__module__ == "my_plugin.code"


def test_a_plugin_that_is_not_selected_is_hidden(dists, monkeypatch):
    dists.strategy()
    for chosen in ("", "another-plugin", "my-plugin-two,my"):
        monkeypatch.setenv("SCALEBENCH_PLUGINS", chosen)
        registry.strategy_entries.cache_clear()
        with pytest.raises(InputError, match=r"^no strategy 'mine'; known: accelerate, avolkov1_ps_cpu, "):
            registry.find_strategy("mine")


def refusal(**changes):
    """What is wrong with the plugins of a run of the simulated strategy but for these names; None where nothing is."""
    config = simulated_config()
    for part, name in changes.items():
        setattr(config, part, dataclasses.replace(getattr(config, part), name=name))
    try:
        registry.refuse_broken_plugins(config)
    except PluginError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


BOTH = "{} is registered by both {} and {}; uninstall one of them or set SCALEBENCH_PLUGINS"


def test_a_name_of_two_packages_is_refused(dists):
    dists.strategy("ddp")
    dists.strategy("sound", "sound-plugin")
    line = "strategy/ddp.yaml comes from both scalebench and my-plugin; uninstall one of them or set SCALEBENCH_PLUGINS"
    assert refusal(strategy="ddp") == line
    assert refusal(strategy="sound") is None and refusal() is None
    with pytest.raises(PluginError) as caught:
        registry.load_strategy("ddp")
    assert str(caught.value) == line
    assert registry.load_strategy("sound").__name__ == "Mine"


@pytest.mark.parametrize(("part", "kind"), [("model", "models"), ("dataset", "datasets")])
def test_models_and_datasets_follow_the_same_rules(dists, part, kind):
    ours = {"model": "resnet50", "dataset": "materials"}[part]
    files = {f"p/conf/{part}/{name}.yaml": f"name: {name}\n" for name in ("fine", "twice")}
    points = {kind: dict.fromkeys(("fine", "twice", "bare", ours), "p:f"), "configs": {"p": "p.conf"}}
    dists.add("first-plugin", {**files, "p/__init__.py": "raise SystemExit\n"}, points)
    dists.add("second-plugin", points={kind: {"twice": "q:f"}})
    assert registry.plugin_entries(kind)["fine"] == registry.RegistryEntry("fine", "first-plugin")
    assert refusal(**{part: "fine"}) is None
    assert refusal(**{part: "twice"}) == BOTH.format(f"{part} 'twice'", "first-plugin", "second-plugin")
    assert refusal(**{part: ours}) == BOTH.format(f"{part} '{ours}'", "scalebench", "first-plugin")
    line = f"{part} 'bare': first-plugin registers it and brings no {part}/"
    assert (refusal(**{part: "bare"}) or "").startswith(line)
    assert explain_unknown_choice(part, "bare", []).startswith(line)


def test_a_yaml_without_a_class_and_one_of_ours_with_other_options(dists):
    tuned = {
        "my/conf/strategy/tuned.yaml": "name: ddp\n",
        "my/conf/strategy/lost.yaml": strategy_yaml("lost", adapter=None),
    }
    dists.add("my-plugin", {"my/__init__.py": "", **tuned}, {"configs": {"my": "my.conf"}})
    line = "strategy 'lost': my-plugin brings strategy/lost.yaml, which names no class: add adapter: MODULE:CLASS"
    assert registry.find_strategy("lost").problem == refusal(strategy="lost") == line
    assert "tuned" not in registry.strategy_entries(), "which is ddp with other options"


def test_the_baseline_of_a_plugins_strategy(dists):
    dists.strategy()
    config = simulated_config()
    for baseline in ("simulated", "mine", None):
        config.strategy = dataclasses.replace(config.strategy, name="mine", baseline=baseline)
        registry.refuse_broken_plugins(config)
    config.strategy.baseline = "bare_torhc"
    reason = "no strategy 'bare_torhc'; did you mean 'bare_torch'"
    message = rf"^strategy 'mine' of my-plugin names the baseline 'bare_torhc': {reason}\?"
    with pytest.raises(PluginError, match=message):
        registry.refuse_broken_plugins(config)


@pytest.mark.parametrize(("target", "line"), [
    ("{package}.code:Missing",
     " cannot be loaded from my_plugin.code:Missing: module 'my_plugin.code' has no attribute 'Missing'"),
    ("not_there:Mine", " cannot be loaded from not_there:Mine: No module named 'not_there'"),
    ("{package}.code:Simulated.setup", " cannot be loaded from my_plugin.code:Simulated.setup: "),
    ("{package}.code", " cannot be loaded from my_plugin.code: it should be MODULE:NAME"),
    ("{package}.code:Stranger", ": my_plugin.code:Stranger is not a subclass of scalebench.plugin_api.Strategy"),
    ("{package}.code:name", ": my_plugin.code:name is not a subclass of scalebench.plugin_api.Strategy"),
    ("{package}.code:Half",
     ": my_plugin.code:Half lacks what each strategy has: backend_used, broadcast, evaluate, setup, step, sync"),
])  # fmt: skip
def test_adapters_that_are_no_strategies(dists, target, line):
    more = (
        "class Stranger: ...\nname = 'x'\nfrom scalebench.strategies.base import Strategy\nclass Half(Strategy): ...\n"
    )
    dists.strategy(target=target, code=f"{CODE}\n{more}")
    with pytest.raises(PluginError) as caught:
        registry.load_strategy("mine")
    assert str(caught.value).startswith(f"strategy 'mine' of my-plugin{line}")


def test_the_class_may_be_that_of_a_strategy_from_which_a_yaml_inherits(dists):
    dists.strategy("soft", yaml="defaults: [ddp]\nname: soft\n")
    assert registry.load_strategy("soft") is registry.load_strategy("ddp")
    assert registry.find_strategy("soft").origin == "my-plugin"


def test_options_may_be_left_out():
    assert registry.create_strategy(simulated_spec(options={"step_s": 0.25}), 0).options.step_s == 0.25
    for options, line in (
        ({"stragler_rank": 1}, "strategy simulated has no option 'stragler_rank'; did you mean 'straggler_rank'"),
        ({"step_s": "fast"}, "strategy.options.step_s='fast' should be float, as its default 0."),
    ):
        with pytest.raises(InputError, match=line):
            simulated_spec(options=options)
    assert registry.missing_packages(["json", "no_such_package_x", "numpy"]) == ["no_such_package_x"]
    assert registry.install_hint("no_such_package_x") == "pip install no_such_package_x"
    assert registry.install_hint("torch") == "pip install 'scalebench-train[torch]'"
    assert registry.install_hint("horovod") == "scalebench install horovod"
