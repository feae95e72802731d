"""Every YAML in conf/ composes, and agrees with the typed config and the registry."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from scalebench.core.json_files import build_record
from scalebench.core.spec import Config, DatasetSpec, HardwareSpec, MeasureSpec, ModelSpec, StrategySpec, TrainSpec
from scalebench.strategies import registry
from scalebench.strategies.base import check_options, check_values
from scalebench.workloads import networks
from tests.builders.configs import sweep_choices

CONF = Path(__file__).parents[2] / "conf"
KINDS = {
    "model": ModelSpec,
    "dataset": DatasetSpec,
    "strategy": StrategySpec,
    "hardware": HardwareSpec,
    "measure": MeasureSpec,
    "train": TrainSpec,
}
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
MODELS = [path for path in IN_GROUPS if path.parent.name == "model"]
STRATEGIES = [path.stem for path in IN_GROUPS if path.parent.name == "strategy"]


def load(path):
    tree = OmegaConf.to_container(OmegaConf.load(CONF / path))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def test_every_file_is_looked_at():
    assert sorted([Path("config.yaml"), *IN_GROUPS, *SWEEPS]) == FILES
    assert {path.parent.name for path in IN_GROUPS} == set(KINDS) and SWEEPS


def test_each_file_of_a_group_composes_into_the_spine(subtests):
    for path in IN_GROUPS:
        with subtests.test(str(path)):
            config = compose_config([f"{path.parent}='{path.stem}'"])
            chosen = getattr(config, path.parent.name)
            if path.parent.name not in ("measure", "train"):
                assert chosen.name == path.stem


def test_each_sweep_is_a_multirun_whose_every_run_resolves(subtests, monkeypatch):
    for path in SWEEPS:
        with subtests.test(str(path)):
            monkeypatch.setenv(
                "SCALEBENCH_CIFAR10", "cifar-10-python.tar.gz"
            )  # no file is looked at before a run starts
            monkeypatch.setenv("SCALEBENCH_IMAGENET", "imagenet")
            tree = load(path)
            assert (CONF / path).read_text().startswith("# @package _global_\n")
            assert tree["hydra"]["mode"] == "MULTIRUN"
            params = tree["hydra"]["sweeper"]["params"]
            first = [f"{key}={sweep_choices(values)[0]}" for key, values in params.items()]
            for key, values in params.items():
                for value in sweep_choices(values):
                    resolve.resolve(compose_config([f"sweep={path.stem}", *first, f"{key}={value}"]))


def test_each_file_has_the_fields_of_its_dataclass_in_their_order(subtests):
    for path in IN_GROUPS:
        with subtests.test(str(path)):
            fields = [f.name for f in dataclasses.fields(KINDS[path.parent.name])]
            keys = [key for key in load(path) if key != "defaults"]
            left_out = OF_SOME[path.parent.name] - set(keys) if path.parent.name in OF_SOME else set()
            assert keys == [name for name in fields if name not in left_out]


def test_the_top_level_keys_are_the_spines():
    tree = load("config.yaml")
    groups = [next(iter(entry)) for entry in tree["defaults"] if isinstance(entry, dict)]
    chosen = [name for name in groups if not name.startswith("override ") and name != "sweep"]
    own = [key for key in tree if key not in ("defaults", "hydra")]
    assert sorted(chosen + own) == sorted(f.name for f in dataclasses.fields(Config))
    assert tree["defaults"][0] == "spine" and tree["defaults"][-1] == "_self_"


def test_the_defaults_are_those_of_the_design():
    config = compose_config([])
    chosen = config.model.name, config.dataset.name, config.strategy.name, config.hardware.name
    assert chosen == ("materials_cnn", "materials", "ddp", "local")
    assert dataclasses.asdict(config.measure) == load("measure/default.yaml")
    assert (config.gpus, config.scaling, config.baseline) == (None, "weak", "auto")
    assert config.model.params == 153441, "of the thesis"
    # The model brings its training settings.
    assert config.train.batch_per_device == config.model.batch_per_device == 75
    assert config.train.learning_rate == config.model.learning_rate == 4.7331e-4
    assert config.train.optimizer == config.model.optimizer == "adam"


FROM_FUNCTIONS = ("custom", "hf", "timm", "torchvision")


def test_a_model_has_the_parameters_that_its_yaml_expects(subtests):
    for path in (path for path in MODELS if path.stem not in FROM_FUNCTIONS):
        with subtests.test(str(path)):
            model = build_record(ModelSpec, {key: value for key, value in load(path).items() if key != "defaults"})
            assert model.params in (networks.build_network(model).parameters, None)
            assert (model.params is None) == (path.stem == "synthetic")  # whose parameters are an option
            assert model.sources


def test_every_built_in_strategy_has_a_yaml_and_every_yaml_is_registered():
    assert set(STRATEGIES) == set(registry.BUILT_IN_STRATEGIES)


def test_a_strategys_yaml_is_consistent(subtests):
    for name in STRATEGIES:
        with subtests.test(str(name)):
            strategy = build_record(StrategySpec, load(f"strategy/{name}.yaml"))
            assert strategy.baseline in STRATEGIES
            assert strategy.processes in ("one_per_device", "one_for_all") or name.startswith("parameter_server")
            assert strategy.framework in ("none", "torch", "tensorflow")
            assert strategy.description and set(strategy.devices) <= {"cpu", "cuda"}
            if name.endswith(("_nccl", "_gloo")):
                assert strategy.backend == name.rpartition("_")[2]
            if strategy.backend == "nccl":
                assert strategy.devices == ["cuda"]
            if strategy.framework != "none":
                assert strategy.framework in strategy.requires


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
    needs = {name: load(f"strategy/{name}.yaml")["requires"] for name in STRATEGIES}
    installed = [name for name in STRATEGIES if not registry.missing_packages(needs[name])]
    command = [sys.executable, "-c", code, *installed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    message = json.loads(done.stdout)
    for name, defaults in message.items():
        options = load(f"strategy/{name}.yaml")["options"]
        assert sorted(options) == sorted(defaults), name
        check_options(name, options, defaults)  # one class stands behind several names, each with its own choice
    ours = {name: load(f"strategy/{name}.yaml")["options"] for name in ("ddp", "mirrored", "bare_tensorflow")}
    assert ours == {name: message[name] for name in ours}


def test_the_choices_of_options_are_those_of_its_comments(subtests):
    for name in STRATEGIES:
        with subtests.test(str(name)):
            stated = build_record(StrategySpec, load(f"strategy/{name}.yaml"))
            check_values(stated)
            assert {*stated.choices, *stated.at_least} <= {*stated.options}
            text = (CONF / f"strategy/{name}.yaml").read_text()
            message = dict(re.findall(r"^  (\w+): .*# (.* \| .*)$", text, re.MULTILINE))
            assert {*message} == {*stated.choices}
            for option, comment in message.items():
                words = [re.split(r"\W", part.strip())[0] for part in comment.split(" | ")]
                assert sorted(words) == sorted(stated.choices[option]), option


def test_a_value_that_an_option_cannot_have_is_refused_by_name(subtests):
    for name in STRATEGIES:
        with subtests.test(str(name)):
            stated = build_record(StrategySpec, load(f"strategy/{name}.yaml"))
            wrong = {key: f"{known_names[0]}x" for key, known_names in stated.choices.items()}
            for key, value in {**wrong, **{key: least - 1 for key, least in stated.at_least.items()}}.items():
                one = dataclasses.replace(stated, options={**stated.options, key: value})
                with pytest.raises(InputError, match=rf"strategy\.options\.{key}"):
                    check_values(one)


def test_measuring_gets_longer_and_finer():
    quick, default, thorough = (
        build_record(MeasureSpec, load(f"measure/{n}.yaml")) for n in ("quick", "default", "thorough")
    )
    assert quick.max_s < default.max_s < thorough.max_s
    assert quick.target > default.target > thorough.target
