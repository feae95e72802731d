"""StrategyContract: the tests that every strategy passes, built-in or of a plugin.

    from scalebench.testing import StrategyContract

    class TestMine(StrategyContract):
        strategy = "mine"

One launch of the strategy does all checks; one launch of its baseline, shared by the session, is the reference. The
tolerance of its losses is in its YAML, with the reason in `approximate` if it is more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from scalebench.core import config_files
from scalebench.core.json_files import build_record
from scalebench.core.spec import StrategySpec
from scalebench.strategies import registry
from scalebench.strategies.base import check_values
from scalebench.testing.launch import UNEVEN_WORKLOAD as UNEVEN_WORKLOAD
from scalebench.testing.launch import ContractRanks, Refused, Weights, launch_checks, launch_checks_on_any_workload
from scalebench.testing.strategy_worker import BROADCAST_VALUE, EPOCHS, CheckPlan

ROUNDING_RTOL = 1e-4  # float32 rounding in the losses of two epochs
SAME_DIRECTION = 0.1  # at most that of an update's length across another: parts of a batch are not equally large


class YamlContract:
    """Tests of a strategy's YAML against its class and the registry."""

    strategy: ClassVar[str] = ""

    @classmethod
    def stated(cls) -> StrategySpec:
        """Return the content of the YAML, without overrides."""
        stated = config_files.read_strategy_config(cls.strategy)
        assert stated, f"no strategy/{cls.strategy}.yaml; add it, and an entry point scalebench.configs"
        return build_record(StrategySpec, stated)

    def test_yaml_has_a_description(self) -> None:
        """Its name equals that of the registry and of its file, and the description is one line."""
        stated = self.stated()
        assert stated.name == registry.find_strategy(self.strategy).name == self.strategy
        assert stated.description.strip(), "an empty description"
        assert "\n" not in stated.description.strip(), "the description should be one line"

    def test_yaml_has_requirements(self) -> None:
        """Framework, packages, devices, and a baseline that exists."""
        stated = self.stated()
        assert stated.framework, "framework: none, torch, tensorflow, or another one's name"
        assert all(name.replace(".", "_").isidentifier() for name in stated.requires), "requires: import names"
        assert stated.devices and set(stated.devices) <= {"cpu", "cuda"}, f"devices: {stated.devices}"
        if stated.baseline is not None:
            assert registry.find_strategy(stated.baseline).problem is None, f"no strategy '{stated.baseline}' yet"

    def test_yaml_declares_exactness(self) -> None:
        """A tolerance above rounding, or none at all, needs a reason."""
        stated = self.stated()
        if stated.tolerance is None or stated.tolerance > ROUNDING_RTOL:
            assert stated.approximate, f"tolerance: {stated.tolerance}: say in `approximate` why its steps differ"
        if stated.approximate is not None:
            assert "\n" not in stated.approximate.strip(), "`approximate` should be one clause"
            assert stated.exact_with.keys() <= stated.options.keys(), "`exact_with` names values of its options"
        else:
            assert not stated.exact_with, "`exact_with` is for a strategy whose steps are `approximate`"
        assert stated.tolerance is None or 0 < stated.tolerance < 1, "tolerance is relative, and above 0"

    def test_yaml_has_valid_options(self) -> None:
        """The defaults are within `choices` and `at_least`, which name options."""
        stated = self.stated()
        check_values(stated)
        unknown = sorted({*stated.choices, *stated.at_least} - stated.options.keys())
        assert not unknown, f"choices or at_least of no option: {unknown}"


# For steps in no fixed order: each epoch has the same samples, and plain SGD lowers their loss steadily.
PLAIN_SGD = ("train.optimizer=sgd", "train.learning_rate=0.01")
_baselines: dict[tuple[str, ...], ContractRanks] = {}


