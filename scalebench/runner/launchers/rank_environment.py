"""The environment of a rank: its variables, the network interface that it uses, and the ports of all ranks."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import random
import socket
from collections.abc import Sequence

from scalebench.config.placement import parse_ports
from scalebench.core.claim.sitecustomize import PROGRAM_VARIABLE
from scalebench.core.exit_with_parent import PARENT_VARIABLE
from scalebench.core.machine.variables import NO_PROXY, bypass_proxies, drop_foreign_settings, drop_launch_variables
from scalebench.core.process import LISTEN_ADDRESS, RANK_ADDRESSES
from scalebench.core.run_folder import RUN_ID_VARIABLE
from scalebench.core.spec import HardwareSpec, RunSpec

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# glibc would give freed memory back to the kernel and fault it in again at each step: a quarter of a step of a small
# CNN, which differs by 5 % from one start of a program to the next with the layout of its heap. The threshold is the
# largest that every version of glibc accepts, and that it would reach by itself.
HEAP_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str((2 << 30) - 1)}
OUTPUT_VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:replace"}  # of a log, whatever a terminal shows
# Trackers that a user's program may use would get a run for each start of it: without these they write into its folder.
OFFLINE_VARIABLES = {"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "CLEARML_OFFLINE_MODE": "1"}
NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"  # 480 s by default
LOOPBACK, LOOPBACK_INTERFACE = "127.0.0.1", "lo"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"  # also for Horovod's Gloo
INTERFACE_VARIABLES = (GLOO_INTERFACE, "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "OMPI_MCA_btl_tcp_if_include")
EXCLUDED_INTERFACES = "OMPI_MCA_btl_tcp_if_exclude"  # which Open MPI refuses beside the last of those
DISCARD_PORT = 9  # no packet is sent to it
# Above those of services, such as SLURM's own at 6817, and below Linux's ephemeral ports, which connections hold.
PORTS = range(20_000, 32_768)
# These differ between the ranks of a run or between runs, besides scalebench's own variables.
RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *(*THREAD_VARIABLES, *INTERFACE_VARIABLES, EXCLUDED_INTERFACES, NCCL_HEARTBEAT, *NO_PROXY),
)
MAX_ASSIGNED = 500
_assigned_ports: set[int] = set()  # to ranks of this program, whose runs may be alive at the same time


def build_environment(
    spec: RunSpec, run_id: str, rank: int, addresses: Sequence[str], by_mpi: bool = False
) -> dict[str, str]:
    """Return this process's environment with a rank's own variables, under the names that torchrun uses, and without
    what other programs have left there. With `by_mpi` its MPI needs the variables of the launch that it is from.

    `addresses` are host:port of every rank: the first is the group's rendezvous, and a TensorFlow cluster needs all.
    """
    place = spec.places[rank]
    host, port = split_address(addresses[0])
    ranks_on_node = sum(p.node == place.node for p in spec.places)
    is_script = spec.config.script.path is not None
    variables = dict(os.environ) | OUTPUT_VARIABLES if is_script else common_environment(by_mpi)
    if is_script and spec.device == "cuda":  # as torchrun does
        variables.setdefault("OMP_NUM_THREADS", "1" if ranks_on_node > 1 else str(place.threads))
    else:
        variables.update({name: str(place.threads) for name in THREAD_VARIABLES})
    variables.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(spec.processes),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(ranks_on_node),
            "NODE_RANK": str(place.node),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            RANK_ADDRESSES: ",".join(addresses),
            RUN_ID_VARIABLE: run_id,
            PARENT_VARIABLE: str(os.getpid()),
        }
    )
    hosts = [split_address(address)[0] for address in addresses]
    variables |= bypass_proxies(variables, hosts)
    if is_script:
        variables |= script_variables(spec, run_id, rank)
    if rank == 0:
        variables[LISTEN_ADDRESS] = choose_listen_address(spec.config.hardware, host)
    if set(hosts) == {LOOPBACK}:  # for all libraries, which would listen on another interface otherwise
        variables.update(dict.fromkeys(INTERFACE_VARIABLES, LOOPBACK_INTERFACE))
        variables.pop(EXCLUDED_INTERFACES, None)
    elif len(hosts) == spec.processes:
        variables.update(interface_variables(spec.config.hardware, hosts, rank))
    if spec.cohort is not None:  # NCCL's monitor would take a parked process for one that hangs
        variables[NCCL_HEARTBEAT] = str(round(spec.group_timeout_s))
    variables.update(spec.config.hardware.environment)
    return variables


def script_variables(spec: RunSpec, run_id: str, rank: int) -> dict[str, str]:
    """Return what torchrun sets besides for a user's program, whose environment is otherwise that of the shell, and
    what keeps its trackers from a server unless the shell says otherwise."""
    place = spec.places[rank]
    variables = {
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(spec.nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(spec.processes),
    }
    if PROGRAM_VARIABLE not in os.environ:  # else the command that started it has those devices
        variables |= list_visible_devices(spec, place.node)
    return variables | {name: value for name, value in OFFLINE_VARIABLES.items() if name not in os.environ}


def list_visible_devices(spec: RunSpec, node: int = 0) -> dict[str, str]:
    """Return the variables by which a user's program sees exactly the GPUs of the run on a node."""
    if spec.device != "cuda":
        return {}
    visible = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    devices = [device for place in spec.places if place.node == node for device in place.devices]
    names = [visible[device] if device < len(visible) else str(device) for device in devices]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def common_environment(by_mpi: bool = False) -> dict[str, str]:
    """Return what is the same for all ranks on this host."""
    variables = drop_foreign_settings(os.environ if by_mpi else drop_launch_variables(os.environ))
    if not any(name.startswith("MALLOC_") for name in os.environ):
        variables.update(HEAP_VARIABLES)
    try:
        getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in many containers: torch's compiler asks for it
        variables["USER"] = f"uid{os.getuid()}"
    return variables | {
        **OUTPUT_VARIABLES,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts, and so hardware.device_ids and the record
    }


