"""The data sets in conf/ keep their figures, and so do the sweeps over them."""

import dataclasses
import json

import pytest

from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from scalebench.core.spec import DatasetSpec
from scalebench.workloads import datasets
from tests.conf.test_yaml_files import CONF, load

REAL = {
    "cifar10": "SCALEBENCH_CIFAR10",
    "imagenet": "SCALEBENCH_IMAGENET",
    "imagenet_jpeg": "SCALEBENCH_IMAGENET",
    "imagenet_tfrecord": "SCALEBENCH_IMAGENET_TFRECORD",
}


def config(*words):
    return compose_config(words)


def test_every_data_set_is_known_and_fits_the_models_that_bring_it(subtests):
    assert {path.stem for path in (CONF / "dataset").glob("*.yaml")} == {*datasets.DATASETS, "custom", "token_dicts"}
    models = {path.stem for path in (CONF / "model").glob("*.yaml")}
    for model in models - {"custom", "hf", "timm", "torchvision"}:  # which leave the network to the user
        with subtests.test(model):
            datasets.check(resolve.resolve(config(f"model={model}", "gpus=1", "strategy=bare_torch")).config)


def test_the_samples_of_an_epoch():
    """Of generated data as many as for 512 on each of 8 devices, or as the real ones have."""
    counts = {"imagenet_synthetic": (4096, 64), "random": (4096, 64), "cifar10": (50_000, 10_000)}
    for name, (trained, validated) in {**counts, "cifar10_synthetic": (50_000, None)}.items():
        dataset = config(f"dataset={name}").dataset
        assert datasets.count_train_samples(dataset, dataset.size) == trained, name
        assert validated in (None, dataset.size - trained)
    real = config("dataset=cifar10").dataset
    assert (real.image_size, real.classes, real.dtype) == (32, 10, "uint8")


@pytest.mark.parametrize(("name", "model", "megabytes"), [
    ("imagenet_synthetic", "resnet50", 626),
    ("imagenet_synthetic", "inception_v3", 1116),
    ("cifar10_synthetic", "cifar10_cnn", 154),
    ("random", "mlp", 133),
])  # fmt: skip
def test_the_sizes_on_disk_that_the_files_tell(name, model, megabytes):
    made = datasets.DATASETS[name].define(config(f"dataset={name}", f"model={model}"))
    assert round(made.size_bytes / 1e6) == megabytes


def test_the_files_of_a_real_one_are_found_through_the_environment(monkeypatch):
    for name, variable in REAL.items():
        with pytest.raises(InputError, match=rf"read from files: .*https://.* or \${variable}$"):
            datasets.check(config(f"dataset={name}", "model=resnet50"))
        assert config(f"dataset={name}").dataset.path is None
        with monkeypatch.context() as patch:
            patch.setenv(variable, "/data/it")
            assert config(f"dataset={name}").dataset.path == "/data/it"
            assert config(f"dataset={name}", "dataset.path=/mine").dataset.path == "/mine"


@pytest.mark.parametrize(
    ("sweep", "variable", "model"),
    [("real_or_synthetic", "SCALEBENCH_CIFAR10", "cifar10_cnn"), ("real_input", "SCALEBENCH_IMAGENET", "resnet50")],
)
def test_a_sweep_over_real_input_differs_in_the_data_set_alone(sweep, variable, model, monkeypatch):
    monkeypatch.setenv(variable, "/data/it")
    names = load(f"sweep/{sweep}.yaml")["hydra"]["sweeper"]["params"]["dataset"].split(",")
    specs = [resolve.resolve(config(f"sweep={sweep}", f"dataset={dataset}")) for dataset in names]
    real, made = (json.loads(json.dumps(spec.config, default=vars)) for spec in specs)
    assert (real["dataset"]["path"], made["dataset"]["path"]) == ("/data/it", None)
    assert real["model"]["name"] == model
    for tree in (real, made):
        for key in ("name", "path", "size", "validation_share"):
            del tree["dataset"][key]
    assert real == made


def test_the_feeding_sweep_has_every_way_of_feeding():
    params = load("sweep/feeding.yaml")["hydra"]["sweeper"]["params"]
    allowed = {f.name: f.metadata.get("values") for f in dataclasses.fields(DatasetSpec)}
    for key in ("feed", "prefetch"):
        assert set(params[f"dataset.{key}"].split(",")) == set(allowed[key])
