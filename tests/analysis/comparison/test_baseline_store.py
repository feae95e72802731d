"""Baselines by machine: whole or not at all, and none for another kind of machine."""

import os
from pathlib import Path

import pytest

from scalebench.analysis.comparison import baseline_store
from scalebench.analysis.comparison.rows import load_compared_runs
from scalebench.core.errors import InputError
from scalebench.core.machine.gpus import Gpu
from scalebench.core.machine.machine import classify_machine
from scalebench.core.result import write_result
from tests.builders.comparisons import machine_settings, write_folder
from tests.builders.runs import record

GPU, OTHER_GPU = (Gpu(n, "Tesla K80", f"GPU-{n}", 2**33, 875, 2505, 149.0 + n, 0, None) for n in range(2))


def kind(**changes):
    return classify_machine(machine_settings(**changes)["machine"])


def save(folder, **options):
    """Save a folder as `main`, and return its numbers of runs and sessions."""
    (saved,) = baseline_store.save_baseline("main", [folder], **options)
    return saved.runs, saved.sessions


def saved_ids():
    return [one.run_id for one in load_compared_runs(baseline_store.find_baseline_folders("main", [kind()]))]


def saved_names():
    return sorted(path.name for path in (baseline_store.store_folder() / kind().fingerprint).iterdir())


@pytest.mark.parametrize(("changes", "is_same"), [
    ({"hostname": "x"}, True), ({"versions": {"torch": "3"}}, True), ({"driver_version": "1"}, True),
    ({"memory_bytes": 2**33 - 400 * 2**20}, True), ({"kernel": "7"}, True), ({"cpu_quota": 4.0}, True),
    ({"cpu_model": "x"}, False), ({"cpus": 4}, False), ({"cpu_quota": 1.5}, False), ({"memory_bytes": 2**34}, False),
    ({"gpus": [GPU]}, False), ({"cpu_model": None}, False), ({"memory_bytes": None}, False),
])  # fmt: skip
def test_what_makes_another_kind_of_machine(changes, is_same):
    assert (kind(**changes).fingerprint == kind().fingerprint) == is_same


def test_a_kind_has_numbers_of_gpus_without_ids_and_rounded_memory():
    one, other, both = (kind(gpus=gpus) for gpus in ([GPU], [OTHER_GPU], [GPU, OTHER_GPU]))
    assert one.fingerprint == other.fingerprint != both.fingerprint
    assert str(both) == "cpu a processor, 2 cores, about 8 GiB, 2 x Tesla K80"
    assert str(kind(cpu_model=None, memory_bytes=None)) == "cpu unknown, 2 cores, unknown memory, no GPU"
    for size, gib in ((15.6, 16), (16.0, 16), (7.7, 8), (24.2, 24), (94, 96), (0.5, 0.5), (0, None)):
        assert kind(memory_bytes=int(size * 2**30)).memory_gib == gib


def test_saved_records_come_back_as_they_were():
    write_folder("a", [0.1, 0.2])
    (saved,) = baseline_store.save_baseline("main", ["a", "a/0"])
    folder = Path(f".scalebench/baselines/{kind().fingerprint}/main")
    assert (saved.runs, saved.sessions, saved.folder, saved.kind) == (2, 1, folder, kind())
    assert (folder / "0" / "result.json").read_bytes() == Path("a/0/result.json").read_bytes()
    assert saved_ids() == ["a-ddp-1-0", "a-ddp-1-1"]
    assert (
        baseline_store.find_baseline_folders("main", [kind(cpus=4)])
        == baseline_store.find_baseline_folders("other", [kind()])
        == []
    )
    (folder.parent / ".other.123.new" / "0").mkdir(parents=True)  # what a killed save left
    assert baseline_store.list_saved_baselines() == [(kind(), ["main"])]


def test_each_machine_has_its_own():
    write_folder("a", [0.1])
    write_folder("a", [0.1], gpus=2, **machine_settings(cpus=4))
    assert {one.kind.fingerprint for one in baseline_store.save_baseline("main", ["a"])} == {
        kind().fingerprint, kind(cpus=4).fingerprint
    }  # fmt: skip
    assert len(baseline_store.find_baseline_folders("main", [kind(), kind(cpus=4)])) == 2


