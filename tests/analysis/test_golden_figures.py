"""Figures of records made by hand, as they were before reading was made fast: none of them may change unnoticed."""

import json
import math
import random
from pathlib import Path

import pandas as pd
import pytest

from scalebench.analysis.load import frame_of_results
from scalebench.analysis.repeats import pool_results
from scalebench.core.spec import MeasureSpec
from tests.builders import sweeps
from tests.builders.runs import rank, record

GOLDEN = Path(__file__).parents[1] / "golden" / "figures.json"
PLACES = ("path", "fingerprint")  # not figures


def uneven(count, slope=0.0, slow_first=0):
    """Block times with neighbours that resemble each other, a drift, a warm-up, and a block that was interrupted."""
    chance, rows, last = random.Random(f"{count} {slope} {slow_first}"), [], 0.0
    for number in range(count):
        last = 0.6 * last + chance.gauss(0, 0.02)
        rows.append(0.02 * (1 + last + slope * number / count + (0.5 if number < slow_first else 0.0)))
    return [*rows[:-1], 3 * rows[-1]]


def records():
    """Sweeps with repeats, and one of each kind of trouble."""
    strategies = [("bare_torch", 1), *((name, n) for name in ("ddp_gloo", "horovod_gloo") for n in (1, 2, 3))]
    made = [
        sweeps.run(name, gpus, repeat, noise=0.02 * (repeat + 1), blocks=40 + 10 * gpus, minute=7 * gpus)
        for repeat in range(3)
        for name, gpus in strategies
    ]
    series = [uneven(16), uneven(31), uneven(64, 0.2), uneven(100, 0.0, 12), uneven(257, -0.1, 5), uneven(15), []]
    made += [
        record("simulated", 2, ranks=[rank(0, times), rank(1, times[::-1])], run_id=f"blocks-{len(times)}",
               baseline="simulated", independent=independent, repeat=number, measure=MeasureSpec(target=0.01))
        for independent in (False, True)
        for number, times in enumerate(series)
    ]  # fmt: skip
    return [
        *made,
        record("simulated", 1, ranks=[rank(0, uneven(64))], baseline="simulated", run_id="one"),
        sweeps.failed_run(),
    ]


def plain(table):
    """Return the cells that are not null."""
    return [
        {name: value.item() if hasattr(value, "item") else value for name, value in row.items() if not pd.isna(value)}
        for row in table.drop(columns=list(PLACES)).to_dict("records")
    ]


def rows():
    made = records()
    folders = [Path(str(number)) for number in range(len(made))]
    return {"frame": plain(frame_of_results(made, folders)), "pooled": plain(pool_results(made, folders))}


def alike(one, other):
    """Sums of a processor with other vector units end in other digits."""
    floats = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-15) if floats else bool(one == other)


@pytest.mark.parametrize("kind", ["frame", "pooled"])
def test_figures_match_the_golden_file(kind):
    now, before = rows()[kind], json.loads(GOLDEN.read_text(encoding="utf-8"))[kind]
    assert len(now) == len(before) > 10
    for row, expected in zip(now, before, strict=True):
        other = {name: (row.get(name), value) for name, value in expected.items() if not alike(row.get(name), value)}
        assert not other, expected["run_id"]
