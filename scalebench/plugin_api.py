"""Everything that a plugin may use without a framework. Nothing else of scalebench is stable, but for what
`scalebench.testing` and the packages of the frameworks export; docs/reference/plugin-api.md lists it all."""

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.probe_record import CollectiveRecord, Profile, ProfiledOperation, TransferRecord
from scalebench.core.result import StageRecord
from scalebench.core.spec import Config, DatasetSpec, ModelSpec, RankPlacement, RunSpec, StrategySpec, TrainSpec
from scalebench.strategies.base import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    PARTS,
    Loop,
    LossPart,
    NotMeasured,
    Strategy,
    Unsupported,
)
from scalebench.strategies.recording import (
    Event,
    Line,
    OperationKind,
    profile_steps,
    summarize_lines,
    write_chrome_trace,
)
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.metrics import measure_outputs
from scalebench.workloads.network import Array, Network, Node
from scalebench.workloads.networks import build_network
from scalebench.workloads.source import Batch, Source, feed_batches, prefetch
from scalebench.workloads.weights import initial_weights

__all__ = [
    "Array",
    "BACKWARD",
    "Batch",
    "CollectiveRecord",
    "Config",
    "DatasetSpec",
    "Event",
    "FORWARD",
    "InputError",
    "Line",
    "Loop",
    "LossPart",
    "ModelSpec",
    "Network",
    "Node",
    "NotMeasured",
    "OPTIMIZER",
    "OperationKind",
    "PARTS",
    "PIXEL_SCALE",
    "Profile",
    "ProfiledOperation",
    "RankPlacement",
    "RunSpec",
    "Source",
    "StageRecord",
    "Strategy",
    "StrategySpec",
    "TrainSpec",
    "TransferRecord",
    "Unsupported",
    "build_network",
    "feed_batches",
    "initial_weights",
    "measure_outputs",
    "prefetch",
    "profile_steps",
    "summarize_lines",
    "unknown_name_message",
    "write_chrome_trace",
]
