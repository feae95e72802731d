"""What listens below this process, in the machine's network or in one of a run's own."""

import contextlib
import ipaddress
import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from tests.conftest import list_descendants

LISTENING = "0A"  # the state in /proc/PID/net/tcp


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


@contextlib.contextmanager
def watch_listeners():
    """Yield a dictionary with all that begins to listen meanwhile, looked at seven times a second."""
    listeners = {}
    ended = threading.Event()

    def look():
        while not ended.wait(0.15):
            listeners.update(list_listeners(listeners.keys() | before))

    before = list_listeners().keys()
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield listeners
    finally:
        ended.set()
        watcher.join()


def is_open(listener):
    return not listener.is_private and not ipaddress.ip_address(listener.address).is_loopback
