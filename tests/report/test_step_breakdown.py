"""The parts of a step: fixed probes give the expected figures, and missing ones have a reason."""

import pytest

from scalebench.analysis import step_breakdown as probed
from scalebench.core.stats.estimates import Estimate
from scalebench.report.document import Paragraph
from scalebench.report.sections import operations, steps
from scalebench.report.sections.steps import STEP_PARTS, step_interval
from tests.builders.sweeps import make_probed_run, run
from tests.report.section_blocks import build_section


def test_the_interval_of_a_step_is_that_of_throughput():
    result = make_probed_run(None, None)
    step = step_interval(result)
    assert [step.low, step.value, step.high] == pytest.approx([0.009943, 0.01, 0.010057], rel=1e-4)
    result.scale.independent = True
    assert step_interval(result) == Estimate(step.value, step.value, step.value)


def test_every_part_of_the_frame_has_a_row():
    others = (*steps.SYNC_PARTS, *steps.OTHER_FIGURES)
    columns = [part.column for part in (*STEP_PARTS, *others)]
    assert sorted(columns) == sorted(probed.SERIES_OF_COLUMN)


def test_without_probes_there_is_a_sentence(tmp_path):
    result = run("ddp_gloo", 2)
    for rank in result.ranks:
        rank.probes = None
    sentence, *_ = build_section(operations, tmp_path, [result]).blocks
    assert isinstance(sentence, Paragraph) and "measure.probes" in sentence.text