class StrategyContract(YamlContract):
    """The contract of a strategy: subclass it and set `strategy`, and pytest collects the tests."""

    strategy: ClassVar[str] = ""
    gpus: ClassVar[int] = 2
    overrides: ClassVar[tuple[str, ...]] = ()
    baseline: ClassVar[str | None] = None  # None: that of the strategy's YAML
    loss_rtol: ClassVar[float | None] = None  # against the baseline's after two epochs; None: as the YAML says
    weight_atol: ClassVar[float | None] = None  # None: 1e-4; weights after approximate steps are not compared
    bytes_sent: ClassVar[float | None] = None  # at least, for the gradient of each parameter; None: 4 if it is exact

    @pytest.fixture(scope="class")
    @classmethod
    def group(cls, tmp_path_factory: pytest.TempPathFactory) -> ContractRanks:
        """Launch all checks of the strategy once."""
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        overrides = [f"strategy={cls.strategy}", f"gpus={cls.gpus}"]
        if cls.loss_rtol is None and cls.stated().tolerance is None:
            overrides += PLAIN_SGD
        return launch_checks_on_any_workload(
            [*overrides, *cls.overrides, f"dataset.cache={cache}"], tmp_path_factory.mktemp("contract")
        )

    @pytest.fixture(scope="class")
    @classmethod
    def bare(cls, group: ContractRanks, tmp_path_factory: pytest.TempPathFactory) -> ContractRanks:
        """Launch the same steps of the baseline on one device."""
        name = cls.baseline or group.spec.config.strategy.baseline
        if name is None:
            pytest.skip(f"{cls.strategy} names no baseline")
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        others = [override for override in cls.overrides if not override.lstrip("+").startswith("strategy.")]
        overrides = (*group.workload, f"strategy={name}", "gpus=1", *others, f"dataset.cache={cache}")
        if overrides not in _baselines:
            _baselines[overrides] = launch_checks(list(overrides), tmp_path_factory.mktemp("baseline"))
        return _baselines[overrides]

    @pytest.fixture
    def compare(self, group: ContractRanks, bare: ContractRanks, tmp_path: Path) -> Callable[..., None]:
        """Return numpy's comparison with the baseline, whose failure says first how updates of one SGD step differ."""

        def compare(*arrays: Any, **tolerances: Any) -> None:
            try:
                np.testing.assert_allclose(*arrays, **tolerances)
            except AssertionError as error:
                pytest.fail(f"{compare_first_updates(group, bare, tmp_path)}\n{error}", pytrace=False)

        return compare

    def test_losses_equal_the_baselines(
        self, group: ContractRanks, bare: ContractRanks, compare: Callable[..., None]
    ) -> None:
        """The same global batches give the same losses, uneven parts and uneven last batch included."""
        if (reason := self.why_incomparable(group)) is not None:
            pytest.skip(reason)
        rtol = self.rtol(group)
        if rtol is None:
            pytest.skip(f"its losses only have to fall: {group.spec.config.strategy.approximate}")
        assert len(group.losses()) == EPOCHS * group.ranks[0].steps_per_epoch
        compare(group.losses(), bare.losses(), rtol=rtol)

    def test_one_optimizer_step_per_batch(
        self, group: ContractRanks, bare: ContractRanks, compare: Callable[..., None]
    ) -> None:
        """It makes as many steps as the baseline, and the same ones: the final weights agree."""
        if (reason := self.why_incomparable(group)) is not None:
            pytest.skip(reason)
        approximate = group.spec.config.strategy.approximate
        if not group.weights:
            pytest.skip("its weights cannot be read")
        if self.rtol(group) is None or (approximate is not None and self.weight_atol is None):
            pytest.skip(f"its steps are not the baseline's: {approximate}")
        atol = ROUNDING_RTOL if self.weight_atol is None else self.weight_atol
        for name, array in bare.weights[0].items():
            compare(group.weights[0][name], array, atol=atol, err_msg=name)

    def test_training_makes_progress(self, group: ContractRanks) -> None:
        """Every step has a loss, and every weight is trained; losses that cannot be compared fall."""
        losses, per_epoch = group.losses(), group.ranks[0].steps_per_epoch
        assert len(losses) == EPOCHS * per_epoch
        assert np.isfinite(losses).all(), losses
        if self.rtol(group) is None:
            assert np.mean(losses[-per_epoch:]) < np.mean(losses[:per_epoch])
        for name, array in group.weights[0].items() if group.weights else ():
            assert np.abs(array - group.start[0][name]).max() > 0, f"{name} was not trained"

    def test_uneven_parts(self, group: ContractRanks) -> None:
        """A global batch, and the last of an epoch, need not divide by the devices: the strategy trained such ones."""
        if group.refused is not None:
            pytest.skip(group.refused)
        if any(override.startswith(("dataset.size=", "train.global_batch=")) for override in self.overrides):
            pytest.skip("the contract chooses its batches")
        parts = group.parts()
        assert len({sum(step) for step in parts}) > 1, "the last batch of an epoch should be smaller than the others"
        if len(parts[0]) > 1:
            assert any(min(step) < max(step) for step in parts), "each replica had as many samples as the others"

    def test_parameter_count(self, group: ContractRanks, bare: ContractRanks) -> None:
        """It equals that of the network's description and of the baseline."""
        assert group.params == bare.params
        counted = {rank.params for rank in group.ranks} - {None}
        if not counted:
            pytest.skip("its ranks do not count the parameters")
        assert counted == {group.params}

    def test_all_ranks_start_with_the_same_weights(self, group: ContractRanks) -> None:
        if len(group.start) < 2:
            pytest.skip(f"{len(group.start)} processes have weights")
        for other in group.start[1:]:
            for name, array in group.start[0].items():
                np.testing.assert_array_equal(other[name], array, err_msg=name)

    def test_weights_are_the_same_on_all_ranks(self, group: ContractRanks) -> None:
        """They are equal after synchronized steps, and differ for independent replicas."""
        if len(group.weights) < 2:
            pytest.skip(f"{len(group.weights)} processes have weights")
        for other in group.weights[1:]:
            if self.has_independent_replicas(group):
                assert _differ(other, group.weights[0])
                continue
            for name, array in group.weights[0].items():
                np.testing.assert_allclose(other[name], array, atol=1e-6, err_msg=name)

    def test_every_sample_once_per_epoch(self, group: ContractRanks) -> None:
        replicas = {tuple(r.shard): r for r in group.ranks}
        rows = [r.epoch_rows for r in replicas.values()]
        for epoch in range(EPOCHS):
            seen = sorted(row for part in rows for row in part[epoch])
            assert seen == list(range(group.ranks[0].train_samples))

    def test_samples_of_each_step(self, group: ContractRanks) -> None:
        """No sample is lost or counted twice, and the parts of replicas differ by at most one."""
        parts = group.parts()
        assert all(max(step) - min(step) <= 1 for step in parts)
        assert sum(map(sum, parts)) == EPOCHS * group.ranks[0].train_samples

    def test_broadcast(self, group: ContractRanks) -> None:
        assert {r.broadcast for r in group.ranks} == {BROADCAST_VALUE}

    def test_evaluation(self, group: ContractRanks, bare: ContractRanks) -> None:
        """Metrics are the same on every rank, and those of the baseline with the same weights."""
        metrics = [r.metrics for r in group.ranks]
        assert all(m == pytest.approx(metrics[0], rel=1e-6) for m in metrics)
        metric = group.spec.config.model.metric
        assert metric in metrics[0], f"evaluation gives no {metric}, only {', '.join(metrics[0]) or 'nothing'}"
        assert all(np.isfinite(value) and value >= 0 for value in metrics[0].values())
        rtol = self.rtol(group)
        if rtol is not None and self.why_incomparable(group) is None:
            assert metrics[0] == pytest.approx(bare.ranks[0].metrics, rel=max(1e-3, rtol))

    def test_backend_is_the_requested_one(self, group: ContractRanks) -> None:
        backend = group.spec.config.strategy.backend
        used = {r.backend_used for r in group.ranks}
        if backend is None or (group.spec.gpus == 1 and used == {None}):
            assert used == {None}
        elif backend == "auto":
            assert len(used) == 1
            assert used != {None}
        else:
            assert used == {backend}

    def test_sync_off_synchronizes_nothing(self, group: ContractRanks) -> None:
        """Steps without gradient synchronization make the ranks differ, unless each has a shard of the weights."""
        outcomes = {r.sync_off for r in group.ranks}
        assert len(outcomes) == 1
        (outcome,) = outcomes
        assert outcome is not None
        if (
            not self.has_reason(outcome)
            and len(group.unsynchronized) > 1
            and group.spec.config.strategy.sync != "sharded"
        ):
            assert all(_differ(other, group.unsynchronized[0]) for other in group.unsynchronized[1:])

    def test_messages_carry_the_gradients(self, group: ContractRanks) -> None:
        """If several devices synchronize, their messages add up to at least the bytes of the gradients."""
        params = group.params
        if group.spec.config.strategy.backend is None or group.spec.gpus == 1 or params is None:
            pytest.skip("no synchronization between devices")
        exact = group.spec.config.strategy.approximate is None
        min_bytes = self.bytes_sent if self.bytes_sent is not None else 4 * exact
        for rank in group.ranks:
            assert rank.message_bytes
            assert all(size > 0 for size in rank.message_bytes)
            assert sum(rank.message_bytes) >= min_bytes * params
            assert rank.run_isolated_sync is not None
            assert rank.run_isolated_sync == "done" or self.has_reason(rank.run_isolated_sync)

    def test_parts_of_a_step(self, group: ContractRanks) -> None:
        """Forward and backward keep the weights; only the optimizer changes them."""
        expected = {"forward": ("kept", "done"), "backward": ("kept", "done"), "optimizer": ("changed", "done")}
        for rank in group.ranks:
            assert set(rank.parts) == set(expected)
            for part, outcome in rank.parts.items():
                assert self.has_reason(outcome) or outcome in expected[part], f"{part} {outcome} the weights"

    def test_peak_memory(self, group: ContractRanks) -> None:
        for rank in group.ranks:
            assert len(rank.peak_memory_bytes) == rank.devices
            assert all(peak is None or peak > 0 for peak in rank.peak_memory_bytes)

    def test_closes_twice(self, group: ContractRanks) -> None:
        assert all(r.closed_twice for r in group.ranks)

    def has_reason(self, outcome: str) -> bool:
        """Return whether something was not measured, for a reason that is a sentence."""
        is_unmeasured = outcome.startswith("not measured: ")
        assert not is_unmeasured or len(outcome) > len("not measured: ") + 10, "the reason should be a sentence"
        return is_unmeasured

    def has_independent_replicas(self, group: ContractRanks) -> bool:
        return group.spec.config.strategy.independent and group.spec.processes > 1

    def rtol(self, group: ContractRanks) -> float | None:
        """Return the tolerance of losses against the baseline's; None: they only have to fall."""
        return group.spec.config.strategy.tolerance if self.loss_rtol is None else self.loss_rtol

    def why_incomparable(self, group: ContractRanks) -> str | None:
        """Return why a correct strategy trains differently from its baseline here."""
        if self.has_independent_replicas(group):
            return "independent replicas train on their own parts"
        if group.ranks[0].has_batch_normalization and group.spec.gpus > 1:
            return "each device normalizes over its own part of a batch; gpus=1 compares"
        losses = group.ranks[0].user_losses
        if losses and group.spec.gpus > 1 and not np.isclose(losses[0], losses[1], rtol=ROUNDING_RTOL):
            batch = group.spec.global_batch
            return (
                f"model.loss={group.spec.config.model.loss} is not a mean over samples: {losses[0]:.6g} in batches of "
                f"{batch}, {losses[1]:.6g} in batches of {-(-batch // 2)}, so that devices with parts of a batch train "
                "otherwise; gpus=1 compares"
            )
        return None


