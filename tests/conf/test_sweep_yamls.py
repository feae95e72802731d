"""Sweeps that repeat the studies have the studies' settings, and others what their questions need, on any machine."""

import itertools

import pytest

from scalebench.config.compose import compose, compose_config
from scalebench.config.resolve import resolve
from scalebench.core.machine import machine
from scalebench.sweeps.plan import plan_sweep
from scalebench.workloads import datasets, networks
from scalebench.workloads.partition import max_stages
from tests.builders.configs import fake_machine, sweep_choices
from tests.conf.test_yaml_files import STRATEGIES, SWEEPS, load

CIFAR_MODELS = [
    *("alexnet_cifar10", "resnet20_cifar10", "resnet32_cifar10", "resnet44_cifar10", "resnet56_cifar10"),
    *("resnet110_cifar10", "densenet40_k12", "densenet100_k12"),
]


@pytest.fixture(autouse=True)
def archive(monkeypatch):
    monkeypatch.setenv("SCALEBENCH_CIFAR10", "cifar-10-python.tar.gz")  # no file is looked at before a run starts


def values(sweep):
    """What it varies, key by key in its order."""
    params = load(f"sweep/{sweep}.yaml")["hydra"]["sweeper"]["params"]
    return {key: sweep_choices(value) for key, value in params.items()}


def runs(sweep, *words, **chosen):
    """Its runs on the CPU, without baselines; `chosen` values stand for those of its own."""
    varied = {**values(sweep), **chosen}
    each = itertools.product(*([f"{key}={value}" for value in results] for key, results in varied.items()))
    overrides = [[f"sweep={sweep}", "hardware=cpu", *run, *words] for run in each]
    return [resolve(compose_config(run)) for run in overrides]


def test_repeats_come_first_in_sweeps_that_have_them():
    """The last key varies fastest, and a key on the command line keeps the place it has in the file."""
    keys = [list(values(path.stem)) for path in SWEEPS]
    firsts = [results[0] for results in keys if "repeat" in results]
    assert set(firsts) == {"repeat"} and len(firsts) >= 16


@pytest.mark.parametrize(
    ("gpus_here", "hardware", "device", "counts", "models"),
    [
        (0, "local", "cpu", (1, 2), ["materials_cnn"]),
        (1, "local", "cuda", (1,), ["resnet50", "materials_cnn"]),
        (6, "local", "cuda", (1, 2, 4, 6), ["resnet50", "materials_cnn"]),
        (8, "local", "cuda", (1, 2, 4, 8), ["resnet50", "materials_cnn"]),
        (8, "cpu", "cpu", (1, 2), ["materials_cnn"]),
    ],
)
def test_the_demo_is_composed_for_the_machine(
    monkeypatch, gpus_here, hardware, device, counts,
    models
):  # fmt: skip
    fake_machine(monkeypatch, gpus_here)
    chosen = compose([f"hardware={hardware}", "sweep=demo"])
    filled = {
        key: sweep_choices(value, chosen)
        for key, value in load("sweep/demo.yaml")["hydra"]["sweeper"]["params"].items()
    }
    overrides = [
        ["sweep=demo", f"hardware={hardware}", *(f"{key}={value}" for key, value in zip(filled, run, strict=True))]
        for run in itertools.product(*filled.values())
    ]
    planned = [run.spec for run in plan_sweep(overrides, compose) if run.spec.config.repeat == 0]
    several = list(itertools.product(models, ["ddp", "lightning_ddp"], counts))
    found = [(spec.config.model.name, spec.config.strategy.name, spec.gpus) for spec in planned]
    assert sorted(found) == sorted([*several, *((model, "bare_torch", 1) for model in models)])
    assert {(spec.device, spec.unsupported) for spec in planned} == {(device, None)}


