"""Environment variables: which a record keeps, which ranks on other hosts get, and which are secrets.

Records are shown to others: they have the variables by which people change the speed of libraries, by the beginnings of
their names, and none that looks like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NOT_PASSED = "set, not passed to ranks"
# These variables set up the libraries that train, communicate and compute.
FRAMEWORK_VARIABLES = re.compile(
    r"(NCCL|HOROVOD|OMP|GLOO|TF|KERAS|MKL|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH|XLA|CUDA|CUDNN|CUBLAS|KMP|MALLOC)_|NVIDIA_TF32_OVERRIDE$"
)
# The settings of MPI and UCX, and what a batch system has allocated.
SYSTEM_VARIABLES = re.compile(
    r"(OMPI_MCA|PRTE_MCA|PMIX_MCA|UCX|I_MPI|MPICH|FI)_|LD_PRELOAD$|"
    r"SLURM_(CLUSTER_NAME|CPUS?_|DISTRIBUTION$|GPUS?_|GPUS$|GRES|HINT$|JOB_(ID|NODELIST|NUM_NODES|PARTITION|CPUS|GPUS|QOS)|"
    r"JOBID$|LOCALID$|MEM_|NNODES$|NODELIST$|NPROCS$|NTASKS|PROCID$|STEP_GPUS$|TASKS_PER|THREADS_PER|TRES_PER)"
)
# What a shell has left of other programs: settings by which a framework would train otherwise than the config says, ...
FOREIGN_SETTINGS = re.compile(r"(ACCELERATE|DEEPSPEED|FSDP|MEGATRON_LM|PL)_|TF_CONFIG$")
# ... and the place of this process in the launch that it is from, which is not that of a run.
LAUNCH_VARIABLES = re.compile(
    r"(GROUP_|LOCAL_|NODE_|ROLE_)?(RANK|WORLD_SIZE)$|ROLE_NAME$|(CROSS|LOCAL)_SIZE$|MASTER_(ADDR|PORT)$|"
    r"(TORCHELASTIC|SLURM|SLURMD|PMI|HYDI|MV2_COMM_WORLD|PALS|FLUX)_|(OMPI|PMIX|PRTE)_(?!MCA_)|MPI_LOCAL"
)
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")  # some programs take them in capitals, too
NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
# Neither recorded nor passed on nor accepted in a config, also Terraform's variables, which begin with TF_ too.
SECRET_VARIABLES = re.compile(
    r"^TF_(VAR|TOKEN|CLI)_|TOKEN(?!IZER)|SECRET|(?<!BY)PASS(?=$|_|W|P)|CREDENTIAL|_KEY|API_?KEY|(^|_)AUTH|_(PAT|PW|PWD)$",
    re.IGNORECASE,
)
# User and password of an address; at most what fits into a line, so that no text takes long. Also within JSON.
URL_CREDENTIALS = re.compile(r"""(?<=://)(?:\\.|[^\s"'/?#\\]){1,400}@""")


def select_recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a record keeps, sorted: NOT_PASSED for FOREIGN_SETTINGS, and nothing of those that look
    secret."""
    recorded = {}
    for name in sorted(environment):
        if SECRET_VARIABLES.search(name):
            continue
        if FOREIGN_SETTINGS.match(name):
            recorded[name] = NOT_PASSED
        elif FRAMEWORK_VARIABLES.match(name) or SYSTEM_VARIABLES.match(name):
            recorded[name] = mask_credentials(environment[name])
    return recorded


def drop_launch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of the launch that this process is from."""
    return {name: value for name, value in environment.items() if not LAUNCH_VARIABLES.match(name)}


def drop_foreign_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the settings of other programs; hardware.environment is where a run has its own."""
    return {name: value for name, value in environment.items() if not FOREIGN_SETTINGS.match(name)}


def bypass_proxies(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return the variables by which programs reach these hosts without a proxy; none where no proxy is set."""
    if not any(environment.get(name) or environment.get(name.upper()) for name in PROXIES):
        return {}
    lists = {name: environment.get(name, "") for name in NO_PROXY if name in environment or name != "no_grpc_proxy"}
    return {name: ",".join(dict.fromkeys([*filter(None, text.split(",")), *hosts])) for name, text in lists.items()}


def mask_credentials(text: str) -> str:
    """Return a text in which addresses have `***` for their user and password: `https://***@host/path`."""
    return URL_CREDENTIALS.sub("***@", text) if "://" in text else text
