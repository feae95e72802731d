"""The facts of this machine, its cgroups and variables: real ones where possible, else from made-up system files."""

import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalebench.core import json_files
from scalebench.core.errors import InputError
from scalebench.core.machine import cpus, machine, variables
from scalebench.core.machine.gpus import Gpu, GpuFacts
from scalebench.core.machine.machine import Machine
from tests.builders.runs import MACHINE
from tests.core.machine.conftest import put
from tests.nvml_stand_in import put_in


def test_this_machine_is_detected_written_as_json_and_with_no_heavy_library():
    found = machine.detect_machine()
    assert json.loads(json.dumps(dataclasses.asdict(found))) == dataclasses.asdict(found)
    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.memory_bytes is not None and found.memory_bytes > 2**28
    assert {"numpy", "hydra-core"} <= found.versions.keys()
    heavy = "{'torch', 'tensorflow', 'psutil', 'pynvml', 'numpy', 'pandas', 'hydra'}"
    code = f"import sys, scalebench.core.machine.machine; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_machine_without_any_information(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)  # an import of it fails
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delattr(os, "sysconf")
    found = dataclasses.asdict(machine.detect_machine())
    always = {"hostname", "cpus", "gpus", "os", "python", "versions", "environment", "cpus_allowed", "kernel"}
    assert {name for name, value in found.items() if value is not None} == always
    assert found["gpus"] == []
    assert (machine.oom_kills(), machine.count_gpus()) == (None, 0)
    assert machine.describe_machine(machine.detect_machine()).endswith("unknown cores, no GPU")


def test_processors_oom_kills_and_cgroups(root, monkeypatch):
    put(root, "proc/vmstat", "oom_kill_other 3\noom_kill 12\n")
    for cpuinfo, model in {
        "cpu family\t: 6\nmodel name\t: Intel(R) Xeon(R)\ncpu MHz\t: 1\n": "Intel(R) Xeon(R)",
        "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n": "POWER9, altivec supported",
        "processor\t: 0\nCPU implementer\t: 0x41\n": None,
    }.items():
        put(root, "proc/cpuinfo", cpuinfo)
        assert (machine.detect_machine().cpu_model, machine.oom_kills()) == (model, 12)
    monkeypatch.setattr(machine, "usable_cpus", lambda: [1, 3])
    for cpu, governor in enumerate(["powersave", "performance", "powersave", "schedutil"]):
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", f"{governor}\n")
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", f"{3_000_000 + cpu * 100_000}\n")
        put(root, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"{cpu % 2}\n")
    put(root, "sys/devices/system/cpu/smt/active", "1\n")
    put(root, "sys/devices/system/node/node0/cpulist", "0-3\n")
    put(root, "proc/self/cgroup", "0::/\n")
    put(root, "sys/fs/cgroup/memory.max", f"{2**31}\n")
    found = machine.detect_machine()
    assert (found.cpus, found.cpus_allowed, found.cpu_sockets, found.smt) == (2, [1, 3], 2, True)
    assert (found.cpu_governors, found.cpu_max_mhz) == (["performance", "schedutil"], 3300.0)
    assert (found.numa_nodes, found.numa) == (1, [cpus.NumaNode(0, [0, 1, 2, 3], None, {})])
    assert (found.memory_limit_bytes, found.kernel) == (2**31, platform.release())


@pytest.mark.parametrize(("script", "version"), [
    ("echo; echo ' mpirun (Open MPI) 5.0.1 '; echo more", "mpirun (Open MPI) 5.0.1"),
    ("exit 3", None),
    ("echo late; exec sleep 60", None),
])  # fmt: skip
def test_the_version_of_mpi_is_queried_once_and_with_a_limit(tmp_path, monkeypatch, script, version):
    monkeypatch.setattr(machine, "MPI_VERSION_TIMEOUT_S", 0.5 if "sleep" in script else 30.0)
    program, calls = tmp_path / "mpirun", tmp_path / "calls"
    program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\necho x >> '{calls}'\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [machine.mpi_version(), machine.mpi_version()] == [version, version]
    assert calls.read_text() == "x\n"
    monkeypatch.setenv("PATH", "")
    assert machine.mpi_version() is None


