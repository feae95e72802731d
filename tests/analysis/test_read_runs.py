"""Reading folders of results: readable files become rows, each of the others is listed with a reason."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalebench.analysis import load as frames
from scalebench.analysis import read_runs
from scalebench.analysis.load import Survey, load, survey
from scalebench.analysis.read_runs import find_results, summarize_files, summarize_readable
from scalebench.analysis.repeats import pooled
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_json
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from tests.builders import sweeps
from tests.builders.runs import rank, record

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    sweeps.sweep(tmp_path / "sweep", ("bare_torch", "ddp_gloo"), (1, 2))
    return tmp_path / "sweep"


def changed(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tree = read_json(file)
    change(tree)
    file.write_text(json.dumps(tree))


def spoil(file: Path, how: str) -> None:
    """Make a good result.json one that cannot be read."""
    text = file.read_text()
    if how in ("loop", "dangling", "folder", "pipe"):
        file.unlink()
    if how == "half written":
        file.write_text(text[: len(text) // 2])
    elif how == "empty":
        file.write_text("")
    elif how == "no text":
        file.write_bytes(b"\xff\xfe" + os.urandom(100))
    elif how == "deep":
        file.write_text("[" * 200_000)
    elif how == "later schema":
        changed(file, lambda tree: tree.update(schema_version=99))
    elif how == "wrong type":
        changed(file, lambda tree: tree["ranks"][0]["block_s"].append("fast"))
    elif how == "infinite":
        file.write_text(text.replace('"block_s": [\n', '"block_s": [\n1e999,', 1))
    elif how == "huge":
        file.write_text(text.replace('"block_s": [\n', f'"block_s": [\n1{"0" * 400},', 1))
    elif how == "foreign spec":
        changed(file, lambda tree: tree.update(spec={"hardware": [], "measure": {"target": 0.1}}))
    elif how == "no devices":
        changed(file, lambda tree: tree["scale"].update(gpus=0))
    elif how == "large count":
        changed(file, lambda tree: tree["workload"].update(model_params=10**30))
    elif how == "no text in a text":
        changed(file, lambda tree: tree["spec"]["hardware"].update(bind=["numa"]))
    elif how == "too fast":
        changed(file, lambda tree: [rank.update(block_s=[1e-310], block_samples=[10]) for rank in tree["ranks"]])
    elif how == "loop":
        file.symlink_to(file)
    elif how == "dangling":
        file.symlink_to(file.with_name("nowhere"))
    elif how == "folder":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)


REASONS = {
    "half written": "is no whole JSON file",
    "empty": "is no whole JSON file",
    "no text": "is no whole JSON file",
    "deep": "is no whole JSON file",
    "later schema": "has schema version 99, this scalebench reads 2; update scalebench",
    "wrong type": "ranks[0].block_s[32] should be float, not str",
    "infinite": "holds what no run leaves",
    "huge": "ranks[0].block_s[0] is too large a number",
    "foreign spec": "holds what no run leaves",
    "no devices": "(ValueError: 0 devices)",
    "large count": "model_params is 1000",
    "no text in a text": "bind is ['numa']",
    "too fast": "(ValueError: inf samples/s)",
    "loop": "Too many levels of symbolic links",
    "dangling": "No such file or directory",
    "folder": "Is a directory",
    "pipe": "is no plain file",
}


@pytest.mark.parametrize("how", REASONS)
def test_an_unreadable_file_is_listed_and_left_out(how: str, sweep: Path) -> None:
    bad = sweep / "1" / RESULT_FILE
    before = survey(sweep)
    spoil(bad, how)
    surveyed = survey(sweep)
    ((path, line),) = surveyed.unreadable
    assert path == bad and REASONS[how] in line and str(bad.parent) in line and "\n" not in line
    assert list(surveyed.frame["run_id"]) == [name for name in before.frame["run_id"] if name != "ddp_gloo-1-0"]
    assert len(surveyed.pooled) == len(before.pooled) - 1 == 2
    for strict in (load, pooled):  # these are for figures that are gone on with
        with pytest.raises(InputError) as caught:
            strict(sweep)
        assert str(caught.value) == line


def test_all_unreadable_files_are_listed(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, ("ddp_gloo",), range(1, len(REASONS) + 2))
    files = find_results([tmp_path])
    for file, how in zip(files, REASONS, strict=False):
        spoil(file, how)
    surveyed = survey([tmp_path])
    assert [path for path, _ in surveyed.unreadable] == files[:-1] and len(surveyed.frame) == 1
    for (_, line), reason in zip(surveyed.unreadable, REASONS.values(), strict=True):
        assert reason in line


def test_no_readable_file_is_an_input_error(sweep: Path, tmp_path: Path) -> None:
    for file in find_results([sweep]):
        spoil(file, "empty")
    with pytest.raises(InputError, match=r"^not one of 3 files of results can be read; the first: .*0/result\.json"):
        survey(sweep)
    with pytest.raises(InputError, match=r"^\S*1/result\.json "):
        survey(sweep / "1")
    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "missing"):
        with pytest.raises(InputError, match=rf"^no result\.json at or below .*{nothing}; give the folder of a run"):
            survey(tmp_path / nothing)


def test_a_survey_has_the_frames_of_load_and_pooled(sweep: Path) -> None:
    surveyed = survey(sweep)
    assert (
        isinstance(surveyed, Survey)
        and surveyed.unreadable == []
        and surveyed.baseline_label is None
        and surveyed.probe_folders == []
    )
    assert surveyed.frame.equals(load(sweep)) and surveyed.pooled.equals(pooled(sweep))
    files = find_results([sweep])
    folders = [file.parent for file in files]
    assert frames.frame_of_results(map(read_result, files), folders).equals(surveyed.frame)


@pytest.mark.parametrize("only", [sweeps.failed_run(), sweeps.run("ddp_gloo", 2)])
def test_one_row_is_a_survey(only: Any, tmp_path: Path) -> None:
    sweeps.write_results(tmp_path, [only])
    surveyed = survey(tmp_path)
    assert len(surveyed.frame) == len(surveyed.pooled) == 1 and surveyed.frame["speedup_bare"].isna().all()


def test_hostile_text_of_a_record_is_kept(tmp_path: Path) -> None:
    sweeps.write_results(tmp_path, [sweeps.failed_run(reason=HOSTILE)])
    assert survey(tmp_path).pooled["reason"].tolist() == [HOSTILE]


@pytest.fixture
def closed(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that must not be listed, also where root runs the tests."""
    listed = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path) == sweep / "1":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return sweep / "1"


