"""Every YAML in conf/ composes, agrees with the typed config and the registry, and has the figures that it tells."""

import copy
import dataclasses
import functools
import itertools
import json
import re
from pathlib import Path

import pytest

from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core import config_files
from scalebench.core.errors import InputError
from scalebench.core.json_files import build_record
from scalebench.core.spec import Config, DatasetSpec, SlurmSpec, StrategySpec
from scalebench.workloads import datasets

CONF = Path(__file__).parents[2] / "conf"
KINDS = {name: type(value) for name, value in vars(Config()).items() if dataclasses.is_dataclass(value)}
del KINDS["script"], KINDS["sweep"]  # which have no files of their own kind
SHORT = ("model", "dataset", "strategy")  # whose files state only what is no default and not inherited
FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml") if path.parent.name != "base")
IN_GROUPS = [path for path in FILES if path.parent.name in KINDS]
SWEEPS = [path for path in FILES if path.parent.name == "sweep"]
STRATEGIES = [path.stem for path in IN_GROUPS if path.parent.name == "strategy"]


def load(path):
    return copy.deepcopy(_read(path))


@functools.cache
def _read(path):
    return config_files.read_composed(Path(path).parent.name, CONF / path)


def test_each_file_of_a_group_composes_and_has_the_fields_of_its_dataclass_in_their_order():
    assert sorted([Path("config.yaml"), *IN_GROUPS, *SWEEPS]) == FILES
    assert {path.parent.name for path in IN_GROUPS} == set(KINDS)
    of_groups = {group: [path for path in IN_GROUPS if path.parent.name == group] for group in KINDS}
    rows = [[path for path in row if path] for row in itertools.zip_longest(*of_groups.values())]
    for row in rows:  # one of each group at a time, since composing is what takes the time
        composed = compose_config([f"{path.parent.name}='{path.stem}'" for path in row])
        for path in row:
            group = path.parent.name
            chosen = getattr(composed, group)
            assert group in ("measure", "train") or chosen.name == path.stem
            tree, fields = load(path), dataclasses.fields(KINDS[group])
            keys = [key for key in config_files.read_yaml(CONF / path) if key != "defaults"]
            own = (f.name for f in fields if f.name in keys or (group not in SHORT and f.name != "kubernetes"))
            assert keys == [*own], path
            if group in SHORT:  # composed by Hydra as by our own reader, which needs no Hydra
                stated = build_record(KINDS[group], {key: value for key, value in tree.items() if key != "defaults"})
                assert "${" in str(stated) or stated == chosen, path
    for path in SWEEPS:  # whose runs are resolved in test_sweep_yamls.py
        assert (CONF / path).read_text().startswith("# @package _global_\n")
        assert load(path)["hydra"]["mode"] == "MULTIRUN"


def test_the_top_level_keys_are_the_spines_and_the_defaults_those_of_the_design():
    tree = config_files.read_yaml(CONF / "config.yaml")
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


def test_the_values_of_options_are_those_of_their_comments(subtests):
    for name in STRATEGIES:
        with subtests.test(name):
            stated = build_record(StrategySpec, load(f"strategy/{name}.yaml"))
            comments = config_files.read_key_comments("strategy", CONF / f"strategy/{name}.yaml")
            words = {
                key.removeprefix("options."): sorted(re.split(r"\W", part)[0] for part in comment.split(" | "))
                for key, comment in comments.items()
                if " | " in comment
            }
            assert words == {option: sorted(choices) for option, choices in stated.choices.items()}


REAL = {
    "cifar10": "SCALEBENCH_CIFAR10",
    "imagenet": "SCALEBENCH_IMAGENET",
    "imagenet_jpeg": "SCALEBENCH_IMAGENET",
    "imagenet_tfrecord": "SCALEBENCH_IMAGENET_TFRECORD",
}


def config(*words):
    return compose_config(words)


def test_every_data_set_is_known_fits_its_models_and_can_be_fed_in_every_way(subtests):
    assert {path.stem for path in (CONF / "dataset").glob("*.yaml")} == {*datasets.DATASETS, "custom", "token_dicts"}
    models = {path.stem for path in (CONF / "model").glob("*.yaml")}
    for model in models - {"custom", "hf", "timm", "torchvision"}:  # which leave the network to the user
        with subtests.test(model):
            datasets.check(resolve.resolve(config(f"model={model}", "gpus=1", "strategy=bare_torch")).config)
    params = load("sweep/feeding.yaml")["hydra"]["sweeper"]["params"]
    allowed = {f.name: f.metadata.get("values") for f in dataclasses.fields(DatasetSpec)}
    for key in ("feed", "prefetch"):
        assert set(params[f"dataset.{key}"].split(",")) == set(allowed[key])


