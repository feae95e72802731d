"""The typed schema of the config, and RunSpec: one run with nothing left to decide.

The parent composes `Config` with Hydra, resolves it into a `RunSpec` and writes that as spec.json; workers read
spec.json and never import Hydra. What a key may hold is stated beside its field.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.json_files import read_record, write_json
from scalebench.core.run_folder import SPEC_FILE

NO_TIMEOUT_S = 86400.0
OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "nesterov", "rmsprop")
NO_VALIDATION_SAMPLES = (
    "train.stop.target is of the validation metric, and there are fewer samples to validate than replicas"
)
SWEEP_REPEATS = 3  # the fewest that give an interval; of a configuration where measure.repeats leaves it open
TRACKERS = ("mlflow", "wandb")  # to which finished runs can be exported
ALL_DEVICES = "all"  # a value of the key gpus
CHIEF = "chief"  # the role of the only process that measures, where processes have roles
FIRST_REPEAT_ONLY = ("evaluate", "probes", "trace", "bandwidth", "timeline")  # keys of MeasureSpec


def choice_field(*values: str) -> Any:
    """Declare a field that holds one of these values; the first is the default."""
    return field(default=values[0], metadata={"values": values})


def number_field(
    default: float | None, at_least: float | None = None, at_most: float | None = None, positive: bool = False
) -> Any:
    """Declare a field that holds a number within these bounds; `positive` also requires a finite one.

    Bounds do not apply to null, where the field may be null.
    """
    return field(default=default, metadata={"at_least": at_least, "at_most": at_most, "positive": positive})


@dataclass
class ModelSpec:
    """A network, the same in every framework, and the training settings of the study it comes from."""

    name: str = "???"
    description: str = ""
    input_shape: list[int] = field(default_factory=list)  # of one sample, channels last
    target_shape: list[int] = field(default_factory=list)  # []: one class number, or several for cross_entropy
    outputs: int = 1  # of the last layer
    targets: list[str] = field(default_factory=list)  # names of the outputs, where they are quantities
    loss: str = "mse"
    metric: str = "mse"
    params: int | None = None  # expected number of trainable parameters, checked by every worker
    options: dict[str, Any] = field(default_factory=dict)  # arguments of the function that builds the network
    torch: str | None = None  # "module:function" that makes a user's torch.nn.Module, called with the options
    keras: str | None = None  # likewise for the same network as a keras.Model
    code_digest: str | None = None  # of the files of these functions, so that an edited network makes another run
    batch_per_device: int = 1
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    sources: list[str] = field(default_factory=list)


@dataclass
class DatasetSpec:
    """Samples, where they are kept, and how they reach the device."""

    name: str = "???"
    size: int = number_field(1, at_least=1, at_most=10**10)
    seed: int = number_field(0, at_least=0)  # of the samples, which do not depend on the seed of the run
    validation_share: float = 0.25
    path: str | None = None  # a user's files: .npz of the same layout, CIFAR archive, folders of images
    image_size: int | None = number_field(None, at_least=1)  # pixels along each side; null: that of the model's input
    # Of inputs; uint8 becomes float32 on the device; record: several arrays or integers, as they are.
    dtype: str = choice_field("float32", "uint8", "int32", "record")
    classes: int | None = number_field(None, at_least=2)  # labels are 0 .. classes - 1; null: targets are quantities
    builder: str | None = None  # "module:function" that makes a user's samples, called with size, seed and options
    loader: str | None = None  # "module:function" that gives batches, called in each rank: it is read in the step
    options: dict[str, Any] = field(default_factory=dict)  # arguments of that function
    code_digest: str | None = None  # of its file, so that other samples make another run
    requested_size: int | None = number_field(None, at_least=1)  # where the function returned `size` samples instead
    cache: str | None = None  # null: $SCALEBENCH_CACHE, else ~/.cache/scalebench
    feed: str = choice_field("host", "device", "fixed")
    prefetch: str = choice_field("none", "queue", "device")
    # Of data sets whose pictures are decoded during training: how many processes (PyTorch) or threads (TensorFlow) of
    # each rank decode; null: one per core of the rank, 0: the rank itself, for each batch when it is needed.
    workers: int | None = number_field(None, at_least=0, at_most=256)
    augment: bool = True  # likewise: random crops and flips in training; false: the central square


@dataclass
class StrategySpec:
    """The properties of a strategy that are needed before any of its processes exists."""

    name: str = "???"
    description: str = ""
    adapter: str | None = None  # "module:Class", which is imported in the workers alone
    framework: str = "none"  # none | torch | tensorflow | the name in a plugin
    requires: list[str] = field(default_factory=list)  # import names of packages
    baseline: str | None = None  # strategy of the `bare` baseline
    launcher: str = choice_field("local", "mpi", "by_hand")
    processes: Any = "one_per_device"  # one_per_device | one_for_all | {roles: {chief: 1, ps: 1, worker: gpus}}
    backend: str | None = None  # requested backend of gradient synchronization; null: there is none
    # What devices exchange in a step, which decides how it is predicted to grow: gradients of replicas, of shards, of
    # shards with copies on other nodes, with a sharded optimizer; split layers, whole or as shards; variables in one
    # place, in one graph; a model cut into stages, one after the other, as a pipeline, as several of them; nothing.
    sync: str = choice_field(
        *("all_reduce", "sharded", "hsdp", "zero1", "tensor", "fsdp_tp", "one_copy", "in_graph"),
        *("stages", "pipeline", "hybrid", "none"),
    )
    reduces_on: str = choice_field("devices", "cpu")  # where gradients are added up, if no backend says so
    devices: list[str] = field(default_factory=lambda: ["cpu", "cuda"])
    max_gpus: int | None = None
    independent: bool = False  # true: replicas that never synchronize and stop at a common deadline
    approximate: str | None = None  # why its steps differ from the baseline's on the same samples; null: they do not
    exact_with: dict[str, Any] = field(default_factory=dict)  # values of options with which they do not, although
    tolerance: float | None = 1e-4  # relative difference of losses from the baseline's; null: losses only have to fall
    options: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, list[Any]] = field(default_factory=dict)  # allowed values by option
    at_least: dict[str, float] = field(default_factory=dict)  # smallest allowed value by option
    # This maps settings that it refuses to the reason and the way out (strategies/refusals.setting_reasons).
    cannot: dict[str, Any] = field(default_factory=dict)


@dataclass
class SlurmSpec:
    """Settings of a SLURM job, by the names that sbatch uses; null leaves a setting to the cluster."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclusive: bool = False  # nodes without other jobs, with all of their memory
    # A sweep is one job for each number of devices, in which its runs and a baseline take turns, one for all runs, or
    # one for each run, which then takes no turns.
    jobs: str = choice_field("per_size", "one", "per_run")
    memory: str | None = None  # per node, in the format of --mem: 64G; null: all of it where exclusive
    # This limits each job. null: 1.5 times the estimate for its runs, half an hour at least and at most
    # measure.timeout_s for each run, plus the time to start.
    time_minutes: int | None = number_field(None, at_least=1)
    gres: str = "gpu:{gpus}"  # per node, such as gpu:a100:{gpus}; {gpus}: the GPUs used there
    # Further options of sbatch, such as --mail-type=END; {gpus} as in gres: --gpus-per-node={gpus} with gres: "".
    lines: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)  # shell lines before the run: module load, source
    python: str | None = None  # the Python of jobs, where nodes have another one; null: the one that submits them
    srun: list[str] = field(default_factory=list)  # further options of the srun that starts the ranks
    # The program that starts MPI ranks: mpirun, or srun with this value of --mpi.
    mpi: str = choice_field(
        "mpirun", "pmix", "pmix_v2", "pmix_v3", "pmix_v4", "pmix_v5", "pmi2", "openmpi", "cray_shasta"
    )
    container: str | None = None  # image that the ranks run in
    container_runtime: str = choice_field("apptainer", "singularity", "pyxis")
    # Further options of apptainer exec or singularity exec, such as --writable-tmpfs; --rocm takes the place of
    # --nv.
    container_options: list[str] = field(default_factory=list)
    # FROM:TO, besides the folders of the run, its data and its code.
    container_mounts: list[str] = field(default_factory=list)
    container_python: str = "python3"  # in the image, where scalebench is installed
    bin: str | None = None  # folder of sbatch, squeue and the others; null: they are on the PATH


