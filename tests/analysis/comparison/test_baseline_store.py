"""Baselines by machine: whole or not at all, and none for another kind of machine."""

import os
from pathlib import Path

import pytest

from scalebench.analysis.comparison import baseline_store
from scalebench.analysis.comparison.baseline_store import (
    explain_missing_baseline,
    find_baseline_folders,
    list_saved_baselines,
    save_baseline,
    store_folder,
)
from scalebench.analysis.comparison.pairing import load_compared_runs
from scalebench.core.errors import InputError
from scalebench.core.machine.gpus import Gpu
from scalebench.core.machine.machine import classify_machine
from scalebench.core.result import write_result
from tests.builders.comparisons import machine_settings, write_folder
from tests.builders.runs import MACHINE, record

GPU = Gpu(0, "Tesla K80", "GPU-1", 2**33, 875, 2505, 149.0, 0, None)
GIB = 2**30


def kind(**changes):
    return classify_machine(machine_settings(**changes)["machine"])


@pytest.mark.parametrize(
    "changes",
    [
        {"hostname": "x"},
        {"versions": {"torch": "3"}},
        {"driver_version": "1"},
        {"memory_bytes": 2**33 - 400 * 2**20},
        {"kernel": "7"},
        {"cpu_quota": 4.0},
    ],
)
def test_the_same_kind_of_machine(changes):
    assert kind(**changes).fingerprint == kind().fingerprint


@pytest.mark.parametrize("changes", [{"cpu_model": "x"}, {"cpus": 4}, {"cpu_quota": 1.5}, {"memory_bytes": 2**34},
                                     {"gpus": [GPU]}, {"cpu_model": None}, {"memory_bytes": None}])  # fmt: skip
def test_another_kind_of_machine(changes):
    assert kind(**changes).fingerprint != kind().fingerprint


def test_the_number_of_gpus_counts_and_their_ids_do_not():
    other = Gpu(1, "Tesla K80", "GPU-2", 2**33, 875, 2505, 100.0, 0, None)
    assert kind(gpus=[GPU]).fingerprint == kind(gpus=[other]).fingerprint != kind(gpus=[GPU, other]).fingerprint


@pytest.mark.parametrize(("size", "gib"), [(15.6 * GIB, 16), (16.0 * GIB, 16), (7.7 * GIB, 8), (24.2 * GIB, 24),
                                           (94 * GIB, 96), (0.5 * GIB, 0.5), (0, None), (None, None)])  # fmt: skip
def test_memory_is_rounded(size, gib):
    assert kind(memory_bytes=None if size is None else int(size)).memory_gib == gib


def test_a_kind_in_words():
    assert str(kind(gpus=[GPU, GPU])) == "cpu a processor, 2 cores, about 8 GiB, 2 x Tesla K80"
    assert str(kind(cpu_model=None, memory_bytes=None)) == "cpu unknown, 2 cores, unknown memory, no GPU"


def test_saved_records_come_back_as_they_were():
    write_folder("a", [0.1, 0.2])
    (saved,) = save_baseline("main", ["a", "a/0"])
    target = saved.folder
    assert (saved.runs, saved.sessions, target) == (2, 1, Path(f".scalebench/baselines/{kind().fingerprint}/main"))
    assert saved.kind == kind()
    assert (target / "0" / "result.json").read_bytes() == Path("a/0/result.json").read_bytes()
    assert [one.run_id for one in load_compared_runs(find_baseline_folders("main", [kind()]))] == [
        "a-ddp-1-0",
        "a-ddp-1-1",
    ]
    assert find_baseline_folders("main", [kind(cpus=4)]) == find_baseline_folders("other", [kind()]) == []
    assert list_saved_baselines() == [(kind(), ["main"])]


def test_each_machine_has_its_own():
    write_folder("a", [0.1])
    write_folder("a", [0.1], gpus=2, **machine_settings(cpus=4))
    actual = save_baseline("main", ["a"])
    assert {one.kind.fingerprint for one in actual} == {kind().fingerprint, kind(cpus=4).fingerprint}
    assert len(find_baseline_folders("main", [kind(), kind(cpus=4)])) == 2


def saved_ids(name="main"):
    return [one.run_id for one in load_compared_runs(find_baseline_folders(name, [kind()]))]


def test_a_save_adds_a_session_and_replaces_only_on_request():
    write_folder("a", [0.1, 0.2])
    write_folder("b", [0.3], day=2)
    assert [(one.runs, one.sessions) for one in save_baseline("main", ["a"])] == [(2, 1)]
    assert [(one.runs, one.sessions) for one in save_baseline("main", ["b"])] == [(3, 2)]
    assert [(one.runs, one.sessions) for one in save_baseline("main", ["a"])] == [(3, 2)], "the same runs"
    assert saved_ids() == ["a-ddp-1-0", "a-ddp-1-1", "b-ddp-1-0-2"]
    assert [(one.runs, one.sessions) for one in save_baseline("main", ["b"], replace=True)] == [(1, 1)]
    assert saved_ids() == ["b-ddp-1-0-2"]
    assert sorted(path.name for path in (store_folder() / kind().fingerprint).iterdir()) == ["machine.json", "main"]


