"""The typed spine of the config, and RunSpec: one run with nothing left to decide.

Layer 0. The parent composes `Config` with Hydra, resolves it into a `RunSpec` and writes that as spec.json;
workers read spec.json and never see Hydra.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.core.errors import InputError, no_such
from scalebench.core.json_files import read_record, write_json
from scalebench.core.run_folder import SPEC_FILE

DEBUG_TIMEOUT_S = 86400.0
OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "rmsprop")
NOTHING_TO_VALIDATE = (
    "train.stop.target is of the validation metric, and there are fewer samples to validate than replicas"
)
CHIEF = "chief"  # the role of the one process that measures, where there are roles


def one_of(*values: str) -> Any:
    """A field that holds one of these words; the first one is its default."""
    return field(default=values[0], metadata={"values": values})


def number(
    default: float | None, at_least: float | None = None, at_most: float | None = None, positive: bool = False
) -> Any:
    """A field that holds a number within these bounds; one that is `positive` has to be finite, too. A field that may
    be null holds it whatever the bounds are."""
    return field(default=default, metadata={"at_least": at_least, "at_most": at_most, "positive": positive})


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


@dataclass
class DatasetSpec:
    """Samples, where they are kept, and how they reach the device."""

    name: str = "???"
    size: int = number(1, at_least=1, at_most=10**10)
    seed: int = number(0, at_least=0)  # of the samples; the seed of a run leaves them alone
    validation_share: float = 0.25
    path: str | None = None  # a user's own files: .npz of the same layout, CIFAR archive, folders of images
    image_size: int | None = number(None, at_least=1)  # pixels along each side; null: as the model's input
    dtype: str = one_of("float32", "uint8", "int32")  # of inputs; uint8 becomes float32 on the device
    classes: int | None = number(None, at_least=2)  # labels are 0 .. classes - 1; null: targets are quantities
    builder: str | None = None  # "module:function" that makes a user's own samples, called with size, seed and options
    options: dict[str, Any] = field(default_factory=dict)  # of that function
    code_digest: str | None = None  # of its file, so that other samples are another run
    requested_size: int | None = number(
        None, at_least=1
    )  # samples requested of the function, where it returned `size` instead
    cache: str | None = None  # null: $SCALEBENCH_CACHE, else ~/.cache/scalebench
    feed: str = one_of("host", "device", "fixed", "disk")
    prefetch: str = one_of("none", "queue", "device")


@dataclass
class StrategySpec:
    """What must be known of a strategy before a process of it exists."""

    name: str = "???"
    description: str = ""
    framework: str = "none"  # none | torch | tensorflow | what a plugin names
    requires: list[str] = field(default_factory=list)  # import names of packages
    baseline: str | None = None  # strategy of the `bare` baseline
    launcher: str = one_of("local", "mpi", "by_hand")
    processes: Any = "one_per_device"  # one_per_device | one_for_all | {roles: {chief: 1, ps: 1, worker: gpus}}
    backend: str | None = None  # requested carrier of the gradients; null: no exchange
    devices: list[str] = field(default_factory=lambda: ["cpu", "cuda"])
    max_gpus: int | None = None
    lockstep: bool = True  # false: replicas without any exchange, which stop at a common deadline
    approximate: str | None = None  # why its updates are not the baseline's on the same samples; null: they are
    tolerance: float | None = 1e-4  # relative, of losses against the baseline's; null: they only have to fall
    options: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, list[Any]] = field(default_factory=dict)  # of options: the values that there are
    at_least: dict[str, float] = field(default_factory=dict)  # of options: the least that makes sense


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
    time_minutes: int | None = number(None, at_least=1)  # null: measure.timeout_s and what starting takes
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


@dataclass
class HardwareSpec:
    """A machine or a kind of cluster node. null means detected here, or not known from a source."""

    name: str = "???"
    description: str = ""
    devices: str = one_of("auto", "cpu", "cuda")
    gpus_per_node: int | None = number(None, at_least=1)
    cpus_per_node: int | None = number(None, at_least=1)
    cpus_per_device: int | None = number(None, at_least=1)  # null: floor(cpus_per_node / gpus_per_node)
    max_nodes: int = number(1, at_least=1)
    memory_bytes: int | None = None
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None
    device_ids: list[int] = field(default_factory=list)  # which devices of a node, in order; empty: the first ones
    bind: str = one_of("numa", "none", "far")  # cores of a process: near its device, any, or far from it
    environment: dict[str, str] = field(default_factory=dict)  # variables of the processes
    this_machine: bool = True
    hosts: list[str] = field(default_factory=list)  # name:slots of each, in order; empty: this machine
    layout: str = one_of("sequence", "spread")  # fill one node after the other, or deal the devices out evenly
    interface: str | None = None  # of the network that ranks on several nodes meet over; null: the one that leads there
    stage: str | None = None  # folder on a disk of each node that the data set is copied to; null: read as it lies
    scheduler: str = one_of("none", "slurm")
    max_jobs: int | None = number(None, at_least=1)  # of a sweep in the queue at a time; null: all of them
    slurm: SlurmSpec = field(default_factory=SlurmSpec)
    links: dict[str, Any] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)


@dataclass
class MeasureSpec:
    """How long and how surely to measure."""

    warmup_steps: int = number(50, at_least=0)  # updates before measuring, at the least
    warmup_max_steps: int = number(5000, at_least=0)  # at the most, while no steady state is found
    warmup_max_s: float = number(20.0, at_least=0)  # nor so long; of slow updates as many as fit are enough, but five
    block_s: float = number(0.05, positive=True)
    min_s: float = number(3.0, at_least=0)
    max_s: float = number(30.0, positive=True)
    target: float = number(0.01, positive=True)  # wanted relative half-width of the 95 % interval of throughput
    evaluate: bool = True
    hang_s: float = number(300.0, positive=True)  # without progress for so long, a run is ended
    timeout_s: float = number(3600.0, positive=True)  # of the whole run
    repeats: int = number(1, at_least=1, at_most=1000)  # launches of each run; three or more give intervals over them
    order: str = one_of("listed", "random")  # of the runs of a sweep, within each repeat
    cool_down_s: float = number(0.0, at_least=0, at_most=86_400)  # pause before each run of a sweep but the first
    monitor: bool = True  # sample devices, processes and the machine while it runs
    probes: bool = True  # after the figures: where the time of an update goes
    probe_s: float = number(3.0, positive=True)  # for each probe, about
    trace: bool = False  # keep a trace of some updates of all ranks
    collectives: bool = False  # measure the strategy's collective operations from 4 B to 256 MB
    bandwidth: bool = False  # measure what goes between devices, and to and from host memory
    search: str = one_of("none", "max_batch")  # max_batch: try for the largest batch per device that fits
    memory_limit_bytes: int | None = number(None, at_least=1)  # of each CPU process; null: none, in a search its share
    timeline: bool = False  # keep what the framework itself writes of some exchanges, and sum up its phases


@dataclass
class StopSpec:
    """When the training ends: at what comes first. All null: when its throughput is known, as `measure` says."""

    epochs: float | None = number(None, positive=True)
    steps: int | None = number(None, at_least=1)  # updates
    seconds: float | None = number(None, positive=True)  # of training; evaluation is not counted
    target: float | None = number(None, positive=True)  # of the model's validation metric, reached from its worse side


@dataclass
class TrainSpec:
    """How one update is made, how its learning rate goes on, and when there is enough of it."""

    batch_per_device: int = number(1, at_least=1, at_most=10**8)
    global_batch: int | None = number(None, at_least=1, at_most=10**10)  # only with scaling=strong
    optimizer: str = one_of(*OPTIMIZERS)
    learning_rate: float = number(1e-3, positive=True)
    precision: str = one_of("float32", "tf32", "bfloat16", "float16")  # weights stay float32
    data_format: str = one_of("default", "nhwc", "nchw")  # of images in memory; default: what the adapter takes
    compile: bool = False  # torch.compile, XLA
    dropout: bool = True  # false: dropout layers let everything through, so that losses can be compared
    momentum: float = number(0.9, at_least=0)  # of optimizer=momentum
    weight_decay: float = number(0.0, at_least=0)  # adamw: taken off the weights; else added to the gradients (L2)
    accumulate: int = number(1, at_least=1)  # parts that a device computes its samples of an update in
    learning_rate_rule: str = one_of("none", "linear", "sqrt")  # in the global batch over base_batch
    base_batch: int | None = number(None, at_least=1)  # global batch that learning_rate is for
    schedule: str = one_of("constant", "linear", "cosine", "step")
    warmup_epochs: float = number(0.0, at_least=0)  # in which the learning rate grows linearly from nearly nothing
    decay_epochs: list[float] = field(default_factory=list)  # of schedule=step: after which the rate falls
    decay: float = number(0.1, positive=True)  # of schedule=step: what it is multiplied by then
    # Only for a training to a stop: how far apart the points of its curve are, in epochs or seconds of training, and
    # how many samples each of them looks at, of validation and of training (null: all).
    evaluate_epochs: float | None = number(1.0, positive=True)
    evaluate_s: float | None = number(None, positive=True)
    evaluate_samples: int | None = number(None, at_least=1)
    stop: StopSpec = field(default_factory=StopSpec)


@dataclass
class SweepSpec:
    """How far to take a sweep, and what it leaves."""

    max_minutes: float | None = number(None, positive=True)  # the least telling runs are left out beyond that
    report: bool = True  # leave report.html in its folder at the end


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
    gpus: int | None = number(None, at_least=1, at_most=65_536)
    scaling: str = one_of("weak", "strong")
    seed: int = number(0, at_least=0)
    repeat: int = number(0, at_least=0)
    resume: bool = False
    baseline: str = one_of("auto", "bare", "none", "ladder")  # the runs that a sweep adds where they are missing
    dry_run: bool = False
    debug: bool = False


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


def peak_rate(train: TrainSpec, global_batch: int) -> float:
    """The learning rate for this batch: with k = global_batch / base_batch that of base_batch times k (Goyal et al.
    2017, arXiv:1706.02677, section 2.1) or times the square root of k (Krizhevsky 2014, arXiv:1404.5997, section 5).
    """
    k = global_batch / (train.base_batch or global_batch)
    return train.learning_rate * {"none": 1.0, "linear": k, "sqrt": math.sqrt(k)}[train.learning_rate_rule]


def goes_to_stop(stop: StopSpec) -> bool:
    """Whether a run trains to a stop of its own, rather than until its throughput is known."""
    return any(value is not None for value in (stop.epochs, stop.steps, stop.seconds, stop.target))


@functools.cache
def train_defaults() -> dict[str, Any]:
    """The default of each key of `train`."""
    return dataclasses.asdict(TrainSpec())


@functools.cache
def late_train_defaults() -> dict[str, Any]:
    """The defaults of the keys of `train` that were added after the first records."""
    keys = list(train_defaults())
    return {key: train_defaults()[key] for key in keys[keys.index("dropout") + 1 :]}


def normalize_train_options(train: dict[str, Any]) -> dict[str, Any]:
    """`train` of a composed config without late keys at their default, so that it equals that of an older record.

    When to evaluate does not matter to a training without points, so these keys are left out of such a one.
    """
    late = late_train_defaults()
    kept = {key: value for key, value in train.items() if key not in late or value != late[key]}
    if not any(value is not None for value in (kept.get("stop") or {}).values()):
        kept = {key: value for key, value in kept.items() if not key.startswith("evaluate_")}
    return kept


def check_fields(config: Config) -> None:
    """InputError for the first value that its field in the spec does not allow."""
    _check_fields(config, "")


def _check_fields(part: Any, prefix: str) -> None:
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if dataclasses.is_dataclass(value):
            _check_fields(value, f"{prefix}{f.name}.")
        elif "values" in f.metadata and value not in f.metadata["values"]:
            known = f.metadata["values"]
            raise InputError(f"{prefix}{f.name}={value}: {no_such('such value', str(value), known)}")
        elif "positive" in f.metadata and value is not None:
            _check_number(f"{prefix}{f.name}", value, **f.metadata)


def _check_number(key: str, value: float, at_least: float | None, at_most: float | None, positive: bool) -> None:
    if at_least is not None and not value >= at_least:
        raise InputError(f"{key}={value} should be at least {at_least}")
    if at_most is not None and value > at_most:
        raise InputError(f"{key} should be at most {at_most}")
    if positive and not (value > 0 and math.isfinite(value)):
        raise InputError(f"{key}={value} should be a finite number above 0")


def write_spec(spec: RunSpec, folder: Path) -> None:
    write_json(folder / SPEC_FILE, spec)


def read_spec(folder: Path) -> RunSpec:
    return read_record(folder / SPEC_FILE, RunSpec)
