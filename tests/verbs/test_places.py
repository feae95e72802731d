"""Folders, networks and files that a YAML counts on, on made-up hosts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scalebench.spec import Config, HardwareSpec, SlurmSpec
from scalebench.verbs import places
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED
from tests.system_tree import put
from tests.system_tree import root as root  # a fixture

CLUSTER = HardwareSpec("mine", here=False, scheduler="slurm", links={"inter_node": "InfiniBand, two HDR ports"})
MOUNTS = [("/", "ext4"), ("/home", "nfs4"), ("/home/me/local", "xfs"), ("/scratch", "fuse.x")]


def verdicts(hardware: HardwareSpec) -> dict[str, tuple[str, str]]:
    return {line.key: (line.here, line.verdict) for line in places.of_node(hardware)}


def test_ports_of_infiniband(root: Path) -> None:
    assert verdicts(CLUSTER) == {"links.inter_node": ("no InfiniBand port", DIFFERS)}
    for name, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet"), ("mlx5_2", "InfiniBand")):
        put(root, f"sys/class/infiniband/{name}/ports/1/link_layer", f"{layer}\n")
        put(root, f"sys/class/infiniband/{name}/ports/1/rate", "200 Gb/sec (4X HDR)\n")
    told = "mlx5_0 200 Gb/sec (4X HDR), mlx5_2 200 Gb/sec (4X HDR)"
    assert verdicts(CLUSTER) == {"links.inter_node": (told, OK)}
    other = dataclasses.replace(CLUSTER, links={"inter_node": "10 Gbit Ethernet"})
    assert verdicts(other) == {"links.inter_node": (told, UNCHECKED)}


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [], "ib0": []})
    assert verdicts(dataclasses.replace(CLUSTER, interface="ib0"))["interface"] == ("is there", OK)
    assert verdicts(dataclasses.replace(CLUSTER, interface="ib1"))["interface"] == ("only ib0 lo", DIFFERS)


def test_the_folder_to_copy_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(stage: str) -> tuple[str, str]:
        return verdicts(dataclasses.replace(CLUSTER, stage=stage))["stage"]

    here, verdict = told(str(tmp_path))
    assert here.endswith(" GB free") and not here.startswith("to be made") and verdict == OK
    here, verdict = told(str(tmp_path / "not" / "there"))
    assert here.startswith("to be made, ") and verdict == OK
    monkeypatch.setenv("OF_THIS_NODE", str(tmp_path))
    assert told("$OF_THIS_NODE") == told(str(tmp_path))
    assert told("$NOT_SET/x") == ("names a variable that is not set here", UNCHECKED)
    (tmp_path / "file").touch()
    assert told(str(tmp_path / "file")) == (f"{tmp_path / 'file'} cannot be written to", DIFFERS)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/x", "ext4"),
        ("/home/me", "nfs4"),
        ("/homes", "ext4"),
        ("/home/me/local/x", "xfs"),
        ("/scratch", "fuse.x"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert places.file_system(Path(path), MOUNTS) == kind
    assert places.file_system(Path(path), []) is None


def test_folders_that_all_nodes_have_to_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEBENCH_CACHE", "/elsewhere/cache")
    parts = [SimpleNamespace(mountpoint=at, fstype=kind) for at, kind in (("/", "ext4"), (str(tmp_path), "nfs4"))]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    found = {line.key: line for line in places.of_all(Config())}
    assert list(found) == ["folder of results", "Python", "scalebench", "data sets"]
    assert (found["folder of results"].here, found["folder of results"].verdict) == (f"{tmp_path} on nfs4", OK)
    cache = found["data sets"]
    assert (cache.here, cache.verdict) == (
        "/elsewhere/cache on ext4: is that a disk of this host only?",
        UNCHECKED,
    )


def test_images(tmp_path: Path) -> None:
    def told(container: str) -> tuple[str, str]:
        (line,) = places.container(dataclasses.replace(CLUSTER, slurm=SlurmSpec(container=container)))
        return line.here, line.verdict

    image = tmp_path / "torch.sif"
    assert told(str(image)) == ("no such file", DIFFERS)
    image.touch()
    assert told(str(image)) == ("can be read", OK)
    assert told("docker://nvcr.io/nvidia/pytorch:24.01-py3") == ("an address, which the nodes fetch", UNCHECKED)
    assert told("nvcr.io#nvidia/pytorch:24.01-py3") == ("an address, which the nodes fetch", UNCHECKED)
    assert places.container(CLUSTER) == []