@dataclass
class KubernetesSpec:
    """Settings of the pods of a JobSet."""

    image: str = "scalebench-torch"  # with scalebench in it, as docker/Dockerfile builds it
    python: str = "python3"  # of the image
    namespace: str | None = None  # null: that of the context of kubectl
    queue: str | None = None  # Kueue's, which admits all pods at once
    resource: str = "nvidia.com/gpu"  # by which a pod asks for GPUs; amd.com/gpu
    # Your own jobset.yaml, where pods need more, such as tolerations; null: scalebench/cluster/jobset.yaml.
    template: str | None = None
    claim: str | None = None  # of a volume for data, logs and traces, which all pods write to; null: each has its own


@dataclass
class HardwareSpec:
    """A machine or a type of cluster node; null means detected on this machine, or without a source."""

    name: str = "???"
    description: str = ""
    devices: str = choice_field("auto", "cpu", "cuda")
    gpus_per_node: int | None = number_field(None, at_least=1)
    cpus_per_node: int | None = number_field(None, at_least=1)
    cpus_per_device: int | None = number_field(None, at_least=1)  # null: floor(cpus_per_node / gpus_per_node)
    max_nodes: int = number_field(1, at_least=1)
    memory_bytes: int | None = None
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None
    device_ids: list[int] = field(default_factory=list)  # which devices of a node, in order; empty: the first ones
    bind: str = choice_field("numa", "none", "far")  # which cores a process gets: near its device, any, or far from it
    environment: dict[str, str] = field(default_factory=dict)  # variables of the processes
    this_machine: bool = True
    nodes_share_cores: bool = False  # as containers or virtual machines of one computer do
    hosts: list[str] = field(default_factory=list)  # name:slots of each, in order; empty: this machine
    layout: str = choice_field("sequence", "spread")  # fill one node after the other, or spread devices evenly
    interface: str | None = None  # network interface between nodes; null: the one that routes there
    ports: str | None = None  # LOW-HIGH, on which ranks on several nodes listen; null: outside the ephemeral ranges
    node_copy: str | None = None  # folder on each node's disk that the data set is copied to; null: no copy
    scheduler: str = choice_field("none", "slurm", "kubernetes")
    max_jobs: int | None = number_field(None, at_least=1)  # jobs of a sweep in the queue at a time; null: all
    slurm: SlurmSpec = field(default_factory=SlurmSpec)
    kubernetes: KubernetesSpec = field(default_factory=KubernetesSpec)
    links: dict[str, Any] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)


