"""Commands of a test cluster that work from a shell of the machine: FOLDER/bin/sbatch and the others."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.hosts import NAMESPACES, STAY, holder
from tests.cluster.processes import network
from tests.cluster.settings import HEAD, ClusterError

COMMANDS = "sbatch squeue sacct scancel scontrol sinfo srun salloc sacctmgr".split()
NEED_ACCOUNTING = ("sacct", "sacctmgr")
# In a job, and in what salloc starts, we are in the network already. Numbers of processes come again after a while,
# those of namespaces do not before long: a command of a cluster that is gone must not wander elsewhere.
WRAPPER = """\
#!/bin/sh
export SLURM_CONF={folder}/etc/slurm.conf
[ -z "$SLURM_JOB_ID" ] || exec {program} "$@"
if [ "$(readlink /proc/{pid}/ns/net)" != "{network}" ]; then
  echo "{name}: error: the test cluster of {folder} is not up: make cluster-up" >&2
  exit 1
fi
exec nsenter --target {pid} {namespaces} -- sh -c '{stay}' "$PWD" {program} "$@"
"""


def write(folder: Path) -> None:
    """bin/ has all commands; bin-nosacct/ is that of a cluster that keeps no accounts."""
    process = holder(folder, HEAD)
    if process is None:
        raise ClusterError(f"there is no head in the test cluster of {folder}")
    words = {"folder": folder, "pid": process.pid, "network": network(process.pid), "stay": STAY}
    for where in ("bin", "bin-nosacct"):
        (folder / where).mkdir(exist_ok=True)
    for name in COMMANDS:
        program = shutil.which(name)
        text = WRAPPER.format(**words, name=name, program=program, namespaces=" ".join(NAMESPACES))
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        link = folder / "bin-nosacct" / name
        if name not in NEED_ACCOUNTING and not link.is_symlink():
            link.symlink_to(path)
