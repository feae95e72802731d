"""The network interface over which ranks on several hosts meet. Layer 2."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from scalebench.spec import HardwareSpec

GLOO = "GLOO_SOCKET_IFNAME"  # of Horovod's Gloo, too
NAMED = (GLOO, "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "OMPI_MCA_btl_tcp_if_include")
DISCARD = 9  # a port; nothing is sent to it


def variables(hardware: HardwareSpec, hosts: Sequence[str], rank: int) -> dict[str, str]:
    """What tells the libraries which interface to take, on this rank's host; `hosts` are those of all ranks.

    One that hardware.interface names is for all of them. Otherwise NCCL and MPI choose for themselves, and Gloo, which
    would take whatever the host's own name leads to, gets the one towards another host, unless the shell names one.
    """
    others = [host for host in hosts if host != hosts[rank]]
    if not others:
        return {}
    if hardware.interface is not None:
        return dict.fromkeys(NAMED, hardware.interface)
    found = None if os.environ.get(GLOO) else towards(others[0])
    return {} if found is None else {GLOO: found}


def towards(host: str) -> str | None:
    """The interface that packets to `host` leave by; None where it cannot be told."""
    import psutil

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # chooses the way, and sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    addresses = psutil.net_if_addrs().items()
    return next((name for name, all_ in addresses if any(a.address.partition("%")[0] == own for a in all_)), None)
