"""Reports of sweeps made by hand are those of the golden files: each section's sentences, tables and charts.

After a wanted change of words or figures, `python -m tests.report.test_golden_reports` writes the files anew, and
`git diff` shows what changed.
"""

import dataclasses
import json
import re
import tempfile
from pathlib import Path

import pytest

from scalebench.report.document import Chart, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import make_sections
from tests.builders import report_sweeps, sweeps
from tests.builders.report_sweeps import SCRIPT, SWEEPS

GOLDEN = Path(__file__).parents[1] / "golden" / "reports"
STUDIES = re.compile("published-(keras-multi-gpu|parallel-strategies|thesis)")  # tables of all rows of a study
EMPTY = ("", (), [], {}, None)


def is_study(block):
    return isinstance(block, Table) and STUDIES.fullmatch(block.id)


def list_lines(sections):
    """Return a line for each section, block, row and series, as JSON."""
    lines = []
    for section in sections:
        lines.append({"section": section.title})
        for block in section.blocks:
            parts = getattr(block, "rows", None) or getattr(block, "series", ())
            names = {"rows", "series"} & vars(block).keys()
            head = dataclasses.replace(block, **dict.fromkeys(names, ()))
            lines += [{type(block).__name__.lower(): head}, *parts]
    return [json.dumps(simplify(each), ensure_ascii=False) for each in lines]


def simplify(part):
    """Return plain values: figures with six digits, and no field that is empty or as it is by default."""
    if dataclasses.is_dataclass(part):
        fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
        return simplify({name: value for name, value in fields.items() if value is not False and value not in EMPTY})
    if isinstance(part, dict):
        return {name: simplify(value) for name, value in part.items()}
    if isinstance(part, frozenset):
        return sorted(part)
    if isinstance(part, list | tuple):
        return [simplify(each) for each in part]
    return float(f"{part:.6g}") if isinstance(part, float) else part


def render(make_runs, folder):
    sweeps.write_results(folder, make_runs())
    if make_runs in report_sweeps.WRITERS:
        report_sweeps.WRITERS[make_runs](folder)
    for name, text in report_sweeps.FILES.get(make_runs, {}).items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in report_sweeps.LIMITS.get(make_runs, {}).items():
            patch.setattr(f"scalebench.report.{name}", value)
        report_data = load_report_data([folder], **report_sweeps.OPTIONS.get(make_runs, {}))
        sections = [
            dataclasses.replace(section, blocks=[each for each in section.blocks if not is_study(each)])
            for section in make_sections(report_data) if section.id in SWEEPS[make_runs]
        ]  # fmt: skip
    assert {section.id for section in sections} == set(SWEEPS[make_runs]), make_runs
    return "\n".join([*list_lines(sections), ""]).replace(str(folder), "FOLDER")


@pytest.mark.parametrize("make_runs", SWEEPS)
def test_a_report_reads_as_it_did(make_runs, tmp_path):
    assert render(make_runs, tmp_path) == (GOLDEN / f"{make_runs.__name__}.jsonl").read_text(encoding="utf-8")


SLOW = (report_sweeps.batches, report_sweeps.memory, report_sweeps.trainings)  # others have their sections


@pytest.mark.parametrize(
    "make_runs", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in [*SWEEPS][:6]]
)
def test_names_stay_text_and_ids_are_plain_and_unique(make_runs, tmp_path):
    results = make_runs()
    for result in results:
        result.workload.model = result.scale.hardware = SCRIPT
    # Another group, so that each has its heading.
    sweeps.write_results(tmp_path, [*results, sweeps.run("bare_torch", 1, run_id="another")])
    made = {section.id: section for section in make_sections(load_report_data([tmp_path]))}
    for name in {*SWEEPS[make_runs]} - {"problems", "batch-size", "stages"}:  # which name runs by strategy and devices
        assert SCRIPT in str(made[name].blocks), name
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
    assert set(list_sections(*report_sweeps.strategies()[:5])) - set(one) == {"scaling", "attribution"}
    assert "training" not in list_sections(sweeps.training_run(status="failed"))


if __name__ == "__main__":
    for each in SWEEPS:
        with tempfile.TemporaryDirectory() as made:
            (GOLDEN / f"{each.__name__}.jsonl").write_text(render(each, Path(made)), encoding="utf-8")