@dataclass
class MeasureSpec:
    """Settings of measuring: duration, precision, and what is measured besides throughput."""

    warmup_steps: int = number_field(50, at_least=0)  # steps before measuring, at least
    warmup_max_steps: int = number_field(5000, at_least=0)  # at most, while no steady state is detected
    warmup_max_s: float = number_field(20.0, at_least=0)  # nor longer; of slow steps five are enough
    block_s: float = number_field(0.05, positive=True)
    min_s: float = number_field(3.0, at_least=0)  # of all repeats of a run together, as max_s
    max_s: float = number_field(30.0, positive=True)
    # relative half-width of the 95 % interval at which measuring may stop
    target: float = number_field(0.01, positive=True)
    evaluate: bool = True
    hang_s: float = number_field(300.0, positive=True)  # a run without progress for so long is ended
    timeout_s: float = number_field(3600.0, positive=True)  # of the whole run
    # Starts of each run; null: SWEEP_REPEATS in a sweep of measured throughputs, else one (RunSpec.repeats).
    repeats: int | None = number_field(None, at_least=1, at_most=1000)
    # Where it is null and limits are too wide for a verdict: the most starts of each run.
    max_repeats: int = number_field(6, at_least=1, at_most=1000)
    # Of the runs of a sweep, within each repeat. auto: rounds where runs can take turns, else given.
    order: str = choice_field("auto", "rounds", "given", "random")
    slot_s: float = number_field(0.1, positive=True)  # of order=rounds: how long a run measures in each round
    monitor: bool = True  # sample devices, processes and the machine while it runs
    probes: bool = True  # after measuring throughput: where the time of a step goes
    probe_s: float = number_field(3.0, positive=True)  # about, for each probe
    trace: bool = False  # keep a trace of some steps of all ranks
    collectives: bool = False  # measure the strategy's collective operations from 4 B to 256 MB, in each repeat
    bandwidth: bool = False  # measure transfers between devices, and to and from host memory
    search: str = choice_field("none", "max_batch")  # max_batch: search for the largest batch per device that fits
    memory_limit_bytes: int | None = number_field(
        None, at_least=1
    )  # per CPU process; null: none, in a search its share
    timeline: bool = False  # keep the framework's own timeline of some gradient synchronizations, and sum up its phases


