"""A config becomes a RunSpec: names, numbers and batches, and every reason to refuse a run."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.config import resolve
from scalebench.core.errors import InputError
from scalebench.core.spec import HardwareSpec, StrategySpec
from scalebench.strategies.base import check_values
from tests.builders.configs import ALPHA, make_config, make_spec, resolve_error


@given(st.integers(1, 64), st.integers(1, 5000))
def test_weak_scaling_keeps_the_batch_of_a_device_and_strong_scaling_the_global_one(gpus, batch):
    """Shards differ by one."""
    spec = make_spec(gpus=gpus, train__batch_per_device=batch, dataset__size=1_000_000)
    assert (spec.batch_per_device, spec.global_batch) == (batch, batch * gpus)
    made = make_config(gpus=gpus, scaling="strong", train__global_batch=batch, dataset__size=100_000)
    if batch < gpus:
        assert "fewer than" in resolve_error(made)
        return
    spec = resolve.resolve(made)
    assert spec.global_batch == batch
    assert (spec.batch_per_device - 1) * gpus < batch <= spec.batch_per_device * gpus


@pytest.mark.gpu
def test_the_default_precision_is_float32_on_cpus_and_the_frameworks_own_on_gpus():
    """On a CPU both words are one run: resume, history and comparisons find it by its fingerprint."""
    fingerprints = []
    for devices, precision in itertools.product(("cpu", "cuda"), ("default", "float32")):
        hardware = HardwareSpec("x", devices=devices, gpus_per_node=1, this_machine=False)
        spec = make_spec(hardware=hardware, train__precision=precision)
        assert spec.config.train.precision == ("float32" if devices == "cpu" else precision)
        fingerprints.append(spec.fingerprint)
    assert fingerprints[0] == fingerprints[1] and len(set(fingerprints)) == 3


INVALID = [
    ({"train__global_batch": 8}, "train.global_batch is kept only with scaling=strong; use train.batch_per_device"),
    ({"scaling": "strong", "train__global_batch": 3, "gpus": 4},
     "a global batch of 3 samples is fewer than 4 devices: raise train.global_batch or lower gpus"),
    ({"dataset__size": 40, "train__batch_per_device": 16, "gpus": 2},
     "30 training samples are fewer than one global batch of 32: raise dataset.size or lower train.batch_per_device"),
    ({"strategy__name": "mirorred"}, "no strategy 'mirorred'; did you mean 'mirrored'?"),
    ({"strategy__options": {"stepp_s": 1.0}}, "strategy simulated has no option 'stepp_s'; did you mean 'step_s'?"),
    ({"strategy__options": {"step_s": "x"}}, "strategy.options.step_s='x' should be float, as its default 0.001"),
    ({"strategy__options": {"fault": "kil"}, "strategy__choices": {"fault": ["none", "kill"]}},
     "no strategy.options.fault 'kil'; did you mean 'kill'?"),
    ({"strategy__options": {"step_s": -1.0}, "strategy__at_least": {"step_s": 0.0}},
     "strategy.options.step_s=-1.0 should be at least 0"),
    ({"dataset__validation_share": 1.0}, "dataset.validation_share=1.0 should be in [0, 1)"),
    ({"dataset__validation_share": -0.1}, "dataset.validation_share=-0.1 should be in [0, 1)"),
    ({"measure__min_s": float("nan")}, "measure.min_s=nan should be at least 0"),
    ({"measure__min_s": 5.0, "measure__max_s": 2.0}, "measure.max_s=2 is below measure.min_s=5"),
    ({"strategy__processes": "one_per_node"},
     "strategy.processes=one_per_node should be one_per_device, one_for_all or roles"),
]  # fmt: skip


def test_invalid_names_and_numbers_and_machines_that_are_not_described():
    for changes, message in INVALID:
        assert resolve_error(make_config(**changes)) == message
    spec = make_spec(gpus=2, scaling="strong", train__batch_per_device=75)
    assert (spec.batch_per_device, spec.global_batch) == (38, 75), "it falls back on the batch of one device"
    assert make_spec(dataset__size=1, dataset__path="/some.npz").global_batch == 10, "a file is counted later"
    with pytest.raises(InputError, match=r"hardware=alpha is another machine, .* set devices: "):
        make_spec(hardware=dataclasses.replace(ALPHA, devices="auto"))
    with pytest.raises(InputError, match=r"hardware.node_copy=data should be an absolute path"):
        make_spec(hardware=dataclasses.replace(ALPHA, node_copy="data"))
    make_spec(hardware=dataclasses.replace(ALPHA, node_copy="$TMPDIR/data"))


def test_gpus_left_out_means_all_devices(machine_with):
    for gpus_here, devices, want in ((0, "auto", 2), (4, "auto", 4), (4, "cpu", 2)):
        machine_with(gpus_here)
        hardware = HardwareSpec("local", devices=devices)
        made = make_config(gpus=None, hardware=hardware)
        before = dataclasses.asdict(made)
        spec = resolve.resolve(made)
        assert dataclasses.asdict(made) == before, "the config itself stays"
        assert make_spec(gpus="all", hardware=hardware) == spec
        assert spec.gpus == spec.config.gpus == want
        assert spec.device == ("cuda" if gpus_here and devices == "auto" else "cpu")
        assert make_spec(gpus=want, hardware=hardware).fingerprint == spec.fingerprint


def test_an_option_below_its_bound_is_refused():
    for value in (0, -1, float("nan"), True, "many"):
        stated = StrategySpec("pipeline_gpipe", options={"micro_batches": value}, at_least={"micro_batches": 1})
        with pytest.raises(InputError, match=f"strategy.options.micro_batches={value} should be at least 1"):
            check_values(stated)
    stated.choices = {"micro_batches": [1, 7]}
    for allowed in (None, 1, 1.0, 7):
        stated.options = {"micro_batches": allowed}
        check_values(stated)


def test_options_can_make_the_steps_of_a_strategy_exact():
    rounds = "rounds to 16 bits"
    for bits, exact_with, is_exact in (
        (32, {"bits": 32}, True), (16, {"bits": 32}, False), (32, {"bits": 32, "top_k": 1.0}, False), (32, {}, False),
    ):  # fmt: skip
        options = {"bits": bits, "top_k": 0.1}
        strategy = StrategySpec("mine", approximate=rounds, tolerance=None, exact_with=exact_with, options=options)
        resolved = resolve.set_exactness(strategy)
        assert (resolved.approximate, resolved.tolerance) == ((None, 1e-4) if is_exact else (rounds, None))