def test_the_innermost_container_is_named(root, monkeypatch):
    assert machine.detect_machine().container is None
    put(root, ".dockerenv")
    assert machine.detect_machine().container == "docker"
    put(root, "run/.containerenv")
    assert machine.detect_machine().container == "podman"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert machine.detect_machine().container == "kubernetes"
    monkeypatch.setenv("APPTAINER_CONTAINER", "image.sif")
    assert machine.detect_machine().container == "apptainer"


def test_git_commit(tmp_path, monkeypatch):
    def git(*arguments):
        who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # started by a git hook, the test would see the hook's repository
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.git_commit(tmp_path) is None  # no repository
    git("init")
    assert machine.git_commit(tmp_path) is None  # no commit
    put(tmp_path, "file", "1")
    git("add", "file")
    git("commit", "-m", "first")
    git("tag", "v1")
    put(tmp_path, "untracked")
    commit = git("rev-parse", "HEAD")
    assert machine.git_commit(tmp_path) == commit
    put(tmp_path, "file", "2")
    monkeypatch.chdir(tmp_path)
    assert machine.git_commit() == f"{commit}-dirty"
    assert machine.git_commit(tmp_path / "absent") is None


def test_a_machine_in_one_line():
    a100 = "NVIDIA A100-SXM4-40GB"
    for names, cpu, quota, line in (
        ([a100] * 8, None, 96.0, f"8 x {a100}, 48 cores, 1000 GiB"),
        (["K80", "M60", "K80", None], None, None, "2 x K80 + 1 x M60 + 1 x unknown GPU, 48 cores, 1000 GiB"),
        ([], "AMD EPYC", 1.5, "48 x AMD EPYC cores (quota 1.5), 1000 GiB, no GPU"),
        ([], "Intel(R) Xeon(R) CPU E5 v3 @ 2.5GHz", None, "48 x Intel Xeon E5 v3 cores, 1000 GiB, no GPU"),
        ([], "AMD EPYC 7352 24-Core Processor", None, "48 x AMD EPYC 7352 cores, 1000 GiB, no GPU"),
    ):
        gpus = [Gpu(i, name, None, None, None, None, None, None, None) for i, name in enumerate(names)]
        facts = {"cpus": 48, "memory_bytes": 1000 * 2**30, "gpus": gpus, "cpu_model": cpu, "cpu_quota": quota}
        assert machine.describe_machine(dataclasses.replace(MACHINE, **facts)) == line


def test_the_cache_folder(monkeypatch):
    names = ("SCALEBENCH_CACHE", "XDG_CACHE_HOME", "HOME")
    for values, folder in {
        ("/a", "/b", "/c"): "/a",
        ("~/a", None, "/c"): "/c/a",
        (None, "/b", "/c"): "/b/scalebench",
        (None, None, "/c"): "/c/.cache/scalebench",
    }.items():
        for name, value in zip(names, values, strict=True):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        assert machine.cache_folder() == Path(folder)
    # In a container that is started with a user's number only, which has no entry, there is no home folder.
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert machine.find_cache_folder() is None
    with pytest.raises(InputError, match=r"^this user has no home folder to .*: set SCALEBENCH_CACHE to a folder$"):
        machine.cache_folder()
    monkeypatch.setenv("SCALEBENCH_CACHE", "/somewhere")
    assert machine.cache_folder() == Path("/somewhere")


def test_the_record_of_a_machine_with_gpus_reads_back(nvml_library, monkeypatch):
    put_in(monkeypatch, nvml_library)
    found = machine.detect_machine()
    parts = found.gpus, found.topology, found.driver_version, found.cuda_driver_version, found.peer_access
    assert GpuFacts(*parts) == machine.detect_gpus()
    tree = json.loads(json.dumps(dataclasses.asdict(found)))
    assert json_files.build_record(Machine, tree) == found and found.peer_access is not None and len(found.gpus) == 2


def test_usable_cpus_follow_the_affinity(monkeypatch):
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpus.usable_cpus() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)
    assert cpus.usable_cpus() == sorted(before)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cpus.usable_cpus() == [0, 1, 2]


