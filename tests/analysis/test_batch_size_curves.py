"""What is one configuration over batches, and what is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from scalebench.analysis.batch_size import over_batches
from scalebench.analysis.repeats import pool
from scalebench.analysis.scaling_curves import Curve, curves
from scalebench.core.result import Result
from tests.builders import sweeps
from tests.builders.runs import simulated_config


def batched(batch: int, gpus: int = 1, **settings: Any) -> Result:
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch, **settings)
    made = sweeps.run("ddp_gloo", gpus, train=train)
    made.run_id = made.fingerprint = "-".join(map(str, (gpus, batch, *settings.values())))
    for rank in made.ranks:
        rank.block_samples = [2 * batch] * len(rank.block_s)
    return made


def found(*results: Result) -> list[Curve]:
    return over_batches(curves(pool(results, [Path(str(number)) for number in range(len(results))])))


def batches(curve: Curve) -> list[int]:
    return [row["batch_per_device"] for row in curve.rows]


def test_a_curve_is_one_configuration_on_one_number_of_devices() -> None:
    made = found(*(batched(batch, gpus) for batch in (100, 10, 1000) for gpus in (1, 2)), batched(10, 4))
    assert [(curve.name, batches(curve)) for curve in made] == [
        ("ddp_gloo, 1 device", [10, 100, 1000]),
        ("ddp_gloo, 2 devices", [10, 100, 1000]),
    ]
    assert {curve.group["batch"] for curve in made} == {"10 to 1,000 per device"}


def test_updates_that_are_made_otherwise_are_curves_of_their_own_and_say_so() -> None:
    rules = [
        batched(batch, learning_rate_rule=rule, base_batch=10) for batch in (10, 100) for rule in ("sqrt", "linear")
    ]
    assert [(curve.name, batches(curve)) for curve in found(*rules)] == [
        ("ddp_gloo learning_rate_rule=sqrt, 1 device", [10, 100]),
        ("ddp_gloo learning_rate_rule=linear, 1 device", [10, 100]),
    ]
    parts = found(*(batched(batch, accumulate=parts) for parts in (1, 4) for batch in (100, 1000)))
    assert [curve.name for curve in parts] == ["ddp_gloo accumulate=1, 1 device", "ddp_gloo accumulate=4, 1 device"]
    # One batch each: neither is a curve, and they are none together.
    assert found(batched(10, optimizer="sgd"), batched(100, optimizer="adam")) == []


def test_what_nothing_tells_apart_is_a_part_of_its_own() -> None:
    again = [batched(batch, learning_rate=rate) for rate in (0.1, 0.2) for batch in (10, 100)]
    assert [(curve.name, batches(curve)) for curve in found(*again)] == [
        ("ddp_gloo, 1 device", [10, 100]),
        ("ddp_gloo, 1 device #2", [10, 100]),
    ]
    assert found(batched(10), batched(10, learning_rate=0.2)) == []
