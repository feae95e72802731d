"""Sweeps that repeat the studies have the studies' settings, and others what their questions need, on any machine."""

import dataclasses
import functools
import itertools

import pytest

from scalebench.config.compose import compose, compose_config
from scalebench.config.resolve import resolve
from scalebench.core.config_files import read_strategy_config
from scalebench.sweeps.plan import plan_sweep
from scalebench.workloads import datasets, networks
from scalebench.workloads.partition import max_stages
from tests.builders.configs import fake_machine, sweep_choices
from tests.conf.test_yaml_files import STRATEGIES, SWEEPS, load


@pytest.fixture(autouse=True)
def archive(monkeypatch):
    monkeypatch.setenv("SCALEBENCH_CIFAR10", "cifar-10-python.tar.gz")  # no file is looked at before a run starts
    monkeypatch.setenv("SCALEBENCH_IMAGENET", "imagenet")


def values(sweep):
    params = load(f"sweep/{sweep}.yaml")["hydra"]["sweeper"]["params"]
    return {key: sweep_choices(value) for key, value in params.items()}


def runs(sweep, *words, **chosen):
    """Its runs on the CPU, without baselines; `chosen` values stand for those of its own."""
    varied = {**values(sweep), **chosen}
    each = itertools.product(*([f"{key}={value}" for value in results] for key, results in varied.items()))
    return [resolve(compose_config([f"sweep={sweep}", "hardware=cpu", *run, *words])) for run in each]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_run_resolves_and_none_is_one_that_no_machine_could_do(monkeypatch, path):
    """Such as a strategy of one device on two of them. Its baselines are added by themselves."""
    composed = functools.cache(lambda *words: compose_config(words))
    for gpus_here in (0, 8):
        fake_machine(monkeypatch, gpus_here)
        varied = values(path.stem)
        first = {key: choices[0] for key, choices in varied.items()}
        lines = [first]
        for key in varied.keys() - {"gpus"}:  # numbers of devices are tried below
            lines += [{**first, key: value} for value in varied[key][1:]]
        for line in lines:
            config = composed(f"sweep={path.stem}", *(f"{key}={value}" for key, value in line.items()))
            for gpus in varied.get("gpus", [config.gpus]):
                spec = resolve(dataclasses.replace(config, gpus=gpus and int(gpus)))
                most = spec.config.strategy.max_gpus
                assert most is None or spec.gpus <= most, spec.label


@pytest.mark.parametrize(("gpus_here", "hardware", "device", "counts", "models"), [
    (0, "local", "cpu", (1, 2), ["materials_cnn"]),
    (1, "local", "cuda", (1,), ["resnet50", "materials_cnn"]),
    (6, "local", "cuda", (1, 2, 4, 6), ["resnet50", "materials_cnn"]),
    (8, "cpu", "cpu", (1, 2), ["materials_cnn"]),
])  # fmt: skip
def test_the_demo_is_composed_for_the_machine(monkeypatch, gpus_here, hardware, device, counts, models):
    fake_machine(monkeypatch, gpus_here)
    chosen = compose([f"hardware={hardware}", "sweep=demo"])
    params = load("sweep/demo.yaml")["hydra"]["sweeper"]["params"]
    filled = [[f"{key}={each}" for each in sweep_choices(value, chosen)] for key, value in params.items()]
    overrides = [["sweep=demo", f"hardware={hardware}", *run] for run in itertools.product(*filled)]
    runs = plan_sweep(overrides, lambda words: resolve(compose_config(words)))
    planned = [run.spec for run in runs if run.spec.config.repeat == 0]
    several = list(itertools.product(models, ["ddp", "lightning_ddp"], counts))
    found = [(spec.config.model.name, spec.config.strategy.name, spec.gpus) for spec in planned]
    assert sorted(found) == sorted([*several, *((model, "bare_torch", 1) for model in models)])
    assert {(spec.device, spec.unsupported) for spec in planned} == {(device, None)}


def test_sweeps_have_all_strategies_of_their_kind_and_a_model_that_can_be_cut():
    known_names = {name: read_strategy_config(name) for name in STRATEGIES}
    several = {name for name, tree in known_names.items() if tree["framework"] == "torch" and tree["max_gpus"] is None}
    over_one = {name for name in several if name.endswith(("_nccl", "_gloo"))}  # backends, which the others choose
    assert set(values("strategies")["strategy"]) == several - over_one
    for spec in runs("data_or_model", strategy=["ddp_gloo"], **{"train.global_batch": ["64"]}):
        assert max_stages(networks.build_network(spec.config.model)) >= 2


@pytest.mark.parametrize("data", ["imagenet_synthetic", "cifar10_synthetic"])
def test_keras_multi_gpu_cuts_every_batch_evenly(data):
    """kuza55's method refuses what does not divide, the last batch of an epoch included."""
    for spec in runs("keras_multi_gpu", f"dataset={data}", scaling=["strong", "weak"], strategy=["kuza55_ps_cpu"]):
        for batch, gpus in itertools.product((32, 8), (1, 2, 3, 4, 6, 8)):
            train = dataclasses.replace(spec.config.train, batch_per_device=batch)
            made = resolve(dataclasses.replace(spec.config, gpus=gpus, train=train))
            rest = datasets.count_train_samples(made.config.dataset, made.config.dataset.size) % made.global_batch
            assert made.global_batch % gpus or rest % gpus == 0  # the first was an error of the study's


@pytest.mark.slow
def test_devices_or_batch_has_both_sides_of_a_pair():
    for gpus in ([1, 2], [1, 2, 4, 8], [1, 10]):
        results = runs("devices_or_batch", gpus=[str(count) for count in gpus])
        alone = {spec.batch_per_device for spec in results if spec.gpus == 1}
        for count in gpus[1:]:
            assert any(spec.global_batch in alone for spec in results if spec.gpus == count)


def test_devices_or_batch_scales_both_learning_rates_equally():
    rates = {}
    for spec in runs("devices_or_batch", "train.learning_rate_rule=linear", "train.base_batch=75"):
        rates.setdefault(spec.global_batch, set()).add(round(spec.learning_rate / spec.global_batch, 12))
    assert len(rates) > 5 and len(set.union(*rates.values())) == 1


@pytest.mark.parametrize("gpus", [1, 6])
def test_cifar_scaling_is_what_the_study_ran(gpus):
    """cifar10_cnn_mgpu.py: RMSprop at 1e-4 times the GPUs, and a batch times the GPUs."""
    for spec in runs("cifar_scaling", gpus=[str(gpus)]):
        assert spec.learning_rate == pytest.approx(1e-4 * gpus)
        assert (spec.config.train.optimizer, spec.global_batch) == ("rmsprop", gpus * spec.batch_per_device)