def test_the_samples_of_an_epoch_and_their_size():
    """Of generated data as many as for 512 on each of 8 devices, or as the real ones have."""
    counts = {"imagenet_synthetic": (4096, 64), "random": (4096, 64), "cifar10": (50_000, 10_000)}
    for name, (trained, validated) in {**counts, "cifar10_synthetic": (50_000, None)}.items():
        dataset = config(f"dataset={name}").dataset
        assert datasets.count_train_samples(dataset, dataset.size) == trained, name
        assert validated in (None, dataset.size - trained)
    for name, model, megabytes in (  # on disk, as the files tell
        ("imagenet_synthetic", "resnet50", 626), ("imagenet_synthetic", "inception_v3", 1116),
        ("cifar10_synthetic", "cifar10_cnn", 154), ("random", "mlp", 133),
    ):  # fmt: skip
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


USUAL_SLURM = dataclasses.asdict(SlurmSpec())
LINKS = dict.fromkeys(("intra_node_bytes_per_s", "inter_node_bytes_per_s"), (float, type(None)))
LINKS |= dict.fromkeys(("intra_node", "inter_node"), (str, type(None)))
OPTIONAL_LINKS = {"kind": (str,)}
OPTIONAL_LINKS |= dict.fromkeys(("intra_node_latency_s", "inter_node_latency_s"), (float,))
# What a source has to be named for, besides whatever stands under links.
SOURCED = "gpus_per_node cpus_per_node cpus_per_device max_nodes memory_bytes gpu_model gpu_memory_bytes".split()
SOURCED += ["node_copy"]


@pytest.mark.parametrize("path", sorted(CONF.glob("hardware/*.yaml")), ids=lambda path: path.stem)
def test_hardware_and_the_sources_of_its_figures(path):
    results = load(path)
    links = {**LINKS, **{key: kinds for key, kinds in OPTIONAL_LINKS.items() if key in results["links"]}}
    assert list(results["links"]) == list(links)
    assert [key for key, kinds in links.items() if type(results["links"][key]) not in kinds] == []
    assert all(isinstance(text, str) for text in [*results["sources"], *results["unsupported"].values()])
    assert results["name"] == path.stem and results["description"]
    assert results["devices"] in ("cuda", "cpu", "auto") and results["scheduler"] in ("none", "slurm", "kubernetes")
    assert not (results["this_machine"] and results["scheduler"] != "none")
    assert ("kubernetes" in results) == (results["scheduler"] == "kubernetes")
    # Are a run's to choose:
    chosen = [results[key] for key in ("layout", "device_ids", "bind", "environment")]
    assert chosen == ["sequence", [], "numa", {}]
    assert bool(results["slurm"]) == (results["scheduler"] == "slurm")
    # Only the keys that differ, in their order: 18 lines of nulls in each file would hide them.
    assert list(results["slurm"]) == [key for key in USUAL_SLURM if key in results["slurm"]]
    numbers = [results[key] for key in SOURCED] + list(results["links"].values())
    assert all(value > 0 for value in numbers if isinstance(value, (int, float)))
    if path.stem in ("cpu", "local", "slurm", "kubernetes", "testcluster"):
        assert results["sources"] == []  # what stands there is our choice, the rest is detected
        ours = {"gpus_per_node", "max_nodes"} if path.stem != "testcluster" else set(SOURCED)
        assert all(results[key] is None for key in set(SOURCED) - ours)
        return
    assert [key for key, value in results["slurm"].items() if value == USUAL_SLURM[key]] == []
    figures = {key: results[key] for key in SOURCED} | results["links"]
    figures |= {key: results[key] or None for key in ("slurm", "unsupported")}
    sources = [source.split(": ", 1) for source in results["sources"]]
    assert all(len(text) > 10 for _, text in sources)
    named = {key for keys, _ in sources for key in keys.split(", ")}
    assert named == {key for key, value in figures.items() if value is not None}
    if path.stem in ("alpha", "gpu2", "hpdlf"):  # of the thesis, whose rule is cores / GPUs
        assert (results["cpus_per_device"], results["slurm"]["partition"]) == (None, path.stem)
        assert "horovod_mpi" in results["unsupported"] or path.stem != "gpu2"
