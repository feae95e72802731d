"""Jobs with GPUs on nodes whose cores run two threads: what each rank sees, however its job was requested.

The GPUs are device files without a device, and CUDA_VISIBLE_DEVICES is what SLURM makes of them.
"""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.core.spec import HardwareSpec, SlurmSpec, write_spec
from tests.builders.runs import simulated_spec
from tests.cluster.cluster import ROOT, Cluster, temporary_cluster
from tests.slurm.builders import render

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.gpu]
LIMIT_S = 300.0  # of a job, on a machine that has a lot else to do
GPUS, CORES, THREADS = 2, 4, 2  # of each of two nodes
LAUNCH = (
    "import sys; from pathlib import Path; from scalebench.core.spec import read_spec; "
    "from scalebench.runner import launchers; folder = Path(sys.argv[1]); "
    "ended = launchers.launch(read_spec(folder), folder, 'an id', module='tests.cluster.gpu_rank'); "
    "print(ended.exit_codes, ended.broken)"
)
ALL_GPUS = [["0", "1"]] * 2


@pytest.fixture(scope="module")
def nodes():
    """Two nodes with two GPUs and four cores each, which SLURM counts as eight CPUs."""
    variables = {"NODES": 2, "CPUS": CORES * THREADS, "THREADS": THREADS, "GPUS": GPUS}
    with temporary_cluster(ACCOUNTING="no", **{name: str(value) for name, value in variables.items()}) as made:
        yield made


@dataclasses.dataclass
class GpuRun:
    """A run of ranks that write down what they see, in a folder that all nodes share."""

    cluster: Cluster
    folder: Path
    gpus: int = 4
    cores: int = 2  # of each rank

    @property
    def spec(self):
        hardware = HardwareSpec(
            "testcluster", devices="cuda", gpus_per_node=GPUS, cpus_per_node=CORES, cpus_per_device=self.cores,
            max_nodes=2, this_machine=False, scheduler="slurm",
            slurm=SlurmSpec(bin=str(self.cluster.bin), time_minutes=5),
        )  # fmt: skip
        spec = simulated_spec(self.gpus, hardware=hardware, size=40 * self.gpus)
        spec.device, spec.unsupported = "cuda", None
        return spec

    def script(self, options=""):
        """Write the script that runs in the job, with the options of the batch script in front."""
        write_spec(self.spec, self.folder)
        path, python = self.folder / "launch.sh", shlex.join([sys.executable, "-c", LAUNCH, str(self.folder)])
        show = f'{self.cluster.bin}/scontrol show job -d "$SLURM_JOB_ID"'
        path.write_text(f"#!/bin/sh\n{options}\n{show} >{self.folder}/job.txt\nexec {python} >{self.folder}/log 2>&1\n")
        path.chmod(0o755)
        return str(path)

    def start(self, *words, **variables):
        """Run a command of SLURM to its end, and return what each rank saw."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        done = subprocess.run(
            [str(self.cluster.bin / words[0]), *words[1:]],
            env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        log = self.folder / "log"
        assert done.returncode == 0 and log.exists(), done.stderr
        assert log.read_text() == f"{[0] * self.gpus} None\n"
        return [json.loads((self.folder / f"seen{rank}.json").read_text()) for rank in range(self.gpus)]

    def allocated_cpus(self):
        """Return the CPUs of the job on each kind of its nodes, as SLURM numbers them."""
        return re.findall(r"CPU_IDs=(\S+)", (self.folder / "job.txt").read_text())


@pytest.fixture
def gpu_run(nodes, tmp_path):
    return GpuRun(nodes, tmp_path)


def check(run, seen, visible):
    """Each rank is on the node of its place, and takes the GPU of its number among those that it sees."""
    for rank, facts in enumerate(seen):
        local = rank % GPUS
        assert facts["host"] == run.cluster.nodes[rank // GPUS]
        assert facts["slurm"]["CUDA_VISIBLE_DEVICES"].split(",") == visible[local]
        assert facts["gpus"] == [str(local)]


@pytest.mark.parametrize("cores", [2, 1])
def test_a_submitted_job_has_whole_cores(gpu_run, cores):
    """Its options are those of `dry_run=true`. Two ranks of two cores each take all eight CPUs of a node."""
    gpu_run.cores = cores
    script = render(gpu_run.spec, gpu_run.folder)
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --hint=nomultithread" in options
    seen = gpu_run.start("sbatch", "--wait", gpu_run.script("\n".join(options)))
    check(gpu_run, seen, ALL_GPUS)
    assert gpu_run.allocated_cpus() == [f"0-{GPUS * cores * THREADS - 1}"]
    if cores == 1 and len(os.sched_getaffinity(0)) >= GPUS:  # the cores of this machine, which has no more
        own = [facts["cpus"] for facts in seen[:GPUS]]
        assert [len(cpus) for cpus in own] == [1, 1] and own[0] != own[1]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ("--gpus-per-task=1", {}),
        ("--gpus-per-task=1 --gpu-bind=per_task:1 --hint=nomultithread", {}),
        ("--gres=gpu:2 --gpu-bind=single:1", {}),
        ("--gpus=4 --gpu-bind=closest", {}),
        ("--gpus-per-node=2", {"SALLOC_GPU_BIND": "per_task:1"}),  # as a site may set it for everybody
        ("--gres=gpu:2 --threads-per-core=1", {}),
    ],
)
def test_in_an_allocation_of_any_kind_ranks_see_all_gpus_of_their_node(options, variables, gpu_run):
    words = ["salloc", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2", "--time=5", *options.split()]
    seen = gpu_run.start(*words, gpu_run.script(), **variables)
    check(gpu_run, seen, ALL_GPUS)
    whole = "nomultithread" in options or "threads-per-core=1" in options
    assert gpu_run.allocated_cpus() == ["0-7" if whole else "0-3"]


def test_within_a_step_that_holds_all_of_the_job(gpu_run):
    """As `srun --pty bash` is: the ranks share its cores and GPUs, and do not wait for them."""
    gpu_run.gpus = GPUS
    words = ["srun", "--nodes=1", "--ntasks=1", f"--cpus-per-task={CORES * THREADS}", "--gres=gpu:2", "--time=5"]
    seen = gpu_run.start(*words, "bash", "-c", gpu_run.script())
    check(gpu_run, seen, ALL_GPUS)
