"""Batches of a user's loader: what is drawn, what is refused, and that a run draws in its steps."""

import copy
import re
from itertools import islice

import psutil
import pytest
import torch

from scalebench.config.resolve import resolve
from scalebench.core.errors import PluginError
from scalebench.core.result import RankRecord
from scalebench.core.run_folder import rank_record_path, read_rank_file
from scalebench.strategies.torch.loader import UserLoader
from tests.builders.configs import make_config, resolve_error, set_key
from tests.builders.launching import launch_run
from tests.strategies.torch.conftest import spec_of
from tests.strategies.torch.user_loaders import SAMPLES

LOADERS = "tests.strategies.torch.user_loaders"
KEYS = {"name": "custom", "validation_share": 0.0}


def spec_with(name, strategy="bare_torch", processes=1, dataset=None, **changes):
    spec = spec_of(strategy, processes, **changes)
    for key, value in (KEYS | {"loader": f"{LOADERS}:{name}", "options": {}} | (dataset or {})).items():
        setattr(spec.config.dataset, key, value)
    return spec


def user_changes(module, loss):
    return {
        "model__name": module,
        "model__torch": f"{LOADERS}:{module}",
        "model__loss": loss,
        "dataset__dtype": "record",
    }


@pytest.fixture
def open_loader():
    opened = []

    def open_one(name, replica=0, replicas=1, **changes):
        opened.append(UserLoader(spec_with(name, processes=replicas, **changes), replica, replicas))
        return opened[-1]

    yield open_one
    for loader in opened:
        loader.close()


@pytest.mark.parametrize("name", ["from_workers", "stream"])
def test_epochs_follow_each_other_with_a_ragged_last_batch(open_loader, name):
    loader = open_loader(name)
    drawn = list(islice(loader, 4))
    assert [batch.samples for batch in drawn] == [20, 20, 10, 20] and loader.steps_per_epoch == 3
    assert [int(batch.inputs[0, 0, 0]) for batch in drawn] == [0, 20, 40, 0]
    assert all(batch.global_samples == batch.samples and batch.targets.dtype == torch.float32 for batch in drawn)
    # A network of scalebench has channels last.
    assert drawn[0].inputs.shape == (20, 200, 3)


def test_a_rank_draws_its_own_samples_and_its_mean_counts_as_that_of_the_others(open_loader):
    first = next(iter(open_loader("from_workers", 1, 2, dataset={"options": {"workers": 0}})))
    assert first.inputs[:3, 0, 0].tolist() == [1, 3, 5] and (first.samples, first.global_samples) == (20, 40)


def test_a_generator_of_dicts_reaches_a_module_of_the_user_as_it_is(open_loader):
    loader = open_loader("generator", **user_changes("OneDict", "module"))
    sizes = [batch.samples for batch in islice(loader, 5)]
    assert sizes == [20, 20, 10, 20, 20] and loader.steps_per_epoch == 3
    assert loader.first.inputs["numbers"].dtype == torch.float32 and loader.first.inputs["labels"].dtype == torch.int64
    assert loader.first.targets is None and loader.first.map(torch.neg).inputs["numbers"][1, 0] == -1


RAGGED = {"object": "NodeSums", "tuple": "NodeSums", "list": "NodeSums", "dict": "NodeSumsOfDict"}


@pytest.mark.parametrize("kind", RAGGED)
def test_samples_of_different_sizes_count_as_one_each(strategy, kind):
    """Graphs and lists of images have no axis of samples: their number is that of the graphs, targets or parts."""
    changes = user_changes(RAGGED[kind], f"{LOADERS}:squares") | {"model": "custom", "train__optimizer": "sgd"}
    losses = {}
    for each in ("tuple", kind):
        dataset = {f"dataset__{key}": value for key, value in KEYS.items()}
        dataset |= {"dataset__loader": f"{LOADERS}:ragged", "dataset__options": {"kind": each}}
        module = {} if each == kind else {"model__torch": f"{LOADERS}:{RAGGED[each]}"}
        adapter = strategy("bare_torch", **changes | dataset | module)
        parts = [adapter.step(batch) for batch in islice(adapter.feed(None), 5)]
        losses[each] = [float(part.loss_sum) for part in parts]
        assert [part.samples for part in parts] == [20, 20, 10, 20, 20]
    assert losses[kind] == pytest.approx(losses["tuple"], rel=1e-5) and losses[kind][3] < losses[kind][0]


def test_samples_without_an_axis_are_not_divided(open_loader):
    with pytest.raises(
        PluginError, match=r"not all parts have an axis of samples, and which train.accumulate therefore cannot"
    ):
        open_loader("ragged", train__accumulate=2, **user_changes("NodeSums", f"{LOADERS}:squares"))


