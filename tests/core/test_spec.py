"""The typed config: what each key may hold, the resolved run as a file, and which keys change the fingerprint."""

import copy
import dataclasses
import math
import operator
import re

import pytest

from scalebench.core import spec as specs
from scalebench.core.config_fingerprint import compute_fingerprint
from scalebench.core.errors import InputError
from tests.builders.configs import set_key
from tests.builders.runs import simulated_spec


def fields_of(part, prefix=""):
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if dataclasses.is_dataclass(value):
            yield from fields_of(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", f


FIELDS = dict(fields_of(specs.Config()))
ALLOWED = {key: f.metadata["values"] for key, f in FIELDS.items() if "values" in f.metadata}
NUMBERS = {key: f.metadata for key, f in FIELDS.items() if "positive" in f.metadata}


def refusal(key, value):
    config = specs.Config()
    set_key(config, key, value)
    with pytest.raises(InputError) as caught:
        specs.check_fields(config)
    return str(caught.value)


def accept(key, *values):
    config = specs.Config()
    for value in values:
        set_key(config, key, value)
        specs.check_fields(config)


def test_only_listed_values_are_allowed_and_every_number_that_people_set_has_bounds():
    for key, values in ALLOWED.items():
        assert refusal(key, "zzz") == f"{key}=zzz: no such value 'zzz'; known: {', '.join(sorted(values))}"
        accept(key, *values)
    numbers = {key for key, f in FIELDS.items() if re.match(r"int|float", str(f.type))}
    sections = ("dataset.", "measure.", "train.", "sweep.")
    settable = {key for key in numbers if key.startswith(sections) or "." not in key}
    assert settable - set(NUMBERS) == {"dataset.validation_share"}  # checked by `resolve`


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_outside_their_bounds_are_refused(key):
    least, most, positive = (NUMBERS[key][name] for name in ("at_least", "at_most", "positive"))
    assert least is not None or positive
    if least is not None:
        assert refusal(key, least - 1) == f"{key}={least - 1} should be at least {least}"
        assert "should be at least" in refusal(key, math.nan)
        accept(key, least)
    if most is not None:
        assert refusal(key, most + 1) == f"{key} should be at most {most}"
        accept(key, most)
    for value in (0.0, -1.0, math.inf, math.nan) if positive else ():
        assert refusal(key, value) == f"{key}={value} should be a finite number above 0"
    if "None" in str(FIELDS[key].type):
        accept(key, None)


def test_the_rule_scales_the_learning_rate_by_the_batch():
    for rule, factor in {"none": 1.0, "linear": 8.0, "sqrt": 8**0.5}.items():
        train = specs.TrainSpec(learning_rate=0.1, learning_rate_rule=rule, base_batch=75)
        assert specs.peak_learning_rate(train, 600) == pytest.approx(0.1 * factor)
        assert specs.peak_learning_rate(train, 75) == pytest.approx(0.1)
        # Without a base batch such a config is refused elsewhere; code that sees it nevertheless gets a number.
        assert specs.peak_learning_rate(specs.TrainSpec(learning_rate=0.1, learning_rate_rule=rule), 600) == 0.1


def test_a_stop_is_any_of_its_conditions():
    assert not specs.has_stop(specs.StopSpec())
    assert all(specs.has_stop(specs.StopSpec(**{field.name: 1})) for field in dataclasses.fields(specs.StopSpec))


def test_a_run_is_read_back(tmp_path):
    config = specs.Config(gpus=2)
    config.strategy.name, config.strategy.options = "ddp", {"step_s": 0.5, "fault": "none"}
    config.hardware.links = {"intra_node": None}
    places = [specs.RankPlacement(rank, rank, 0, [rank], [rank], 1) for rank in range(2)]
    spec = specs.RunSpec(config, "cpu", 2, 1, places, 75, 150, "0123456789abcdef", ["oversubscribed"], "no GPU")
    specs.write_spec(spec, tmp_path)
    assert specs.read_spec(tmp_path) == spec and (spec.label, spec.processes) == ("ddp gpus=2", 2)


def test_the_launcher_detects_a_hang_before_the_ranks_fail():
    """A waiting rank fails only after the launcher has detected that no rank makes progress."""
    spec = simulated_spec(measure={"hang_s": 7.0})
    assert spec.group_timeout_s > 7.0
    spec.config.debug = True
    assert spec.group_timeout_s >= 3600


def test_a_repeat_has_its_share_of_the_time_and_only_the_first_has_probes():
    measure = {"min_s": 3.0, "max_s": 30.0, "target": 0.01, "repeats": 4}
    measure |= dict.fromkeys(("probes", "trace", "collectives"), True)
    first, second = (simulated_spec(measure=measure, repeat=repeat) for repeat in (0, 1))
    assert first.fingerprint == second.fingerprint == simulated_spec(measure={**measure, "repeats": None}).fingerprint
    for settings in (first.repeat_settings, second.repeat_settings):
        assert (settings.min_s, settings.max_s, settings.target) == (0.75, 7.5, pytest.approx(0.02))
    assert first.repeat_settings.probes and first.repeat_settings.trace and first.repeat_settings.evaluate
    assert not any(getattr(second.repeat_settings, name) for name in specs.FIRST_REPEAT_ONLY)
    assert second.repeat_settings.collectives  # crossovers compare strategies, and need repeats
    assert second.repeat_settings.monitor == second.config.measure.monitor
    for changes in ({"repeats": None}, {"repeats": 1}, {"repeats": 3, "search": "max_batch"}):
        spec = simulated_spec(measure=changes)
        assert spec.repeat_settings is spec.config.measure


OF_THE_PROGRAM = {"repeat", "resume", "strict", "wait", "baseline", "dry_run", "debug", "dataset.cache"}
OF_THE_PROGRAM |= {"sweep.max_minutes", "sweep.report", "sweep.question"}
OF_THE_PROGRAM |= {f"measure.{name}" for name in ("repeats", "max_repeats", "order", "slot_s")}
QUEUEING = {"hardware.max_jobs", "hardware.ports"} | {
    f"hardware.slurm.{name}" for name in ("account", "qos", "reservation", "time_minutes", "bin", "jobs")
}
OF_CURVES = {f"train.evaluate_{name}" for name in ("epochs", "s", "samples")}  # only with a stop condition


OF_CHECKS = ("adapter", "sync", "reduces_on", "approximate", "exact_with", "tolerance", "choices", "at_least", "cannot")


def changed(config, key):
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
    before = compute_fingerprint(specs.Config(), 2, "cpu")
    same = {key for key in FIELDS if compute_fingerprint(changed(specs.Config(), key), 2, "cpu") == before}
    # Without a script, and without pods, they are unused.
    script = {key for key in FIELDS if key.startswith("script.") and key != "script.path"}
    pods = {key for key in FIELDS if key.startswith("hardware.kubernetes.")}
    # `gpus` is an argument of compute_fingerprint, since null means a default.
    assert (
        same
        == OF_THE_PROGRAM | QUEUEING | {"gpus"} | OF_CURVES | {f"strategy.{key}" for key in OF_CHECKS} | script | pods
    )
    config = specs.Config()
    config.hardware.scheduler = "kubernetes"
    before = compute_fingerprint(config, 2, "cpu")
    same = {key.rpartition(".")[2] for key in pods if compute_fingerprint(changed(config, key), 2, "cpu") == before}
    assert same == {"namespace", "queue", "claim"}
    config = specs.Config()
    config.script.path = "train.py"
    for key in script - {"script.first_step_s"}:
        assert compute_fingerprint(changed(config, key), 2, "cpu") != compute_fingerprint(config, 2, "cpu")
    config = specs.Config()
    config.train.stop.steps = 10
    for key in OF_CURVES:
        assert compute_fingerprint(changed(config, key), 2, "cpu") != compute_fingerprint(config, 2, "cpu")
    config = specs.Config(strategy=specs.StrategySpec(options={"open_port": True}))
    assert compute_fingerprint(config, 2, "cpu") == compute_fingerprint(specs.Config(), 2, "cpu"), "who can reach it"
    devices = {compute_fingerprint(specs.Config(), gpus, device) for gpus in (1, 2) for device in ("cpu", "cuda")}
    assert len(devices) == 4
