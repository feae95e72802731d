"""`scalebench doctor`: show this machine, what is installed, what is missing, and the command that installs it.

`scalebench doctor hardware=NAME` compares it with a hardware YAML instead: see hardware_check.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator

from rich import box
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser, make_console
from scalebench.config import horovod_build
from scalebench.core import config_files
from scalebench.core.machine import cuda_builds, machine, private_network
from scalebench.core.machine.machine import Machine
from scalebench.core.process import ask_python
from scalebench.report import machine_text
from scalebench.strategies import registry

EXTRA_PACKAGES = {"PIL": "pip install 'scalebench-train[images]'"}  # required by some data sets, by no strategy
LAUNCHER_COMMANDS = {
    "MPI": ("mpirun", "apt-get install openmpi-bin"),
    "SLURM": ("sbatch", "runs start here, or on hardware.hosts; hardware.slurm.bin names its folder"),
}
MAX_ANSWER_S, MAX_TORCH_ANSWER_S = 10.0, 120.0
# In a process of its own, since only PyTorch itself can list the GPUs that it has code for.
TORCH_SCRIPT = """
import torch, warnings
warnings.simplefilter("ignore")
cuda, build = torch.cuda, torch.version.cuda or torch.version.hip or "none"
print("ANSWER", torch.__version__, build, int(cuda.is_available()), *cuda.get_arch_list())
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="hardware=NAME: compare this host with that YAML"
    )
    parser.add_argument("-cd", "--config-dir", metavar="FOLDER", help="a folder with YAML files of your own")


def main(options: argparse.Namespace) -> int:
    if options.overrides or options.config_dir:
        from scalebench.cli.commands.doctor import hardware_check  # imports Hydra, which the rest does not need

        return hardware_check.main(options.overrides, options.config_dir)
    host = machine.detect_machine()
    table = Table(box=box.SIMPLE, show_header=False)
    for row in list_rows(host):
        table.add_row(*row)
    console = make_console()
    console.print(table)
    if (links := make_link_table(host)) is not None:
        console.print(links)
    return 0


def list_rows(host: Machine) -> Iterator[machine_text.FactRow]:
    """Yield the facts of this machine, what is installed and what is missing, what starts processes on several
    machines, and what listens to strangers while a run lasts."""
    yield from list_machine_rows(host)
    container = f", in {host.container}" if host.container is not None else ""
    yield "system", f"{host.os}, Python {host.python}{container}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in host.versions.items())
    trees = map(config_files.read_strategy_config, config_files.list_options("strategy"))
    useful = {str(package) for tree in trees for package in tree.get("requires") or []} | set(EXTRA_PACKAGES)
    for name in registry.missing_packages(sorted(useful)):
        yield "missing", f"{name}: {EXTRA_PACKAGES.get(name) or registry.install_hint(name)}"
    yield from list_cuda_facts(host)
    for name, (command, hint) in LAUNCHER_COMMANDS.items():
        is_present = shutil.which(command) is not None
        yield name, _read_version(command) if is_present else f"no {command} on the PATH: {hint}"
    yield from list_horovod_builds()
    if (problem := private_network.find_kernel_problem()) is not None:
        text = (
            f"no network of its own is possible for a run here ({problem}): MPI listens on all interfaces, and so do "
            f"TensorFlow's servers, which need strategy.options.{private_network.OPEN_PORT}=true"
        )
        yield "listening", text


def list_machine_rows(host: Machine) -> list[machine_text.FactRow]:
    """List the machine's facts, and the command that compares the connections of its GPUs."""
    others, amd = machine.find_unsupported_gpus(), machine.count_amd_gpus()
    rows = [("GPUs", f"{others}; runs take the CPU")] if others is not None and not host.gpus else []
    if amd:
        rows.append(("GPUs", f"{amd} of AMD, which PyTorch's build for ROCm calls cuda; NVML has no figures of them"))
    if (hidden := machine.find_hidden_gpus()) is not None:
        rows.append(("GPUs", f"{hidden}: runs {'take the CPU' if machine.has_chosen_no_gpu() else 'are refused'}"))
    return [
        *machine_text.list_facts(host),
        *rows,
        *machine_text.list_gpu_pairs(host),
        *machine_text.suggest_comparison(host),
    ]


def make_link_table(host: Machine) -> Table | None:
    """Return the matrix of connections between GPUs; None where it is unknown."""
    matrix = machine_text.make_link_matrix(host)
    if matrix is None:
        return None
    table = Table("links", *(f"GPU {number}" for number in range(len(matrix))), box=box.SIMPLE_HEAD)
    for number, cells in enumerate(matrix):
        table.add_row(f"GPU {number}", *cells)
    return table


def list_cuda_facts(host: Machine) -> list[tuple[str, str]]:
    """List what PyTorch has for the driver and the GPUs, and the owners of NCCL and cuDNN; nothing without GPUs."""
    if not host.gpus:
        return []
    rows = [("CUDA", describe_torch_build(host))] if importlib.util.find_spec("torch") is not None else []
    packages = dict.fromkeys(name for names in cuda_builds.find_library_owners().values() for name in names)
    text = cuda_builds.find_library_conflict() or ", ".join(packages)
    return [*rows, ("NCCL, cuDNN", text)] if text else rows


def describe_torch_build(host: Machine) -> str:
    """Describe PyTorch's build beside the driver and the compute capabilities, or the problem with them."""
    answer, reason = ask_python(TORCH_SCRIPT, limit_s=MAX_TORCH_ANSWER_S)
    if answer is None:
        return f"PyTorch does not import: {reason}"
    version, cuda, is_available, *architectures = answer
    texts = {gpu.compute_capability for gpu in host.gpus if gpu.compute_capability is not None}
    capabilities = sorted((int(major), int(minor)) for major, _, minor in (text.partition(".") for text in texts))
    driver = None if is_available == "1" else host.driver_version
    problem = cuda_builds.find_torch_problem(
        version, None if cuda == "none" else cuda, architectures, driver, capabilities
    )
    cards = ", ".join(map(cuda_builds.format_capability, capabilities)) or "unknown"
    build = f"PyTorch {version} has code for {' '.join(architectures) or 'unknown GPUs'}"
    return problem or f"{build}; driver {host.driver_version or 'unknown'}, compute capability {cards}"


def list_horovod_builds() -> list[tuple[str, str]]:
    """List Horovod's build for each installed framework; each takes seconds."""
    if registry.missing_packages(["horovod"]):
        return [("Horovod", f"not installed: {registry.install_hint('horovod')}")]
    frameworks = [name for name in horovod_build.FRAMEWORKS if horovod_build.detect_framework_version(name) is not None]
    return [("Horovod", horovod_build.describe_horovod(name)[0]) for name in frameworks]


def _read_version(command: str) -> str:
    """Return the first line that `command --version` prints."""
    try:
        done = subprocess.run(
            [command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MAX_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command} does not answer: {error}"
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode != 0 and lines:  # such as SLURM's commands where no cluster is configured
        return f"{command} does not answer: {lines[-1].removeprefix(f'{command}: ').removeprefix('fatal: ')}"
    return lines[0] if lines else f"{command} prints no version"
