"""The typed spine of the config, and RunSpec: one run with nothing left to decide.

Layer 0. The parent composes `Config` with Hydra, resolves it into a `RunSpec` and writes that as spec.json;
workers read spec.json and never see Hydra.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.api import api
from scalebench.records import from_dict, read_json, write_json
from scalebench.slurm_spec import SlurmSpec
from scalebench.train_spec import StopSpec as StopSpec  # part of it
from scalebench.train_spec import TrainSpec, peak_rate

SPEC_FILE = "spec.json"
DEBUG_TIMEOUT_S = 86400.0
CHIEF = "chief"  # the role of the one process that measures, where there are roles


@api(since=1)
class InputError(ValueError):
    """A user's mistake, said in one line: the thing, the reason and the way out. Exit status 2."""


@api(since=1)
@dataclass
class ModelSpec:
    """A network, the same in every framework, and the training settings that its study used."""

    name: str = "???"
    description: str = ""
    input_shape: list[int] = field(default_factory=list)  # of one sample, channels last
    target_shape: list[int] = field(default_factory=list)  # []: the number of a class, or of cross_entropy several
    outputs: int = 1  # of the last layer
    targets: list[str] = field(default_factory=list)  # names of the outputs, where they are quantities
    loss: str = "mse"
    metric: str = "mse"
    params: int | None = None  # expected number of trainable parameters, checked by every worker
    options: dict[str, Any] = field(default_factory=dict)  # of the function that builds the network
    torch: str | None = None  # "module:function" that makes a user's own torch.nn.Module, called with the options
    keras: str | None = None  # and the same network as a keras.Model
    code_digest: str | None = None  # of those functions' files, so that an edited network is another run
    batch_per_device: int = 1
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    sources: list[str] = field(default_factory=list)


@api(since=1)
@dataclass
class DatasetSpec:
    """Samples, where they are kept, and how they reach the device."""

    name: str = "???"
    size: int = 1
    seed: int = 0  # of the samples; the seed of a run leaves them alone
    validation_share: float = 0.25
    path: str | None = None  # a user's own files: .npz of the same layout, CIFAR archive, folders of images
    image_size: int | None = None  # pixels along each side; null: as the model's input
    dtype: str = "float32"  # of the inputs: float32, uint8 that becomes float32 on the device, or int32 of tokens
    classes: int | None = None  # labels are 0 .. classes - 1; null: targets are quantities
    builder: str | None = None  # "module:function" that makes a user's own samples, called with size, seed and options
    options: dict[str, Any] = field(default_factory=dict)  # of that function
    code_digest: str | None = None  # of its file, so that other samples are another run
    requested_size: int | None = None  # samples requested of the function, where it returned `size` instead
    cache: str | None = None  # null: $SCALEBENCH_CACHE, else ~/.cache/scalebench
    feed: str = "host"  # host | device | fixed | disk
    prefetch: str = "none"  # none | queue | device


@api(since=1)
@dataclass
class StrategySpec:
    """What must be known of a strategy before a process of it exists."""

    name: str = "???"
    description: str = ""
    framework: str = "none"  # none | torch | tensorflow | what a plugin names
    requires: list[str] = field(default_factory=list)  # import names of packages
    baseline: str | None = None  # strategy of the `bare` baseline
    launcher: str = "local"
    processes: Any = "one_per_device"  # one_per_device | one_for_all | {roles: {chief: 1, ps: 1, worker: gpus}}
    backend: str | None = None  # requested carrier of the gradients; null: no exchange
    devices: list[str] = field(default_factory=lambda: ["cpu", "cuda"])
    max_gpus: int | None = None
    lockstep: bool = True  # false: replicas without any exchange, which stop at a common deadline
    inexact: str | None = None  # why its updates are not the baseline's on the same samples; null: they are
    tolerance: float | None = 1e-4  # relative, of losses against the baseline's; null: they only have to fall
    options: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, list[Any]] = field(default_factory=dict)  # of options: the values that there are
    at_least: dict[str, float] = field(default_factory=dict)  # of options: the least that makes sense


@dataclass
class HardwareSpec:
    """A machine or a kind of cluster node. null means detected here, or not known from a source."""

    name: str = "???"
    description: str = ""
    devices: str = "auto"  # cuda | cpu | auto
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    cpus_per_device: int | None = None  # null: floor(cpus_per_node / gpus_per_node)
    max_nodes: int = 1
    memory_bytes: int | None = None
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None
    device_ids: list[int] = field(default_factory=list)  # which devices of a node, in order; empty: the first ones
    bind: str = "numa"  # numa | none | far: cores of a process near its device, any, or far from it
    environment: dict[str, str] = field(default_factory=dict)  # variables of the processes
    here: bool = True
    hosts: list[str] = field(default_factory=list)  # name:slots of each, in order; empty: this machine
    layout: str = "sequence"  # sequence | spread: fill one node after the other, or deal the devices out evenly
    interface: str | None = None  # of the network that ranks on several nodes meet over; null: the one that leads there
    stage: str | None = None  # folder on a disk of each node that the data set is copied to; null: read as it lies
    scheduler: str = "none"  # none | slurm
    max_jobs: int | None = None  # of a sweep in the queue at a time; null: all of them
    slurm: SlurmSpec = field(default_factory=SlurmSpec)
    links: dict[str, Any] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)


