"""The data sets in conf/ keep their figures, and so do the sweeps over them."""

import dataclasses
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from scalebench.core.spec import DatasetSpec
from scalebench.workloads import datasets

CONF = Path(__file__).parents[2] / "conf"
GENERATED_IMAGES = ["imagenet_synthetic", "cifar10_synthetic"]
REAL = {
    "cifar10": "SCALEBENCH_CIFAR10",
    "imagenet": "SCALEBENCH_IMAGENET",
    "imagenet_jpeg": "SCALEBENCH_IMAGENET",
    "imagenet_tfrecord": "SCALEBENCH_IMAGENET_TFRECORD",
}
SWEEPS_OF_INPUT = {
    "real_or_synthetic": ("SCALEBENCH_CIFAR10", "/data/cifar-10-python.tar.gz", "cifar10_cnn"),
    "real_input": ("SCALEBENCH_IMAGENET", "/data/imagenet", "resnet50"),
}


def config(*words):
    return compose_config(words)


def trained_on(config):
    return datasets.count_train_samples(config.dataset, config.dataset.size)


LIBRARIES = ("hf", "timm", "torchvision")  # whose YAML leaves the name of the network to the user


def test_every_data_set_is_known_and_has_its_yaml():
    assert {path.stem for path in (CONF / "dataset").glob("*.yaml")} == {*datasets.DATASETS, "custom", "token_dicts"}


@pytest.mark.parametrize(
    "model", sorted({path.stem for path in (CONF / "model").glob("*.yaml")} - {"custom", *LIBRARIES})
)
def test_a_model_fits_the_data_set_that_it_brings(model):
    datasets.check(resolve.resolve(config(f"model={model}", "gpus=1", "strategy=bare_torch")).config)


@pytest.mark.parametrize("name", ["imagenet_synthetic", "random"])
def test_generated_samples_are_enough_for_512_on_each_of_8_devices(name):
    chosen = config(f"dataset={name}")
    assert trained_on(chosen) == 8 * 512 and chosen.dataset.size - 8 * 512 == 64


def test_an_epoch_of_the_generated_cifar10_is_as_long_as_one_of_the_real():
    real, made = config("dataset=cifar10"), config("dataset=cifar10_synthetic")
    assert trained_on(real) == trained_on(made) == 50_000
    assert real.dataset.size - trained_on(real) == 10_000  # the test batch
    assert (real.dataset.image_size, real.dataset.classes, real.dataset.dtype) == (32, 10, "uint8")


@pytest.mark.parametrize(("name", "model", "megabytes"), [
    ("imagenet_synthetic", "resnet50", 626),
    ("imagenet_synthetic", "inception_v3", 1116),
    ("cifar10_synthetic", "cifar10_cnn", 154),
    ("random", "mlp", 133),
])  # fmt: skip
def test_the_sizes_on_disk_that_the_files_tell(name, model, megabytes):
    made = datasets.DATASETS[name].define
    assert made is not None
    assert round(made(config(f"dataset={name}", f"model={model}")).size_bytes / 1e6) == megabytes


@pytest.mark.parametrize("name", REAL)
def test_the_files_of_a_real_one_are_found_through_the_environment(name, monkeypatch):
    with pytest.raises(InputError, match=rf"read from files: .*https://.* or \${REAL[name]}$"):
        datasets.check(config(f"dataset={name}", "model=resnet50"))
    assert config(f"dataset={name}").dataset.path is None
    monkeypatch.setenv(REAL[name], "/data/it")
    assert config(f"dataset={name}").dataset.path == "/data/it"
    assert config(f"dataset={name}", "dataset.path=/mine").dataset.path == "/mine"


@pytest.mark.parametrize("name", SWEEPS_OF_INPUT)
def test_a_sweep_over_real_input_differs_in_the_data_set_alone(name, monkeypatch):
    variable, path, model = SWEEPS_OF_INPUT[name]
    monkeypatch.setenv(variable, path)
    sweep = OmegaConf.load(CONF / "sweep" / f"{name}.yaml")
    names = sweep.hydra.sweeper.params.dataset.split(",")
    specs = [resolve.resolve(config(f"sweep={name}", f"dataset={dataset}")) for dataset in names]
    real, made = (json.loads(json.dumps(spec.config, default=vars)) for spec in specs)
    assert (real["dataset"]["path"], made["dataset"]["path"]) == (path, None)
    assert real["model"]["name"] == model
    for tree in (real, made):
        for key in ("name", "path", "size", "validation_share"):
            del tree["dataset"][key]
    assert real == made


def test_the_feeding_sweep_has_every_way_of_feeding():
    params = OmegaConf.load(CONF / "sweep" / "feeding.yaml").hydra.sweeper.params
    feeds, ahead = params["dataset.feed"].split(","), params["dataset.prefetch"].split(",")
    allowed = {f.name: f.metadata.get("values") for f in dataclasses.fields(DatasetSpec)}
    assert set(feeds) == set(allowed["feed"]) and len(feeds) == 4
    assert set(ahead) == set(allowed["prefetch"])
