"""What a job asks of SLURM: the keys under `hardware.slurm`. Layer 0."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SlurmSpec:
    """Settings of a job; null leaves it to the cluster. The words are those of sbatch."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclusive: bool = False  # nodes that no other job is on, and all their memory
    memory: str | None = None  # of a node, as --mem takes it: 64G; null: all of it where exclusive
    time_minutes: int | None = None  # limit of a job; null: measure.timeout_s and what starting takes
    gres: str = "gpu:{gpus}"  # of a node, {gpus} being how many the run drives there; such as gpu:a100:{gpus}
    lines: list[str] = field(default_factory=list)  # further options of sbatch, such as --mail-type=END
    setup: list[str] = field(default_factory=list)  # lines of the shell before the run: module load, source
    srun: list[str] = field(default_factory=list)  # further options of the srun that starts the ranks
    mpi: str = "mpirun"  # who starts ranks of MPI: mpirun, or what srun --mpi takes: pmix, pmi2
    container: str | None = None  # image that the ranks run in
    container_runtime: str = "apptainer"  # apptainer | pyxis
    container_mounts: list[str] = field(default_factory=list)  # FROM:TO, beside the folders of the run and its data
    container_python: str = "python3"  # in the image, where scalebench is installed
    bin: str | None = None  # folder of sbatch, squeue and the others; null: they are on the PATH