@dataclass
class StopSpec:
    """Conditions at the first of which the training ends; all null: it ends when its throughput is measured."""

    epochs: float | None = number_field(None, positive=True)
    steps: int | None = number_field(None, at_least=1)  # optimizer steps
    seconds: float | None = number_field(None, positive=True)  # of training, without evaluation
    target: float | None = number_field(None, positive=True)  # value of the model's validation metric to reach


@dataclass
class TrainSpec:
    """Settings of training: batches, optimizer, learning-rate schedule, evaluation and when to stop."""

    batch_per_device: int = number_field(1, at_least=1, at_most=10**8)
    global_batch: int | None = number_field(None, at_least=1, at_most=10**10)  # only with scaling=strong
    global_tokens: int | None = number_field(None, at_least=1)  # likewise, of sequences; becomes global_batch
    optimizer: str = choice_field(*OPTIMIZERS)
    learning_rate: float = number_field(1e-3, positive=True)
    # Weights stay float32. `default` remains only on GPUs: it is what the framework does by itself.
    precision: str = choice_field("float32", "default", "tf32", "bfloat16", "float16")
    data_format: str = choice_field("default", "nhwc", "nchw")  # memory layout of images; default: the adapter's choice
    compile: str = choice_field("none", "default", "graphs")  # torch.compile, XLA | the step as one CUDA graph
    dropout: bool = True  # false: dropout layers are inactive, so that losses can be compared
    momentum: float = number_field(0.9, at_least=0)  # of optimizer=momentum and nesterov
    # adamw: subtracted from the weights; else added to the gradients (L2)
    weight_decay: float = number_field(0.0, at_least=0)
    clip_norm: float | None = number_field(None, positive=True)  # maximum norm of a step's gradients; null: no maximum
    accumulate: int = number_field(1, at_least=1)  # micro-batches per step and device
    learning_rate_rule: str = choice_field("none", "linear", "sqrt")  # scaling by global batch over base_batch
    base_batch: int | None = number_field(None, at_least=1)  # global batch that learning_rate is for
    schedule: str = choice_field("constant", "linear", "cosine", "step")
    warmup_epochs: float = number_field(0.0, at_least=0)  # in which the learning rate grows linearly from nearly 0
    decay_epochs: list[float] = field(default_factory=list)  # of schedule=step: epochs after which the rate drops
    decay: float = number_field(0.1, positive=True)  # of schedule=step: the factor of each drop
    # Only for a training with a stop condition: the distance of the points of its curve, in epochs or seconds of
    # training, and how many validation and training samples each point evaluates (null: all).
    evaluate_epochs: float | None = number_field(1.0, positive=True)
    evaluate_s: float | None = number_field(None, positive=True)
    evaluate_samples: int | None = number_field(None, at_least=1)
    activation_checkpointing: bool = False  # with PyTorch: the backward pass recomputes activations
    stop: StopSpec = field(default_factory=StopSpec)

    def __post_init__(self) -> None:
        """Read `false` and `true`, which compile was once, as `none` and `default`."""
        self.compile = {"false": "none", "true": "default"}.get(str(self.compile).lower(), self.compile)