def test_numa_nodes(root, monkeypatch):
    put(root, "sys/devices/system/node/node0/distance", "10 21\n")  # which do not fit the nodes
    assert cpus.numa_nodes() == [cpus.NumaNode(0, [], None, {})]
    for node, (cpu_list, distances) in {0: ("0-1,8", "10 21 31"), 2: ("2,3", "21 10 31"), 10: ("", "31 31 10")}.items():
        folder = f"sys/devices/system/node/node{node}"
        put(root, f"{folder}/cpulist", f"{cpu_list}\n")
        put(root, f"{folder}/distance", f"{distances}\n")
    put(root, "sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:  1024 kB\nNode 2 MemFree: 1 kB\n")
    put(root, "sys/devices/system/node/possible", "0-15\n")
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *args: sorted(glob(*args), reverse=True))
    assert cpus.numa_nodes() == [
        cpus.NumaNode(0, [0, 1, 8], None, {"0": 10, "2": 21, "10": 31}),
        cpus.NumaNode(2, [2, 3], 2**20, {"0": 21, "2": 10, "10": 31}),
        cpus.NumaNode(10, [], None, {"0": 31, "2": 31, "10": 10}),
    ]


def test_system_files_that_exist_and_others(root):
    assert cpus.numa_nodes() == []
    put(root, "sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1\n")  # so on some virtual machines
    assert set(cpus.describe_cpus([0]).values()) == {None}
    (root / "sys/text").write_bytes(b"a: 1\nb:  two \xff\n")
    put(root, "sys/number", " -12\n")
    assert cpus.find_in_system_file("^b:(.*)$", "sys", "text") == "two \ufffd"
    assert cpus.find_in_system_file("^c:(.*)$", "sys/text") is None
    assert (cpus.read_system_file("sys"), cpus.read_system_file("sys/absent")) == ("", "")
    assert cpus.read_system_number("sys/number") == -12
    assert [cpus.read_system_number(f"sys/{name}") for name in ("text", "absent")] == [None, None]
    lists = {"0-2,8\n": [0, 1, 2, 8], "3\n": [3], "\n": [], "10-11,0": [10, 11, 0]}
    assert {text: cpus.parse_cpu_list(text) for text in lists} == lists


CPU_V1, MEMORY_V1 = "cpu,cpuacct/cpu.cfs_{}_us", "memory/memory.limit_in_bytes"
# What a process is in, files of its cgroups, and their limit
QUOTAS = [
    ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
    ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4.0),
    ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "cpu.max": "300000 100000\n"}, 2.0),
    ("0::/host/only\n", {"cpu.max": "50000 100000\n"}, 0.5),
    ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    ("4:cpu,cpuacct:/docker/x\n", {CPU_V1.format("quota"): "250000\n", CPU_V1.format("period"): "100000\n"}, 2.5),
    ("4:cpu,cpuacct:/\n0::/\n", {CPU_V1.format("quota"): "-1\n", CPU_V1.format("period"): "100000\n"}, None),
    ("4:cpu,cpuacct:/\n", {CPU_V1.format("quota"): "1000\n"}, None),
    ("nonsense\n\n", {"cpu.max": "garbage"}, None),
    ("", {}, None),
]
LIMITS = [
    ("0::/\n", {"memory.max": "1073741824\n"}, 2**30),
    ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "4096\n", "memory.max": "8192\n"}, 4096),
    ("0::/\n", {"memory.max": "max\n"}, None),
    ("7:memory:/docker/x\n4:cpu:/\n", {MEMORY_V1: "2048\n"}, 2048),
    ("7:memory:/\n", {MEMORY_V1: "9223372036854771712\n"}, None),
    ("4:cpu:/\n", {MEMORY_V1: "2048\n", "cpu/memory.limit_in_bytes": "1\n"}, None),
    ("0::/\n", {"memory.max": "garbage"}, None),
    ("", {}, None),
]


