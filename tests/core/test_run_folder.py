"""The names of the files of a run, and what is removed when."""

from __future__ import annotations

import os
from pathlib import Path

from scalebench.core import run_folder

KEPT = ("spec.json", "result.json", "job.json", "job.log", "report.html")
OUTPUT = ("rank0.json", "rank11.log", "monitor.parquet", "monitor1.parquet", "trace0.json.gz", "plugin.log", "srun.log")
TRANSIENT = ("progress0.json", "pid0.json", "exit0.json", "machine1.json", "by_hand.json", "stop.json")


def fill(folder: Path) -> list[str]:
    for name in (*KEPT, *OUTPUT, *TRANSIENT):
        (folder / name).touch()
    for name in ("try_8", "try_8_again", "try_me"):
        (folder / name).mkdir()
        (folder / name / "progress0.json").touch()
    return sorted(os.listdir(folder))


def test_transient_files_are_removed_also_in_tries(tmp_path: Path) -> None:
    before = fill(tmp_path)
    run_folder.remove_transient_files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(set(before) - set(TRANSIENT))
    assert {path.parent.name for path in tmp_path.glob("*/progress0.json")} == {"try_me"}


def test_leftovers_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    fill(tmp_path)
    run_folder.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted((*KEPT, "try_me"))


def test_names_by_rank_node_and_batch(tmp_path: Path) -> None:
    nodes = [run_folder.monitor_path(tmp_path, node).name for node in (0, 1)]
    tries = [run_folder.try_folder(tmp_path, 8, more_memory).name for more_memory in (False, True)]
    assert (nodes, tries) == (["monitor.parquet", "monitor1.parquet"], ["try_8", "try_8_again"])
    for rank in (10, 2):
        (tmp_path / run_folder.rank_trace_name(rank)).touch()
    (tmp_path / run_folder.MERGED_TRACE_FILE).touch()
    assert list(run_folder.rank_traces(tmp_path)) == [2, 10]
