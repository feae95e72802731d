"""Options of the Horovod strategies, and the environment variables that carry them to its background thread."""

from __future__ import annotations

from dataclasses import dataclass

from scalebench.spec import RunSpec
from scalebench.strategy import Unsupported

MEBIBYTE = 2**20
# What a user's environment must not set behind the back of the spec. The timeline's writer keeps a core busy
# between its events, so that it would slow down what is measured: measure.timeline=true writes one afterwards.
TIMELINE = "HOROVOD_TIMELINE"


@dataclass
class HorovodOptions:
    """Defaults are those of Horovod 0.28.1 (horovod/common/operations.cc)."""

    fusion_threshold_mb: float = 128.0  # MiB; gradients that are ready in one cycle travel together up to this size
    cycle_time_ms: float = 1.0  # between two looks of the background thread at what is ready
    cache_capacity: int = 1024  # tensors whose negotiation is remembered; 0: none
    hierarchical_allreduce: bool = False  # NCCL within a node, MPI between nodes
    autotune: bool = False  # Horovod tries thresholds and cycle times while it trains, also while it is measured
    compression: str = "none"  # none | fp16: what gradients travel in
    op: str = "average"  # average | adasum


def check(spec: RunSpec, options: HorovodOptions) -> None:
    """Unsupported for what this kind of run cannot do."""
    backend, name = spec.config.strategy.backend, spec.config.strategy.name
    if options.op == "adasum":
        if spec.config.strategy.launcher != "mpi":
            raise Unsupported(f"Adasum needs Horovod's MPI operations, which {name} does not use; take horovod_mpi")
        if spec.processes & (spec.processes - 1):
            raise Unsupported(f"Adasum adds up in pairs, and {spec.processes} processes are no power of two")
        if spec.config.train.precision == "float16":
            raise Unsupported("Adasum takes its steps before a scaled loss is put right; use bfloat16")
    if not is_default(options, "cycle_time_ms") and not is_default(options, "fusion_threshold_mb"):
        raise Unsupported(
            "Horovod 0.28.1 with both cycle_time_ms and fusion_threshold_mb set crashes when it is started anew, "
            "which shows what carried the gradients; set one of them"
        )
    if options.hierarchical_allreduce and (backend != "nccl" or spec.config.strategy.launcher != "mpi"):
        raise Unsupported(
            f"hierarchical_allreduce is NCCL within a node and MPI between nodes, and {name} is not: "
            f"use strategy=horovod_nccl strategy.launcher=mpi"
        )


def environment(spec: RunSpec, options: HorovodOptions) -> dict[str, str | None]:
    """Variables that Horovod reads when it starts, but for those that say where this process stands; None: unset.

    Defaults are left unset: what is set by hand is kept from autotune.
    """
    over_mpi = spec.config.strategy.launcher == "mpi"
    transport = "mpi" if over_mpi else "gloo"  # of the controller, and of tensors on the CPU
    as_given = {
        "HOROVOD_FUSION_THRESHOLD": ("fusion_threshold_mb", int(options.fusion_threshold_mb * MEBIBYTE)),
        "HOROVOD_CYCLE_TIME": ("cycle_time_ms", options.cycle_time_ms),
        "HOROVOD_CACHE_CAPACITY": ("cache_capacity", options.cache_capacity),
        "HOROVOD_HIERARCHICAL_ALLREDUCE": ("hierarchical_allreduce", int(options.hierarchical_allreduce)),
        "HOROVOD_AUTOTUNE": ("autotune", int(options.autotune)),
    }
    chosen = {name: None if is_default(options, key) else str(value) for name, (key, value) in as_given.items()}
    return {"HOROVOD_CONTROLLER": transport, "HOROVOD_CPU_OPERATIONS": transport, **chosen}


def is_default(options: HorovodOptions, key: str) -> bool:
    return bool(getattr(options, key) == getattr(HorovodOptions(), key))


def forgets_fusion(options: HorovodOptions) -> bool:
    """Whether Horovod fuses otherwise once it was started anew: with a cycle time of its own 0.28.1 then takes 1 MiB
    for the threshold (BayesianParameter::SetValue in horovod/common/parameter_manager.cc)."""
    return not is_default(options, "cycle_time_ms")