@pytest.mark.parametrize(
    ("read", "cgroup", "files", "limit"),
    [*((cpus.cpu_quota, *row) for row in QUOTAS), *((cpus.memory_limit_bytes, *row) for row in LIMITS)],
)
def test_limits_of_cgroups(root, read, cgroup, files, limit):
    put(root, "proc/self/cgroup", cgroup)
    for name, text in files.items():
        put(root, f"sys/fs/cgroup/{name}", text)
    assert read() == limit


def test_links_between_devices_are_unknown_where_devices_have_other_numbers_than_gpus():
    topology = [["X", "PIX", "PHB"], ["PIX", "X", "PHB"], ["PHB", "PHB", "X"]]
    known = dataclasses.replace(MACHINE, topology=topology, environment={})
    assert [known.list_links(devices) for devices in ([0, 1], [2, 0], [0, 1, 2], [0], [0, 3], [])] == [
        ["PIX"], ["PHB"], ["PIX", "PHB"], [], [], []
    ]  # fmt: skip
    for changes in ({"environment": {"CUDA_VISIBLE_DEVICES": "4,5,6"}}, {"topology": None}):
        assert dataclasses.replace(known, **changes).list_links([0, 1]) == []


def test_variables_that_affect_speed_are_recorded_and_no_secrets():
    secrets = (
        "OMP_api_key NCCL_SOCKET_USER_PASS TORCH_HUB_PAT CUDA_APIKEY HOROVOD_PW XLA_AUTH OMPI_MCA_pw TF_VAR_login "
        "HOROVOD_SECRET_KEY PYTORCH_hf_token MKL_PASSPHRASE UCX_AUTHORIZATION FI_CREDENTIALS TF_TOKEN_example_com "
        "SLURM_CPUS_TOKEN UCX_API_KEY"
    ).split()
    assert [name for name in secrets if not variables.SECRET_VARIABLES.search(name)] == []
    assert variables.select_recorded(dict.fromkeys(secrets, "hidden")) == {}
    others = ("TOKENIZERS_PARALLELISM", "NCCL_CHECK_BYPASS", "NCCL_P2P_DISABLE")
    assert not [name for name in others if variables.SECRET_VARIABLES.search(name)]
    recorded = (
        "OMP_NUM_THREADS CUDA_VISIBLE_DEVICES TF_XLA_FLAGS NVIDIA_TF32_OVERRIDE SLURM_JOB_ID SLURM_CPUS_PER_TASK "
        "SLURM_CPU_BIND SLURM_NTASKS_PER_NODE UCX_TLS OMPI_MCA_btl"
    ).split()
    others = dict.fromkeys("MY_NCCL_DEBUG TORCHX SLURM_JWT SLURM_JOB_COMMENT SLURM_JOB_ACCOUNT MY_UCX_TLS".split(), "1")
    assert [*variables.select_recorded(dict.fromkeys(recorded, "1") | others)] == sorted(recorded)
    assert machine.detect_machine({"OMP_NUM_THREADS": "2", "HOME": "/"}).environment == {"OMP_NUM_THREADS": "2"}
    shell = {"NCCL_DEBUG": "INFO", "TF_CONFIG": "{}", "NCCL_CONF_FILE": "http://me:pw@host/x", "HOME": "/root"}
    assert variables.select_recorded(shell) == {
        "NCCL_CONF_FILE": "http://***@host/x", "NCCL_DEBUG": "INFO", "TF_CONFIG": variables.NOT_PASSED
    }  # fmt: skip


def test_addresses_lose_user_and_password():
    masked = {
        "postgres://u:p@h/db": "postgres://***@h/db",
        "https://token@github.com/a/b.git and ssh://git@h": "https://***@github.com/a/b.git and ssh://***@h",
        "http://u:p@ss@h": "http://***@h",
        r'{"a": "http://u:\"\\@h"}': r'{"a": "http://***@h"}',
    }
    same = ("https://host/path?mail=a@b me@example.com", "https://host:8080")
    masked |= {text: text for text in (*same, "://" * 300_000, "a" * 1_000_000 + "://" + "b" * 1_000_000)}
    started_s = time.process_time()
    assert [text for text in masked if variables.mask_credentials(text) != masked[text]] == []
    assert time.process_time() - started_s < 5.0, "long texts are masked in little time"