@pytest.mark.parametrize("gpus_here", [0, 8])
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_no_sweep_has_runs_that_no_machine_could_do(monkeypatch, path, gpus_here):
    """Such as a strategy of one device on two of them. Its baselines are added by themselves."""
    fake_machine(monkeypatch, gpus_here)
    monkeypatch.setenv("SCALEBENCH_IMAGENET", "imagenet")  # no file is looked at before a run starts
    varied = values(path.stem)
    others = [f"{key}={choices[0]}" for key, choices in varied.items() if key not in ("strategy", "gpus")]
    for strategy, gpus in itertools.product(varied.get("strategy", [""]), varied.get("gpus", [""])):
        chosen = [f"strategy={strategy}"] * bool(strategy) + [f"gpus={gpus}"] * bool(gpus)
        spec = resolve(compose_config([f"sweep={path.stem}", *others, *chosen]))
        most = spec.config.strategy.max_gpus
        assert most is None or spec.gpus <= most, spec.label


def test_cross_device_ops_is_the_parallel_strategies_study():
    results = runs("cross_device_ops")
    for spec in results:
        config = spec.config
        assert (config.model.name, config.model.outputs, config.model.params) == ("resnet50_v2", 10, 23_539_850)
        assert (config.dataset.name, config.model.input_shape) == ("cifar10", [64, 64, 3])
        assert (config.train.optimizer, spec.batch_per_device, spec.global_batch) == ("adam", 512, 1024)
    refused = {spec.config.strategy.name: spec.unsupported for spec in results if spec.unsupported}
    assert list(refused) == ["mirrored_nccl"] and "NCCL, which needs GPUs" in str(refused["mirrored_nccl"])
    assert len(results) == 5


def test_cross_device_ops_goes_without_the_archive():
    chosen = ["dataset=cifar10_synthetic", "measure=quick", "train.batch_per_device=8"]
    spec = runs("cross_device_ops", *chosen, strategy=["mirrored"])[0]
    assert (spec.config.dataset.name, spec.config.dataset.image_size) == ("cifar10_synthetic", 64)
    assert (spec.batch_per_device, spec.global_batch) == (8, 16)


@pytest.mark.parametrize("gpus, strong", [(1, 32), (2, 16), (4, 8), (6, 6)])
def test_keras_multi_gpu_is_what_the_study_ran_and_what_it_meant(gpus, strong):
    results = runs("keras_multi_gpu", f"gpus={gpus}", scaling=["strong", "weak"], strategy=["avolkov1_ps_gpu"])
    assert [(s.batch_per_device, s.global_batch) for s in results] == [(strong, 32), (32, 32 * gpus)]
    studied = {(s.config.model.name, s.config.dataset.name, s.config.train.optimizer) for s in results}
    assert studied == {("resnet50", "imagenet_synthetic", "sgd")}


@pytest.mark.parametrize("data", ["imagenet_synthetic", "cifar10_synthetic"])
@pytest.mark.parametrize("batch", [32, 8])
def test_keras_multi_gpu_cuts_every_batch_evenly(data, batch):
    """kuza55's method refuses what does not divide, the last batch of an epoch included."""
    words = [f"dataset={data}", f"train.batch_per_device={batch}"]
    for gpus, scaling in itertools.product((1, 2, 3, 4, 6, 8), ("strong", "weak")):
        spec = runs("keras_multi_gpu", *words, f"gpus={gpus}", scaling=[scaling], strategy=["kuza55_ps_cpu"])[0]
        rest = datasets.count_train_samples(spec.config.dataset, spec.config.dataset.size) % spec.global_batch
        if spec.global_batch % gpus == 0:  # it was the study's error otherwise
            assert rest % gpus == 0


def test_keras_multi_gpu_has_the_three_methods_and_both_parameter_devices():
    studied = {f"{method}_ps_{device}" for method in ("kuza55", "avolkov1") for device in ("cpu", "gpu")}
    assert set(values("keras_multi_gpu")["strategy"]) == studied | {"multi_gpu_model"}
    (spec,) = runs("keras_multi_gpu", strategy=["multi_gpu_model"])
    assert spec.config.strategy.options["slice_device"] == "each"  # as Keras had it in 2017


