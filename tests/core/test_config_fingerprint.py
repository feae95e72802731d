"""The fingerprint of a run: which keys change it."""

import copy
import dataclasses
import hashlib
import json
import operator

from scalebench.core.config_fingerprint import LATER_KEYS, compute_fingerprint
from scalebench.core.spec import Config, StrategySpec, TrainSpec

OF_THE_PROGRAM = {"repeat", "resume", "strict", "baseline", "dry_run", "debug", "dataset.cache"}
OF_THE_PROGRAM |= {"sweep.max_minutes", "sweep.report", "sweep.export"}
OF_THE_PROGRAM |= {f"measure.{name}" for name in ("repeats", "order", "slot_s", "cool_down_s")}
QUEUEING = {"hardware.max_jobs", "hardware.ports"} | {
    f"hardware.slurm.{name}" for name in ("account", "qos", "reservation", "time_minutes", "bin", "one_job")
}
OF_CURVES = {f"train.evaluate_{name}" for name in ("epochs", "s", "samples")}  # only with a stop condition


def leaves(record, prefix=""):
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}"


OF_CHECKS = ("sync", "reduces_on", "approximate", "exact_with", "tolerance", "choices", "at_least")


def changed(config, key):
    """Return a copy with another value of a key."""
    result = copy.deepcopy(config)
    *path, name = key.split(".")
    owner = operator.attrgetter(".".join(path))(result) if path else result
    value = getattr(owner, name)
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, (int, float)):
        other = value + 1
    elif isinstance(value, list):
        other = [*value, 7]
    else:
        other = {**value, "more": 1} if isinstance(value, dict) else f"{value}x"
    setattr(owner, name, other)
    return result


def test_switches_of_the_program_do_not_change_the_fingerprint_and_all_other_keys_do():
    before = compute_fingerprint(Config(), 2, "cpu")
    same = {key for key in leaves(Config()) if compute_fingerprint(changed(Config(), key), 2, "cpu") == before}
    # `gpus` is an argument of compute_fingerprint, since null means a default.
    assert same == OF_THE_PROGRAM | QUEUEING | {"gpus"} | OF_CURVES | {f"strategy.{key}" for key in OF_CHECKS}
    config = Config()
    config.train.stop.steps = 10
    for key in OF_CURVES:
        assert compute_fingerprint(changed(config, key), 2, "cpu") != compute_fingerprint(config, 2, "cpu")
    devices = {compute_fingerprint(Config(), gpus, device) for gpus in (1, 2) for device in ("cpu", "cuda")}
    assert len(devices) == 4


def test_later_keys_do_not_change_the_fingerprint_of_older_runs():
    """Older configs lack them, and have an empty `slurm` without a scheduler."""
    tree = dataclasses.asdict(Config())
    train = [f.name for f in dataclasses.fields(TrainSpec)]
    later = {(part, key) for part, key, _ in LATER_KEYS}
    later |= {("hardware", key) for key in ("layout", "interface", "node_copy", "max_jobs", "ports")}
    later |= {("measure", key) for key in ("repeats", "order", "slot_s", "cool_down_s")} | {("dataset", "cache")}
    later |= {("train", key) for key in train[train.index("momentum") :]} | {("strategy", key) for key in OF_CHECKS}
    for part, key in later:
        del tree[part][key]
    for key in ("repeat", "resume", "strict", "baseline", "dry_run", "debug", "sweep"):
        del tree[key]
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
