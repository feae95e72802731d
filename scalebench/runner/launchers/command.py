"""Starts the ranks of a run by a command of the user's, such as torchrun or accelerate launch.

Each process of it that runs the user's program becomes the agent of a rank instead (core/claim/sitecustomize), and the
agent starts the worker. How many there are, with which environment and arguments, is decided by the command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from scalebench.core.claim import sitecustomize
from scalebench.core.machine.variables import drop_launch_variables
from scalebench.core.process import (
    NODE_AGENT,
    RANK_ADDRESSES,
    StartError,
    build_python_command,
    kill_descendants_of_ranks,
)
from scalebench.core.run_folder import COMMAND_LOG, RUN_ID_VARIABLE
from scalebench.runner.launchers.agents import AgentRanks
from scalebench.runner.launchers.rank_environment import (
    LOOPBACK,
    OUTPUT_VARIABLES,
    find_free_ports,
    list_visible_devices,
)
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, supervise
from scalebench.strategies.script import arguments

CLAIM_FOLDER = Path(sitecustomize.__file__).parent


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end. What the command prints goes to command.log."""
    spec, folder = request.spec, request.folder.absolute()
    command = arguments.render_arguments(spec, folder)
    name = command[0]
    group = AgentRanks(
        request, [*map(str, range(spec.processes))], name, COMMAND_LOG, lambda log: find_failure(name, log)
    )

    def start() -> None:
        # Beside this Python, where its environment has not been activated.
        path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
        if path is None:
            raise StartError(f"there is no {name} on the PATH, which script.command begins with")
        addresses = [f"{LOOPBACK}:{port}" for port in find_free_ports(spec.processes)]
        agent = build_python_command("-m", NODE_AGENT, group.listen())[1:]
        variables = drop_launch_variables(os.environ) | OUTPUT_VARIABLES | list_visible_devices(spec)
        variables |= {
            RANK_ADDRESSES: ",".join(addresses),
            RUN_ID_VARIABLE: request.run_id,
            sitecustomize.CLAIM_VARIABLE: json.dumps([arguments.main_program(spec.config.script), *agent]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CLAIM_FOLDER), os.environ.get("PYTHONPATH")])),
        }
        group.start_agents([path, *command[1:]], variables, arguments.script_folder(spec.config.script))
        group.gather(addresses)

    try:
        return supervise(request, group, start)
    finally:
        kill_descendants_of_ranks(RUN_ID_VARIABLE, request.run_id)


def find_failure(name: str, log: str) -> str | None:
    """Return why a command failed, from what it printed: our own line, its first error, or its last line."""
    lines = [line.strip() for line in log.splitlines()]
    own = [line.removeprefix("scalebench: ") for line in lines if line.startswith("scalebench: ")]
    errors = [line for line in lines if re.match(r"[\w. -]*error: ", line, re.IGNORECASE)]
    last = [f"{name}: {line}" for line in filter(None, lines)][-1:]
    return next((line[:300] for line in [*own, *errors[:1], *last]), None)
