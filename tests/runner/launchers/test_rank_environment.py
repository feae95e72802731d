"""The environment of a rank: variables, network interface, ports."""

import os
import random
import socket
from types import SimpleNamespace

import psutil
import pytest

from scalebench.config import placement
from scalebench.core.errors import InputError
from scalebench.core.machine.variables import NO_PROXY, PROXIES, select_recorded
from scalebench.core.process import LISTEN_ADDRESS
from scalebench.core.spec import HardwareSpec
from scalebench.runner.launchers import rank_environment
from tests.builders.runs import simulated_spec


def test_each_rank_has_its_own_variables(monkeypatch):
    monkeypatch.setenv(rank_environment.EXCLUDED_INTERFACES, "lo")  # which Open MPI takes for a contradiction
    spec = simulated_spec(gpus=3)
    spec.places[1].threads = 7
    spec.places[2].node, spec.places[2].local_rank = 1, 0
    build = rank_environment.build_environment
    first, second, third = (build(spec, "an id", rank, ["127.0.0.1:12345"]) for rank in range(3))
    assert (first["RANK"], second["RANK"], third["RANK"]) == ("0", "1", "2")
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"], third["LOCAL_RANK"]) == ("0", "1", "0")
    assert (first["LOCAL_WORLD_SIZE"], third["LOCAL_WORLD_SIZE"], third["NODE_RANK"]) == ("2", "1", "1")
    for variables in (first, second, third):
        assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("127.0.0.1", "12345")
        assert {variables[name] for name in INTERFACES} == {"lo"} and variables["WORLD_SIZE"] == "3"
        assert variables["SCALEBENCH_RUN_ID"] == "an id"
        assert variables["SCALEBENCH_PARENT_PID"] == str(os.getpid())
        assert variables["PATH"] == os.environ["PATH"], "what is set here reaches the workers"
        assert rank_environment.EXCLUDED_INTERFACES not in variables
    assert first[LISTEN_ADDRESS] == "127.0.0.1" and LISTEN_ADDRESS not in second
    for name in rank_environment.THREAD_VARIABLES:
        assert (first[name], second[name]) == (str(spec.places[0].threads), "7")


@pytest.mark.parametrize("own", [None, "MALLOC_ARENA_MAX"])
def test_the_heap_keeps_what_a_step_frees_unless_the_shell_says_otherwise(own, monkeypatch):
    for name in (*rank_environment.HEAP_VARIABLES, "MALLOC_ARENA_MAX"):
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(own, "4")
    variables = rank_environment.build_environment(simulated_spec(), "an id", 0, ["127.0.0.1:12345"])
    assert (rank_environment.HEAP_VARIABLES.items() <= variables.items()) is (own is None)


LEFT_BEHIND = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2",
    "MEGATRON_LM_TP_DEGREE": "2", "PL_TRAINER_GRADIENT_CLIP_VAL": "1e-4", "DEEPSPEED_TIMEOUT": "1", "TF_CONFIG": "{}",
}  # fmt: skip
OTHER_LAUNCH = {
    "GROUP_RANK": "3", "ROLE_WORLD_SIZE": "9", "TORCHELASTIC_RUN_ID": "x", "OMPI_COMM_WORLD_RANK": "7", "PMI_RANK": "7",
    "PMIX_RANK": "7", "SLURM_PROCID": "7", "SLURM_NTASKS": "8", "LOCAL_SIZE": "8",
}  # fmt: skip


@pytest.mark.parametrize("by_mpi", [False, True])
def test_ranks_do_not_inherit_what_other_programs_left_in_the_shell(by_mpi, monkeypatch):
    """Accelerate and Lightning prefer variables to their arguments; MPI needs those of the mpirun that started it."""
    for name, value in {**LEFT_BEHIND, **OTHER_LAUNCH, "WORLD_SIZE": "9", "OMPI_MCA_btl": "tcp"}.items():
        monkeypatch.setenv(name, value)
    spec = simulated_spec(gpus=2)
    spec.config.hardware.environment = {"PL_TRAINER_MAX_TIME": "00:00:01:00"}
    variables = rank_environment.build_environment(spec, "an id", 1, ["127.0.0.1:1", "127.0.0.1:2"], by_mpi)
    assert not LEFT_BEHIND.keys() & variables.keys()
    assert OTHER_LAUNCH.keys() & variables.keys() == (OTHER_LAUNCH.keys() if by_mpi else set())
    assert (variables["WORLD_SIZE"], variables["RANK"], variables["OMPI_MCA_btl"]) == ("2", "1", "tcp")
    assert variables["PL_TRAINER_MAX_TIME"] == "00:00:01:00", "the user's own choice for this run"
    recorded = select_recorded(os.environ)
    assert {recorded[name] for name in LEFT_BEHIND} == {"set, not passed to ranks"}


