"""StrategyContract: the tests that every strategy passes, ours and third-party alike. Layer 4.

    from scalebench.testing import StrategyContract

    class TestMine(StrategyContract):
        strategy = "mine"

One launch of the strategy does all checks; one of its baseline, shared by the session, is the truth.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from scalebench import cli, jobs, launchers
from scalebench.launchers.surroundings import log_name
from scalebench.records import from_dict, read_json
from scalebench.resolve import resolve
from scalebench.spec import RunSpec, write_spec
from scalebench.testing.checks import EPOCHS, SENT, Checks
from scalebench.workloads import datasets

# 166 training samples in global batches of 31: parts differ by one, and so does the last batch, of 11.
WORKLOAD = ("dataset.size=221", "scaling=strong", "train.global_batch=31", "measure.hang_s=60", "seed=3")
Weights = dict[str, Any]


@dataclass
class Group:
    """What the ranks of one launch left."""

    spec: RunSpec
    ranks: list[Checks]
    start: list[Weights]
    weights: list[Weights]  # after training
    apart: list[Weights]  # after updates with the exchange off

    def losses(self) -> list[float]:
        """Mean loss per sample of each update, over the whole global batch."""
        steps = range(len(self.ranks[0].loss_sums))
        totals = [sum(r.loss_sums[i] or 0.0 for r in self.ranks) for i in steps]
        return [total / sum(r.samples[i] for r in self.ranks) for i, total in enumerate(totals)]


def launch(overrides: list[str], folder: Path) -> Group:
    """Run the checks of every rank; an error shows the log of the rank that failed."""
    spec = resolve(jobs.to_config(cli.compose(overrides)))
    if spec.unsupported is not None:
        pytest.skip(spec.unsupported)
    folder.mkdir(parents=True)
    datasets.prepare(spec.config)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "contract", module="scalebench.testing.checks")
    measuring = [rank for rank in range(spec.processes) if rank not in spec.services]
    if any(ended.exit_codes[rank] != 0 for rank in measuring):
        logs = [(folder / log_name(rank)).read_text()[-3000:] for rank in range(spec.processes)]
        pytest.fail(f"exit statuses {ended.exit_codes}, {ended.timeout}\n" + "\n".join(logs), pytrace=False)
    ranks = [from_dict(Checks, read_json(folder / f"checks{k}.json")) for k in measuring]
    return Group(spec, ranks, *(_weights(folder, stem, spec.processes) for stem in ("start", "weights", "apart")))


def _weights(folder: Path, stem: str, processes: int) -> list[Weights]:
    found = []
    for path in (folder / f"{stem}{rank}.npz" for rank in range(processes)):
        if path.exists():
            with np.load(path, allow_pickle=False) as arrays:
                found.append(dict(arrays))
    return found


_baselines: dict[tuple[str, ...], Group] = {}


class StrategyContract:
    """Subclass it, name the strategy, and pytest finds the tests."""

    strategy: ClassVar[str] = ""
    gpus: ClassVar[int] = 2
    overrides: ClassVar[tuple[str, ...]] = ()
    baseline: ClassVar[str | None] = None  # None: what the strategy's YAML names
    loss_rtol: ClassVar[float] = 1e-4  # against the baseline, float32, after two epochs
    weight_atol: ClassVar[float] = 1e-4
    bytes_sent: ClassVar[int] = 4  # of each parameter's gradient, at the least
    asynchronous: ClassVar[bool] = False  # updates in no fixed order: the loss falls, but not as the baseline's

    @pytest.fixture(scope="class")
    @classmethod
    def group(cls, tmp_path_factory: pytest.TempPathFactory) -> Group:
        """All checks of the strategy, in one launch."""
        words = [f"strategy={cls.strategy}", f"gpus={cls.gpus}", *WORKLOAD, *cls.overrides]
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        return launch([*words, f"dataset.cache={cache}"], tmp_path_factory.mktemp("contract") / "run")

    @pytest.fixture(scope="class")
    @classmethod
    def bare(cls, group: Group, tmp_path_factory: pytest.TempPathFactory) -> Group:
        """The same updates by the baseline on one device."""
        name = cls.baseline or group.spec.config.strategy.baseline
        if name is None:
            pytest.skip(f"{cls.strategy} names no baseline")
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        others = [word for word in cls.overrides if not word.startswith("strategy.")]
        words = (f"strategy={name}", "gpus=1", *WORKLOAD, *others, f"dataset.cache={cache}")
        if words not in _baselines:
            folder = Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp())) / "run"
            _baselines[words] = launch(list(words), folder)
        return _baselines[words]

    def test_losses_equal_the_baselines(self, group: Group, bare: Group) -> None:
        """The same global batches give the same losses, uneven parts and uneven last batch included."""
        if self.trains_apart(group):
            pytest.skip("replicas without an exchange train on their own parts")
        if self.asynchronous:
            pytest.skip("asynchronous updates are not the baseline's")
        assert len(group.losses()) == EPOCHS * group.ranks[0].updates_per_epoch
        np.testing.assert_allclose(group.losses(), bare.losses(), rtol=self.loss_rtol)

    def test_one_update_per_step(self, group: Group, bare: Group) -> None:
        """As many updates as the baseline, and the same ones: the weights agree in the end."""
        if not group.weights or self.trains_apart(group) or self.asynchronous:
            pytest.skip("no weights to compare")
        for name, array in bare.weights[0].items():
            assert np.abs(array - bare.start[0][name]).max() > 0, f"{name} was not trained"
            np.testing.assert_allclose(group.weights[0][name], array, atol=self.weight_atol, err_msg=name)

    def test_asynchronous_updates_train(self, group: Group) -> None:
        """Every step has a loss, it falls, and every weight is trained."""
        if not self.asynchronous:
            pytest.skip("the losses are compared with the baseline's")
        losses, per_epoch = group.losses(), group.ranks[0].updates_per_epoch
        assert len(losses) == EPOCHS * per_epoch
        assert np.mean(losses[-per_epoch:]) < np.mean(losses[:per_epoch])
        for name, array in group.weights[0].items():
            assert np.abs(array - group.start[0][name]).max() > 0, f"{name} was not trained"

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
        """No sample is lost, and parts differ by at most one."""
        for step in zip(*(r.samples for r in group.ranks), strict=True):
            assert max(step) - min(step) <= 1
        assert sum(map(sum, (r.samples for r in group.ranks))) == EPOCHS * group.ranks[0].train_samples

    def test_broadcast(self, group: Group) -> None:
        assert {r.broadcast for r in group.ranks} == {SENT}

    def test_evaluation(self, group: Group, bare: Group) -> None:
        """The same on every rank, and what the baseline finds with the same weights."""
        metrics = [r.metrics for r in group.ranks]
        assert all(m == pytest.approx(metrics[0], rel=1e-6) for m in metrics)
        assert group.spec.config.model.metric in metrics[0]
        assert all(np.isfinite(value) and value >= 0 for value in metrics[0].values())
        if not self.trains_apart(group) and not self.asynchronous:
            assert metrics[0] == pytest.approx(bare.ranks[0].metrics, rel=1e-3)

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
        if outcome.startswith("unsupported: "):
            assert len(outcome) > len("unsupported: ") + 10, "the reason should be a sentence"
        elif len(group.apart) > 1:
            assert all(_differ(other, group.apart[0]) for other in group.apart[1:])

    def test_messages_carry_the_gradients(self, group: Group) -> None:
        """With an exchange over several devices, its messages add up to at least the gradients' bytes."""
        params = group.spec.config.model.params
        if group.spec.config.strategy.backend is None or group.spec.gpus == 1 or params is None:
            pytest.skip("no exchange between devices")
        for rank in group.ranks:
            assert all(size > 0 for size in rank.message_bytes)
            assert sum(rank.message_bytes) >= self.bytes_sent * params
            assert rank.run_exchange is not None
            assert rank.run_exchange == "done" or len(rank.run_exchange) > len("unsupported: ") + 10

    def test_parts_of_an_update(self, group: Group) -> None:
        """Forward and backward leave the weights as they are, and only the optimizer's part changes them."""
        known = {"forward": ("kept", "done"), "backward": ("kept", "done"), "optimizer": ("changed", "done")}
        for rank in group.ranks:
            assert set(rank.parts) == set(known)
            for part, outcome in rank.parts.items():
                if outcome.startswith("unsupported: "):
                    assert len(outcome) > len("unsupported: ") + 10, "the reason should be a sentence"
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


def _differ(a: Weights, b: Weights) -> bool:
    return any(np.abs(a[name] - b[name]).max() > 1e-7 for name in a)
