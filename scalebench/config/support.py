"""Why a well-formed run cannot happen here: the reasons of a row with status unsupported. Layer 2."""

from __future__ import annotations

import os
import shutil

from scalebench.config import horovod_build
from scalebench.config import placement as binding
from scalebench.config.placement import Placement
from scalebench.core.machine import machine
from scalebench.core.spec import Config, HardwareSpec, StrategySpec, goes_to_stop
from scalebench.slurm.commands import Slurm, inside
from scalebench.strategies import registry
from scalebench.workloads import user_code


def obstacles(config: Config, gpus: int, placement: Placement) -> list[str]:
    """List why this run cannot happen here, each reason a clause; empty when it can."""
    strategy, hardware = config.strategy, config.hardware
    nodes = len(placement.devices_per_node)
    found = [*_of_the_machine(hardware, gpus, nodes), *_of_the_strategy(config, gpus, nodes)]
    if config.debug and not hardware.this_machine and not inside():
        found.append("debug=true runs rank 0 in the foreground; start it in an allocation, as salloc gives one")
    on_node = range(max(placement.devices_per_node))
    unbound = binding.obstacle(hardware, hardware.device_ids or on_node) if hardware.this_machine and not found else None
    found += [] if unbound is None else [unbound]
    unseen = not hardware.this_machine and bool(hardware.slurm.container or hardware.slurm.setup)  # what ranks will find
    found += [
        f"{strategy.name} needs {package}, which is not installed: {registry.install_hint(package)}"
        for package in ([] if unseen else registry.missing_packages(strategy.requires))
    ]
    if placement.shortage is not None and (hardware.hosts or not hardware.this_machine):
        found.append(placement.shortage)
    found += _of_the_launcher(config, gpus, nodes)
    found += _of_the_model(config)
    if config.dataset.prefetch == "device" and hardware.devices == "cpu":
        found.append("dataset.prefetch=device copies to a GPU ahead of time and there is none; use queue")
    # Last, and only where nothing else is in the way: nobody wants to wait for a look at Horovod for nothing. What a
    # host that only submits has of MPI and NCCL says nothing of the nodes, and ranks there say it themselves.
    unready = launching(strategy) if not found and (hardware.this_machine or hardware.hosts) else None
    return found if unready is None else [unready]


def _of_the_machine(hardware: HardwareSpec, gpus: int, nodes: int) -> list[str]:
    """Why it has no such devices, or cannot be reached."""
    if not hardware.this_machine and not reachable(hardware):
        return [_elsewhere(hardware)]
    if not hardware.this_machine:
        return _of_the_allocation(hardware, gpus, nodes)
    if hardware.hosts:  # of which this one need be none
        return []
    gpus_here = machine.gpu_count() if hardware.devices == "cuda" else gpus
    if gpus > gpus_here:
        return [f"gpus={gpus} asks for more than the {gpus_here} GPUs here"]
    absent = [number for number in hardware.device_ids if number >= gpus_here and hardware.devices == "cuda"]
    here = f"GPUs here are 0 to {gpus_here - 1}" if gpus_here > 1 else "only GPU here is 0"
    return [f"hardware.device_ids names device {absent[0]}, and the {here}"] if absent else []


def _of_the_allocation(hardware: HardwareSpec, gpus: int, nodes: int) -> list[str]:
    """Why the job that this process is in has too few nodes."""
    granted = os.environ.get("SLURM_JOB_NUM_NODES", "")
    if hardware.scheduler != "slurm" or not inside() or not granted.isdigit() or nodes <= int(granted):
        return []
    has = "1 node" if granted == "1" else f"{granted} nodes"
    return [f"gpus={gpus} stand on {nodes} nodes, and this job has {has}; ask for more, or lower gpus"]


def _of_the_launcher(config: Config, gpus: int, nodes: int) -> list[str]:
    """Why it does not reach the nodes that the ranks stand on."""
    strategy, hardware = config.strategy, config.hardware
    if hardware.hosts and strategy.launcher not in ("mpi", "by_hand"):
        return [f"hardware.hosts is for mpirun, and {strategy.name} is not; set strategy.launcher=mpi"]
    if strategy.launcher == "by_hand" and hardware.scheduler != "none":
        return [f"strategy.launcher=by_hand is for hosts without a scheduler, and there is {hardware.scheduler}"]
    several = nodes > 1 and strategy.processes != "one_for_all"
    if hardware.this_machine and not hardware.hosts and hardware.devices == "cpu" and several:
        return [f"gpus={gpus} stand on {nodes} nodes and only this machine is here; name them in hardware.hosts"]
    return []


