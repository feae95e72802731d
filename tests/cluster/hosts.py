"""Hosts of a test cluster: namespaces for network, name, mounts and shared memory, on a node for processes, too; and
their network: one switch, one cable to each host, and the rate and state of each cable.

Nothing names these namespaces but the process that holds them: they are gone with it, and clusters do not meet.
The clock of a node can be wrong: libfaketime in the environment of its tasks.
"""

import contextlib
import glob
import os
import subprocess
from pathlib import Path

from tests.cluster import processes
from tests.cluster.settings import HEAD, SWITCH, ClusterError

HOST_SCRIPT = Path(__file__).with_name("host.sh")
LIMIT_S = 30.0
FAKETIME_LIBRARIES = "/usr/lib/*/faketime/libfaketime.so.1"
NAMESPACES = ("--net", "--uts", "--ipc", "--mount")
# What enters a mount namespace stands at its root.
STAY = 'cd "$0" && exec "$@"'


def start(settings, host):
    """Have the host."""
    if holder(settings.folder, host) is not None:
        return
    words = ["unshare", *NAMESPACES, "--propagation", "slave"]
    # The head's processes are those of the machine, so that a command in a shell can be stopped by its own number.
    words += [] if host in (HEAD, SWITCH) else ["--pid", "--fork", "--kill-child", "--mount-proc"]
    ready = settings.folder / "hosts" / f"{host}.ready"
    ready.unlink(missing_ok=True)
    log = settings.folder / "log" / f"host.{host}.log"
    with log.open("w") as file:
        subprocess.Popen(
            [*words, "bash", str(HOST_SCRIPT), host, str(settings.folder)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, **processes.mark(settings.folder, host)},
        )
    try:
        processes.until(ready.exists, LIMIT_S, f"host {host}")
    except ClusterError as error:
        raise ClusterError(f"{error}: {' '.join(log.read_text().split())}") from None


def holder(folder, host):
    """Process 1 of a node, or what holds the namespaces of the head or the switch."""
    return processes.running(folder, host, "bash")


def enter(folder, host, words, cwd=None):
    """Words that run `words` on a host."""
    process = holder(folder, host)
    if process is None:
        raise ClusterError(f"there is no host {host} in the test cluster of {folder}: make cluster-up")
    pid = [] if host in (HEAD, SWITCH) else ["--pid"]
    inside = ["sh", "-c", STAY, str(cwd or os.getcwd()), *words]
    return ["nsenter", "--target", str(process.pid), *NAMESPACES, *pid, "--", *inside]


def on(folder, host, *words, limit_s=LIMIT_S):
    """What a command on a host says. Raises ClusterError with what it said where it fails or hangs."""
    environment = {**os.environ, "SLURM_CONF": str(folder / "etc" / "slurm.conf")}
    try:
        done = subprocess.run(
            enter(folder, host, list(words), "/"),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(words)} on {host} takes more than {limit_s:g} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise ClusterError(f"{' '.join(words)} on {host} ends with {done.returncode}: {said}")
    return done.stdout


def daemon(settings, host, words, **variables):
    """Start a program that stays. What it says goes to log/NAME.HOST.out, as far as it keeps no log of its own."""
    log = settings.folder / "log" / f"{Path(words[0]).name}.{host}.out"
    environment = {**os.environ, "SLURM_CONF": str(settings.folder / "etc" / "slurm.conf"), **variables}
    with log.open("w") as file:
        done = subprocess.run(
            enter(settings.folder, host, words, "/"),
            env={**environment, **processes.mark(settings.folder, host)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            timeout=LIMIT_S,
        )
    if done.returncode != 0:
        raise ClusterError(f"{words[0]} on {host} does not start: {' '.join(log.read_text().split())[-400:]}")


def faketime_library():
    """libfaketime of the distribution; None where it is not installed."""
    return next(iter(sorted(glob.glob(FAKETIME_LIBRARIES))), None)


def shift_clock(folder, node, offset_s):
    """Tasks that start on the node from now on see a clock ahead by `offset_s`; what counts seconds stays right."""
    path, preload = folder / "clock" / node, faketime_library()
    if offset_s == 0:
        path.unlink(missing_ok=True)
        return
    if preload is None:
        raise ClusterError("a wrong clock needs libfaketime: scripts/install_slurm.sh (or make test-all) brings it")
    variables = {"LD_PRELOAD": preload, "FAKETIME": f"{offset_s:+g}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    path.write_text("".join(f"export {name}={value}\n" for name, value in variables.items()))


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
