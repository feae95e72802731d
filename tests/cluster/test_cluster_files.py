"""Tests without a cluster: settings, their files, and the reasons why a cluster cannot start."""

import dataclasses
import os
import shutil
import subprocess

import pytest

from tests.cluster import down, hosts, links, slurm_files, up
from tests.cluster.settings import FOLDER_VARIABLE, ClusterError, Settings, from_environment, obstacle, read_settings


def test_settings_come_back(tmp_path):
    settings = Settings(tmp_path, nodes=3, rate="100mbit", accounting=False)
    settings.write()
    assert read_settings(tmp_path) == settings
    assert read_settings(tmp_path / "none") is None


def test_settings_of_make(tmp_path, monkeypatch):
    for name, value in {"NODES": "3", "RATE": "10mbit", "ACCOUNTING": "no", "CPUS": "8"}.items():
        monkeypatch.setenv(name, value)
    assert from_environment(tmp_path) == Settings(tmp_path, nodes=3, cpus=8, rate="10mbit", accounting=False)
    for wrong in ("0", "100", "two"):
        monkeypatch.setenv("NODES", wrong)
        with pytest.raises(ClusterError, match="NODES"):
            from_environment(tmp_path)


def test_hosts_have_addresses_of_their_own(tmp_path):
    settings = Settings(tmp_path, nodes=3)
    addresses = slurm_files.hosts(settings).splitlines()
    assert addresses[:2] + addresses[-1:] == ["127.0.0.1 localhost", "10.77.0.10 head", "10.77.0.13 node3"]
    conf = slurm_files.slurm_conf(settings).splitlines()
    assert len([line for line in conf if line.startswith("NodeName=")]) == 3
    assert "NodeName=node3 NodeAddr=10.77.0.13" in slurm_files.slurm_conf(settings)


def test_without_accounting_nothing_of_it_is_configured(tmp_path):
    with_it, without = Settings(tmp_path), Settings(tmp_path, accounting=False)
    assert "AccountingStorageHost" in slurm_files.slurm_conf(with_it)
    assert "AccountingStorageType=accounting_storage/none" in slurm_files.slurm_conf(without).splitlines()
    assert "AccountingStorageHost" not in slurm_files.slurm_conf(without)


def test_missing_programs_are_named_with_their_packages(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("slurmctld", "mariadbd") else f"/bin/{name}")
    reason = obstacle()
    assert reason is not None
    assert "needs slurmctld, mariadbd: make test-all (scripts/install_slurm.sh)" in reason
    assert "mariadbd" not in str(obstacle(accounting=False))


def test_other_users_than_root_and_refused_namespaces_are_reasons(monkeypatch):
    refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in str(obstacle())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: refused)
    assert str(obstacle()).endswith("not allowed here: unshare: unshare failed: Operation not permitted")


@pytest.mark.parametrize("folder", ["with space", "a" * 100, "100%"])
def test_folders_that_cannot_be(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(up, "obstacle", lambda accounting: None)
    with pytest.raises(ClusterError, match="folder has"):
        up.up(Settings(tmp_path / folder))
    assert not (tmp_path / folder).exists()


def test_a_folder_with_other_files_or_a_cluster_of_other_settings_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(up, "obstacle", lambda accounting: None)
    monkeypatch.setattr(up, "LONGEST_FOLDER", 1000)
    (tmp_path / "mine").touch()
    with pytest.raises(ClusterError, match="holds something else"):
        up.up(Settings(tmp_path))
    assert not down.down(tmp_path)
    assert (tmp_path / "mine").exists()
    settings = Settings(tmp_path, nodes=2)
    settings.write()
    with pytest.raises(ClusterError, match="make cluster-down first"):
        up.up(dataclasses.replace(settings, nodes=3))


def test_links_names_invalid_arguments(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert links.main(["node1", "cut"]) == 1
    assert "there is no test cluster in" in capsys.readouterr().err
    Settings(tmp_path).write()
    for words in (["node1"], ["node9", "cut"], ["node1", "cut"]):
        assert links.main(words) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_wrong_clock_is_in_the_environment_of_tasks(tmp_path, monkeypatch):
    (tmp_path / "clock").mkdir()
    monkeypatch.setattr(hosts, "faketime_library", lambda: "/lib/faketime.so")
    hosts.shift_clock(tmp_path, "node1", -2.5)
    prolog = tmp_path / "prolog"
    prolog.write_text(slurm_files.task_prolog(Settings(tmp_path)))
    for node, lines in (("node1", 3), ("node2", 0)):
        done = subprocess.run(["sh", str(prolog)], env={"SLURMD_NODENAME": node, "PATH": os.environ["PATH"]},
                              capture_output=True, text=True, check=True, timeout=20)  # fmt: skip
        assert len(done.stdout.splitlines()) == lines
        assert lines == 0 or "export FAKETIME=-2.5s" in done.stdout
    hosts.shift_clock(tmp_path, "node1", 0)
    assert list((tmp_path / "clock").iterdir()) == []
