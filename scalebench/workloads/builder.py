"""The process that calls a function for its samples: `python -m scalebench.workloads.builder FOLDER PIPE`. Layer 1.

FOLDER has the request and gets the answer. When the other end of PIPE closes, nobody waits for it any more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalebench import plugins
from scalebench.plugins import PluginError
from scalebench.spec import InputError
from scalebench.workloads import builder_output, own_code
from scalebench.workloads.building import ANSWER, REQUEST


def main(folder: Path, pipe: int) -> None:
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    request = json.loads((folder / REQUEST).read_text())
    (folder / ANSWER).write_text(json.dumps(answer(request)))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What came of it: empty where both arrays are in the folder of the request."""
    what = request["what"]
    try:
        function = _function(request)
        builder_output.write(_call(function, request), Path(request["folder"]))
    except PluginError as error:
        return {"problem": str(error), "log": error.log}
    except InputError as error:
        return {"input": str(error)}
    except builder_output.Unfit as error:
        return {"problem": f"{what} {error}"}
    except builder_output.NotWritten as error:
        return {"errno": error.number}
    except MemoryError:
        return {"problem": f"{what} ran out of memory: lower dataset.size", "log": traceback.format_exc()}
    except BaseException as error:  # SystemExit and KeyboardInterrupt of its own making too
        return {"problem": f"{what} fails: {plugins.said(error)}", "log": traceback.format_exc()}
    return {}


def _function(request: dict[str, Any]) -> Callable[..., Any]:
    if request["own"]:
        key, _, reference = request["what"].partition("=")
        return own_code.load(reference, key)
    function: Callable[..., Any] = plugins.load(request["target"], request["what"])
    return function


def _call(function: Callable[..., Any], request: dict[str, Any]) -> Any:
    if not callable(function):
        raise builder_output.Unfit("is no function")
    process = os.getpid()
    made = function(request["size"], request["seed"], **request["options"])
    if os.getpid() != process:  # it forked, and the child came back too
        os._exit(0)
    return made


def _end_with_parent(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