def test_variable_update_has_the_modes_and_settings_of_tf_cnn_benchmarks():
    results = runs("variable_update", model=["alexnet"])
    trained = {(s.config.train.optimizer, s.config.train.weight_decay, s.config.dataset.feed) for s in results}
    assert trained == {("sgd", 4e-5, "fixed")}
    options = {s.config.strategy.name: s.config.strategy.options for s in results}
    assert options["central_storage_spread"] == {"parameter_device": "spread"}
    assert options["mirrored_reduce_spread"]["cross_device_ops"] == "reduce_spread"
    assert options["mirrored_nccl_unpacked"]["num_packs"] == 0
    assert set(options) >= {"central_storage_cpu", "independent_tensorflow"} and len(results) == 5


def test_models_of_a_sweep_bring_their_data_and_batch_sizes():
    results = runs("variable_update", strategy=["central_storage_cpu"])
    message = {
        s.config.model.name: (s.config.dataset.name, s.batch_per_device, s.config.train.data_format) for s in results
    }
    cifar = {name: ("cifar10_synthetic", 64 if name.startswith("densenet") else 128, "nchw") for name in CIFAR_MODELS}
    assert message == {"alexnet": ("imagenet_synthetic", 512, "nchw"), **cifar}


def test_each_cifar_sweep_has_the_eight_networks():
    assert values("cifar_models")["model"] == CIFAR_MODELS
    assert values("variable_update")["model"] == ["alexnet", *CIFAR_MODELS]
    assert values("data_format")["model"] == ["inception_v3", "resnet50", *CIFAR_MODELS]


def test_thesis_scaling_is_what_the_study_trained():
    results = runs("thesis_scaling", gpus=["1", "10"])
    strategies = ["horovod_nccl", "horovod_mpi", "horovod_gloo"]
    assert [(s.config.strategy.name, s.gpus) for s in results] == list(itertools.product(strategies, (1, 10)))
    for spec in results:
        config = spec.config
        assert (config.model.name, config.model.params, config.dataset.name) == ("materials_cnn", 153_441, "materials")
        assert (config.train.learning_rate, config.scaling, spec.batch_per_device) == (4.7331e-4, "weak", 75)
        assert spec.global_batch == 75 * spec.gpus


def test_thesis_scaling_keeps_its_settings_whatever_the_model_says():
    spec = runs("thesis_scaling", "model=mlp", strategy=["bare_torch"], gpus=["1"])[0]
    assert (spec.config.model.name, spec.batch_per_device, spec.config.train.learning_rate) == ("mlp", 75, 4.7331e-4)


def test_a_cpu_explains_missing_nccl_and_defaults_to_two_workers():
    for sweep in ("thesis_scaling", "backends"):
        assert values(sweep)["gpus"] == ["1", "2"]
        over_nccl = [name for name in values(sweep)["strategy"] if name.endswith("_nccl")]
        refused = [spec.unsupported for spec in runs(sweep, strategy=over_nccl)]
        assert len(refused) >= 2 and all("NCCL, which needs GPUs; use strategy=" in str(reason) for reason in refused)


@pytest.mark.parametrize(
    ("hardware", "gpus", "nodes"),
    [("alpha", 8, [8]), ("alpha", 9, [8, 1]), ("alpha", 10, [8, 2]), ("hpdlf", 6, [3, 3]), ("gpu2", 8, [4, 4])],
)
def test_nodes_of_the_thesis_fill_in_sequence(hardware, gpus, nodes):
    """And what is too much for the machine at hand is a row, not an error."""
    words = ["sweep=thesis_scaling", "strategy=horovod_mpi", "hardware.slurm.bin=/none"]
    spec = resolve(compose_config([*words, f"hardware={hardware}", f"gpus={gpus}"]))
    assert [sum(place.node == node for place in spec.places) for node in range(spec.nodes)] == nodes
    assert f"hardware={hardware} is another machine" in str(spec.unsupported)
    assert ("InfiniBand did not work with MPI" in str(spec.unsupported)) == (hardware == "gpu2")


