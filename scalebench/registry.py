"""Strategy names -> the classes behind them. Layer 1; imports an adapter only when it is asked for one."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from scalebench.spec import Config, InputError
from scalebench.strategy import Strategy
from scalebench.suggest import no_such

GROUP = "scalebench.strategies"
OURS = "scalebench"

BUILT_IN: dict[str, str] = {
    "null": "scalebench.adapters.null:Null",
    "bare_torch": "scalebench.adapters.torch.bare:BareTorch",
    "ddp": "scalebench.adapters.torch.ddp:Ddp",
    "ddp_nccl": "scalebench.adapters.torch.ddp:Ddp",
    "ddp_gloo": "scalebench.adapters.torch.ddp:Ddp",
    "lightning_ddp": "scalebench.adapters.torch.lightning:LightningDdp",
    "lightning_ddp_nccl": "scalebench.adapters.torch.lightning:LightningDdp",
    "lightning_ddp_gloo": "scalebench.adapters.torch.lightning:LightningDdp",
    "independent_torch": "scalebench.adapters.torch.independent:IndependentTorch",
    "bare_tensorflow": "scalebench.adapters.tensorflow.bare:BareTensorFlow",
    "mirrored": "scalebench.adapters.tensorflow.mirrored:Mirrored",
    "mirrored_nccl": "scalebench.adapters.tensorflow.mirrored:Mirrored",
    "mirrored_hierarchical": "scalebench.adapters.tensorflow.mirrored:Mirrored",
    "mirrored_reduce_cpu": "scalebench.adapters.tensorflow.mirrored:Mirrored",
    "mirrored_reduce_device": "scalebench.adapters.tensorflow.mirrored:Mirrored",
    "central_storage_cpu": "scalebench.adapters.tensorflow.central_storage:CentralStorage",
    "central_storage_device": "scalebench.adapters.tensorflow.central_storage:CentralStorage",
    "multi_gpu_model": "scalebench.adapters.tensorflow.in_graph:InGraph",
    "kuza55_ps_cpu": "scalebench.adapters.tensorflow.in_graph:InGraph",
    "kuza55_ps_gpu": "scalebench.adapters.tensorflow.in_graph:InGraph",
    "avolkov1_ps_cpu": "scalebench.adapters.tensorflow.in_graph:InGraph",
    "avolkov1_ps_gpu": "scalebench.adapters.tensorflow.in_graph:InGraph",
    "multiworker_ring": "scalebench.adapters.tensorflow.multiworker:MultiWorker",
    "multiworker_nccl": "scalebench.adapters.tensorflow.multiworker:MultiWorker",
    "parameter_server": "scalebench.adapters.tensorflow.parameter_server:ParameterServer",
    "horovod_nccl": "scalebench.adapters.horovod.torch:HorovodTorch",
    "horovod_mpi": "scalebench.adapters.horovod.torch:HorovodTorch",
    "horovod_gloo": "scalebench.adapters.horovod.torch:HorovodTorch",
    "horovod_tensorflow_nccl": "scalebench.adapters.horovod.tensorflow:HorovodTensorFlow",
    "horovod_tensorflow_mpi": "scalebench.adapters.horovod.tensorflow:HorovodTensorFlow",
    "horovod_tensorflow_gloo": "scalebench.adapters.horovod.tensorflow:HorovodTensorFlow",
    "lightning_horovod": "scalebench.adapters.horovod.lightning:LightningHorovod",
    "independent_tensorflow": "scalebench.adapters.tensorflow.independent:IndependentTensorFlow",
}

# Names that people of the field look for, whose adapters are not part of this version.
_LATER = "its {} adapter is not part of this version of scalebench"
NOT_YET: dict[str, str] = {
    name: _LATER.format(framework)
    for framework, names in {
        "PyTorch": "fsdp_nccl fsdp_gloo zero1 data_parallel tensor_parallel model_parallel pipeline_gpipe hybrid",
    }.items()
    for name in names.split()
}

# How to get what a strategy's YAML `requires`.
INSTALL: dict[str, str] = {
    "torch": "pip install 'scalebench[torch]'",
    "pytorch_lightning": "pip install 'scalebench[torch]'",
    "tensorflow": "pip install 'scalebench[tensorflow]'",
    "horovod": "make horovod in a checkout of scalebench; see docs/horovod.md",
}


@dataclass(frozen=True)
class Entry:
    """A registered strategy: what to import, and which distribution it comes from."""

    name: str
    target: str | None  # "module:Class"; None: announced, not there yet
    origin: str


@functools.lru_cache(maxsize=1)
def table() -> dict[str, Entry]:
    """All registered strategies by name.

    Built-ins and the entry points `scalebench.strategies` of installed packages; SCALEBENCH_PLUGINS, when set,
    lists the only distributions to load plugins from (empty: none). The same name twice is an InputError.
    """
    entries = {name: Entry(name, target, OURS) for name, target in BUILT_IN.items()}
    entries |= {name: Entry(name, None, OURS) for name in NOT_YET}
    for point in filter(allowed, entry_points(group=GROUP)):
        origin = origin_of(point)
        known = entries.get(point.name)
        if known is not None and (known.origin, known.target) != (origin, point.value):
            raise InputError(
                f"strategy '{point.name}' is registered by both {known.origin} and {origin}; "
                f"uninstall one of them or set SCALEBENCH_PLUGINS"
            )
        entries[point.name] = Entry(point.name, point.value, origin)
    return entries


def origin_of(point: EntryPoint) -> str:
    """The distribution that an entry point comes from."""
    return point.dist.name if point.dist is not None else point.module


def allowed(point: EntryPoint) -> bool:
    """Whether SCALEBENCH_PLUGINS, when set, lets this plugin in."""
    chosen = os.environ.get("SCALEBENCH_PLUGINS")
    return chosen is None or origin_of(point) in chosen.split(",")


def find(name: str) -> Entry:
    """The entry of that name; InputError with the nearest name otherwise."""
    entries = table()
    if name not in entries:
        raise InputError(no_such("strategy", name, entries))
    return entries[name]


def load(name: str) -> type[Strategy]:
    """Import the class behind a name. InputError when a plugin does not hold what it registered."""
    entry = find(name)
    if entry.target is None:
        raise InputError(f"strategy '{name}': {NOT_YET[name]}")
    module_name, _, class_name = entry.target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"strategy '{name}' of {entry.origin} cannot be loaded from {entry.target}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise InputError(
            f"strategy '{name}' of {entry.origin}: {entry.target} is no subclass of scalebench.strategy.Strategy"
        )
    return found


def refuse_broken(config: Config) -> None:
    """PluginError where something that this run chose by name comes from a plugin that cannot go: the same name twice,
    a later API, no YAML. Imports nothing."""


def missing_packages(requires: list[str]) -> list[str]:
    """Those of the import names that are not installed; nothing is imported."""
    return [name for name in requires if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # of a part of a package that is not there, or no name at all
        return False


def install_hint(package: str) -> str:
    return INSTALL.get(package, f"pip install {package}")