def test_the_last_ten_sessions_are_kept():
    for day in range(1, 13):
        write_folder(str(day), [0.1, 0.1], side="a", day=day)
        (saved,) = save_baseline("main", [str(day)])
    assert (saved.runs, saved.sessions) == (20, 10)
    assert saved_ids() == [f"a-ddp-1-{repeat}-{day}" for day in range(3, 13) for repeat in (0, 1)]
    write_folder("again", [0.1], side="c", day=12)
    assert [(one.runs, one.sessions) for one in save_baseline("main", ["again"])] == [(21, 10)], "of the last session"


def test_a_baseline_is_whole_or_not_there(monkeypatch):
    write_folder("a", [0.1, 0.2])
    save_baseline("main", ["a"])
    before = (find_baseline_folders("main", [kind()])[0] / "0" / "result.json").read_bytes()
    write_folder("b", [0.3, 0.4])
    real = baseline_store.shutil.copyfile

    def full(source, target):
        if "/1/" in str(target):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(baseline_store.shutil, "copyfile", full)
    with pytest.raises(InputError, match="No space left on device; set SCALEBENCH_BASELINES"):
        save_baseline("main", ["b"], replace=True)
    assert (find_baseline_folders("main", [kind()])[0] / "0" / "result.json").read_bytes() == before
    assert sorted(path.name for path in (store_folder() / kind().fingerprint).iterdir()) == ["machine.json", "main"]


def test_the_old_one_stays_where_the_new_one_cannot_take_its_place(monkeypatch):
    write_folder("a", [0.1])
    save_baseline("main", ["a"])
    real = os.rename

    def stuck(source, target):
        if source.name.endswith(".new"):
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(baseline_store.os, "rename", stuck)
    with pytest.raises(InputError, match="Input/output error"):
        save_baseline("main", ["a"], replace=True)
    assert len(load_compared_runs(find_baseline_folders("main", [kind()]))) == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/etc", ".hidden", "a b", "a\n", "x" * 65, "é"])
def test_names_that_are_no_plain_folder(name):
    write_folder("a", [0.1])
    for call in (lambda: save_baseline(name, ["a"]), lambda: find_baseline_folders(name, [kind()])):
        with pytest.raises(InputError, match=r"^baseline name "):
            call()
    assert not store_folder().exists()


def test_nothing_that_went_well_is_no_baseline():
    Path("a/0").mkdir(parents=True)
    write_result(record(status="failed", block_s=None), Path("a/0"))
    with pytest.raises(InputError, match=r"^no run of a went well"):
        save_baseline("main", ["a"])


def test_what_a_killed_save_left_is_no_baseline():
    write_folder("a", [0.1])
    (saved,) = save_baseline("main", ["a"])
    target = saved.folder
    (target.parent / ".other.123.new" / "0").mkdir(parents=True)
    assert [names for _, names in list_saved_baselines()] == [["main"]]


def test_a_run_id_names_no_file():
    write_folder("a", [0.1], run_id="../../../escaped")
    (saved,) = save_baseline("main", ["a"])
    target = saved.folder
    assert [path.name for path in target.iterdir()] == ["0"]


def test_the_store_can_be_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALEBENCH_BASELINES", str(tmp_path / "there"))
    write_folder("a", [0.1])
    save_baseline("main", ["a"])
    assert (tmp_path / "there" / kind().fingerprint / "main").is_dir() and not Path(".scalebench").exists()


def test_a_store_that_is_a_file():
    write_folder("a", [0.1])
    Path(".scalebench").write_text("")
    with pytest.raises(InputError, match="set SCALEBENCH_BASELINES to a folder that can be written"):
        save_baseline("main", ["a"])
    assert list_saved_baselines() == [] and find_baseline_folders("main", [kind()]) == []


def test_what_there_is_instead():
    assert explain_missing_baseline("main", [kind()]) == (
        "no baseline 'main' in .scalebench/baselines (cpu a processor, 2 cores, about 8 GiB, no GPU); saved names: none"
    )
    write_folder("a", [0.1], **machine_settings(cpus=4))
    save_baseline("main", ["a"])
    assert explain_missing_baseline("main", [kind(), kind()]) == (
        "no baseline 'main' for this machine (cpu a processor, 2 cores, about 8 GiB, no GPU); "
        "saved ones are for cpu a processor, 4 cores, about 8 GiB, no GPU"
    )
    assert explain_missing_baseline("other", [kind()]).endswith("saved names: main")


def test_a_machine_file_that_is_broken_is_passed_over():
    write_folder("a", [0.1])
    save_baseline("main", ["a"])
    (store_folder() / kind().fingerprint / "machine.json").write_text("{")
    assert list_saved_baselines() == [] and len(find_baseline_folders("main", [kind()])) == 1
    assert MACHINE.cpus == 2
