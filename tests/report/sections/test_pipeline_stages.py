"""The section on pipeline stages, and the stages of one run in the terminal."""

from pathlib import Path

from scalebench.core.result import write_result
from scalebench.report.document import Paragraph, Table
from scalebench.report.sections import pipeline_stages
from scalebench.report.sections.pipeline_stages import describe_bubble
from scalebench.sweeps.console import Console
from tests.analysis.test_pipeline_stages import chain, run
from tests.builders.runs import record
from tests.report.section_blocks import build_section, get_block, select_blocks


def test_only_some_of_many_runs_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline_stages, "MAX_STAGED_RUNS", 1)
    results = [run(chain(0.006, 0.003), run_id="a"), run(chain(0.006, 0.003, 0.003), run_id="b")]
    section = build_section(pipeline_stages, tmp_path, results)
    assert len(get_block(section, Table).rows) == 2
    assert select_blocks(section, Paragraph)[-1].text == "Shown are 1 of the 2 runs whose model was cut into stages."


def test_without_stages_or_successful_runs_there_is_no_section(tmp_path):
    assert build_section(pipeline_stages, tmp_path / "a", [record()]) is None
    assert build_section(pipeline_stages, tmp_path / "b", [run(chain(0.006, 0.003), status="failed")]) is None


EXPECTED = "20.0 % is expected of 4 micro-batches through 2 equal stages"


def show_details(capsys, *chains):
    """The words of each line of the table and of what stands below it."""
    folder = Path("run")
    folder.mkdir(exist_ok=True)
    write_result(run(*chains), folder)
    console = Console()
    console.rich.width = 120  # so that no head is broken
    console.print_details(folder)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    start = lines.index(["stages", "of", "the", "model"])
    return [line for line in lines[start:] if line]


def test_a_row_for_each_stage(capsys):
    lines = show_details(capsys, chain(0.006, 0.003))
    assert " ".join(lines[1]) == "stage operations parameters sends per step work per step of the work"
    assert " ".join(lines[3]) == "0 dense0 .. relu_0 1.00 kB 4.10 kB 6.00 ms 66.7 %"
    assert " ".join(lines[4]) == "1 dense1 .. relu_1 1.00 kB 3.00 ms 33.3 %", "the last one sends nothing"
    assert lines[5][:3] == ["bubble:", "55.0", "%"]


def test_a_hybrid_strategy_shows_each_replica(capsys):
    lines = show_details(capsys, chain(0.006, 0.003), chain(0.003, 0.003, replica=1))
    assert lines[1][:2] == ["replica", "stage"]
    assert [(line[0], line[1], line[-2]) for line in lines[3:7]] == [
        ("0", "0", "66.7"),
        ("0", "1", "33.3"),
        ("1", "0", "50.0"),
        ("1", "1", "50.0"),
    ]


def test_what_was_not_measured_is_a_dash(capsys):
    lines = show_details(capsys, chain(0.006, None))
    assert lines[3][-3:] == ["6.00", "ms", "-"] and lines[4][-2:] == ["-", "-"]
    assert " ".join(lines[5]) == f"bubble: not measured; {EXPECTED}"


def test_the_measured_bubble_stands_beside_the_expected_one():
    measured = "of the devices' time is no stage's forward or backward"
    assert describe_bubble(run(chain(0.006, 0.006))) == (
        f"bubble: 40.0 % {measured}; {EXPECTED}, 20.0 % of stages as unequal as these"
    )
    assert describe_bubble(run(chain(0.0, 0.006))).endswith(f"{EXPECTED}, 50.0 % of stages as unequal as these")
    assert describe_bubble(run(chain(0.012, 0.01))).startswith(
        f"bubble: -10.0 % {measured}; below 0, since the isolated stages took longer than in training; 20.0 %"
    )
    assert "of 1 micro-batch through 1 equal stage," in describe_bubble(run(chain(0.01, micro_batches=1)))


def test_unequal_replicas_have_no_expected_bubble():
    unlike = run(chain(0.006, 0.003), chain(0.003, 0.003, 0.003, replica=1))
    assert describe_bubble(unlike).endswith("is no stage's forward or backward")
