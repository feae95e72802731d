"""Invalid settings of a training, and of `hardware.environment`, are refused in one line with the way out."""

from scalebench.config import validate
from scalebench.config.resolve import resolve
from scalebench.core.spec import DatasetSpec, StopSpec, StrategySpec, TrainSpec
from scalebench.runner.launchers.rank_environment import build_environment
from tests.builders.configs import make_config, make_spec, resolve_error
from tests.builders.runs import simulated_config

TO_END = {"stop": {"epochs": 3.0}}


def config(train, gpus=1, measure=None, **dataset):
    train = TrainSpec(**{"batch_per_device": 10, **train, "stop": StopSpec(**train.get("stop", {}))})
    data = DatasetSpec("materials", **{"size": 64, **dataset})
    return simulated_config(measure=measure, gpus=gpus, train=train, dataset=data)


def line(*args, **kwargs):
    return resolve_error(config(*args, **kwargs))


def test_settings_that_contradict_each_other():
    assert line({"learning_rate_rule": "linear"}) == (
        "train.learning_rate_rule=linear scales the learning rate of a base batch: set train.base_batch, the global "
        "batch that train.learning_rate=0.001 is for"
    )
    assert resolve(config({"base_batch": 7})).learning_rate == 1e-3, "a sweep over rules has none among them"
    for train, message in CONTRADICTIONS:
        assert message in line(train)
    assert "dataset.feed=fixed gives one batch again and again" in line(TO_END, feed="fixed")
    resolve(config({}, feed="fixed"))
    # The smallest shard of a global batch that does not divide: 11 samples on two devices are 6 and 5.
    made = config({"batch_per_device": 1, "global_batch": 11, "accumulate": 6}, gpus=2)
    made.scaling = "strong"
    assert "samples of a step, 5" in resolve_error(made)
    made.train.accumulate = 5
    resolve(made)


CONTRADICTIONS = [
    ({"schedule": "step", **TO_END}, "set them, as in train.decay_epochs"),
    ({"schedule": "step", "decay_epochs": [3, 1], **TO_END}, "above 0 and in order"),
    ({"schedule": "step", "decay_epochs": [float("nan")], **TO_END}, "above 0 and in order"),
    ({"schedule": "cosine", "stop": {"seconds": 5}}, "goes down to the end of the training: set train.stop.epochs"),
    ({"schedule": "linear", "stop": {"target": 5}}, "goes down to the end of the training: set train.stop.epochs"),
    ({"schedule": "cosine"}, "this run ends when its throughput is known: set train.stop.epochs"),
    ({"warmup_epochs": 1.0}, "this run ends when its throughput is known: set train.stop.epochs"),
    ({"warmup_epochs": 3.0, **TO_END}, "train.warmup_epochs=3 lasts until train.stop.epochs=3"),
    ({"momentum": 1.0}, "train.momentum=1 should be below 1"),
    ({"accumulate": 11}, "more parts than a device has samples of a step, 10"),
    ({"evaluate_epochs": None, "stop": {"target": 1}}, "set train.evaluate_epochs or train.evaluate_s"),
    ({"stop": {"seconds": 120}}, "train.stop.seconds=120 is not below measure.timeout_s=120"),
]


def test_a_target_needs_evaluations_and_alone_has_a_time_limit():
    for measure, dataset, gpus, message in (
        ({"evaluate": False}, {}, 1, "measure.evaluate=false never computes"),
        ({}, {"validation_share": 0.0}, 1, "dataset.validation_share=0 leaves nothing to validate"),
        ({}, {"validation_share": 0.01}, 2, "fewer samples to validate than replicas: raise dataset.size or"),
    ):
        assert message in line({"stop": {"target": 0.1}}, gpus, measure, **dataset)
        resolve(config({"stop": {"epochs": 1.0}}, gpus, measure, **dataset))
    # One sample is enough for one replica, and those of a file are counted later.
    resolve(config({"stop": {"target": 0.1}}, validation_share=0.01))
    resolve(config({"stop": {"target": 0.1}}, 2, validation_share=0.01, path="/some.npz"))
    train = TrainSpec(stop=StopSpec(target=0.1))
    assert validate.limit_training_time(train, 3600.0).stop == StopSpec(seconds=600.0, target=0.1)
    assert validate.limit_training_time(train, 100.0).stop.seconds == 50.0, "before the whole run is ended"
    assert train.stop.seconds is None
    for bounded in (StopSpec(), StopSpec(target=0.1, steps=5), StopSpec(target=0.1, epochs=5), StopSpec(seconds=5.0)):
        assert validate.limit_training_time(TrainSpec(stop=bounded), 100.0).stop is bounded
    assert resolve(config({"stop": {"target": 0.1}})).config.train.stop.seconds == 60.0


def test_replicas_without_sync_cannot_train_to_a_stop():
    made = config(TO_END, gpus=2)
    made.strategy = StrategySpec("simulated", baseline="simulated", independent=True)
    assert resolve(made).unsupported == (
        "replicas of simulated exchange nothing, and each trains a model of its own: there is no one training to "
        "stop, so leave out train.stop"
    )
    made.train.stop = StopSpec()
    assert resolve(made).unsupported is None


def test_variables_that_are_refused():
    ours, no_name = " is set by scalebench for each process", "hardware.environment: '{}' is no name of a variable"
    for name, message in {
        "RANK": f"hardware.environment: RANK{ours}; leave it out",
        "LOCAL_WORLD_SIZE": f"LOCAL_WORLD_SIZE{ours}",
        "MASTER_ADDR": f"MASTER_ADDR{ours}",
        "SCALEBENCH_RUN_ID": f"SCALEBENCH_RUN_ID{ours}",
        "CUDA_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES is set by scalebench; use hardware.device_ids",
        "OMP_NUM_THREADS": "OMP_NUM_THREADS is set by scalebench; use hardware.cpus_per_device",
        "HF_TOKEN": "HF_TOKEN looks like a secret and would be in the record; set it in the shell",
        **{name: no_name.format(name) for name in ("1A", "A=B", "")},
    }.items():
        assert message in resolve_error(make_config(hardware__environment={name: "1"}))
    assert "zero byte" in resolve_error(make_config(hardware__environment={"A": "1\0"}))


def test_variables_reach_every_process_and_the_fingerprint(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_LEVEL", "SYS")
    chosen = {"NCCL_P2P_LEVEL": "PIX", "GLOO_SOCKET_IFNAME": "eth1", "RANKS": "0"}
    spec = make_spec(gpus=2, hardware__environment=chosen)
    for rank in range(2):
        variables = build_environment(spec, "an id", rank, ["127.0.0.1:1"])
        assert chosen.items() <= variables.items()
        assert (variables["RANK"], variables["CUDA_DEVICE_ORDER"]) == (str(rank), "PCI_BUS_ID")
    one, two = {"A": "1", "B": "2"}, {"B": "2", "A": "1"}
    prints = [make_spec(gpus=2, hardware__environment=chosen).fingerprint for chosen in (one, two, {"A": "1"}, {})]
    assert prints[0] == prints[1] and len(set(prints)) == 3
    made = {gpus: make_spec(gpus=gpus, hardware__environment={"NCCL_P2P_DISABLE": "1", "A": "b"}) for gpus in (1, 2)}
    assert made[2].config.hardware.environment == {"A": "b", "NCCL_P2P_DISABLE": "1"}
    assert made[1].config.hardware.environment == {"A": "b"}, "NCCL does not matter on one device"
    assert made[1].fingerprint == resolve(make_config(gpus=1, hardware__environment={"A": "b"})).fingerprint
