"""Launching a worker module of this package for all ranks of a run, and reading what they recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_json, read_record, write_json
from scalebench.core.run_folder import rank_log_name, rank_record_path
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner import launchers
from scalebench.testing.strategy_worker import CheckPlan, RankChecks, plan_path
from scalebench.workloads import datasets

# Without dropout, which draws differently on each device, and without TF32, whose rounding is above the tolerances that
# strategies declare. With few samples, the small share for validation that a large
# data set has would be none of them.
COMMON_OVERRIDES = (
    *("scaling=strong", "measure.hang_s=60", "seed=3", "train.dropout=false", "train.precision=float32"),
    "dataset.validation_share=0.25",
)
# 166 training samples in global batches of 31: parts differ by one, and so does the last batch, of 11.
UNEVEN_WORKLOAD = ("dataset.size=221", "train.global_batch=31", *COMMON_OVERRIDES)
# 180 in batches of 60, which 2 to 6 devices share evenly: for strategies that refuse uneven ones.
EVEN_WORKLOAD = ("dataset.size=240", "train.global_batch=60", *COMMON_OVERRIDES)
MAX_LOG_CHARS = 3000
Weights = dict[str, Any]
ChangeSpec = Callable[[RunSpec], RunSpec]


class Refused(Exception):
    """The strategy raised Unsupported in its setup; the message is its reason."""


@dataclass
class ContractRanks:
    """The records of all ranks of one launch."""

    spec: RunSpec
    ranks: list[RankChecks]
    start: list[Weights]
    weights: list[Weights]  # after training
    unsynchronized: list[Weights]  # after steps without gradient synchronization
    overrides: list[str]  # of the launch
    workload: tuple[str, ...] = UNEVEN_WORKLOAD
    refused: str | None = field(default=None)  # why the strategy refused UNEVEN_WORKLOAD

    def losses(self) -> list[float]:
        """Return the mean loss per sample of each step, over the global batch."""
        steps = range(len(self.ranks[0].loss_sums))
        totals = [sum(r.loss_sums[i] or 0.0 for r in self.ranks) for i in steps]
        return [total / sum(r.samples[i] for r in self.ranks) for i, total in enumerate(totals)]

    def parts(self) -> list[list[int]]:
        """Return for each step the samples of each replica."""
        replicas = sorted({tuple(rank.shard) for rank in self.ranks})
        steps = zip(*(rank.samples for rank in self.ranks), strict=True)
        owners = [replicas.index(tuple(rank.shard)) for rank in self.ranks]
        return [[sum(n for n, of in zip(step, owners, strict=True) if of == k) for k in range(len(replicas))]
                for step in steps]  # fmt: skip

    @property
    def params(self) -> int | None:
        """Trainable parameters by the description of the network, else as the ranks count them."""
        return self.spec.config.model.params or self.ranks[0].params


def launch_checks(
    overrides: list[str], folder: Path, change: ChangeSpec = lambda spec: spec, plan: CheckPlan | None = None
) -> ContractRanks:
    """Run the checks of every rank, or what `plan` requests. `change` and errors as in run_worker_module."""
    folder.mkdir(parents=True, exist_ok=True)
    if plan is not None:
        write_json(plan_path(folder), plan)
    spec = run_worker_module(overrides, folder, "scalebench.testing.strategy_worker", change)
    measuring_ranks = [rank for rank in range(spec.processes) if rank not in spec.services]
    ranks = [read_record(folder / f"checks{k}.json", RankChecks) for k in measuring_ranks]
    stems = ("start", "weights", "unsynchronized")
    paths = [[folder / f"{stem}{k}.npz" for k in measuring_ranks] for stem in stems]
    start, weights, unsynchronized = ([load_weights(path) for path in some if path.exists()] for some in paths)
    return ContractRanks(spec, ranks, start, weights, unsynchronized, overrides)


def run_worker_module(
    overrides: list[str], folder: Path, module: str, change: ChangeSpec = lambda spec: spec
) -> RunSpec:
    """Run `module` in every rank to its end; an error shows the log of the failed rank.

    `change` changes the resolved run, for what no override can request.
    Refused if the strategy raises Unsupported; a run that is impossible here skips the test.
    """
    spec = change(resolve(compose_config(overrides)))
    if spec.plugin_error is not None:
        pytest.fail(f"{spec.plugin_error}\n{spec.plugin_traceback}", pytrace=False)
    if spec.unsupported is not None:
        pytest.skip(spec.unsupported)
    folder.mkdir(parents=True, exist_ok=True)
    datasets.prepare(spec.config)
    write_spec(spec, folder)
    outcome = launchers.launch(spec, folder, "contract", module=module)
    if any(outcome.exit_codes[rank] != 0 for rank in range(spec.processes) if rank not in spec.services):
        _report_failure(spec, folder, f"exit statuses {outcome.exit_codes}, {outcome.timeout}")
    return spec


def launch_checks_on_any_workload(overrides: list[str], folder: Path) -> ContractRanks:
    """Run the checks on uneven parts, or on even ones if the strategy refuses those."""
    try:
        return launch_checks([*UNEVEN_WORKLOAD, *overrides], folder / "run")
    except (Refused, pytest.skip.Exception) as reason:  # by its ranks, or already by the plan
        refused = str(reason)
    try:
        group = launch_checks([*EVEN_WORKLOAD, *overrides], folder / "even")
    except Refused as reason:
        pytest.skip(str(reason))
    group.workload, group.refused = EVEN_WORKLOAD, refused
    return group


def _report_failure(spec: RunSpec, folder: Path, outcome: str) -> None:
    records = [
        read_json(rank_record_path(folder, rank))
        for rank in range(spec.processes)
        if rank_record_path(folder, rank).exists()
    ]
    for record in records:
        if record.get("status") == "unsupported":
            raise Refused(record["reason"])
    reasons = [record["reason"] for record in records if record.get("reason")]
    logs = [folder / rank_log_name(rank) for rank in range(spec.processes)]
    texts = [path.read_text(errors="replace")[-MAX_LOG_CHARS:] for path in logs if path.exists()]
    pytest.fail("\n".join([*reasons[:1], outcome, *texts]), pytrace=False)


def load_weights(path: Path) -> Weights:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)