def test_a_save_adds_a_session_and_replaces_only_on_request():
    write_folder("a", [0.1, 0.2])
    write_folder("b", [0.3], day=2)
    assert (save("a"), save("b"), save("a")) == ((2, 1), (3, 2), (3, 2)), "the same runs count once"
    assert saved_ids() == ["a-ddp-1-0", "a-ddp-1-1", "b-ddp-1-0-2"]
    assert save("b", replace=True) == (1, 1)
    assert saved_ids() == ["b-ddp-1-0-2"] and saved_names() == ["machine.json", "main"]


def test_the_last_ten_sessions_are_kept():
    for day in range(1, 13):
        write_folder(str(day), [0.1, 0.1], side="a", day=day)
        last = save(str(day))
    assert last == (20, 10)
    assert saved_ids() == [f"a-ddp-1-{repeat}-{day}" for day in range(3, 13) for repeat in (0, 1)]
    write_folder("again", [0.1], side="c", day=12)
    assert save("again") == (21, 10), "of the last session"


@pytest.mark.parametrize("call", ["copyfile", "rename"])
def test_where_the_new_one_cannot_take_its_place_the_old_one_stays(monkeypatch, call):
    write_folder("a", [0.1, 0.2])
    save("a")
    before = (baseline_store.find_baseline_folders("main", [kind()])[0] / "0" / "result.json").read_bytes()
    write_folder("b", [0.3, 0.4])
    module, fails_at = (baseline_store.shutil, "/1/") if call == "copyfile" else (os, ".new")
    real = getattr(module, call)

    def fail(source, target):
        if fails_at in str(target if call == "copyfile" else source):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(module, call, fail)
    with pytest.raises(InputError, match="No space left on device; set SCALEBENCH_BASELINES"):
        save("b", replace=True)
    assert (baseline_store.find_baseline_folders("main", [kind()])[0] / "0" / "result.json").read_bytes() == before
    assert len(saved_ids()) == 2 and saved_names() == ["machine.json", "main"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/etc", ".hidden", "a b", "a\n", "x" * 65, "é"])
def test_names_that_are_no_plain_folder(name):
    write_folder("a", [0.1])
    for call in (
        lambda: baseline_store.save_baseline(name, ["a"]),
        lambda: baseline_store.find_baseline_folders(name, [kind()]),
    ):
        with pytest.raises(InputError, match=r"^baseline name "):
            call()
    assert not baseline_store.store_folder().exists()


def test_what_is_no_baseline_and_names_no_file():
    Path("failed/0").mkdir(parents=True)
    write_result(record(status="failed", block_s=None), Path("failed/0"))
    with pytest.raises(InputError, match=r"^no run of failed went well"):
        save("failed")
    write_folder("a", [0.1], run_id="../../../escaped")
    (saved,) = baseline_store.save_baseline("main", ["a"])
    assert [path.name for path in saved.folder.iterdir()] == ["0"]


def test_the_store_can_be_elsewhere_and_no_file(tmp_path, monkeypatch):
    write_folder("a", [0.1])
    Path(".scalebench").write_text("")
    with pytest.raises(InputError, match="set SCALEBENCH_BASELINES to a folder that can be written"):
        save("a")
    assert baseline_store.list_saved_baselines() == [] and baseline_store.find_baseline_folders("main", [kind()]) == []
    monkeypatch.setenv("SCALEBENCH_BASELINES", str(tmp_path / "there"))
    save("a")
    assert (tmp_path / "there" / kind().fingerprint / "main").is_dir() and Path(".scalebench").read_text() == ""


def test_a_machine_file_that_is_broken_is_passed_over():
    write_folder("a", [0.1])
    save("a")
    (baseline_store.store_folder() / kind().fingerprint / "machine.json").write_text("{")
    assert baseline_store.list_saved_baselines() == []
    assert len(baseline_store.find_baseline_folders("main", [kind()])) == 1