def test_a_folder_without_permission_is_listed_as_unreadable(closed: Path, sweep: Path) -> None:
    line = f"{closed}: Permission denied"
    surveyed = survey(sweep)
    assert surveyed.unreadable == [(closed, line)] and len(surveyed.frame) == 2
    for strict in (find_results, figures_of_all):
        with pytest.raises(InputError) as caught:
            strict([sweep])
        assert str(caught.value) == line
    with pytest.raises(InputError, match="Permission denied"):
        survey(closed)


def figures_of_all(paths: list[Path]) -> Any:
    return load(paths)


def test_a_file_without_permission_is_listed_as_unreadable(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == sweep / "1" / RESULT_FILE:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert [line for _, line in survey(sweep).unreadable] == [f"{sweep / '1' / RESULT_FILE}: Permission denied"]


def test_circular_links_are_not_followed(sweep: Path) -> None:
    (sweep / "again").symlink_to(sweep)
    (sweep / "1" / "up").symlink_to("..")
    assert len(find_results([sweep])) == 3
    assert len(find_results([sweep, sweep / "again", sweep / "again" / "1"])) == 3, "each run once, by whatever name"


def test_files_are_read_in_order_and_the_first_error_is_raised(sweep: Path) -> None:
    files = find_results([sweep])
    assert [run.cells["path"] for run in summarize_files(files)] == [str(file.parent) for file in files]
    for number in (2, 1):
        spoil(files[number], "empty")
    with pytest.raises(InputError, match=r"1/result\.json"):
        summarize_files(files)
    unreadable: list[tuple[Path, str]] = []
    assert len(summarize_readable(files, unreadable)) == 1 and [path for path, _ in unreadable] == files[1:]


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that two processes read, since few are enough for them here; the fourth is damaged."""
    wild = record(gpus=2, ranks=[rank(k, [0.01] * 31 + [50.0]) for k in range(2)])  # its interval has no upper limit
    sweeps.write_results(
        tmp_path, [sweeps.run("ddp_gloo", 2), sweeps.failed_run(), wild, record(), record(block_s=None), record()]
    )
    (tmp_path / "3" / RESULT_FILE).write_text("{")
    monkeypatch.setattr(read_runs, "usable_cpus", lambda: [0, 1])
    monkeypatch.setattr(read_runs, "MIN_FILES_PER_PROCESS", 3)
    monkeypatch.setattr(read_runs, "FILES_PER_TASK", 2)
    return find_results([tmp_path])


def processes_of(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> tuple[set[int], list[Any]]:
    """The processes that read the files, and what came of each."""
    seen, read = files[0].parents[1] / "processes", read_result

    def noted(file: Path) -> Any:
        with seen.open("a") as stream:
            stream.write(f"{os.getpid()}\n")
        return read(file)

    seen.write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(read_runs, "read_result", noted)
        answers = list(read_runs._summarize_all(files))
    return {int(pid) for pid in seen.read_text().split()}, answers


def test_several_processes_give_the_summaries_of_one(many: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pids, answers = processes_of(many, monkeypatch)
    assert answers == [read_runs._summarize_file(file) for file in many] and os.getpid() not in pids
    assert [isinstance(answer, str) for answer in answers].index(True) == 3
    pids, few = processes_of(many[:5], monkeypatch)
    assert few == answers[:5] and pids == {os.getpid()}, "so few are read at once"


def test_the_parent_reads_the_rest_if_a_process_is_killed(many: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, here, read = [read_runs._summarize_file(file) for file in many], os.getpid(), read_result

    def killed(file: Path) -> Any:
        if file == many[4] and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(file)

    monkeypatch.setattr(read_runs, "read_result", killed)
    assert list(read_runs._summarize_all(many)) == expected
