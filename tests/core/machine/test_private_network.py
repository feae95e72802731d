"""A network of its own for the processes of a run, and the runs that need one."""

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scalebench.core.machine import private_network
from scalebench.core.process import is_process_alive, read_anonymous_bytes, wait_until
from scalebench.core.spec import StrategySpec
from scalebench.runner.launchers.supervise import is_stopped
from tests.builders.runs import simulated_config

needs_network = pytest.mark.skipif(
    private_network.find_kernel_problem() is not None, reason=str(private_network.find_kernel_problem())
)
PROGRAM = """
import os, socket, sys
names = [line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line]
server = socket.create_server(("127.0.0.1", 0))  # as ranks find each other
socket.create_connection(server.getsockname())
refused = 0
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])))
except ConnectionRefusedError:
    refused = 1
open(sys.argv[2], "w").close()
print(names, refused, os.getuid(), os.getgid())
"""


@needs_network
def test_a_program_has_a_loopback_its_user_and_nothing_else(tmp_path):
    before = psutil.Process().num_fds(), psutil.Process().children()
    with socket.create_server(("127.0.0.1", 0)) as outside, private_network.PrivateNetwork() as network:
        arguments = [sys.executable, "-c", PROGRAM, str(outside.getsockname()[1]), str(tmp_path / "file")]
        command = network.command(arguments)
        done = subprocess.run(command, pass_fds=network.descriptors, capture_output=True, text=True, check=True)
    names, rest = done.stdout.split("] ", 1)
    assert "'lo'" in names and "eth" not in names
    assert rest.split() == ["1", str(os.getuid()), str(os.getgid())]
    assert ((tmp_path / "file").stat().st_uid, (tmp_path / "file").stat().st_gid) == (os.getuid(), os.getgid())
    assert (psutil.Process().num_fds(), psutil.Process().children()) == before


@needs_network
def test_processes_meet_and_are_parked_watched_and_killed_from_outside():
    """The namespace outlives the object that made it as long as a process is in it."""
    with private_network.PrivateNetwork() as network:
        started = [
            subprocess.Popen(network.command(["sleep", "60"]), pass_fds=network.descriptors, start_new_session=True)
            for _ in range(2)
        ]
    try:
        wait_until(lambda: all(psutil.Process(each.pid).name() == "sleep" for each in started), 20.0)
        networks = {os.readlink(f"/proc/{each.pid}/ns/net") for each in started}
        assert len(networks) == 1 and networks != {os.readlink("/proc/self/ns/net")}
        for each in started:
            assert read_anonymous_bytes(each.pid) is not None
            assert wait_until(lambda pid=each.pid: bool(psutil.Process(pid).environ()), 20.0)  # empty during exec
            os.killpg(each.pid, signal.SIGSTOP)
            assert wait_until(lambda pid=each.pid: is_stopped(pid), 20.0)
            os.killpg(each.pid, signal.SIGCONT)
    finally:
        for each in started:
            os.killpg(each.pid, signal.SIGKILL)
            assert each.wait() == -signal.SIGKILL
            assert not is_process_alive(each.pid, 0.0)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="root with setpriv shows it")
def test_root_needs_its_rights_and_users_get_a_user_namespace():
    interpreter, module = "/usr/bin/python3", Path(private_network.__file__)
    if not os.access(interpreter, os.X_OK):
        pytest.skip("no interpreter that other users can run")
    program = module.read_text(encoding="utf-8") + (
        "with PrivateNetwork() as network:\n"
        "    print(subprocess.check_output(network.command(['id', '-u']), pass_fds=network.descriptors, text=True))"
    )
    for words, answer in {
        "--bounding-set=-sys_admin": "OSError: [Errno 0] unshare: unshare failed: Operation not permitted",
        "--reuid=1234 --regid=1234 --groups=1234,44": "1234",
    }.items():
        command = ["setpriv", *words.split(), interpreter, "-I", "-S", "-c", program]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert answer in (done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]), done.stderr


def config_of(launcher="local", open_port=False, **hardware):
    config = simulated_config()
    options = {} if open_port is None else {"open_port": open_port}
    strategy = StrategySpec("a_server", framework="tensorflow", launcher=launcher, options=options)
    hardware = dataclasses.replace(config.hardware, **hardware)
    return dataclasses.replace(config, strategy=strategy, hardware=hardware)


def test_who_gets_one_who_is_open_and_who_is_refused(monkeypatch):
    for name in private_network.BATCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for config, problem, wanted, is_open, refusal in (
        (config_of(open_port=None), "no", False, False, None),
        (config_of(), None, True, False, None),
        (config_of(), "not here", True, True, "is not possible here (not here); where"),
        (config_of(open_port=True), "not here", False, True, None),
        (config_of("by_hand"), None, True, True, "(agents start its processes)"),
        (config_of("mpi"), None, True, False, None),
        (config_of("mpi", None), None, True, False, None),
        (config_of("mpi", None), "not here", True, True, None),  # flagged only
        (config_of("mpi", None, hosts=["a", "b"]), "not here", False, False, None),
        (config_of("mpi", hosts=["a", "b"]), None, False, True, None),  # several hosts have to reach each other
        (config_of(this_machine=False), None, False, True, None),
    ):
        monkeypatch.setattr(private_network, "find_kernel_problem", lambda problem=problem: problem)
        assert (private_network.is_wanted(config), private_network.opens_ports(config)) == (wanted, is_open)
        actual = private_network.explain_refusal(config)
        assert actual is refusal if refusal is None else refusal in str(actual)
        assert "\n" not in str(actual)
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # mpirun keeps its way to the batch system
    assert not private_network.is_wanted(config_of("mpi", None)) and private_network.is_wanted(config_of())


def test_a_network_that_is_needed_and_not_possible_is_an_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError), private_network.private_network(config_of()):
        pass
    monkeypatch.setattr(private_network, "find_kernel_problem", lambda: "not here")
    with private_network.private_network(config_of("mpi", None)) as network:
        assert network is None
