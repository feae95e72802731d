"""Why a well-formed run cannot happen here: the reasons of a row with status unsupported. Layer 2."""

from __future__ import annotations

import shutil

from scalebench import binding, horovod_build, hosts, machine, registry
from scalebench.spec import Config, HardwareSpec, StrategySpec


def obstacles(config: Config, gpus: int) -> list[str]:
    """Why this run cannot happen here, each in a clause; empty when it can."""
    strategy, hardware = config.strategy, config.hardware
    found = []
    if not hardware.here:
        found.append(_elsewhere(hardware))
    elif hardware.devices == "cuda":
        gpus_here = machine.gpu_count()
        if gpus > gpus_here:
            found.append(f"gpus={gpus} asks for more than the {gpus_here} GPUs here")
        elif absent := [number for number in hardware.device_ids if number >= gpus_here]:
            here = f"GPUs here are 0 to {gpus_here - 1}" if gpus_here > 1 else "only GPU here is 0"
            found.append(f"hardware.device_ids names device {absent[0]}, and the {here}")
    nodes = -(-gpus // (hardware.gpus_per_node or gpus))
    if nodes > hardware.max_nodes and hardware.devices == "cuda" and not hardware.here:
        found.append(f"gpus={gpus} asks for {nodes} nodes, hardware={hardware.name} has {hardware.max_nodes}")
    if strategy.processes == "one_for_all" and nodes > 1 and hardware.max_nodes > 1:
        found.append(f"{strategy.name} has one process for all devices, which are on {nodes} nodes with gpus={gpus}")
    if hardware.devices not in strategy.devices:
        found.append(_wrong_device(strategy.name, hardware.devices))
    if strategy.max_gpus is not None and gpus > strategy.max_gpus:
        found.append(f"{strategy.name} runs on {strategy.max_gpus} device only, gpus={gpus}")
    if strategy.name in hardware.unsupported:
        found.append(f"{strategy.name} does not work on {hardware.name}: {hardware.unsupported[strategy.name]}")
    if not found and (unbound := binding.obstacle(hardware, hardware.device_ids or range(gpus))) is not None:
        found.append(unbound)
    later = registry.NOT_YET.get(strategy.name)
    if later is not None:
        found.append(f"{strategy.name}: {later}")
    found += [
        f"{strategy.name} needs {package}, which is not installed: {registry.install_hint(package)}"
        for package in registry.missing_packages(strategy.requires)
    ]
    few = hosts.shortage(hardware.hosts, gpus)
    if few is not None:
        found.append(few)
    if hardware.hosts and strategy.launcher != "mpi":
        found.append(f"hardware.hosts is for mpirun, and {strategy.name} is not; set strategy.launcher=mpi")
    if config.dataset.prefetch == "device" and hardware.devices == "cpu":
        found.append("dataset.prefetch=device copies to a GPU ahead of time and there is none; use queue")
    # Last, and only where nothing else is in the way: nobody wants to wait for a look at Horovod for nothing.
    unready = launching(strategy) if not found else None
    return found if unready is None else [unready]


def launching(strategy: StrategySpec) -> str | None:
    """Why processes of this strategy, whose packages are all installed, cannot be started here or find each other."""
    if strategy.launcher == "mpi" and shutil.which("mpirun") is None:
        return f"{strategy.name} is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"
    if "horovod" in strategy.requires:
        return horovod_build.obstacle(strategy.framework, strategy.backend, strategy.launcher)
    return None


def _elsewhere(hardware: HardwareSpec) -> str:
    gpus_here = machine.gpu_count()
    here = f"{gpus_here} GPUs" if gpus_here else "no GPU"
    if hardware.scheduler == "slurm" and shutil.which("sbatch") is None:
        here += " and no sbatch"
    wants = f"{hardware.gpus_per_node} x {hardware.gpu_model} a node"
    behind = f", behind {hardware.scheduler}" if hardware.scheduler != "none" else ""
    return f"hardware={hardware.name} is another machine ({wants}{behind}), here is {here}; use hardware=local"


def _wrong_device(strategy: str, device: str) -> str:
    if device == "cpu" and strategy.endswith("_nccl"):
        stem = strategy.removesuffix("_nccl")
        others = [f"{stem}{end}" for end in ("_gloo", "_ring", "") if f"{stem}{end}" in registry.BUILT_IN]
        way_out = f"; use strategy={others[0]} on CPU" if others else ""
        return f"{strategy} exchanges gradients over NCCL, which needs GPUs{way_out}"
    return f"{strategy} does not run on {device}"