def _of_the_model(config: Config) -> list[str]:
    """Why a user's own network is not there for the strategy's framework."""
    model, strategy = config.model, config.strategy
    key = {"torch": "torch", "tensorflow": "keras"}.get(strategy.framework)
    if not user_code.is_user_model(model) or strategy.framework == "none":
        return []
    if key is None:
        told = " or ".join(
            f"model.{name}" for name in user_code.MODEL_FUNCTION_KEYS if getattr(model, name) is not None
        )
        return [f"model={model.name} is made by {told}, and {strategy.name} trains with {strategy.framework}"]
    if getattr(model, key) is None:
        return [f"model={model.name} has no model.{key}=MODULE:FUNCTION, which {strategy.name} needs"]
    return []


def _of_the_strategy(config: Config, gpus: int, nodes: int) -> list[str]:
    """What it cannot do on such hardware."""
    strategy, hardware = config.strategy, config.hardware
    found = []
    if strategy.processes == "one_for_all" and nodes > 1 and (hardware.max_nodes > 1 or hardware.hosts):
        found.append(f"{strategy.name} has one process for all devices, which are on {nodes} nodes with gpus={gpus}")
    if hardware.devices not in strategy.devices:
        found.append(_wrong_device(strategy.name, hardware.devices))
    if strategy.max_gpus is not None and gpus > strategy.max_gpus:
        found.append(f"{strategy.name} runs on {strategy.max_gpus} device only, gpus={gpus}")
    if goes_to_stop(config.train.stop) and not strategy.lockstep:
        found.append(
            f"replicas of {strategy.name} exchange nothing, and each trains a model of its own: there is no one "
            f"training to stop, so leave out train.stop"
        )
    if strategy.name in hardware.unsupported:
        found.append(f"{strategy.name} does not work on {hardware.name}: {hardware.unsupported[strategy.name]}")
    return found


def reachable(hardware: HardwareSpec) -> bool:
    """Whether jobs can be given to the scheduler of another machine from here, or this is one of them."""
    if hardware.scheduler == "slurm":
        return inside() or Slurm(hardware.slurm.bin).has("sbatch")
    return bool(hardware.hosts)


def launching(strategy: StrategySpec) -> str | None:
    """Why processes of this strategy, whose packages are all installed, cannot be started here or find each other."""
    if strategy.launcher == "mpi" and shutil.which("mpirun") is None:
        return f"{strategy.name} is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"
    if "horovod" in strategy.requires:
        return horovod_build.obstacle(strategy.framework, strategy.backend, strategy.launcher)
    return None


def _elsewhere(hardware: HardwareSpec) -> str:
    model = hardware.gpu_model or "device"
    gpus_here = machine.gpu_count()
    here = f"{gpus_here} GPUs" if gpus_here else "no GPU"
    if hardware.scheduler == "slurm":  # and not to be reached
        here += " and no sbatch" + (f" in {hardware.slurm.bin}" if hardware.slurm.bin else "")
    wants = f"{hardware.gpus_per_node} x {model} a node"
    behind = f", behind {hardware.scheduler}" if hardware.scheduler != "none" else ""
    return f"hardware={hardware.name} is another machine ({wants}{behind}), here is {here}; use hardware=local"


def _wrong_device(strategy: str, device: str) -> str:
    if strategy == "data_parallel":
        return (
            "data_parallel needs GPUs: on CPU torch.nn.DataParallel would silently be one device; use strategy=ddp_gloo"
        )
    if device == "cpu" and strategy.endswith("_nccl"):
        stem = strategy.removesuffix("_nccl")
        others = [f"{stem}{end}" for end in ("_gloo", "_ring", "") if f"{stem}{end}" in registry.BUILT_IN]
        way_out = f"; use strategy={others[0]} on CPU" if others else ""
        return f"{strategy} exchanges gradients over NCCL, which needs GPUs{way_out}"
    return f"{strategy} does not run on {device}"
