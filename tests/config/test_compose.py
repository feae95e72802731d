"""Composing gives what Hydra itself would compose, errors included."""

import functools
import itertools
import os
import random

import pytest
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.utils import JobRuntime, setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scalebench.__main__ import main
from scalebench.config import compose as composing
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.core.spec import Config
from tests.builders.configs import sweep_choices

SWEEPS = sorted(path.stem for path in (conf_dir() / "sweep").glob("*.yaml"))


@pytest.fixture(scope="module")
def loaders():
    """Hydra's loader, which keeps what it has composed, and ours, on the same files."""
    composing.register_with_hydra()
    setup_globals()
    version.setbase(composing.HYDRA_VERSION)
    JobRuntime.instance().set("name", "scalebench")
    path = create_config_search_path(str(conf_dir()))
    return KeepingLoader(path), composing.Loader(path)


class KeepingLoader(ConfigLoaderImpl):
    @functools.cache  # noqa: B019
    def compose(self, folder, name, *words):
        """Return all that Hydra composes in the working folder, which is part of it, or its error."""
        return outcome_of(self, name, words)


def outcome_of(loader, name, words):
    try:
        return content_of(loader.load_configuration(name, list(words), RunMode.RUN))
    except Exception as error:
        return type(error), str(error), type(error.__cause__), str(error.__cause__)


def compare(runs, loaders, name="config"):
    hydras, ours = loaders
    for words in runs:
        assert outcome_of(ours, name, words) == hydras.compose(os.getcwd(), name, *words), words


def content_of(node):
    about = node._metadata
    results = [type(node), about.flags or {}, about.object_type, about.ref_type, about.optional]
    inner = node._content if isinstance(node, DictConfig | ListConfig) else node._value()
    if isinstance(inner, dict):
        return [*results, {key: content_of(value) for key, value in inner.items()}]
    return [*results, [content_of(value) for value in inner] if isinstance(inner, list) else inner]


def runs_of(sweep):
    tree = OmegaConf.load(conf_dir() / "sweep" / f"{sweep}.yaml")
    params = OmegaConf.to_container(tree)["hydra"]["sweeper"]["params"]
    values = [[f"{key}={value}" for value in sweep_choices(choices)] for key, choices in params.items()]
    return [[f"sweep={sweep}", *run] for run in itertools.product(*values)]


@pytest.mark.parametrize(("sweep", "count"), [
    *((sweep, 2) for sweep in random.Random(0).sample(SWEEPS, 5)),
    *(pytest.param(sweep, 10, marks=pytest.mark.slow) for sweep in SWEEPS),
])  # fmt: skip
def test_runs_of_sweeps_are_what_hydra_composes(sweep, count, loaders):
    runs = runs_of(sweep)
    compare(random.Random(count).sample(runs, min(len(runs), count)), loaders)


OVERRIDES = [
    [],
    ["hydra.sweep.dir=s", "gpus=3", "hydra.job.name=other", "strategy=ddp_gloo", "+hardware.environment.A=b"],
    "model=resnet50 ~strategy.options.static_graph ++strategy.options.bucket_cap_mb=1 measure=quick".split(),
    ["hardware.slurm={partition: p}"],
    ["hydra/sweeper=basic", "measure=quick", "sweep=transport", "train.stop={epochs: 2}"],
    ["dataset=cifar10", "hydra.searchpath=[file:///none]"],
    *(
        [word]
        for word in "gpu=1 strategy=dpd seed=two gpus=1,2 gpus=(1 +seed=1 ~gpu +model=mlp dataset@x=random".split()
    ),
    ["train.optimizer=null", "strategy=nothing"],
]


def test_overrides_of_any_kind_compose_as_in_hydra_or_are_its_errors(loaders, subtests, recwarn):
    for words in OVERRIDES:
        with subtests.test(str(words)):
            compare([words, ["gpus=2"], words], loaders)  # earlier configs leave no trace


