"""N devices of b samples beside one of N * b, against figures worked out here."""

import math
import statistics
from pathlib import Path

import pytest

from scalebench.analysis.batches import compare_devices_with_batch
from scalebench.analysis.scaling_curves import make_curves
from scalebench.analysis.time_to_target import summarize_trainings
from scalebench.core.stats.estimates import student_t
from scalebench.report.document import Paragraph, Table
from scalebench.report.sections.batches import compare_devices_and_batches
from tests.builders import sweeps
from tests.builders.batch_runs import aimed, batched
from tests.builders.frames import frame_of_results
from tests.report.section_blocks import build_blocks, get_block, select_blocks


def chosen(*results):
    configurations, folders = sweeps.pool(results), [Path(str(number)) for number in range(len(results))]
    curves, outcomes = make_curves(configurations.make_frame()), summarize_trainings(frame_of_results(results, folders))
    return compare_devices_with_batch(curves, configurations.estimate_ratio, outcomes)


def test_different_work_is_not_compared():
    here = batched("ddp_gloo", 2, 10)
    for others in (
        [batched("ddp_gloo", 1, 20, learning_rate=0.5)], [batched("ddp_gloo", 1, 20, optimizer="sgd")],
        [batched("ddp_gloo", 1, 10), batched("horovod_gloo", 1, 20)],
    ):  # fmt: skip
        assert chosen(here, *others) == []
    assert chosen(*(sweeps.run("ddp_gloo", gpus, **sweeps.strong_scaling(20, gpus)) for gpus in (1, 2))) == []
    bare = [batched("bare_torch", 1, 20), batched("ddp_gloo", 1, 20)]
    assert [one.same_strategy for one in chosen(here, *bare)] == [True]  # no row says which bare baseline is its own


def test_the_time_ratio_is_that_of_all_seeds():
    one = [aimed(1, 20, seed, seconds) for seed, seconds in enumerate((6.0, 6.6, 5.4))]
    two = [aimed(2, 10, seed, seconds) for seed, seconds in enumerate((3.03, 3.3, 2.673))]
    (comparison,) = chosen(*one, *two)  # of three seeds: one pair, and not three
    assert comparison.trainings is not None and [part.seeds for part in comparison.trainings] == [3, 3]
    # Paired by seed: 2 / 1.01, 2 and 2 / 0.99, of which what both have in common has cancelled.
    reach = student_t(2, 0.95) * statistics.stdev(math.log(ratio) for ratio in (1.01, 1.0, 0.99)) / math.sqrt(3)
    expected = (2.0, 2 * math.exp(-reach), 2 * math.exp(reach))
    ratio = comparison.time_ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(expected, rel=1e-4)
    for seeds in (1, 2):
        (few,) = chosen(*one[:seeds], *two[:seeds])
        assert few.time_ratio is not None and not few.time_ratio.has_limits
    assert few.time_ratio.value == pytest.approx(2.0, rel=0.02)
    assert chosen(one[0], two[1])[0].time_ratio is None  # no seed of both
    (other,) = chosen(batched("ddp_gloo", 1, 20), two[0])
    assert other.trainings is None and other.time_ratio is None
    missed = [aimed(1, 20, seed, 6.0, reached=seed < 2) for seed in range(3)]
    (comparison,) = chosen(*missed, *two)
    assert comparison.time_ratio is None and [part.reached for part in comparison.trainings] == [3, 2]


def test_one_seed_says_nothing_about_the_time_to_the_target(tmp_path):
    """As with throughput, it takes three; a sentence about it would be one about luck."""
    for seeds, words in ((1, "it takes 3 seeds of both to tell: seed=0,1,2 decides."), (3, "in 0.50 times its time.")):
        pair = [aimed(*each, seed, 6.0 / each[0] + seed / 100) for seed in range(seeds) for each in ((1, 20), (2, 10))]
        made = build_blocks(compare_devices_and_batches, tmp_path / str(seeds), pair)
        assert select_blocks(made, Paragraph)[0].text.endswith(words)
    missed = [aimed(1, 20, 0, 6.0, reached=False), aimed(2, 10, 0, 3.0)]
    blocks = build_blocks(compare_devices_and_batches, tmp_path / "b", missed)
    (row,) = get_block(blocks, Table, "devices-or-batch-choices").rows
    assert [cell.text for cell in row.cells[-3:]] == ["3.00 s", "never", ""]
