"""Every YAML in conf/ composes, and agrees with the typed config and the registry."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from scalebench.core.json_files import build_record
from scalebench.core.spec import Config, DatasetSpec, HardwareSpec, MeasureSpec, ModelSpec, StrategySpec, TrainSpec
from scalebench.strategies import registry
from scalebench.strategies.base import check_options, check_values
from scalebench.workloads import networks

CONF = Path(__file__).parents[2] / "conf"
KINDS = {
    "model": ModelSpec, "dataset": DatasetSpec, "strategy": StrategySpec, "hardware": HardwareSpec,
    "measure": MeasureSpec, "train": TrainSpec,
}  # fmt: skip
# Only stated where it is so: users' functions, pictures that are decoded during training, and strategies that do not
# update as their baseline does.
OF_SOME = {
    "model": {"torch", "keras", "code_digest"},
    "dataset": {"builder", "options", "code_digest", "requested_size", "workers", "augment"},
    "strategy": {"reduces_on", "approximate", "exact_with", "tolerance", "choices", "at_least"},
}
FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml"))
IN_GROUPS = [path for path in FILES if path.parent.name in KINDS]
SWEEPS = [path for path in FILES if path.parent.name == "sweep"]
STRATEGIES = [path.stem for path in IN_GROUPS if path.parent.name == "strategy"]


def load(path):
    return {str(key): value for key, value in OmegaConf.to_container(OmegaConf.load(CONF / path)).items()}


def test_each_file_of_a_group_composes_and_has_the_fields_of_its_dataclass_in_their_order(subtests):
    assert sorted([Path("config.yaml"), *IN_GROUPS, *SWEEPS]) == FILES
    assert {path.parent.name for path in IN_GROUPS} == set(KINDS)
    for path in IN_GROUPS:
        group = path.parent.name
        with subtests.test(str(path)):
            chosen = getattr(compose_config([f"{group}='{path.stem}'"]), group)
            assert group in ("measure", "train") or chosen.name == path.stem
            keys = [key for key in load(path) if key != "defaults"]
            left_out = OF_SOME.get(group, set()) - set(keys)
            assert keys == [f.name for f in dataclasses.fields(KINDS[group]) if f.name not in left_out]
    for path in SWEEPS:  # whose runs are resolved in test_sweep_yamls.py
        assert (CONF / path).read_text().startswith("# @package _global_\n")
        assert load(path)["hydra"]["mode"] == "MULTIRUN"


def test_the_top_level_keys_are_the_spines_and_the_defaults_those_of_the_design():
    tree = load("config.yaml")
    groups = [next(iter(entry)) for entry in tree["defaults"] if isinstance(entry, dict)]
    chosen = [name for name in groups if not name.startswith("override ") and name != "sweep"]
    own = [key for key in tree if key not in ("defaults", "hydra")]
    assert sorted(chosen + own) == sorted(f.name for f in dataclasses.fields(Config))
    assert tree["defaults"][0] == "spine" and tree["defaults"][-1] == "_self_"
    config = compose_config([])
    names = config.model.name, config.dataset.name, config.strategy.name, config.hardware.name
    assert names == ("materials_cnn", "materials", "ddp", "local")
    assert dataclasses.asdict(config.measure) == load("measure/default.yaml")
    assert (config.gpus, config.scaling, config.baseline) == (None, "weak", "auto")
    assert config.model.params == 153441, "of the thesis"
    # The model brings its training settings.
    assert config.train.batch_per_device == config.model.batch_per_device == 75
    assert config.train.learning_rate == config.model.learning_rate == 4.7331e-4
    assert config.train.optimizer == config.model.optimizer == "adam"


def test_a_model_has_the_parameters_that_its_yaml_expects(subtests):
    for path in IN_GROUPS:
        if path.parent.name == "model" and path.stem not in ("custom", "hf", "timm", "torchvision"):  # a user's network
            with subtests.test(str(path)):
                model = build_record(ModelSpec, {key: value for key, value in load(path).items() if key != "defaults"})
                assert model.params in (networks.build_network(model).parameters, None)
                assert (model.params is None) == (path.stem == "synthetic")  # whose parameters are an option
                assert model.sources


def test_a_strategys_yaml_is_consistent(subtests):
    assert set(STRATEGIES) == set(registry.BUILT_IN_STRATEGIES)
    for name in STRATEGIES:
        with subtests.test(name):
            strategy = build_record(StrategySpec, load(f"strategy/{name}.yaml"))
            assert strategy.baseline in STRATEGIES
            assert strategy.processes in ("one_per_device", "one_for_all") or name.startswith("parameter_server")
            assert strategy.framework in ("none", "torch", "tensorflow")
            assert strategy.framework == "none" or strategy.framework in strategy.requires
            assert strategy.description and set(strategy.devices) <= {"cpu", "cuda"}
            if name.endswith(("_nccl", "_gloo")):
                assert strategy.backend == name.rpartition("_")[2]
            if strategy.backend == "nccl":
                assert strategy.devices == ["cuda"]


def test_the_values_of_options_are_those_of_their_comments_and_others_are_refused_by_name(subtests):
    for name in STRATEGIES:
        with subtests.test(name):
            stated = build_record(StrategySpec, load(f"strategy/{name}.yaml"))
            check_values(stated)
            assert {*stated.choices, *stated.at_least} <= {*stated.options}
            text = (CONF / f"strategy/{name}.yaml").read_text()
            comments = dict(re.findall(r"^  (\w+): .*# (.* \| .*)$", text, re.MULTILINE))
            words = {
                option: sorted(re.split(r"\W", part.strip())[0] for part in comment.split(" | "))
                for option, comment in comments.items()
            }
            assert words == {option: sorted(choices) for option, choices in stated.choices.items()}
            wrong = {key: f"{choices[0]}x" for key, choices in stated.choices.items()}
            for key, value in {**wrong, **{key: least - 1 for key, least in stated.at_least.items()}}.items():
                one = dataclasses.replace(stated, options={**stated.options, key: value})
                with pytest.raises(InputError, match=rf"strategy\.options\.{key}"):
                    check_values(one)


def test_the_yaml_lists_every_option_with_its_default():
    options = registry.load_strategy("simulated").Options
    assert list(load("strategy/simulated.yaml")["options"].items()) == list(dataclasses.asdict(options()).items())


@pytest.mark.slow
@pytest.mark.real
def test_the_yaml_lists_every_option_of_a_framework():
    """In an interpreter of its own, since the frameworks are imported for it."""
    code = (
        "import dataclasses, json, sys\nfrom scalebench.strategies import registry\n"
        "options = {n: registry.load_strategy(n).Options() for n in sys.argv[1:]}\n"
        "print(json.dumps({name: dataclasses.asdict(values) for name, values in options.items()}))"
    )
    trees = {name: load(f"strategy/{name}.yaml") for name in STRATEGIES}
    installed = [name for name, tree in trees.items() if not registry.missing_packages(tree["requires"])]
    command = [sys.executable, "-c", code, *installed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    for name, defaults in json.loads(done.stdout).items():
        assert sorted(trees[name]["options"]) == sorted(defaults), name
        check_options(name, trees[name]["options"], defaults)  # one class has several names, each with its own choice
        assert name not in ("ddp", "mirrored", "bare_tensorflow") or trees[name]["options"] == defaults