def test_backends_has_ddp_lightning_and_horovod_over_each_transport():
    results = {}
    for spec in runs("backends", gpus=["2"]):
        results.setdefault(str(spec.config.strategy.backend), []).append(spec.config.strategy.name)
    assert results == {
        "gloo": ["ddp_gloo", "lightning_ddp_gloo", "horovod_gloo"],
        "nccl": ["ddp_nccl", "lightning_ddp_nccl", "horovod_nccl"],
        "mpi": ["horovod_mpi"],
        "auto": ["lightning_horovod"],
    }
    assert list(values("backends")) == ["repeat", "gpus", "strategy"]  # what is compared runs one after the other


def test_strategies_has_every_way_of_training_with_pytorch():
    known_names = {name: load(f"strategy/{name}.yaml") for name in STRATEGIES}
    several = {name for name, tree in known_names.items() if tree["framework"] == "torch" and tree["max_gpus"] is None}
    over_one = {name for name in several if name.endswith(("_nccl", "_gloo"))}  # backends, which the others choose
    assert set(values("strategies")["strategy"]) == several - over_one


def test_samples_and_parameters_vary_each_on_its_own():
    results = runs("samples_or_parameters")
    message = [(s.config.model.params, s.config.model.input_shape, s.config.dataset.name) for s in results]
    small, big = [3072, 1], [224 * 224 * 3, 1]
    assert [(shape, name) for _, shape, name in message] == [(small, "random"), (big, "random")] * 2
    wanted = [1_250_000, 1_250_000, 25_000_000, 25_000_000]
    assert [params for params, *_ in message] == [pytest.approx(count, rel=0.01) for count in wanted]
    kept = {(s.config.model.options["flops"], s.config.dataset.size, s.global_batch, s.config.scaling) for s in results}
    assert kept == {(10**9, 1024, 32, "strong")}


def test_transport_takes_the_ways_away_one_by_one():
    results = [spec.config.hardware.environment for spec in runs("transport", gpus=["2"])]
    off = [sorted(name for name in names if name.endswith("_DISABLE")) for names in results]
    assert off == [[], ["NCCL_P2P_DISABLE"], ["NCCL_SHM_DISABLE"], ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]]
    assert all(names["NCCL_DEBUG"] == "INFO" and set(names.values()) <= {"INFO", "1"} for names in results)


def test_placement_has_near_and_far_of_each_pair(monkeypatch):
    monkeypatch.setattr(machine, "pair_of_each_link", lambda: [(0, 1), (0, 4)])
    results = [(spec.config.hardware.bind, spec.config.hardware.device_ids, spec.gpus) for spec in runs("placement")]
    assert results == [(bind, ids, 2) for bind in ("numa", "far") for ids in ([0, 1], [0, 4])]


def test_each_device_is_a_bare_run_on_every_one(monkeypatch):
    monkeypatch.setattr(machine, "count_gpus", lambda: 3)
    results = [(s.config.strategy.name, s.places[0].devices, s.gpus) for s in runs("each_device")]
    assert results == [("bare_torch", [device], 1) for device in range(3)]


def test_batch_size_goes_from_75_to_5000_on_one_device():
    results = runs("batch_size")
    assert [spec.batch_per_device for spec in results] == [75, 150, 350, 700, 1000, 2000, 5000]
    studied = {(s.config.strategy.name, s.gpus, s.config.model.name) for s in results}
    assert studied == {("bare_torch", 1, "materials_cnn")}
    assert not any(spec.unsupported for spec in results)


def test_batch_size_takes_any_model_strategy_and_batches():
    chosen = {"train.batch_per_device": ["8", "16"], "gpus": ["2"]}
    results = runs("batch_size", "model=cifar10_cnn", "strategy=ddp_gloo", **chosen)
    message = {(s.config.model.name, s.config.dataset.name, s.config.strategy.name) for s in results}
    assert message == {("cifar10_cnn", "cifar10_synthetic", "ddp_gloo")}
    assert [(spec.batch_per_device, spec.global_batch) for spec in results] == [(8, 16), (16, 32)]


