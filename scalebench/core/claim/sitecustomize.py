"""Has a process that trains become the agent of a rank, where a command of the user's has started it.

This folder is on the PYTHONPATH of such a command, and Python imports this module before its main program. It imports
the standard library only: most processes of the command are others, which go on as if it were not there.
"""

import importlib.util
import json
import os
import sys

CLAIM_VARIABLE = "SCALEBENCH_CLAIM"  # the program, and then the arguments of Python that run the agent, as JSON
PROGRAM_VARIABLE = "SCALEBENCH_PROGRAM"  # set for the agent: the program and its arguments, as JSON


def become_agent(program: str, agent: list[str]) -> None:
    """Become the agent of a rank if the main program of this process is the one that trains."""
    file, *arguments = getattr(sys, "argv", [""])
    main = os.path.abspath(file)
    if file == "-m":
        main = sys.orig_argv[-len(arguments) - 1].removeprefix("-m")
        file = f"-m {main}"
    if main != program:
        return
    if not all(map(importlib.util.find_spec, ("scalebench", "msgspec"))):
        line = f"{sys.executable} runs {file} and has no scalebench: install it there, or activate its environment"
        print(f"scalebench: {line}", file=sys.stderr)
        os._exit(2)  # an exception would be one of Python's start
    variables = os.environ | {PROGRAM_VARIABLE: json.dumps([file, *arguments])}
    del variables[CLAIM_VARIABLE]  # processes that the program starts are its own
    os.execve(sys.executable, [sys.executable, *agent], variables)


def import_next() -> None:
    """Import the module of this name that Python would have imported without this folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError:
        sys.modules["sitecustomize"] = own


if __name__ == "sitecustomize":  # imported by Python, and not by scalebench
    if CLAIM_VARIABLE in os.environ:
        program, *agent = json.loads(os.environ[CLAIM_VARIABLE])
        become_agent(program, agent)
    import_next()
