"""Support: the reasons why a well-formed run cannot happen here, which give it the status unsupported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from scalebench.cluster.commands import Slurm, find_site, in_allocation
from scalebench.config import horovod_build
from scalebench.config.placement import Placement, find_binding_problem
from scalebench.core.machine import cuda_builds, machine, private_network
from scalebench.core.spec import Config, HardwareSpec, StrategySpec, has_stop
from scalebench.strategies import registry
from scalebench.workloads import user_code

# By scheduler, the command that submits jobs, and whether jobs can be submitted or this process runs in one.
CLUSTERS: dict[str, tuple[str | None, Callable[[HardwareSpec], bool]]] = {
    "none": (None, lambda hardware: bool(hardware.hosts)),
    "slurm": ("sbatch", lambda hardware: in_allocation() or Slurm(hardware.slurm.bin).path("sbatch") is not None),
    "kubernetes": ("kubectl", lambda hardware: shutil.which("kubectl") is not None),
}


def find_unsupported_reasons(config: Config, gpus: int, placement: Placement) -> list[str]:
    """List why this run cannot happen here, each reason a clause; empty when it can."""
    strategy, hardware = config.strategy, config.hardware
    nodes = len(placement.devices_per_node)
    is_remote_plan = config.dry_run and hardware.scheduler != "none" and not is_reachable(hardware)
    # The plan for a cluster may be made on any machine, whose devices and packages say nothing of the cluster's.
    machine_reasons = [] if is_remote_plan else _check_machine(hardware, gpus, nodes)
    reasons = [*machine_reasons, *_check_strategy(config, gpus, nodes)]
    if config.debug and not hardware.this_machine and not in_allocation():
        reasons.append("debug=true runs rank 0 in the foreground; start it in an allocation, as salloc gives one")
    if hardware.this_machine and not reasons:
        devices = hardware.device_ids or range(max(placement.devices_per_node))
        if (problem := find_binding_problem(hardware, devices)) is not None:
            reasons.append(problem)
    # In a container, after the commands of slurm.setup and in another Python, ranks see other packages than this
    # process does.
    slurm = hardware.slurm
    has_other_packages = (
        is_remote_plan or hardware.scheduler == "kubernetes" or slurm.container or slurm.setup or slurm.python
    )
    same_packages = hardware.this_machine or not has_other_packages
    reasons += [
        f"{strategy.name} needs {package}, which is not installed: {registry.install_hint(package)}"
        for package in (registry.missing_packages(strategy.requires) if same_packages else [])
    ]
    if hardware.devices == "cuda" and same_packages and (conflict := cuda_builds.find_library_conflict()) is not None:
        reasons.append(conflict)
    if placement.shortage is not None and (hardware.hosts or not hardware.this_machine):
        reasons.append(placement.shortage)
    reasons += _check_launcher(config, gpus, nodes)
    reasons += [*_check_user_model(config), *_check_dataset(config)]
    if not reasons and (refusal := private_network.explain_refusal(config)) is not None:
        reasons.append(refusal)
    if config.dataset.prefetch == "device" and hardware.devices == "cpu":
        reasons.append("dataset.prefetch=device copies to a GPU ahead of time and there is none; use queue")
    # Last, and only if nothing else prevents the run: inspecting Horovod takes seconds. The MPI and NCCL of a host that
    # only submits say nothing about the nodes; ranks there report what they miss.
    if not reasons and (hardware.this_machine or hardware.hosts):
        problem = find_launch_problem(strategy)
        return [] if problem is None else [problem]
    return reasons


def _check_machine(hardware: HardwareSpec, gpus: int, nodes: int) -> list[str]:
    """List why the machine lacks such devices, or cannot be reached."""
    if not hardware.this_machine and not is_reachable(hardware):
        return [_describe_unreachable(hardware)]
    if not hardware.this_machine:
        return _check_allocation(hardware, gpus, nodes)
    if hardware.hosts:  # this machine need not be one of them
        return []
    gpus_here = machine.count_gpus() if hardware.devices == "cuda" else gpus
    if gpus > gpus_here:
        others = machine.find_unsupported_gpus()
        why = f"; there are {others}" if others else f"; {hidden}" if (hidden := machine.find_hidden_gpus()) else ""
        return [f"gpus={gpus} asks for more than the {gpus_here} GPUs here{why}"]
    absent = [number for number in hardware.device_ids if number >= gpus_here and hardware.devices == "cuda"]
    present = f"GPUs here are 0 to {gpus_here - 1}" if gpus_here > 1 else "only GPU here is 0"
    return [f"hardware.device_ids names device {absent[0]}, and the {present}"] if absent else []


def _check_allocation(hardware: HardwareSpec, gpus: int, nodes: int) -> list[str]:
    """List why the job that this process runs in has too few nodes."""
    granted = os.environ.get("SLURM_JOB_NUM_NODES", "")
    if find_site(hardware) != "allocation" or not granted.isdigit() or nodes <= int(granted):
        return []
    has = "1 node" if granted == "1" else f"{granted} nodes"
    return [f"gpus={gpus} need {nodes} nodes, and this job has {has}; ask for more, or lower gpus"]


def _check_launcher(config: Config, gpus: int, nodes: int) -> list[str]:
    """List why the launcher does not reach the nodes of the ranks."""
    strategy, hardware, slurm = config.strategy, config.hardware, config.hardware.slurm
    by_mpirun = strategy.launcher == "mpi" and slurm.mpi == "mpirun" and hardware.scheduler == "slurm"
    has_cpus_here = hardware.this_machine and not hardware.hosts and hardware.devices == "cpu"
    checks = (
        (hardware.hosts and strategy.launcher not in ("mpi", "by_hand"),
         f"hardware.hosts is for mpirun, and {strategy.name} is not; set strategy.launcher=mpi"),
        (strategy.launcher == "by_hand" and hardware.scheduler != "none",
         f"strategy.launcher=by_hand is for hosts without a scheduler, and there is {hardware.scheduler}"),
        (strategy.launcher == "mpi" and hardware.scheduler == "kubernetes",
         f"{strategy.name} is started by mpirun, which cannot start processes in pods; use Gloo or torch's NCCL"),
        (config.script.command is not None and nodes > 1,
         f"gpus={gpus} need {nodes} nodes, and script.command starts processes on one: "
         f"use script={config.script.path}, whose processes are started on all of them"),
        (by_mpirun and slurm.container and not hardware.this_machine,
         f"mpirun starts the ranks of {strategy.name} outside hardware.slurm.container; set hardware.slurm.mpi=pmix"),
        (has_cpus_here and nodes > 1 and strategy.processes != "one_for_all",
         f"gpus={gpus} need {nodes} nodes and only this machine is here; name them in hardware.hosts"),
    )  # fmt: skip
    return [reason for applies, reason in checks if applies][:1]


def _check_user_model(config: Config) -> list[str]:
    """List why a user's model cannot be built in the strategy's framework."""
    model, strategy, framework = config.model, config.strategy, config.strategy.framework
    key = {"torch": "torch", "tensorflow": "keras"}.get(framework)
    if not user_code.is_user_model(model) or framework == "none":
        return []
    keys = [f"model.{name}" for name in user_code.MODEL_FUNCTION_KEYS if getattr(model, name) is not None]
    package = user_code.LIBRARIES.get(str(model.torch)) if key == "torch" else None
    checks = (
        (key is None,
         f"model={model.name} is made by {' or '.join(keys)}, and {strategy.name} trains with {framework}"),
        (package is not None and registry.missing_packages([package]),
         f"model={model.name} needs {package}, which is not installed: {registry.install_hint(str(package))}"),
        (key is not None and getattr(model, key) is None,
         f"model={model.name} has no model.{key}=MODULE:FUNCTION, which {strategy.name} needs"),
        (framework == "tensorflow" and user_code.has_user_loss(model),
         f"model.loss={model.loss} is a loss in PyTorch, and {strategy.name} trains with Keras: leave it at auto"),
    )  # fmt: skip
    return [reason for applies, reason in checks if applies][:1]


def _check_dataset(config: Config) -> list[str]:
    """List why the framework of the strategy cannot read the samples."""
    dataset, strategy = config.dataset, config.strategy
    if dataset.loader is not None and strategy.framework != "torch":
        return [
            f"dataset.loader gives its batches to PyTorch, and {strategy.name} does not train with it; use "
            "dataset.builder, or a strategy of PyTorch"
        ]
    return []


def _check_strategy(config: Config, gpus: int, nodes: int) -> list[str]:
    """List what the strategy cannot do on such hardware."""
    strategy, hardware = config.strategy, config.hardware
    is_alone = strategy.processes == "one_for_all" and (hardware.max_nodes > 1 or hardware.hosts)
    checks = (
        (is_alone and nodes > 1,
         f"{strategy.name} has one process for all devices, which are on {nodes} nodes with gpus={gpus}"),
        (hardware.devices not in strategy.devices, _describe_wrong_device(strategy.name, hardware.devices)),
        (strategy.max_gpus is not None and gpus > strategy.max_gpus,
         f"{strategy.name} runs on {strategy.max_gpus} device only, gpus={gpus}"),
        (has_stop(config.train.stop) and strategy.independent,
         f"replicas of {strategy.name} exchange nothing, and each trains a model of its own: there is no one training "
         f"to stop, so leave out train.stop"),
        (strategy.name in hardware.unsupported,
         f"{strategy.name} does not work on {hardware.name}: {hardware.unsupported.get(strategy.name)}"),
    )  # fmt: skip
    return [reason for applies, reason in checks if applies]


def is_reachable(hardware: HardwareSpec) -> bool:
    """Return whether jobs can be submitted to that machine from here, or this process runs in one."""
    return CLUSTERS[hardware.scheduler][1](hardware)


def find_launch_problem(strategy: StrategySpec) -> str | None:
    """Explain why processes of this strategy, whose packages are all installed, cannot start or connect here."""
    if strategy.launcher == "mpi" and shutil.which("mpirun") is None:
        return f"{strategy.name} is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"
    if "horovod" in strategy.requires:
        return horovod_build.find_horovod_problem(strategy.framework, strategy.backend, strategy.launcher)
    return None


def _describe_unreachable(hardware: HardwareSpec) -> str:
    model = hardware.gpu_model or "device"
    gpus_here = machine.count_gpus()
    local = f"{gpus_here} GPUs" if gpus_here else machine.find_unsupported_gpus() or "no GPU"
    needs, behind = f"{hardware.gpus_per_node} x {model} a node", ""
    if command := CLUSTERS[hardware.scheduler][0]:
        local += f" and no {command}" + (f" in {hardware.slurm.bin}" if hardware.slurm.bin else "")
        behind = f", behind {hardware.scheduler}"
    return (
        f"hardware={hardware.name} is another machine ({needs}{behind}), and this one has {local}; use hardware=local"
    )


def _describe_wrong_device(strategy: str, device: str) -> str:
    if strategy == "data_parallel":
        return "data_parallel needs GPUs: on CPU torch.nn.DataParallel would silently be one device; use strategy=ddp"
    if device == "cpu" and strategy.endswith("_nccl"):
        stem = strategy.removesuffix("_nccl")
        others = [f"{stem}{end}" for end in ("", "_gloo", "_ring") if f"{stem}{end}" in registry.built_in_strategies()]
        way_out = f"; use strategy={others[0]} on CPU" if others else ""
        return f"{strategy} exchanges gradients over NCCL, which needs GPUs{way_out}"
    return f"{strategy} does not run on {device}"