def compare_first_updates(group: ContractRanks, bare: ContractRanks, folder: Path) -> str:
    """Train one step of plain SGD in both, and return in one line how the update relates to the baseline's."""
    updates = []
    for number, ranks in enumerate((group, bare)):
        try:
            first = launch_checks([*ranks.overrides, *PLAIN_SGD], folder / str(number), plan=CheckPlan(steps=1))
        except (Refused, pytest.fail.Exception, pytest.skip.Exception) as reason:
            return f"differs from the baseline, and one step of plain SGD fails: {str(reason).splitlines()[0]}"
        if not first.weights:
            return "differs from the baseline"
        updates.append({name: first.weights[0][name] - array for name, array in first.start[0].items()})
    return describe_updates(updates[0], updates[1], group.spec.gpus)


def describe_updates(actual: Weights, expected: Weights, devices: int) -> str:
    """Return how one update relates to another, as a factor where it has the same direction."""
    if actual.keys() != expected.keys():
        return "its weights have other names than the baseline's"
    a, b = (np.concatenate([np.ravel(each[name]) for name in expected]).astype(float) for each in (actual, expected))
    if not (a.any() and b.any()):
        return f"{'updates nothing' if b.any() else 'the baseline updates nothing'} in one step of SGD"
    ratio = a @ b / (b @ b)
    rest = np.linalg.norm(a - ratio * b) / np.linalg.norm(a)
    if rest < SAME_DIRECTION and abs(ratio - 1) > SAME_DIRECTION / 2:
        guesses = {devices: ": summed and not averaged?", 1 / devices: ": averaged twice?"}
        guess = next((text for factor, text in guesses.items() if abs(ratio / factor - 1) < SAME_DIRECTION / 2), "")
        return f"updates are {ratio:.2f} times the baseline's{guess}"
    if rest > 10 * ROUNDING_RTOL:
        return f"updates of one step of SGD are off the baseline's by {rest:.2%}, not by a factor: of other samples?"
    return "updates of one step of SGD are the baseline's: later steps, or its optimizer, differ"


def _differ(a: Weights, b: Weights) -> bool:
    return any(np.abs(a[name] - b[name]).max() > 1e-7 for name in a)