@pytest.mark.slow
def test_devices_or_batch_has_both_sides_of_a_pair():
    for gpus in ([1, 2], [1, 2, 4, 8], [1, 10]):
        results = runs("devices_or_batch", gpus=[str(count) for count in gpus])
        alone = {spec.batch_per_device for spec in results if spec.gpus == 1}
        for count in gpus[1:]:
            assert any(spec.global_batch in alone for spec in results if spec.gpus == count)
    assert list(values("devices_or_batch")) == ["repeat", "train.batch_per_device", "gpus"]


def test_devices_or_batch_scales_both_learning_rates_equally():
    results = runs("devices_or_batch", "train.learning_rate_rule=linear", "train.base_batch=75")
    rates = {}
    for spec in results:
        rates.setdefault(spec.global_batch, set()).add(spec.learning_rate)
    assert all(len(results) == 1 for results in rates.values()) and len(rates) > 5
    pairs = itertools.pairwise(sorted(rates))
    assert all(rates[small].pop() * large / small - min(rates[large]) < 1e-9 for small, large in pairs)


def test_data_or_model_tries_each_kind_on_the_same_work():
    results = runs("data_or_model", model=["materials_cnn"])
    message = {(spec.config.strategy.name, spec.global_batch, spec.gpus, spec.config.scaling) for spec in results}
    strategies, batches = (values("data_or_model")[key] for key in ("strategy", "train.global_batch"))
    assert message == {(name, int(batch), 2, "strong") for name, batch in itertools.product(strategies, batches)}
    assert {spec.config.baseline for spec in results} == {"bare"} and not any(spec.unsupported for spec in results)
    assert all(spec.config.measure.probes for spec in results)  # of which the predictions are made


@pytest.mark.parametrize("model", ["mlp", "resnet20_cifar10", "materials_cnn"])
def test_its_models_can_be_cut(model):
    assert model in values("data_or_model")["model"]
    (spec, *_) = runs("data_or_model", model=[model], strategy=["ddp_gloo"])
    assert max_stages(networks.build_network(spec.config.model)) >= 2


def test_thesis_batch_size_sweeps_devices_and_batches():
    results = runs("thesis_batch_size")
    assert {spec.config.model.name for spec in results} == {"materials_cnn"}
    assert not any(spec.unsupported for spec in results)
    of_one = {spec.batch_per_device for spec in results if spec.gpus == 1}
    assert min(of_one) == 75 and max(of_one) == 5000 and {700, 1000} < of_one
    assert {150, 300} < of_one & {spec.global_batch for spec in results if spec.gpus == 2}  # the same work on one


@pytest.mark.parametrize(
    "rule, k, batch", [("none", 1, 700), ("sqrt", (700 / 75) ** 0.5, 700), ("linear", 700 / 75, 700), ("linear", 1, 75)]
)
def test_thesis_accuracy_scales_the_rate_of_a_batch_of_75(rule, k, batch):
    chosen = {"train.learning_rate_rule": [rule], "train.batch_per_device": [str(batch)]}
    (spec,) = runs("thesis_accuracy", **chosen)
    assert spec.learning_rate == pytest.approx(4.7331e-4 * k)
    assert (spec.gpus, spec.config.train.stop.seconds, spec.config.train.stop.epochs) == (1, 30, None)
    assert {"75", "700"} == set(values("thesis_accuracy")["train.batch_per_device"])


@pytest.mark.parametrize("gpus", [1, 2, 6])
def test_cifar_scaling_is_what_the_study_ran(gpus):
    """cifar10_cnn_mgpu.py: RMSprop at 1e-4 times the GPUs, and a batch times the GPUs."""
    results = runs("cifar_scaling", gpus=[str(gpus)])
    assert [spec.batch_per_device for spec in results] == [4096, 512, 32]
    for spec in results:
        assert spec.learning_rate == pytest.approx(1e-4 * gpus)
        assert (spec.config.train.optimizer, spec.global_batch) == ("rmsprop", gpus * spec.batch_per_device)
        options = spec.config.strategy.options
        assert (options["variable_device"], options["slice_device"], options["merge_device"]) == ("first", "cpu", "cpu")