def test_ranks_reach_each_other_without_a_proxy(monkeypatch):
    for name in (*PROXIES, *map(str.upper, PROXIES), *NO_PROXY):
        monkeypatch.delenv(name, raising=False)
    spec = simulated_spec(gpus=2)
    assert "no_proxy" not in rank_environment.build_environment(spec, "an id", 0, ["a:1", "b:2"])
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "our.net,a")
    monkeypatch.setenv("no_grpc_proxy", "x")
    variables = rank_environment.build_environment(spec, "an id", 0, ["a:1", "b:2"])
    assert [variables[name] for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy")] == ["our.net,a,b", "a,b", "x,a,b"]
    assert variables["HTTPS_PROXY"] == "http://proxy:3128"


def test_variables_of_the_user_take_precedence(monkeypatch):
    spec = simulated_spec(gpus=2)
    spec.config.hardware.interface = "ib0"
    spec.config.hardware.environment = {"NCCL_SOCKET_IFNAME": "eth5"}
    variables = rank_environment.build_environment(spec, "an id", 0, ["a:1", "b:2"])
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("ib0", "eth5")
    # torch's compiler asks for it, for the name of a folder.
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert "USER" not in rank_environment.build_environment(simulated_spec(), "an id", 0, ["a:1"])
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    assert rank_environment.build_environment(simulated_spec(), "an id", 0, ["a:1"])["USER"] == f"uid{os.getuid()}"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(rank_environment.GLOO_INTERFACE, raising=False)


INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "OMPI_MCA_btl_tcp_if_include")


def test_the_interface_to_other_hosts(monkeypatch):
    for configured, shell, hosts, rank, expected in (
        ("ib0", None, "aa", 0, {}),  # ranks of one host need none
        (None, None, "aab", 1, {"GLOO_SOCKET_IFNAME": "to_b"}),  # the interface to another host
        (None, None, "aab", 2, {"GLOO_SOCKET_IFNAME": "to_a"}),
        (None, "eth7", "ab", 0, {}),
        ("ib0", "eth7", "ab", 0, dict.fromkeys(INTERFACES, "ib0")),  # for all libraries
    ):
        monkeypatch.setattr(rank_environment, "find_interface_to", lambda host: f"to_{host}")
        if shell is not None:
            monkeypatch.setenv(rank_environment.GLOO_INTERFACE, shell)
        hardware = HardwareSpec("cluster", interface=configured)
        assert rank_environment.interface_variables(hardware, list(hosts), rank) == expected


@pytest.mark.parametrize(("interface", "resolved", "expected"), [
    (None, ["10.0.0.7"], "10.0.0.7"),  # other networks of this host are left out
    ("ib0", ["10.0.0.7"], "10.0.0.7"),  # where the name leads is where the others come from
    (None, ["127.0.1.1"], ""),  # Debian's own name, which other hosts resolve to something else
    (None, ["10.0.0.99"], ""),  # translated on the way
    (None, ["10.0.0.7", "10.1.0.7"], ""),
    ("ib0", ["10.0.0.7", "10.1.0.7"], "10.1.0.7"),
    (None, [], ""),
    (None, ["10.0.0.7", "2001:db8::7"], "10.0.0.7"),
    (None, ["2001:db8::7"], "2001:db8::7"),
    (None, ["2001:db8::99"], ""),
])  # fmt: skip
def test_rank_0_listens_where_its_name_leads(interface, resolved, expected, monkeypatch):
    def look_up(*words):
        if not resolved:
            raise socket.gaierror
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in resolved]
        return [(family, 0, 0, "", (address, 0)) for family, address in zip(families, resolved, strict=True)]

    addresses = {"lo": "127.0.0.1", "eth0": "10.0.0.7", "ib0": "10.1.0.7"}
    nets = {name: [SimpleNamespace(address=each, family=socket.AF_INET)] for name, each in addresses.items()}
    nets["eth0"].append(SimpleNamespace(address="2001:db8::7", family=socket.AF_INET6))
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: nets)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert rank_environment.choose_listen_address(HardwareSpec("cluster", interface=interface), "node1") == expected