@dataclass
class MeasureSpec:
    """How long and how surely to measure."""

    warmup_steps: int = 50  # updates before measuring, at the least
    warmup_max_steps: int = 5000  # at the most, while no steady state is found
    warmup_max_s: float = 20.0  # nor so long; of slow updates as many as fit are enough, but five
    block_s: float = 0.05
    min_s: float = 3.0
    max_s: float = 30.0
    target: float = 0.01  # wanted relative half-width of the 95 % interval of throughput
    evaluate: bool = True
    hang_s: float = 300.0  # without progress for so long, a run is ended
    timeout_s: float = 3600.0  # of the whole run
    repeats: int = 1  # launches of each run; three or more give intervals over launches
    order: str = "given"  # given | random: of the runs of a sweep, within each repeat
    cool_down_s: float = 0.0  # pause before each run of a sweep but the first
    monitor: bool = True  # sample devices, processes and the machine while it runs
    probes: bool = True  # after the figures: where the time of an update goes
    probe_s: float = 3.0  # for each probe, about
    trace: bool = False  # keep a trace of some updates of all ranks
    collectives: bool = False  # measure the strategy's collective operations from 4 B to 256 MB
    bandwidth: bool = False  # measure what goes between devices, and to and from host memory
    search: str = "none"  # max_batch: the largest batch per device that fits, by trying
    memory_limit_bytes: int | None = None  # of each process on a CPU; null: none, in a search its share
    timeline: bool = False  # keep what the framework itself writes of some exchanges, and sum up its phases


@dataclass
class SweepSpec:
    """How far to take a sweep, and what it leaves."""

    max_minutes: float | None = None  # runs that say least are left out where it would take longer
    report: bool = True  # leave report.html in its folder at the end


@api(since=1)
@dataclass
class Config:
    """The typed spine: what `python -m scalebench` composes from conf/ and the command line."""

    model: ModelSpec = field(default_factory=ModelSpec)
    dataset: DatasetSpec = field(default_factory=DatasetSpec)
    strategy: StrategySpec = field(default_factory=StrategySpec)
    hardware: HardwareSpec = field(default_factory=HardwareSpec)
    measure: MeasureSpec = field(default_factory=MeasureSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    sweep: SweepSpec = field(default_factory=SweepSpec)
    gpus: int | None = None
    scaling: str = "weak"
    seed: int = 0
    repeat: int = 0
    resume: bool = False
    baseline: str = "auto"  # auto | bare | ladder | none: the baseline runs that a sweep adds where they are missing
    dry_run: bool = False
    debug: bool = False


@api(since=1)
@dataclass
class Place:
    """Where one process of a run stands."""

    rank: int
    local_rank: int
    node: int
    devices: list[int]  # indices of the devices it drives, on its node
    cpus: list[int]  # cores it is pinned to; empty: not pinned
    threads: int
    role: str = ""  # where the processes of a strategy differ: chief, or what it serves the chief as


@api(since=1)
@dataclass
class RunSpec:
    """One run, resolved: what spec.json holds."""

    config: Config
    device: str  # cpu | cuda
    gpus: int
    nodes: int
    places: list[Place]
    batch_per_device: int  # samples per update on one device; the largest part where they differ by one
    global_batch: int
    fingerprint: str
    flags: list[str] = field(default_factory=list)
    unsupported: str | None = None  # why this well-formed run cannot happen here
    broken: str | None = None  # why it fails before a process of it exists: the fault of a plugin
    broken_log: str = ""  # and where in its code

    @property
    def processes(self) -> int:
        return len(self.places)

    @property
    def starts(self) -> bool:
        """Whether processes of it are to be started; else its row is made at once, and costs no time."""
        return self.unsupported is None and self.broken is None

    @property
    def services(self) -> dict[int, str]:
        """Role by rank of the processes that serve the chief: they measure nothing, and end with it."""
        return {place.rank: place.role for place in self.places if place.role not in ("", CHIEF)}

    @property
    def group_timeout_s(self) -> float:
        """How long a rank waits for the others before it fails by itself.

        Longer than the launcher waits for progress, so that a hang is called a hang and not a broken connection.
        Someone with a debugger is not hurried.
        """
        return DEBUG_TIMEOUT_S if self.config.debug else 2 * self.config.measure.hang_s

    @property
    def learning_rate(self) -> float:
        """That the schedule begins its descent from: as asked, scaled by the rule for this run's batch."""
        return peak_rate(self.config.train, self.global_batch)

    @property
    def label(self) -> str:
        return f"{self.config.strategy.name} gpus={self.gpus}"


def write_spec(spec: RunSpec, folder: Path) -> None:
    write_json(folder / SPEC_FILE, dataclasses.asdict(spec))


def read_spec(folder: Path) -> RunSpec:
    return from_dict(RunSpec, read_json(folder / SPEC_FILE))
