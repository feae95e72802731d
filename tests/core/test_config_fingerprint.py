"""The fingerprint of a run: which keys change it."""

import copy
import dataclasses
import hashlib
import json

import pytest

from scalebench.core.config_fingerprint import LATER_KEYS, compute_fingerprint
from scalebench.core.spec import Config, StrategySpec, TrainSpec

OF_THE_PROGRAM = {"repeat", "resume", "strict", "baseline", "dry_run", "debug", "dataset.cache"}
OF_THE_PROGRAM |= {"sweep.max_minutes", "sweep.report", "sweep.export"}
OF_THE_PROGRAM |= {f"measure.{name}" for name in ("repeats", "order", "slot_s", "cool_down_s")}
QUEUEING = {"hardware.max_jobs", "hardware.ports"} | {
    f"hardware.slurm.{name}" for name in ("account", "qos", "reservation", "time_minutes", "bin", "one_job")
}
LATER = ("layout", "interface", "node_copy", "max_jobs", "ports")  # keys that older records do not have
OF_CURVES = {f"train.evaluate_{name}" for name in ("epochs", "s", "samples")}  # only with a stop condition
TRAIN_KEYS = [f.name for f in dataclasses.fields(TrainSpec)]
LATER_TRAIN_KEYS = TRAIN_KEYS[TRAIN_KEYS.index("momentum") :]
RESOLVED = {"gpus"}  # an argument of compute_fingerprint, since null means a default
OF_CHECKS = {
    f"strategy.{key}" for key in ("sync", "reduces_on", "approximate", "exact_with", "tolerance", "choices", "at_least")
}


def leaves(record, prefix=""):
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}"


def changed(config, key):
    """Return a copy with another value of a key."""
    result = copy.deepcopy(config)
    *path, name = key.split(".")
    owner = result
    for part in path:
        owner = getattr(owner, part)
    value = getattr(owner, name)
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, (int, float)):
        other = value + 1
    elif isinstance(value, list):
        other = [*value, 7]
    elif isinstance(value, dict):
        other = {**value, "more": 1}
    else:
        other = f"{value}x"
    setattr(owner, name, other)
    return result


def test_switches_of_the_program_do_not_change_the_fingerprint_and_all_other_keys_do():
    before = compute_fingerprint(Config(), 2, "cpu")
    same = {key for key in leaves(Config()) if compute_fingerprint(changed(Config(), key), 2, "cpu") == before}
    assert same == OF_THE_PROGRAM | QUEUEING | RESOLVED | OF_CURVES | OF_CHECKS


def test_later_keys_do_not_change_the_fingerprint_of_older_runs():
    """Older configs lack them, and have an empty `slurm` without a scheduler."""
    tree = dataclasses.asdict(Config())
    for key in ("repeat", "resume", "strict", "baseline", "dry_run", "debug", "sweep"):
        del tree[key]
    for group, keys in {"dataset": ["cache"], "measure": ["repeats", "order", "slot_s", "cool_down_s"]}.items():
        for key in keys:
            del tree[group][key]
    for key in {*LATER} - {key for part, key, _ in LATER_KEYS if part == "hardware"}:
        del tree["hardware"][key]
    for key in LATER_TRAIN_KEYS:
        del tree["train"][key]
    for part, key, _ in LATER_KEYS:
        del tree[part][key]
    for key in ("sync", "reduces_on", "approximate", "exact_with", "tolerance", "choices", "at_least"):
        del tree["strategy"][key]
    tree["hardware"]["slurm"] = {}
    text = json.dumps(tree | {"gpus": 2, "device": "cpu"}, sort_keys=True, separators=(",", ":"))
    assert compute_fingerprint(Config(), 2, "cpu") == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_later_options_do_not_change_the_fingerprint_of_older_runs():
    def fingerprint(**options):
        return compute_fingerprint(Config(strategy=StrategySpec("ddp", options=options)), 2, "cpu")

    assert fingerprint(bucket_cap_mb=1.0) == fingerprint(bucket_cap_mb=1.0, overlap=True)
    others = {fingerprint(), fingerprint(bucket_cap_mb=1.0), fingerprint(overlap=False), fingerprint(overlap=None)}
    assert len(others) == 4


def test_fingerprints_of_recorded_runs_stay():
    """Literal values, so that a change that separates new runs from recorded ones is noticed."""
    config = Config(gpus=2)
    before = copy.deepcopy(config)
    assert compute_fingerprint(config, 2, "cpu") == "07a7e081be053c51" and config == before
    config.train.optimizer, config.train.batch_per_device, config.train.learning_rate = "sgd", 75, 0.01
    config.measure.min_s = 1.0
    assert compute_fingerprint(config, 2, "cuda") == "3ea9866daa699ca6"


@pytest.mark.parametrize("key", sorted(OF_CURVES))
def test_evaluation_counts_for_a_training_with_a_stop(key):
    config = Config()
    config.train.stop.steps = 10
    assert compute_fingerprint(changed(config, key), 2, "cpu") != compute_fingerprint(config, 2, "cpu")


def test_devices_count_for_the_fingerprint():
    fingerprints = {compute_fingerprint(Config(), gpus, device) for gpus in (1, 2) for device in ("cpu", "cuda")}
    assert len(fingerprints) == 4
