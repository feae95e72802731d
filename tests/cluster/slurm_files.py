"""The settings of SLURM for a test cluster, and their reasons; and its commands that work from a shell of the machine:
FOLDER/bin/sbatch and the others."""

import shutil

from tests.cluster.hosts import NAMESPACES, STAY, holder
from tests.cluster.processes import network
from tests.cluster.settings import HEAD, ClusterError

CLUSTER_NAME = "testcluster"
DBD_PORT = 6819

# cgroups are the machine's, not ours: no plugin here may touch them. What a job's processes are, linuxproc finds by
# their parents; how much memory they take is looked up every other second, which is what ends a job that takes more.
SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={head}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/etc/task_prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,sched_min_interval=100000,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
JobAcctGatherParams=OverMemoryKill
{accounting}
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
MinJobAge=3600
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 PriorityTier=2 PreemptMode=OFF State=UP {memory}
PartitionName=short Nodes=ALL MaxTime=1 PriorityTier=2 PreemptMode=OFF State=UP {memory}
PartitionName=low Nodes=ALL MaxTime=60 PriorityTier=1 PreemptMode=CANCEL State=UP {memory}
"""

ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={address}
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
AccountingStorageTRES=gres/gpu"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={head}
DbdAddr={address}
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
"""

# Beside `export`, a line of a prolog's output can be nothing that touches a task.
TASK_PROLOG = """\
#!/bin/sh
if [ -s {folder}/clock/$SLURMD_NODENAME ]; then cat {folder}/clock/$SLURMD_NODENAME; fi
"""


def slurm_conf(settings):
    words = {"folder": settings.folder, "address": settings.address(HEAD), "port": DBD_PORT}
    accounting = ACCOUNTING.format(**words) if settings.accounting else "AccountingStorageType=accounting_storage/none"
    return SLURM_CONF.format(
        **words,
        cluster=CLUSTER_NAME,
        head=HEAD,
        accounting=accounting,
        nodes="\n".join(_node(settings, node) for node in settings.node_names),
        # What a job gets that asks for none: a job of one rank needs the memory of a framework.
        memory=f"DefMemPerCPU={settings.memory_mib // settings.cpus}",
    )


def slurmdbd_conf(settings):
    return SLURMDBD_CONF.format(folder=settings.folder, head=HEAD, address=settings.address(HEAD), port=DBD_PORT)


def gres_conf(settings):
    """GPUs are device files to SLURM; which, is nobody's business here, as no plugin holds jobs to them."""
    files = f"{settings.folder}/gpus/gpu[0-{settings.gpus - 1}]"
    return f"AutoDetect=off\nNodeName=node[1-{settings.nodes}] Name=gpu File={files}\n"


def cgroup_conf():
    return "CgroupAutomount=no\nConstrainCores=no\nConstrainDevices=no\nConstrainRAMSpace=no\n"


def hosts(settings):
    lines = [f"{settings.address(host)} {host}" for host in settings.hosts]
    return "\n".join(["127.0.0.1 localhost", *lines]) + "\n"


def task_prolog(settings):
    return TASK_PROLOG.format(folder=settings.folder)


def _node(settings, node):
    cores = f"CoresPerSocket={settings.cpus // settings.threads} ThreadsPerCore={settings.threads}"
    shape = f"Boards=1 SocketsPerBoard=1 {cores}"
    has = f"RealMemory={settings.memory_mib} Gres=gpu:{settings.gpus}"
    return f"NodeName={node} NodeAddr={settings.address(node)} {shape} {has} State=UNKNOWN"


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


def write_commands(folder):
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
