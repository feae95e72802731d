"""The requirements of a test cluster, and why this machine does not meet them."""

from __future__ import annotations

import os
import shutil
import subprocess

# Program and the Debian package that brings it.
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
ACCOUNTING_PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "mariadb-admin": "mariadb-client",
    "sacctmgr": "slurm-client",
}


def obstacle(accounting: bool = True) -> str | None:
    """Why there can be no test cluster here, in one line; None where there can."""
    wanted = {**PROGRAMS, **(ACCOUNTING_PROGRAMS if accounting else {})}
    missing = [name for name in wanted if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({wanted[name] for name in missing}))
        return (
            f"the test cluster needs {', '.join(missing)}: make test-all (scripts/install_slurm.sh) installs {packages}"
        )
    if os.geteuid() != 0:
        return "the test cluster needs root, for namespaces and their network"
    words = "unshare --net --uts --ipc --mount --pid --fork --mount-proc ip link add bridge type bridge"
    tried = subprocess.run(words.split(), capture_output=True, text=True, timeout=20)
    if tried.returncode != 0:
        return f"the test cluster needs namespaces with bridges, not allowed here: {' '.join(tried.stderr.split())}"
    return None
