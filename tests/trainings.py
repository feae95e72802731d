"""Trainings made by hand, with known curves: for what is made of seeds, targets and gaps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from scalebench.curve_records import CurvePoint, first_reached
from scalebench.results import Quality, Result
from scalebench.train_spec import StopSpec
from tests.helpers import record, simulated_config
from tests.sweeps import run

UPDATES = 50  # an epoch
EPOCH_SAMPLES = 1000


def curve(values: Sequence[float], epoch_s: float = 2.0, metric: str = "mse", seen: float = 0.5) -> list[CurvePoint]:
    """A point an epoch; on samples trained on the metric is `seen` times as large."""
    return [
        CurvePoint(
            UPDATES * epoch, float(epoch), EPOCH_SAMPLES * epoch, epoch_s * epoch, 1e-3, value + 0.1, EPOCH_SAMPLES,
            {metric: value}, {metric: seen * value}, 0.25, 1000.0 + epoch,
        )
        for epoch, value in enumerate(values, 1)
    ]  # fmt: skip


def training(
    strategy: str = "ddp_gloo",
    gpus: int = 2,
    seed: int = 0,
    values: Sequence[float] = (0.4, 0.2, 0.1),
    target: float | None = 0.15,
    epoch_s: float = 2.0,
    repeat: int = 0,
    settings: dict[str, Any] | None = None,
    status: str = "ok",
    metric: str = "mse",
    **changes: Any,
) -> Result:
    """It ends with the last of `values`, whether that is as good as the target or not. `settings` are of `train`."""
    stop = StopSpec(epochs=20.0, target=target)
    train = dataclasses.replace(simulated_config().train, stop=stop, **(settings or {}))
    made: dict[str, Any] = {
        "run_id": f"{strategy}-{gpus}-s{seed}-r{repeat}-{train.learning_rate_rule}", "seed": seed, "train": train,
        "started_at": f"2026-01-01T{repeat:02}:{seed:02}:{gpus:02}.000+00:00", "repeat": repeat,
    }  # fmt: skip
    if status != "ok":
        return record(strategy, gpus, None, status=status, **{**made, "reason": "the loss is nan", **changes})
    points = curve(values, epoch_s, metric)
    found = None if target is None else first_reached(points, metric, target)
    quality = Quality(
        values[-1], metric, values[-1], {metric: values[-1]}, None if found is None else found.train_s, points,
        "epochs" if found is None else "target", 0.7, train.learning_rate,
    )  # fmt: skip
    return run(strategy, gpus, noise=0.01, quality=quality, **{**made, **changes})


def falling(epochs: int, rate: float = 0.7) -> list[float]:
    return [math.exp(-rate * epoch) for epoch in range(1, epochs + 1)]