def test_compose_works_as_the_command_line(monkeypatch):
    composed = composing.compose(["strategy=simulated", "gpus=3", "measure=quick"])
    assert (composed.strategy.name, composed.gpus, composed.measure.max_s) == ("simulated", 3, 8.0)
    assert "hydra" not in composed
    assert "HYDRA_FULL_ERROR" not in os.environ
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # what a user has set stays
    first = composing.compose(["gpus=1"])
    assert os.environ["HYDRA_FULL_ERROR"] == "0"
    first.hardware.environment = {"A": "b"}
    first.train.stop.epochs = 3
    assert composing.compose(["gpus=1"]) == composing.compose(["gpus=1"]) != first, "changes do not reach others"


def test_a_sweep_is_filled_in(monkeypatch, capsys):
    monkeypatch.setattr(machine, "count_gpus", lambda: 3)
    monkeypatch.setattr(machine, "pair_of_each_link", lambda: [(0, 2)])
    for words, planned in {
        "sweep=placement": ["simulated gpus=1", *["simulated gpus=2"] * 2],  # the first is the baseline
        "sweep=each_device": ["simulated gpus=1"] * 3,
        "sweep=each_device hardware.device_ids=[0],[2]": ["simulated gpus=1"] * 2,
    }.items():
        chosen = [*words.split(), "strategy=simulated", "hardware=cpu", "measure.repeats=1", "dry_run=true"]
        assert main(chosen) == 0
        lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()[:-1]]
        assert [line[: len(message)] for line, message in zip(lines, planned, strict=True)] == planned


def test_devices_and_one_pair_of_each_link_are_listed(monkeypatch):
    for here, values in ((0, "[0],[1]"), (1, "[0]"), (3, "[0],[1],[2]")):
        monkeypatch.setattr(machine, "count_gpus", lambda here=here: here)
        assert composing.list_each_device() == values
    for results, values in (([], "[0,1]"), ([(0, 1), (0, 4)], "[0,1],[0,4]")):
        monkeypatch.setattr(machine, "pair_of_each_link", lambda results=results: results)
        assert composing.list_pair_of_each_link() == values


def test_the_typed_config_is_plain_with_variables_and_values_of_a_wrong_type_are_refused():
    for words in (["hardware.environment={A:1,B:x y}"], ["hardware.environment.A=1", "hardware.environment.B='x y'"]):
        assert composing.compose_config(words).hardware.environment == {"A": "1", "B": "x y"}
    added = composing.compose_config(["sweep=transport", "hardware.environment={A:1}"]).hardware.environment
    assert added == {"NCCL_DEBUG": "INFO", "A": "1"}
    assert composing.compose(["dataset.options.commit='12e4567'"]).dataset.options.commit == "12e4567"
    config = composing.to_config(composing.compose(["gpus=2"]))
    assert isinstance(config, Config) and config.train.batch_per_device == 75
    assert type(config.model.input_shape) is list
    with pytest.raises(InputError, match=r"^gpu is not a key$"):
        composing.to_config(composing.compose(["+gpu=1"]))
    with pytest.raises(InputError, match=r"^seed: Expected `int`, got `str`$"):
        composing.to_config(OmegaConf.create({"seed": "two"}))
    with pytest.raises(OmegaConfBaseException, match="Missing mandatory value"):
        composing.to_config(OmegaConf.create({"model": {"name": "???"}}))


def test_a_path_may_hold_what_hydra_cannot_read():
    for name in ("epoch=3-fold=1.npz", "my data (v2).npz", "Kurven_Prüfung.npz", "it's.npz", "50%.npz", "[x.npz"):
        assert composing.compose([f"dataset.path={name}"]).dataset.path == name
    assert composing.accept_words(["dataset.path=a,b"]) == ["dataset.path=a,b"], "two values of a sweep"
    command = composing.accept_words(["script.command=torchrun --n=2 train.py"])[0]
    assert command == "script.command='torchrun --n=2 train.py'"