def test_this_host_is_reached_over_its_loopback(monkeypatch):
    """An address of version 6 carries its interface."""
    assert rank_environment.find_interface_to("127.0.0.1") == "lo"
    assert rank_environment.find_interface_to("127.0.0.300") is None
    local = [SimpleNamespace(address="127.0.0.1%eth3")]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"other": [SimpleNamespace(address="10.0.0.1")], "eth3": local})
    assert rank_environment.find_interface_to("127.0.0.1") == "eth3"


def ports_of(hosts, seed="a run", within=None):
    """Ports of hosts that are none of this machine; those of runs before count as free."""
    rank_environment._assigned_ports.clear()
    addresses = rank_environment.assign_rank_addresses(hosts, seed, within)
    return [int(address.rpartition(":")[2]) for address in addresses]


def test_ranks_of_one_host_have_different_ports_also_of_a_firewall():
    hosts = ["a"] * 50 + ["b"] * 50
    ports = ports_of(hosts)
    assert len(set(zip(hosts, ports, strict=True))) == len(hosts) and set(ports) <= set(rank_environment.PORTS)
    assert ports == ports_of(hosts) != ports_of(hosts, "another")
    assert len(set(rank_environment.find_free_ports(50))) == 50
    # Runs that are alive at once share ports only where none are left.
    first = {*ports_of(["a", "b", "b"], within="21000-21003")}
    more = [rank_environment.assign_rank_addresses(["a", "b", "b"], "b", "21000-21003") for _ in range(2)]
    second, third = ({int(address[-5:]) for address in addresses} for addresses in more)
    assert first | second == {*range(21000, 21004)} and third < first | second and len(third) == 2
    for wrong in ("21000", "30000-20000", "80-90", "20000-70000", "a-b"):
        with pytest.raises(InputError, match=f"hardware.ports: '{wrong}' should be LOW-HIGH within 1024-65535"):
            placement.parse_ports(wrong)


def test_a_port_in_use_on_this_host_is_left_out(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(random.Random, "shuffle", lambda self, ports: None)
        assert port not in ports_of(["far", "near"], within=f"{port}-{port + 50}")  # others may be in use


def test_hosts_are_compared_with_and_without_a_domain(monkeypatch):
    for own, name, expected in (
        ("n1.site.org", "n1", True),  # SLURM names nodes without the domain that many sites' hosts have
        ("n1", "N1.site.org", True),
        ("n1.site.org", "n1.other.org", False),
        ("n1.site.org", "n2", False),
        ("n1", "localhost", True),
    ):
        monkeypatch.setattr(socket, "gethostname", lambda own=own: own)
        assert rank_environment.is_this_host(name) is expected


def test_addresses_of_version_6_stand_in_brackets(monkeypatch):
    hosts = [name for name, _ in placement.parse_hosts(["[2001:db8::1]:8", "[2001:db8::2]"])]
    assert hosts == ["2001:db8::1", "2001:db8::2"]
    addresses = rank_environment.assign_rank_addresses(hosts, "")
    assert addresses[0].startswith("[2001:db8::1]:") and rank_environment.split_address(addresses[1])[0] == hosts[1]
    variables = rank_environment.build_environment(simulated_spec(gpus=2), "id", 1, addresses)
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == (hosts[0], addresses[0].rpartition(":")[2])


@pytest.mark.parametrize(("framework", "expected"), [("torch", "ib0"), ("none", "ib0"), ("tensorflow", "to n1")])
def test_the_interface_in_use(framework, expected, monkeypatch):
    """TensorFlow's servers know no variable."""
    monkeypatch.setattr(rank_environment, "find_interface_to", lambda host: f"to {host}")
    monkeypatch.setenv("SCALEBENCH_ADDRESSES", "n1:20000,n2:20001")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    spec = simulated_spec(gpus=2)
    spec.config.strategy.framework = framework
    assert rank_environment.find_interface_in_use(spec, 1) == expected
    assert rank_environment.find_interface_in_use(simulated_spec(gpus=1), 0) is None


def test_ranks_of_one_host_use_its_loopback():
    for hosts, expected in (
        (["far", "far"], ["127.0.0.1"] * 2),
        (["localhost", os.uname().nodename], ["127.0.0.1"] * 2),
        (["a", "b"], ["a", "b"]),
    ):
        addresses = rank_environment.assign_rank_addresses(hosts, "")
        assert [address.rpartition(":")[0] for address in addresses] == expected