@dataclass
class ScriptSpec:
    """A training program of the user's, which runs as it is: what it is started with, and what cannot be seen of it."""

    path: str | None = None  # a file, or "-m package.module"; null: scalebench's own loop trains
    command: str | None = None  # instead of path: what starts the program, as torchrun or accelerate launch do
    args: dict[str, Any] = field(default_factory=dict)  # its arguments by name, after those of `fixed`
    fixed: list[str] = field(default_factory=list)  # its arguments as they are typed, as those after -- are
    style: str = choice_field("spaces", "equals", "hydra")  # of args: --key value, --key=value or key=value
    folder: str | None = None  # that it runs in; null: the current one
    processes: str = choice_field("one_per_device", "one_for_all")  # the latter starts or drives the devices itself
    step: str = choice_field("optimizer", "batch")  # what ends a step: the optimizer's step, or the next batch
    # These are of one device, and with scaling=strong of all; null: they are counted as they are drawn.
    samples_per_step: int | None = number_field(None, at_least=1)
    first_step_s: float = number_field(600.0, positive=True)  # a run without a step for so long is ended
    digest: str | None = None  # of its file, so that an edited script makes another run


@dataclass
class SweepSpec:
    """Settings of a sweep: its time limit, its report and its question."""

    max_minutes: float | None = number_field(None, positive=True)  # the least informative runs are left out beyond that
    report: bool = True  # write report.html into its folder at the end
    question: str | None = None  # the swept key that the answer is about; null: all of them


