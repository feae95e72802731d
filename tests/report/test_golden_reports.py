"""Reports of sweeps made by hand are those of the golden files: each section's sentences, tables and charts.

After a wanted change of words or figures, `python -m tests.report.test_golden_reports` writes the files anew, and
`git diff` shows what changed.
"""

import re
import tempfile
from pathlib import Path

import pytest

from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.markdown import render_document
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import SECTIONS, make_sections
from tests.analysis import test_devices_or_batch as devices_or_batch
from tests.analysis.prediction.test_data_or_model import make_pairs
from tests.analysis.test_pipeline_stages import chain
from tests.analysis.test_pipeline_stages import run as pipeline_run
from tests.builders import sweeps
from tests.builders.sweeps import FULL_STATE_BYTES, out_of_memory, run_with_batch_search, run_with_memory
from tests.report.section_blocks import SCRIPT, block_text
from tests.report.sections.test_batch_size import make_saturating_runs
from tests.report.sections.test_training import make_seeds

GOLDEN = Path(__file__).parents[1] / "golden" / "reports"


def strategies():
    """Two strategies on one to four devices three times, and one of each kind of trouble."""
    runs = [("bare_torch", 1), *((name, gpus) for name in ("ddp_gloo", "horovod_gloo") for gpus in (1, 2, 4))]
    return [
        *(sweeps.run(*each, repeat, minute=n) for repeat in range(3) for n, each in enumerate(runs)),
        sweeps.run("lightning_ddp_gloo", 2, flags=["throttled", "swapping"]),
        sweeps.failed_run(reason="out of luck", log=None),
        sweeps.failed_run("horovod_nccl", status="unsupported", reason="needs GPUs"),
    ]


def trainings():
    return [*make_seeds("bare_torch", 1, [0.1, 0.11, 0.14], 4.0), *make_seeds("ddp_gloo", 2, [0.12, 0.1, 0.3], 2.5)]


def batches():
    return [*make_saturating_runs(100), *make_saturating_runs(1000, gpus=2)]


def more_devices():
    runs = [devices_or_batch.batched(*each, batch) for batch in (10, 20, 40) for each in devices_or_batch.STEP_S]
    aimed = [(1, 20, 6.0), (2, 10, 3.0)]
    return [*runs, *(devices_or_batch.aimed(*each, seed, s + seed) for *each, s in aimed for seed in range(3))]


def memory():
    return [
        run_with_memory("bare_torch", 1, FULL_STATE_BYTES, peak=30_000),
        run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES, peak=31_000),
        run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2),
        run_with_memory("horovod_gloo", 2, None),
        out_of_memory("ddp_gloo", 4),
        *(run_with_batch_search(name, 2, n, 1_500_000_000, None) for name, n in (("ddp_gloo", 400), ("zero1", 1500))),
    ]


def parallelism():
    return [*make_pairs(), pipeline_run(chain(0.006, 0.003)), pipeline_run(chain(0.006, None), run_id="unmeasured")]


# Each with the sections that it is made for.
SWEEPS = {
    strategies: ("answer", "evidence", "scaling", "strategies", "attribution", "step", "usage", "training", "problems"),
    trainings: ("training",),
    batches: ("batch-size",),
    more_devices: ("batch-size",),
    memory: ("usage",),
    parallelism: ("parallelism",),
}


def render(make_runs, folder):
    sweeps.write_results(folder, make_runs())
    report_data = load_report_data([folder])
    sections = [section for section in make_sections(report_data) if section.id in SWEEPS[make_runs]]
    assert {section.id for section in sections} == set(SWEEPS[make_runs])
    return render_document(sections, len(report_data.frame), folder, folder)


@pytest.mark.parametrize("make_runs", SWEEPS)
def test_a_report_reads_as_it_did(make_runs, tmp_path):
    assert render(make_runs, tmp_path) == (GOLDEN / f"{make_runs.__name__}.md").read_text(encoding="utf-8")


SLOW = (batches, memory, trainings)  # others have their sections


@pytest.mark.parametrize(
    "make_runs", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in SWEEPS]
)
def test_names_stay_text_and_ids_are_plain_and_unique(make_runs, tmp_path):
    results = make_runs()
    for result in results:
        result.workload.model = result.scale.hardware = SCRIPT
    # Another group, so that each has its heading.
    sweeps.write_results(tmp_path, [*results, sweeps.run("bare_torch", 1, run_id="another")])
    made = {section.id: section for section in make_sections(load_report_data([tmp_path]))}
    for name in {*SWEEPS[make_runs]} - {"problems"}:  # which names runs by strategy and devices
        assert any(SCRIPT in block_text(block) for block in made[name].blocks), name
    ids = [block.id for section in made.values() for block in section.blocks if isinstance(block, Chart | Table)]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("[a-z0-9-]+", name) for name in ids)


def test_a_section_is_left_out_where_it_has_nothing_to_say(tmp_path):
    def list_sections(*results):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        sweeps.write_results(folder, results)
        return [section.id for section in make_sections(load_report_data([folder]))]

    always = {"strategies", "machines"}
    assert set(list_sections(sweeps.failed_run(flags=["throttled"]))) == {*always, "answer", "problems"}
    one = list_sections(sweeps.run("ddp_gloo", 1))
    assert set(one) == {*always, "answer", "evidence", "usage", "training", "step"}
    assert set(list_sections(*strategies()[:5])) - set(one) == {"scaling", "attribution"}
    assert "training" not in list_sections(sweeps.training_run(status="failed"))


def test_parts_of_a_section_have_headings_and_charts_of_one_device_count_are_left_out(tmp_path):
    """A report has at most 14 sections, whatever was measured."""
    sweeps.write_results(tmp_path, [sweeps.run(name, 2) for name in ("ddp_gloo", "horovod_gloo")])
    made = {section.id: section for section in make_sections(load_report_data([tmp_path]))}
    headings = [block.text for block in made["step"].blocks if isinstance(block, Paragraph) and block.kind == "heading"]
    assert headings == ["Parts of a step, and its operations", "Gradient synchronization"]
    assert not any(isinstance(block, Chart) for block in made["usage"].blocks)
    (stack,) = [block for block in made["step"].blocks if isinstance(block, Chart)]
    assert stack.y.title == "time of a step (ms)" and stack.y.unit == "" and len(SECTIONS) == 14


if __name__ == "__main__":
    for each in SWEEPS:
        with tempfile.TemporaryDirectory() as made:
            (GOLDEN / f"{each.__name__}.md").write_text(render(each, Path(made)), encoding="utf-8")
