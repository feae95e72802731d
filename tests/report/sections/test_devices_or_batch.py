"""More devices or a larger batch in the report: the pairs, and what fewer synchronizations save."""

import pytest

from scalebench.report.document import Paragraph, Table
from scalebench.report.sections import devices_or_batch
from tests.analysis.test_devices_or_batch import aimed, batched
from tests.report.section_blocks import build_section, get_block, select_blocks


def test_an_unresolved_pair_is_reported_as_such(tmp_path):
    pair = [batched("ddp_gloo", *each, None, repeat) for repeat in range(3) for each in ((1, 20), (2, 10))]
    for run in pair:
        for rank in run.ranks:
            rank.block_s = [0.64 * seconds / sum(rank.block_s) for seconds in rank.block_s]
    (answer, *_) = select_blocks(build_section(devices_or_batch, tmp_path, pair), Paragraph)
    assert answer.text.endswith(": no difference in throughput is resolved.")
    (answer, *_) = select_blocks(build_section(devices_or_batch, tmp_path / "one", pair[:2]), Paragraph)
    assert answer.text.endswith(", which is not sure: one repeat, measure.repeats=3 decides.")


def test_times_to_the_target_have_columns_where_there_is_one(tmp_path):
    pair = [aimed(1, 20, seed, 6.0 + seed) for seed in range(3)] + [aimed(2, 10, seed, 3.0 + seed) for seed in range(3)]
    (row,) = get_block(build_section(devices_or_batch, tmp_path / "a", pair), Table, "devices-or-batch-choices").rows
    assert row.cells[-1].value == pytest.approx((6 * 7 * 8 / (3 * 4 * 5)) ** (1 / 3))
    missed = [aimed(1, 20, 0, 6.0, reached=False), aimed(2, 10, 0, 3.0)]
    (row,) = get_block(build_section(devices_or_batch, tmp_path / "b", missed), Table, "devices-or-batch-choices").rows
    assert [cell.text for cell in row.cells[-3:]] == ["3 s", "never", ""]


def test_one_seed_says_nothing_about_the_time_to_the_target(tmp_path):
    """As with throughput, it takes three; a sentence about it would be one about luck."""
    for seeds, words in ((1, "it takes 3 seeds of both to tell: seed=0,1,2 decides."), (3, "in 0.50 times its time.")):
        pair = [aimed(*each, seed, 6.0 / each[0] + seed / 100) for seed in range(seeds) for each in ((1, 20), (2, 10))]
        made = build_section(devices_or_batch, tmp_path / str(seeds), pair)
        assert select_blocks(made, Paragraph)[0].text.endswith(words)