@dataclass
class Config:
    """The config that `python -m scalebench` composes from conf/ and the command line."""

    model: ModelSpec = field(default_factory=ModelSpec)
    dataset: DatasetSpec = field(default_factory=DatasetSpec)
    strategy: StrategySpec = field(default_factory=StrategySpec)
    hardware: HardwareSpec = field(default_factory=HardwareSpec)
    measure: MeasureSpec = field(default_factory=MeasureSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    script: ScriptSpec = field(default_factory=ScriptSpec)
    sweep: SweepSpec = field(default_factory=SweepSpec)
    # A number, or null or ALL_DEVICES: all devices of one node of the hardware.
    gpus: Any = field(default=None, metadata={"at_least": 1, "at_most": 65_536, "positive": False})
    scaling: str = choice_field("weak", "strong")
    seed: int = number_field(0, at_least=0)
    repeat: int = number_field(0, at_least=0)
    resume: bool = False
    strict: bool = False  # an unsupported run makes the exit status of a sweep 1
    wait: bool = False  # for the end of another scalebench that measures on this machine
    baseline: str = choice_field("auto", "bare", "none", "attribution")  # which missing one-device runs a sweep adds
    dry_run: bool = False
    debug: bool = False


@dataclass
class RankPlacement:
    """The node, devices and cores of one process of a run."""

    rank: int
    local_rank: int
    node: int
    devices: list[int]  # indices of its devices on the node
    cpus: list[int]  # cores that it is pinned to; empty: not pinned
    threads: int
    role: str = ""  # where processes differ: chief, or the service it provides to the chief


@dataclass
class RunSpec:
    """One resolved run, as spec.json holds it."""

    config: Config
    device: str  # cpu | cuda
    gpus: int
    nodes: int
    places: list[RankPlacement]
    batch_per_device: int  # samples per step on one device; the largest share where they differ by one
    global_batch: int
    fingerprint: str
    flags: list[str] = field(default_factory=list)
    unsupported: str | None = None  # why this well-formed run cannot happen here
    plugin_error: str | None = None  # of a plugin or user code; the run fails before it has a process
    plugin_traceback: str = ""
    read_samples_per_s: float | None = None  # of a user's Dataset, before the run and in one process
    tokens_per_sample: int | None = None  # null: samples are not sequences of tokens, or are first seen in the ranks
    cohort: str | None = None  # the runs that it takes turns with; its ranks park between slots
    held: bool = False  # set up beside others of its cohort; its ranks wait with their first step for WARM_UP_FILE

    @property
    def processes(self) -> int:
        """The number of processes."""
        return len(self.places)

    @property
    def declared_samples(self) -> int | None:
        """The samples of a step on all devices, as the config says it of a user's program; None where it does not."""
        samples = self.config.script.samples_per_step
        return samples if samples is None or self.config.scaling == "strong" else samples * self.gpus

    @property
    def can_start(self) -> bool:
        """True if its processes can be started; otherwise its result is written at once and costs no time."""
        return self.unsupported is None and self.plugin_error is None

    @property
    def repeats(self) -> int:
        """The number of starts of this configuration in its sweep."""
        return self.config.measure.repeats or 1

    @property
    def repeat_settings(self) -> MeasureSpec:
        """The settings of measuring for this repeat by itself.

        `min_s` and `max_s` are for all repeats together, so each has its share. It may stop at an interval that is
        sqrt(repeats) times as wide as `target`, since that of their mean is then as narrow as requested. What is
        measured besides throughput is measured in the first repeat only. A search has the complete settings each time.
        """
        settings, repeats = self.config.measure, self.repeats
        if repeats == 1 or settings.search != "none":
            return settings
        changes: dict[str, Any] = dict.fromkeys(FIRST_REPEAT_ONLY, False) if self.config.repeat > 0 else {}
        changes |= {"min_s": settings.min_s / repeats, "max_s": settings.max_s / repeats}
        return dataclasses.replace(settings, target=settings.target * math.sqrt(repeats), **changes)

    @property
    def services(self) -> dict[int, str]:
        """Roles, by rank, of the processes that serve the chief: they measure nothing and end with it."""
        return {place.rank: place.role for place in self.places if place.role not in ("", CHIEF)}

    @property
    def group_timeout_s(self) -> float:
        """Seconds that a rank waits for the others before it fails by itself.

        Longer than the launcher waits for progress, so that a hang is reported as a hang and not as a broken
        connection. With a debugger there is practically no limit, nor where ranks are parked for as long as other
        runs take: libraries go on counting meanwhile.
        """
        return NO_TIMEOUT_S if self.config.debug or self.cohort is not None else 2 * self.config.measure.hang_s

    @property
    def learning_rate(self) -> float:
        """The peak learning rate of the schedule, scaled by the rule for this run's global batch."""
        return peak_learning_rate(self.config.train, self.global_batch)

    @property
    def label(self) -> str:
        """A short name for people: strategy and devices."""
        return f"{self.config.strategy.name} gpus={self.gpus}"


def peak_learning_rate(train: TrainSpec, global_batch: int) -> float:
    """Return the learning rate scaled for a global batch by train.learning_rate_rule.

    With k = global_batch / base_batch, it is that of base_batch times k (Goyal et al. 2017, arXiv:1706.02677,
    section 2.1) or times the square root of k (Krizhevsky 2014, arXiv:1404.5997, section 5).
    """
    k = global_batch / (train.base_batch or global_batch)
    return train.learning_rate * {"none": 1.0, "linear": k, "sqrt": math.sqrt(k)}[train.learning_rate_rule]


def has_stop(stop: StopSpec) -> bool:
    """Return whether a run trains to a stop condition, rather than until its throughput is measured."""
    return any(value is not None for value in (stop.epochs, stop.steps, stop.seconds, stop.target))


@functools.cache
def train_defaults() -> dict[str, Any]:
    """Return the default of each key of `train`."""
    return dataclasses.asdict(TrainSpec())


def check_fields(part: Any, above: str = "") -> None:
    """Raise InputError for the first value of a config, or of a part of it, that its field does not allow."""
    for f in dataclasses.fields(part):
        key, value, rule = f"{above}{f.name}", getattr(part, f.name), f.metadata
        if dataclasses.is_dataclass(value):
            check_fields(value, f"{key}.")
        elif "values" in rule and value not in rule["values"]:
            raise InputError(f"{key}={value}: {unknown_name_message('such value', str(value), rule['values'])}")
        elif "positive" in rule and value is not None:
            if rule["at_least"] is not None and not value >= rule["at_least"]:
                raise InputError(f"{key}={value} should be at least {rule['at_least']}")
            if rule["at_most"] is not None and value > rule["at_most"]:
                raise InputError(f"{key} should be at most {rule['at_most']}")
            if rule["positive"] and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{key}={value} should be a finite number above 0")


def write_spec(spec: RunSpec, folder: Path) -> None:
    """Write spec.json into the folder of the run."""
    write_json(folder / SPEC_FILE, spec)


def read_spec(folder: Path) -> RunSpec:
    """Read spec.json from the folder of the run."""
    return read_record(folder / SPEC_FILE, RunSpec)
