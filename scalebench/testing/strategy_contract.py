"""StrategyContract: the tests that every strategy passes, ours and third-party alike. Layer 4.

    from scalebench.testing import StrategyContract

    class TestMine(StrategyContract):
        strategy = "mine"

One launch of the strategy does all checks; one of its baseline, shared by the session, is the truth. How near its
losses must come stands in its YAML (tolerance), with the reason where it is not that of rounding (approximate).

What a strategy's YAML says of it, against its class and what else is known: the part of StrategyContract that looks
at words. Layer 4.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from scalebench.core import config_files
from scalebench.core.json_files import build_record
from scalebench.core.spec import StrategySpec
from scalebench.strategies import registry
from scalebench.strategies.base import check_options, check_values
from scalebench.testing.launch import WORKLOAD as WORKLOAD
from scalebench.testing.launch import Group, Weights, launch, launch_any
from scalebench.testing.strategy_worker import EPOCHS, SENT

EXACT = 1e-4  # what float32 leaves of the baseline's losses after two epochs


class StatedContract:
    """Tests that need no process but those of the launch."""

    strategy: ClassVar[str] = ""

    @classmethod
    def stated(cls) -> StrategySpec:
        """The YAML alone, without what a test overrides."""
        from omegaconf import OmegaConf

        files = config_files.list_options("strategy")
        assert cls.strategy in files, f"no strategy/{cls.strategy}.yaml; add it, and an entry point scalebench.configs"
        return build_record(StrategySpec, OmegaConf.to_container(OmegaConf.load(files[cls.strategy])))

    def test_yaml_says_what_it_is(self) -> None:
        """Its name, as it is registered and as its file is called, and one line of description."""
        stated = self.stated()
        assert stated.name == registry.find_strategy(self.strategy).name == self.strategy
        assert stated.description.strip(), "an empty description"
        assert "\n" not in stated.description.strip(), "the description should be one line"

    def test_yaml_says_what_it_needs(self) -> None:
        """Framework and packages, devices, and a baseline that there is, of one device."""
        stated = self.stated()
        assert stated.framework, "framework: none, torch, tensorflow, or another one's name"
        assert all(name.replace(".", "_").isidentifier() for name in stated.requires), "requires: import names"
        assert stated.devices and set(stated.devices) <= {"cpu", "cuda"}, f"devices: {stated.devices}"
        if stated.baseline is not None:
            assert registry.find_strategy(stated.baseline).target is not None, f"no strategy '{stated.baseline}' yet"
            assert stated.baseline in config_files.list_options("strategy"), f"no strategy/{stated.baseline}.yaml"

    def test_yaml_says_whether_it_is_exact(self) -> None:
        """A tolerance above that of rounding, or none at all, comes with the reason."""
        stated = self.stated()
        if stated.tolerance is None or stated.tolerance > EXACT:
            assert stated.approximate, f"tolerance: {stated.tolerance}: say in `approximate` why its updates differ"
        if stated.approximate is not None:
            assert "\n" not in stated.approximate.strip(), "`approximate` should be one clause"
        assert stated.tolerance is None or 0 < stated.tolerance < 1, "tolerance is relative, and above 0"

    def test_yaml_and_class_have_the_same_options(self, group: Group) -> None:
        """Names on both sides, types, and the defaults too where no other strategy shares the class."""
        stated, ours = self.stated().options, group.ranks[0].options
        only_yaml, only_class = sorted(stated.keys() - ours.keys()), sorted(ours.keys() - stated.keys())
        assert not (only_yaml or only_class), f"only in the YAML: {only_yaml}; only in the class: {only_class}"
        check_options(self.strategy, stated, ours)
        check_values(self.stated())
        limited = {*self.stated().choices, *self.stated().at_least}
        assert limited <= ours.keys(), f"choices or at_least of no option: {sorted(limited - ours.keys())}"
        if not self._shares_its_class():
            assert stated == ours, "other defaults in the YAML than in the class"

    def _shares_its_class(self) -> bool:
        entries: Any = registry.strategy_entries().values()
        target = registry.find_strategy(self.strategy).target
        return [entry.target for entry in entries].count(target) > 1


# Where updates come in no fixed order: each epoch has the same samples, and plain steps lower their loss steadily.
STEADY = ("train.optimizer=sgd", "train.learning_rate=0.01")
_baselines: dict[tuple[str, ...], Group] = {}


class StrategyContract(StatedContract):
    """Subclass it, name the strategy, and pytest finds the tests."""

    strategy: ClassVar[str] = ""
    gpus: ClassVar[int] = 2
    overrides: ClassVar[tuple[str, ...]] = ()
    baseline: ClassVar[str | None] = None  # None: what the strategy's YAML names
    loss_rtol: ClassVar[float | None] = None  # against the baseline's after two epochs; None: as the YAML says
    weight_atol: ClassVar[float | None] = None  # None: 1e-4, and the weights of approximate updates are not compared
    bytes_sent: ClassVar[float | None] = None  # of each parameter's gradient, at the least; None: 4, if it is exact

    @pytest.fixture(scope="class")
    @classmethod
    def group(cls, tmp_path_factory: pytest.TempPathFactory) -> Group:
        """All checks of the strategy, in one launch."""
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        words = [f"strategy={cls.strategy}", f"gpus={cls.gpus}"]
        if cls.loss_rtol is None and cls.stated().tolerance is None:
            words += STEADY
        return launch_any([*words, *cls.overrides, f"dataset.cache={cache}"], tmp_path_factory.mktemp("contract"))

    @pytest.fixture(scope="class")
    @classmethod
    def bare(cls, group: Group, tmp_path_factory: pytest.TempPathFactory) -> Group:
        """The same updates by the baseline on one device."""
        name = cls.baseline or group.spec.config.strategy.baseline
        if name is None:
            pytest.skip(f"{cls.strategy} names no baseline")
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        others = [word for word in cls.overrides if not word.lstrip("+").startswith("strategy.")]
        words = (*group.workload, f"strategy={name}", "gpus=1", *others, f"dataset.cache={cache}")
        if words not in _baselines:
            _baselines[words] = launch(list(words), tmp_path_factory.mktemp("baseline"))
        return _baselines[words]

    def test_losses_equal_the_baselines(self, group: Group, bare: Group) -> None:
        """The same global batches give the same losses, uneven parts and uneven last batch included."""
        self.skip_unless_comparable(group)
        rtol = self.rtol(group)
        if rtol is None:
            pytest.skip(f"its losses only have to fall: {group.spec.config.strategy.approximate}")
        assert len(group.losses()) == EPOCHS * group.ranks[0].steps_per_epoch
        np.testing.assert_allclose(group.losses(), bare.losses(), rtol=rtol)

    def test_one_update_per_step(self, group: Group, bare: Group) -> None:
        """As many updates as the baseline, and the same ones: the weights agree in the end."""
        self.skip_unless_comparable(group)
        approximate = group.spec.config.strategy.approximate
        if not group.weights:
            pytest.skip("it does not show its weights")
        if self.rtol(group) is None or (approximate is not None and self.weight_atol is None):
            pytest.skip(f"its updates are not the baseline's: {approximate}")
        for name, array in bare.weights[0].items():
            atol = EXACT if self.weight_atol is None else self.weight_atol
            np.testing.assert_allclose(group.weights[0][name], array, atol=atol, err_msg=name)

    def test_training_goes_on(self, group: Group) -> None:
        """Every step has a loss, and every weight is trained; losses that follow no other's fall."""
        losses, per_epoch = group.losses(), group.ranks[0].steps_per_epoch
        assert len(losses) == EPOCHS * per_epoch
        assert np.isfinite(losses).all(), losses
        if self.rtol(group) is None:
            assert np.mean(losses[-per_epoch:]) < np.mean(losses[:per_epoch])
        for name, array in group.weights[0].items() if group.weights else ():
            assert np.abs(array - group.start[0][name]).max() > 0, f"{name} was not trained"

    def test_uneven_parts(self, group: Group) -> None:
        """A global batch, and the last of an epoch, need not divide by the devices."""
        if group.refused is not None:
            pytest.skip(group.refused)

    def test_parameter_count(self, group: Group, bare: Group) -> None:
        """As the network is described, and as its baseline counts."""
        counted = {rank.params for rank in group.ranks} - {None}
        assert counted <= {group.params}
        assert group.params == bare.params

    def test_all_start_alike(self, group: Group) -> None:
        for other in group.start[1:]:
            for name, array in group.start[0].items():
                np.testing.assert_array_equal(other[name], array, err_msg=name)

    def test_weights_are_the_same_on_all_ranks(self, group: Group) -> None:
        """After averaged updates; replicas without an exchange have gone apart."""
        for other in group.weights[1:]:
            if self.trains_apart(group):
                assert _differ(other, group.weights[0])
            for name, array in group.weights[0].items():
                if not self.trains_apart(group):
                    np.testing.assert_allclose(other[name], array, atol=1e-6, err_msg=name)

    def test_every_sample_once_per_epoch(self, group: Group) -> None:
        replicas = {tuple(r.shard): r for r in group.ranks}
        rows = [r.epoch_rows for r in replicas.values()]
        for epoch in range(EPOCHS):
            seen = sorted(row for part in rows for row in part[epoch])
            assert seen == list(range(group.ranks[0].train_samples))

    def test_samples_of_each_update(self, group: Group) -> None:
        """No sample is lost or counted twice, and the parts of replicas differ by at most one."""
        replicas = [tuple(r.shard) for r in group.ranks]
        for step in zip(*(r.samples for r in group.ranks), strict=True):
            parts = [sum(n for n, of in zip(step, replicas, strict=True) if of == one) for one in set(replicas)]
            assert max(parts) - min(parts) <= 1
        assert sum(map(sum, (r.samples for r in group.ranks))) == EPOCHS * group.ranks[0].train_samples

    def test_broadcast(self, group: Group) -> None:
        assert {r.broadcast for r in group.ranks} == {SENT}

    def test_evaluation(self, group: Group, bare: Group) -> None:
        """The same on every rank, and what the baseline finds with the same weights."""
        metrics = [r.metrics for r in group.ranks]
        assert all(m == pytest.approx(metrics[0], rel=1e-6) for m in metrics)
        assert group.spec.config.model.metric in metrics[0]
        assert all(np.isfinite(value) and value >= 0 for value in metrics[0].values())
        rtol = self.rtol(group)
        if rtol is not None and self.incomparable(group) is None:
            assert metrics[0] == pytest.approx(bare.ranks[0].metrics, rel=max(1e-3, rtol))

    def test_backend_is_what_was_asked_for(self, group: Group) -> None:
        asked = group.spec.config.strategy.backend
        used = {r.backend_used for r in group.ranks}
        if asked is None or (group.spec.gpus == 1 and used == {None}):
            assert used == {None}
        elif asked == "auto":
            assert len(used) == 1
            assert used != {None}
        else:
            assert used == {asked}

    def test_exchange_off_exchanges_nothing(self, group: Group) -> None:
        """Updates without it drive the ranks apart."""
        outcomes = {r.exchange_off for r in group.ranks}
        assert len(outcomes) == 1
        (outcome,) = outcomes
        assert outcome is not None
        if outcome.startswith("not measured: "):
            assert len(outcome) > len("not measured: ") + 10, "the reason should be a sentence"
        elif len(group.apart) > 1:
            assert all(_differ(other, group.apart[0]) for other in group.apart[1:])

    def test_messages_carry_the_gradients(self, group: Group) -> None:
        """With an exchange over several devices, its messages add up to at least the gradients' bytes."""
        params = group.params
        if group.spec.config.strategy.backend is None or group.spec.gpus == 1 or params is None:
            pytest.skip("no exchange between devices")
        exact = group.spec.config.strategy.approximate is None
        least = self.bytes_sent if self.bytes_sent is not None else 4 * exact
        for rank in group.ranks:
            assert rank.message_bytes
            assert all(size > 0 for size in rank.message_bytes)
            assert sum(rank.message_bytes) >= least * params
            assert rank.run_isolated_sync is not None
            assert rank.run_isolated_sync == "done" or len(rank.run_isolated_sync) > len("not measured: ") + 10

    def test_parts_of_an_update(self, group: Group) -> None:
        """Forward and backward leave the weights as they are, and only the optimizer's part changes them."""
        known = {"forward": ("kept", "done"), "backward": ("kept", "done"), "optimizer": ("changed", "done")}
        for rank in group.ranks:
            assert set(rank.parts) == set(known)
            for part, outcome in rank.parts.items():
                if outcome.startswith("not measured: "):
                    assert len(outcome) > len("not measured: ") + 10, "the reason should be a sentence"
                else:
                    assert outcome in known[part], f"{part} {outcome} the weights"

    def test_peak_memory(self, group: Group) -> None:
        for rank in group.ranks:
            assert len(rank.peak_memory_bytes) == rank.devices
            assert all(peak is None or peak > 0 for peak in rank.peak_memory_bytes)

    def test_closes_twice(self, group: Group) -> None:
        assert all(r.closed_twice for r in group.ranks)

    def trains_apart(self, group: Group) -> bool:
        return not group.spec.config.strategy.lockstep and group.spec.processes > 1

    def rtol(self, group: Group) -> float | None:
        """Of losses against the baseline's; None: they only have to fall."""
        return group.spec.config.strategy.tolerance if self.loss_rtol is None else self.loss_rtol

    def incomparable(self, group: Group) -> str | None:
        """Why an honest strategy trains otherwise than its baseline here."""
        if self.trains_apart(group):
            return "replicas without an exchange train on their own parts"
        if group.ranks[0].normalises and group.spec.gpus > 1:
            return "each device normalises over its own part of a batch; gpus=1 compares"
        return None

    def skip_unless_comparable(self, group: Group) -> None:
        reason = self.incomparable(group)
        if reason is not None:
            pytest.skip(reason)


def _differ(a: Weights, b: Weights) -> bool:
    return any(np.abs(a[name] - b[name]).max() > 1e-7 for name in a)
