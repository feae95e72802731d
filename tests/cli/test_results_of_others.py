"""A shared folder in which others wrote: it is read, does nothing to the reader, and gives nothing of his away."""

import csv
import html
import json
import os
import re

import pytest

from scalebench.__main__ import main
from scalebench.analysis.load import load
from scalebench.core.errors import InputError
from scalebench.core.result import write_result
from scalebench.core.run_folder import RESULT_FILE, SPEC_FILE
from scalebench.core.sweep_file import SWEEP_FILE
from tests.builders.runs import record

SECRET = "SECRETAWS123"
HOSTILE = "\x1b]52;c;cm0=\x07 \x9b31m \u202egpj"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def write_run(folder, number, overrides="- strategy=ddp\n", **changes):
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(overrides)
    write_result(record(run_id=f"run {number}", repeat=number, **changes), folder)
    return folder


@pytest.fixture
def shared(tmp_path):
    """Nine good runs, and beside them one of each kind that is not."""
    folder = tmp_path / "shared"
    for number in range(9):
        write_run(folder / str(number), number)
    write_run(folder / "9", 9, '- "note=${oc.env:AWS_SECRET_ACCESS_KEY}"\n', gpus=2)
    write_run(folder / "10", 10, reason=HOSTILE, status="failed", block_s=None, log="../../../../etc/passwd")
    path = write_run(folder / "11", 11) / RESULT_FILE
    path.write_text(path.read_text().replace('"run_id": "', '"run_id": "\\ud800', 1))
    os.mkfifo(folder / SWEEP_FILE)
    (folder / "12").mkdir()
    os.mkfifo(folder / "12" / SPEC_FILE)
    return folder


def run_command(capsys, *words):
    assert main(list(map(str, words))) == 0
    out, err = capsys.readouterr()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", out + err)
    assert SECRET not in out + err
    return out, err.splitlines()


def test_a_table_of_the_good_runs_and_a_line_for_each_bad_one(shared, capsys):
    out, errors = run_command(capsys, "show", shared)
    assert re.search(r"\n\d  ddp +1 +", out) and "intervals: 95 %, over 9 repeats" in out
    assert "<U+202E>gpj" in out
    assert len(errors) == 3
    assert "11: its record holds what no run leaves" in errors[0]
    assert "9/.hydra/overrides.yaml takes values from the environment" in errors[1]
    assert f"no result in {shared / '12'}: still running" in errors[2]
    # Load names the file with half a character.
    with pytest.raises(InputError, match=r"11: its record holds what no run leaves .*surrogates not allowed"):
        load(shared)


def test_a_report_of_the_good_runs_and_a_line_for_each_bad_one(shared, capsys):
    assert run_command(capsys, "report", shared, "--csv")[1] == []
    page, table = ((shared / name).read_text(encoding="utf-8") for name in ("report.html", "report.csv"))
    for content in (page, table):
        assert SECRET not in content and "\x1b" not in content and "\u202e" not in content and "root:x:0" not in content
    for line in ("sweep.json is not a plain file; remove it", "overrides.yaml takes values from the env",
                 "its record holds what no run leaves"):  # fmt: skip
        assert line in html.unescape(page)
    assert html.escape("<U+202E>gpj") in page


def test_an_error_line_does_nothing_to_a_terminal(tmp_path, capsys):
    path = write_run(tmp_path / "0", 0) / RESULT_FILE
    path.write_text(path.read_text().replace('"status": "ok"', f'"status": {json.dumps(HOSTILE)}', 1))
    assert main(["show", str(tmp_path)]) == 2
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", capsys.readouterr().err)


def test_overrides_that_resolve_nowhere_cost_nothing(tmp_path, capsys):
    """Hydra keeps interpolations as they were typed: they are resolved among keys that are not in that file."""
    write_run(tmp_path / "0", 0, "- strategy=ddp\n- measure.warmup_steps=${seed}\n- train.x=${no.such}\n", gpus=2)
    out, errors = run_command(capsys, "show", tmp_path)
    assert "strategy=ddp 'measure.warmup_steps=${seed}' 'train.x=${no.such}' gpus=2" in out and errors == []


@pytest.mark.parametrize("text", ["- [\n", "- ${oc.env:NO_SUCH}\n", "a: &a [*a]\n"])
def test_bad_overrides_are_one_line(text, tmp_path, capsys):
    write_run(tmp_path / "0", 0, text, gpus=2)
    out, (line,) = run_command(capsys, "show", tmp_path)
    assert "scalebench: left out: " in line and "overrides.yaml" in line
    assert "for the missing baselines" not in out


def test_commands_have_no_passwords(tmp_path, capsys):
    write_run(tmp_path / "0", 0, "- hardware.environment.PROXY=http://me:hidden@host\n", gpus=2)
    assert "PROXY=http://***@host" in run_command(capsys, "show", tmp_path)[0]


def test_the_home_folder_is_a_tilde_unless_asked_for(tmp_path, monkeypatch, capsys):
    home = tmp_path / "users" / "ada"
    monkeypatch.setenv("HOME", str(home))
    reason = f"{home}/data is missing, {home}-old, /mnt{home} and {home}."
    sweep = home / "sweep"
    write_run(sweep / "0", 0, f"- strategy=ddp\n- dataset.path={home}/data\n", gpus=2)
    write_run(sweep / "1", 1, status="failed", block_s=None, reason=reason)
    (sweep / "2").mkdir()
    (sweep / "2" / SPEC_FILE).write_text("{}")
    names = ("report.html", "report.csv")
    run_command(capsys, "report", sweep, "--csv")
    for name in names:
        content = (sweep / name).read_text(encoding="utf-8")
        shown = content.replace(f"{home}-old", "").replace(f"/mnt{home}", "")
        assert str(home) not in shown and "~/data is missing" in re.sub(r"[\\`]", "", content), name
    assert "dataset.path=~/data" in (sweep / "report.html").read_text(encoding="utf-8")
    run_command(capsys, "report", sweep, "--csv", "--full-paths")
    assert all(f"{home}/data is missing" in (sweep / name).read_text(encoding="utf-8") for name in names)


def test_a_spreadsheet_takes_no_text_for_a_formula(tmp_path, capsys):
    formulas = ["=cmd|'/C calc'!A0", "+HYPERLINK(1)", "-2+3", "@SUM(1)", "\t=1", " =1", "\uff1d1", "plain - text"]
    for number, text in enumerate(formulas):
        write_run(tmp_path / str(number), number, status="failed", block_s=None, reason=text)
    run_command(capsys, "report", tmp_path, "--csv")
    with (tmp_path / "report.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["reason"] for row in rows] == [f"'{text}" for text in formulas[:-1]] + formulas[-1:]
    assert all(row["gpus"] == "1" for row in rows)


@pytest.mark.parametrize("accumulate", [6.4e-259, 2.5])
def test_load_names_the_file_with_a_part_of_a_count(tmp_path, accumulate):
    result = record("ddp", 2)
    result.spec["train"] = {**result.spec.get("train", {}), "accumulate": accumulate}
    (tmp_path / "0").mkdir()
    write_result(result, tmp_path / "0")
    with pytest.raises(InputError, match=r"0: its record holds what no run leaves .*accumulate is "):
        load(tmp_path)
