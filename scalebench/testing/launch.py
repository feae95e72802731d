"""One launch of the checks: every rank of a strategy looked at, and what they left. Layer 4."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_json, read_record
from scalebench.core.run_folder import rank_log_name, rank_record_path
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner import launchers
from scalebench.testing.strategy_worker import Checks
from scalebench.workloads import datasets

COMMON = ("scaling=strong", "measure.hang_s=60", "seed=3", "train.dropout=false")  # devices draw apart
# 166 training samples in global batches of 31: parts differ by one, and so does the last batch, of 11.
WORKLOAD = ("dataset.size=221", "train.global_batch=31", *COMMON)
# 180 in batches of 60, which 2, 3, 4, 5 and 6 devices share evenly: for a strategy that refuses others.
EVEN = ("dataset.size=240", "train.global_batch=60", *COMMON)
LOG_CHARS = 3000
Weights = dict[str, Any]


class Refused(Exception):
    """The strategy says in its setup that it cannot do this; the message is its reason."""


@dataclass
class Group:
    """What the ranks of one launch left."""

    spec: RunSpec
    ranks: list[Checks]
    start: list[Weights]
    weights: list[Weights]  # after training
    apart: list[Weights]  # after updates with the exchange off
    workload: tuple[str, ...] = WORKLOAD
    refused: str | None = field(default=None)  # why it was not WORKLOAD

    def losses(self) -> list[float]:
        """Mean loss per sample of each update, over the whole global batch."""
        steps = range(len(self.ranks[0].loss_sums))
        totals = [sum(r.loss_sums[i] or 0.0 for r in self.ranks) for i in steps]
        return [total / sum(r.samples[i] for r in self.ranks) for i, total in enumerate(totals)]

    @property
    def params(self) -> int | None:
        """Trainable parameters: of the description of the network, else as the ranks count them."""
        return self.spec.config.model.params or self.ranks[0].params


def launch(overrides: list[str], folder: Path) -> Group:
    """The checks of every rank. Errors as started."""
    spec = started(overrides, folder, "scalebench.testing.strategy_worker")
    measuring = [rank for rank in range(spec.processes) if rank not in spec.services]
    ranks = [read_record(folder / f"checks{k}.json", Checks) for k in measuring]
    paths = {stem: [folder / f"{stem}{k}.npz" for k in measuring] for stem in ("start", "weights", "apart")}
    return Group(spec, ranks, *([load_weights(p) for p in of if p.exists()] for of in paths.values()))


def started(overrides: list[str], folder: Path, module: str) -> RunSpec:
    """Every rank of a run, to its end; an error shows the log of the rank that failed.

    Refused where the strategy itself finds that it cannot; what is impossible here skips the test.
    """
    spec = resolve(compose_config(overrides))
    if spec.broken is not None:
        pytest.fail(f"{spec.broken}\n{spec.broken_log}", pytrace=False)
    if spec.unsupported is not None:
        pytest.skip(spec.unsupported)
    folder.mkdir(parents=True, exist_ok=True)
    datasets.prepare(spec.config)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "contract", module=module)
    if any(ended.exit_codes[rank] != 0 for rank in range(spec.processes) if rank not in spec.services):
        _failed(spec, folder, f"exit statuses {ended.exit_codes}, {ended.timeout}")
    return spec


def launch_any(overrides: list[str], folder: Path) -> Group:
    """As launch, on uneven parts; on even ones where the strategy refuses those."""
    try:
        return launch([*WORKLOAD, *overrides], folder / "run")
    except Refused as reason:
        refused = str(reason)
    try:
        group = launch([*EVEN, *overrides], folder / "even")
    except Refused as reason:
        pytest.skip(str(reason))
    group.workload, group.refused = EVEN, refused
    return group


def _failed(spec: RunSpec, folder: Path, ended: str) -> None:
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
    texts = [path.read_text(errors="replace")[-LOG_CHARS:] for path in logs if path.exists()]
    pytest.fail("\n".join([*reasons[:1], ended, *texts]), pytrace=False)


def load_weights(path: Path) -> Weights:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)
