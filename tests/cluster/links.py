"""The network of a test cluster: one switch, one cable to each host, and the rate and state of each cable."""

import contextlib

from tests.cluster.hosts import holder, on
from tests.cluster.settings import SWITCH, ClusterError

# A burst of two of the largest segments (64 KiB) that the stack hands down; less, and tbf cannot pass them whole.
SHAPED = "burst 128kb latency 20ms"


def connect(settings, host):
    """Lay the cable of a host that has none, as fast as the machine copies."""
    folder, port, there = settings.folder, _port(settings, host), holder(settings.folder, host)
    if there is None:
        raise ClusterError(f"there is no host {host} to connect")
    if settings.address(host) in on(folder, host, *"ip -oneline -4 address".split()):
        return
    with contextlib.suppress(ClusterError):  # the end that a host left which died; the kernel may be at it already
        on(folder, SWITCH, *f"ip link delete {port}".split())
    on(folder, SWITCH, *f"ip link add {port} type veth peer name eth0 netns {there.pid}".split())
    on(folder, SWITCH, *f"ip link set {port} master bridge up".split())
    on(folder, host, *f"ip address add {settings.address(host)}/24 dev eth0".split())
    on(folder, host, *"ip link set eth0 up".split())


def lay_switch(folder):
    if "bridge" in on(folder, SWITCH, "ls", "/sys/class/net").split():
        return
    on(folder, SWITCH, *"ip link add bridge type bridge".split())
    on(folder, SWITCH, *"ip link set bridge up".split())


def shape(settings, node, rate):
    """Give a node's link a rate, such as 1gbit or 100mbit, both ways; `none` takes the limit away."""
    for host, device in ((node, "eth0"), (SWITCH, _port(settings, node))):
        limited = "tbf" in on(settings.folder, host, *f"tc qdisc show dev {device} root".split())
        if rate != "none":
            on(settings.folder, host, *f"tc qdisc replace dev {device} root tbf rate {rate} {SHAPED}".split())
        elif limited:
            on(settings.folder, host, *f"tc qdisc del dev {device} root".split())


def cut(settings, node):
    """Pull a node's cable out of the switch."""
    on(settings.folder, SWITCH, *f"ip link set {_port(settings, node)} down".split())


def mend(settings, node):
    on(settings.folder, SWITCH, *f"ip link set {_port(settings, node)} up".split())


def _port(settings, host):
    if host not in settings.hosts:
        raise ClusterError(f"{host} is none of {', '.join(settings.hosts)}")
    return f"port{settings.hosts.index(host)}"