@pytest.mark.parametrize(("name", "options", "line"), [
    ("nothing", {}, "gives None: return a DataLoader, or another iterable of batches"),
    ("empty", {}, "ends without a batch in epoch 1: it has fewer samples than a batch"),
    ("small", {}, "gives a first batch of 7 samples, and 20 are asked for: use its argument `batch`"),
    ("no_arguments", {}, r"cannot be called with \(rank, world_size, batch, seed, \*\*{}\): too many positional"),
    ("missing", {}, "has no 'missing'|no function|has no attribute 'missing'"),
    (
        "pairs",
        {"shape": [3, 32, 32], "targets": [], "kind": "int64"},
        r"gives float32 \(20, 3, 32, 32\) and int64 \(20,\); model=materials_cnn takes floats \(n, 200, 3\) and "
        r"floats \(n, 2\)$",
    ),
])  # fmt: skip
def test_what_cannot_be_trained_on_is_refused_in_one_line(open_loader, name, options, line):
    with pytest.raises(PluginError, match=line) as caught:
        open_loader(name, dataset={"options": options})
    assert str(caught.value).startswith(f"dataset.loader={LOADERS}:{name} ")


def test_an_error_in_a_worker_names_its_cause_alone(open_loader):
    with pytest.raises(PluginError) as caught:
        list(islice(open_loader("broken"), 3))
    assert str(caught.value).endswith("broken fails: in DataLoader worker process 0: ValueError: sample 49 is broken")


def test_classes_are_compared_with_the_outputs(open_loader):
    with pytest.raises(PluginError, match="has class 1, and model=materials_cnn has 1 outputs: set model"):
        open_loader(
            "pairs", model__loss="cross_entropy", model__target_shape=[], model__outputs=1,
            dataset={"options": {"targets": [], "kind": "int64"}},
        )  # fmt: skip


@pytest.mark.parametrize(
    "strategy",
    ["ddp_gloo", *(pytest.param(f"{name}_gloo", marks=pytest.mark.slow) for name in ("lightning_ddp", "fsdp"))],
)
@pytest.mark.parametrize("name", ["from_workers", "same"])
def test_a_run_draws_in_its_steps_and_leaves_no_process(tmp_path, strategy, name):
    settings = {"min_s": 0.05, "max_s": 0.3, "warmup_max_s": 0.3, "probe_s": 0.05, "probes": False}
    spec = spec_with(name, strategy, 2, measure=settings)
    ended = launch_run(spec, tmp_path)
    assert set(ended.exit_codes) == {0}, [path.read_text() for path in tmp_path.glob("*.log")]
    records = [read_rank_file(rank_record_path(tmp_path, rank), RankRecord) for rank in range(2)]
    for record in records:
        assert record.status == "ok" and len(record.block_data_s) == len(record.block_s)
        assert 0 < sum(record.block_data_s) < sum(record.block_s)
    assert [list(record.model_remarks) for record in records] == [[], ["same_batches"] if name == "same" else []]
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(tmp_path) in command]


@pytest.mark.parametrize(("changes", "line"), [
    ({"dataset.builder": f"{LOADERS}:same"}, "dataset.builder has no effect on the batches of dataset.loader="),
    ({"dataset.feed": "device"}, "dataset.feed=device has no effect on the batches of dataset.loader="),
    ({"dataset.workers": 2}, "dataset.workers is of pictures that are decoded during training"),
    ({"train.stop.epochs": 1}, "a training to train.stop evaluates validation samples"),
    ({"dataset.name": "random"}, "dataset=random has its samples already: dataset.loader is for dataset=custom"),
    ({"dataset.loader": f"{LOADERS}:sane"}, "no function in .*; did you mean 'same'?"),
    ({"model.name": "custom", "model.torch": f"{LOADERS}:OneDict", "model.loss": "auto"},
     "model.loss=auto follows from the targets, and those of dataset.loader=.* are first seen in the ranks"),
])  # fmt: skip
def test_settings_without_effect_are_refused_before_a_run(changes, line):
    keys = {"dataset.name": "custom", "dataset.loader": f"{LOADERS}:same", "model.loss": "mse"} | changes
    config = copy.deepcopy(make_config())  # whose parts others use
    for key, value in keys.items():
        set_key(config, key, value)
    assert re.search(line, resolve_error(config))


def test_a_dataset_that_is_read_into_the_cache_is_flagged(tmp_path):
    config = copy.deepcopy(make_config())
    keys = {"dataset.name": "custom", "dataset.builder": f"{LOADERS}:dataset", "dataset.size": SAMPLES}
    keys |= {"dataset.cache": str(tmp_path), "model.name": "custom", "model.torch": f"{LOADERS}:OneDict"}
    for key, value in (keys | {"train.batch_per_device": 5, "train.global_batch": None}).items():
        set_key(config, key, value)
    assert "read_once" in resolve(config).flags
