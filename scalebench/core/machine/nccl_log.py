"""The transports that NCCL chose between ranks, read from the log that it writes with NCCL_DEBUG=INFO."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

MAX_LOG_BYTES = 4 * 2**20  # of each log: NCCL connects its ranks before the first step
SEPARATOR = " + "
ALL_PAIRS = "all"  # in place of a pair: a transport that has no channels between two ranks
# NCCL sets up its multicast through NVSwitch for all ranks of a node together. A line that it is available says
# nothing: NCCL may still not use it, as on two GPUs.
MULTICAST = re.compile(r"NCCL INFO (?:NVLS comm 0x|Connected NVLS tree)")
# CollNet reduces within the switches of a network. Older versions write Coll, or no index of the connection.
IN_NETWORK = re.compile(
    r"NCCL INFO Coll(?:Net)? \d+(?:/\d+)? : \d+ \[(?:send|receive)\] via (?P<transport>COLLNET/\S.*)"
)
NO_IN_NETWORK = "NCCL WARN Cannot initialize CollNet"  # NCCL set it up, failed, and takes point-to-point connections
# NCCL connects these transports even where the environment forbids their algorithms.
ALGORITHMS = re.compile(r"NCCL INFO NCCL_ALGO set by environment to (?P<algorithms>\S+)")
# Older versions have Ring, or no index of the connection, or no device or bus in brackets; so have channels in RCCL.
CONNECTION = re.compile(
    r"NCCL INFO (?:Channel|Ring) \d+(?:/\d+)? : "
    r"(?P<from>\d+)(?:\[\w+\])? -> (?P<to>\d+)(?:\[\w+\])? (?:\[(?:send|receive)\] )?via (?P<transport>\S.*)"
)


def parse_transports(lines: Iterable[str]) -> dict[str, str]:
    """Return the transport by pair of ranks: {'0-1': 'P2P/IPC'}; several of a pair are joined by ' + '.

    The names are NCCL's: P2P/... between GPUs, SHM/... through host memory, NET/... over a network. Ranks are those of
    NCCL's communicator. Under `all` stand NVLS, multicast through NVSwitch, and COLLNET/..., reductions within the
    switches of a network. Other lines, and garbled ones of two simultaneous writers, are ignored.
    """
    transports: dict[tuple[int, int], set[str]] = {}
    of_all: set[str] = set()
    unused: set[str] = set()
    for line in lines:
        if MULTICAST.search(line):
            of_all.add("NVLS")
        elif match := IN_NETWORK.search(line):
            of_all.add(match["transport"].strip())
        elif match := CONNECTION.search(line):
            low, high = sorted((int(match["from"]), int(match["to"])))
            transports.setdefault((low, high), set()).add(match["transport"].strip())
        elif match := ALGORITHMS.search(line):
            unused |= {name for name in ("NVLS", "COLLNET") if not allows_transport(match["algorithms"], name)}
        elif NO_IN_NETWORK in line:
            unused.add("COLLNET")
    by_pair = {f"{low}-{high}": SEPARATOR.join(sorted(names)) for (low, high), names in sorted(transports.items())}
    used = sorted(name for name in of_all if name.partition("/")[0] not in unused)
    return by_pair | ({ALL_PAIRS: SEPARATOR.join(used)} if used else {})


def allows_transport(algorithms: str, transport: str) -> bool:
    """Return whether a value of NCCL_ALGO, such as `ring,tree` or `^nvls,nvlstree`, leaves NCCL the algorithms of NVLS
    or COLLNET, whose names begin like the transport's."""
    is_named = re.search(rf"\b{transport}", algorithms, re.IGNORECASE) is not None
    return is_named != ("^" in algorithms)


def summarize_transports(by_pair: dict[str, str] | None) -> str | None:
    """Return the transports of all pairs, each once."""
    names = {name for names in (by_pair or {}).values() for name in names.split(SEPARATOR)}
    return SEPARATOR.join(sorted(names)) or None


def read_transports(logs: Iterable[Path]) -> dict[str, str] | None:
    """Return the transports named at the beginning of these logs; None where there are none."""
    lines: list[str] = []
    for log in logs:
        try:
            with log.open("rb") as file:
                size = min(MAX_LOG_BYTES, os.fstat(file.fileno()).st_size)  # room for more may be more than there is
                lines += file.read(size).decode(errors="replace").splitlines()
        except OSError:  # a rank that never started has none
            continue
    return parse_transports(lines) or None
