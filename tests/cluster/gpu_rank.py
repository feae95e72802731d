"""A rank that trains nothing: it writes down its cores, and the GPUs that SLURM shows it."""

import json
import os
import socket
import sys
from pathlib import Path

from scalebench.config.placement import read_cpus_variable
from scalebench.core.machine.cpus import usable_cpus
from scalebench.core.machine.gpus import choose_visible_gpus
from scalebench.core.spec import read_spec
from scalebench.runner.worker import pin_to_cpus


def main(folder):
    """Write seen<k>.json."""
    rank = int(os.environ["RANK"])
    pin_to_cpus(read_cpus_variable(os.environ))
    devices = read_spec(folder).places[rank].devices
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    seen = {
        "host": socket.gethostname(),
        "cpus": usable_cpus(),
        "gpus": [visible[number] for number in choose_visible_gpus(devices, len(visible))],
        "slurm": {name: value for name, value in os.environ.items() if name.startswith(("SLURM_", "CUDA_"))},
    }
    (folder / f"seen{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