def split_address(address: str) -> tuple[str, str]:
    """Return host and port of HOST:PORT, where an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def is_this_host(name: str) -> bool:
    """Return whether `name` is this host's, where one of both may have the domain and the other not."""
    if name in ("localhost", LOOPBACK):
        return True
    own, other = socket.gethostname().lower(), name.lower()
    if "." in own and "." in other:
        return own == other
    return own.partition(".")[0] == other.partition(".")[0]


def find_interface_in_use(spec: RunSpec, rank: int) -> str | None:
    """Return the interface over which Gloo and TensorFlow reach the other ranks from this one, whose environment this
    is; None where there are none or it is unknown. NCCL chooses its own."""
    hosts = [split_address(address)[0] for address in os.environ.get(RANK_ADDRESSES, "").split(",")]
    if spec.processes == 1 or rank >= len(hosts):
        return None
    others = [host for host in hosts if host != hosts[rank]]
    if others and spec.config.strategy.framework == "tensorflow":  # whose servers take the way to the host
        return find_interface_to(others[0])
    return os.environ.get(GLOO_INTERFACE)


def interface_variables(hardware: HardwareSpec, hosts: Sequence[str], rank: int) -> dict[str, str]:
    """Return the variables by which the libraries choose an interface on this rank's host.

    `hosts` are those of all ranks. hardware.interface applies to every library. Otherwise NCCL and MPI choose for
    themselves, and Gloo, which would take the interface that the host's own name resolves to, gets the interface to
    another host, unless the shell sets one.
    """
    others = [host for host in hosts if host != hosts[rank]]
    if not others:
        return {}
    if hardware.interface is not None:
        return dict.fromkeys(INTERFACE_VARIABLES, hardware.interface)
    name = None if os.environ.get(GLOO_INTERFACE) else find_interface_to(others[0])
    return {} if name is None else {GLOO_INTERFACE: name}


def choose_listen_address(hardware: HardwareSpec, host: str) -> str:
    """Return the address on which rank 0, which runs on this machine, listens for the ranks that connect to `host`.

    It is the one address to which the name resolves, so that other networks cannot connect. It is "", all interfaces,
    where the name resolves only to the loopback here, as Debian sets up a host's own name, or to several addresses, of
    which hardware.interface can choose one.
    """
    import psutil

    if host == LOOPBACK:
        return LOOPBACK
    local = {each.address.partition("%")[0]: name for name, own in psutil.net_if_addrs().items() for each in own}
    try:
        names = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return ""
    outer = [name for name in names if local.get(name, LOOPBACK_INTERFACE) != LOOPBACK_INTERFACE]
    outer = [name for name in outer if ":" not in name] or outer  # of version 6 only where there is no other
    chosen = [name for name in outer if local[name] == hardware.interface] or outer
    return chosen[0] if len(chosen) == 1 else ""


def find_interface_to(host: str) -> str | None:
    """Return the interface by which packets to `host` leave; None where it cannot be determined."""
    import psutil

    local, addresses = find_own_address(host), psutil.net_if_addrs().items()
    return next((name for name, each in addresses if any(a.address.partition("%")[0] == local for a in each)), None)


def find_own_address(host: str) -> str | None:
    """Return the address of this machine from which packets to `host` leave; None where it cannot be determined."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # chooses the route without sending anything
            return str(probe.getsockname()[0])
    return None


def find_interface_address(name: str) -> str | None:
    """Return an address of an interface of this machine, of version 6 only where it has no other; None without one."""
    import psutil

    addresses = psutil.net_if_addrs().get(name, [])
    families = (socket.AF_INET, socket.AF_INET6)
    return next((a.address for family in families for a in addresses if a.family == family), None)


def assign_rank_addresses(hosts: Sequence[str], seed: str, within: str | None = None) -> list[str]:
    """Return host:port of each rank, given their hosts. Ranks that are all on one host use its loopback, here with
    ports that are free now.

    Otherwise the ports are drawn `within` LOW-HIGH (hardware.ports), without those of other runs of this program while
    others are left, and without those that are in use on this host. On another host one may be in use, as by a run that
    chose it too; a rank then fails with that reason.
    """
    if all(map(is_this_host, hosts)):
        return [f"{LOOPBACK}:{port}" for port in find_free_ports(len(hosts))]
    ports = PORTS if within is None else parse_ports(within)
    if len(_assigned_ports) > MAX_ASSIGNED:  # those of runs long over
        _assigned_ports.clear()
    candidates = [port for port in ports if port not in _assigned_ports] or list(ports)
    random.Random(seed).shuffle(candidates)
    most = max(map(hosts.count, set(hosts)))
    usable = [*itertools.islice(filter(_is_free, candidates), most)] or candidates
    _assigned_ports.update(usable)
    numbers = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]  # of each rank on its host
    names = [(f"[{host}]" if ":" in host else host) if len(set(hosts)) > 1 else LOOPBACK for host in hosts]
    return [f"{name}:{usable[k % len(usable)]}" for name, k in zip(names, numbers, strict=True)]


def find_free_ports(count: int) -> list[int]:
    """Return `count` different ports of the loopback interface that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _is_free(port: int) -> bool:
    """Return whether no program on this host listens on a port; one in TIME_WAIT counts as free."""
    with contextlib.suppress(OSError), socket.create_server(("", port)):
        return True
    return False
