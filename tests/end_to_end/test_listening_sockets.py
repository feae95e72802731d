"""What listens during a run on one machine: the loopback, a network of the run's own, or a flag in its row says so."""

import contextlib
import ipaddress
import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from scalebench.cli import hydra_app
from scalebench.core.machine import private_network
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from tests.conftest import list_descendants

LISTENING = "0A"  # the state in /proc/PID/net/tcp
WORDS = (
    "hardware=cpu gpus=2 model=materials_cnn dataset.size=400 measure=quick measure.min_s=0.3 measure.max_s=1 "
    "measure.warmup_max_s=1 measure.probe_s=0.3"
).split()
# Ranks that meet through the launcher, through PyTorch, and in a network of their own; other families are slow.
STRATEGIES = ("simulated", "ddp_gloo", "parameter_server")
# mpirun starts its ranks as new processes, twice: Horovod restarts for the probes.
MORE = (
    "horovod_mpi horovod_gloo multiworker_ring mirrored fsdp_gloo lightning_ddp_gloo pipeline_gpipe "
    "horovod_tensorflow_gloo independent_tensorflow"
).split()
BRIEFLY = ("simulated", "mirrored")  # listen for a moment, or have one process, which meets nobody


class Listener(NamedTuple):
    """A listening socket of a process, in one of the network namespaces."""

    address: str
    is_private: bool  # in another network than this program
    program: str


def list_listeners(known=()):
    """Map the listening TCP sockets of this process and of all below it, in whichever network they are, to what is
    seen of them; those that are known already are left out."""
    places, tables = {}, {}
    for pid in [os.getpid(), *list_descendants()]:
        with contextlib.suppress(OSError):  # it has ended
            network = os.readlink(f"/proc/{pid}/ns/net")
            if network not in tables:
                tables[network] = read_listening(pid)
            places[pid] = network
    unknown = {network: table.keys() - known for network, table in tables.items()}
    listeners = {}
    for pid, network in places.items():
        numbers = unknown[network] and unknown[network] & list_sockets(pid)
        with contextlib.suppress(OSError):
            program = numbers and Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            is_private = network != places[os.getpid()]
            listeners |= {each: Listener(tables[network][each], is_private, program) for each in numbers}
    return listeners


def read_listening(pid):
    """Map the sockets that listen in the network of a process to their addresses."""
    text = "".join(Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    lines = map(str.split, text.splitlines())
    return {f"socket:[{words[9]}]": parse_address(words[1]) for words in lines if words[3] == LISTENING}


def list_sockets(pid):
    sockets = set()
    with contextlib.suppress(OSError):  # it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                sockets.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sockets


def parse_address(text):
    """Parse the address of a line in /proc/PID/net/tcp or tcp6, whose words of 32 bits are in the order of the host."""
    raw = bytes.fromhex(text.partition(":")[0])
    in_order = b"".join(
        raw[k : k + 4][::-1] if sys.byteorder == "little" else raw[k : k + 4] for k in range(0, len(raw), 4)
    )
    return str(ipaddress.ip_address(in_order))


def listeners_of_run(folder, *words):
    """Run in this process; return all that listened below it meanwhile, looked at ten times a second, and the flags."""
    listeners = {}
    ended = threading.Event()

    def look():
        while not ended.wait(0.1):
            listeners.update(list_listeners(listeners.keys() | before))

    before = list_listeners().keys()
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        assert hydra_app.main([*WORDS, *words, f"hydra.run.dir={folder}"]) == 0
    finally:
        ended.set()
        watcher.join()
    result = read_result(folder / RESULT_FILE)
    assert result.status == "ok", result.reason
    return set(listeners.values()), result.flags


def is_open(listener):
    return not listener.is_private and not ipaddress.ip_address(listener.address).is_loopback


def test_addresses_of_the_kernel_are_read():
    assert (parse_address("0100007F:1F90"), parse_address("0" * 32 + ":01BB")) == ("127.0.0.1", "::")


@pytest.mark.real
@pytest.mark.parametrize("strategy", [*STRATEGIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_nothing_listens_beyond_the_loopback_of_the_run(strategy, tmp_path):
    needs_network = strategy.startswith(("parameter", "multiworker", "independent_tensorflow"))
    if needs_network and private_network.find_kernel_problem() is not None:
        pytest.skip(str(private_network.find_kernel_problem()))
    listeners, flags = listeners_of_run(tmp_path / "run", f"strategy={strategy}")
    assert listeners or strategy in BRIEFLY, "its ranks have met somewhere"
    assert "open_port" in flags or not [listener for listener in listeners if is_open(listener)]
    if private_network.find_kernel_problem() is None:
        assert "open_port" not in flags
        assert not needs_network or any(listener.is_private for listener in listeners)


@pytest.mark.real
def test_what_listens_for_everybody_is_seen_and_flagged(tmp_path):
    """With the user's consent; also proof that these tests would see it."""
    words = ["strategy=multiworker_ring", "strategy.options.open_port=true", "measure.probes=false"]
    listeners, flags = listeners_of_run(tmp_path / "run", *words)
    assert "open_port" in flags and any(is_open(listener) for listener in listeners)
