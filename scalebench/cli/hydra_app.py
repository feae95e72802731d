"""`python -m scalebench [hydra overrides]`: the Hydra entry. Layer 4."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser

from scalebench.config import compose
from scalebench.config.error_messages import FORESEEN, explain
from scalebench.core import process
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.sweeps import cluster_runs
from scalebench.sweeps.console import Console
from scalebench.sweeps.task import AsSweep, SweepSession

_warned: set[str] = set()  # in this process


def main(arguments: list[str]) -> int:
    """Run what the command line says. The exit status: 0 ok or unsupported, 1 a run failed, 2 bad input."""
    session = SweepSession(arguments)
    try:
        with tempfile.TemporaryDirectory() as nowhere, compose.hydra_raises_errors(), _terminate_as_interrupt():
            switches, overrides = split(arguments)
            if _is_dry(overrides):  # Hydra makes its folders before it asks us
                overrides += [f"hydra.run.dir={nowhere}", f"hydra.sweep.dir={nowhere}"]
            _register()
            try:
                _hydra_main(session, [*switches, *overrides])
            except AsSweep:
                _hydra_main(session, as_sweep(switches, overrides))
            return session.finish()
    except FORESEEN as error:
        return _refuse(session, explain(error, arguments))
    except OSError as error:
        return _refuse(
            session,
            f"{error.filename or 'output folder'}: {error.strerror or error}; "
            "choose another hydra.run.dir or hydra.sweep.dir",
        )
    except Exception as error:
        if session.done or os.environ.get("SCALEBENCH_TRACEBACK"):
            raise
        return _refuse(session, explain(error, arguments))
    except SystemExit as end:  # how callbacks and Hydra's own switches leave
        return int(end.code or 0)
    except cluster_runs.LeftQueued as left:
        return _stop(session, str(left))
    except KeyboardInterrupt:
        return _stop(session, "cancelled")
    finally:
        session.release()


def _register() -> None:
    """Register everything with Hydra. What is wrong with a plugin and fails no run is printed here, once."""
    for line in compose.register():
        if line not in _warned:
            _warned.add(line)
            Console().error(line)


def _hydra_main(session: SweepSession, arguments: list[str]) -> None:
    before = sys.argv
    sys.argv = ["scalebench", *arguments]
    try:
        hydra.main(version_base=compose.HYDRA_VERSION, config_path=str(conf_dir()), config_name="config")(
            session.run_one
        )()
    finally:
        sys.argv = before


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """(Hydra's switches, overrides): argparse itself wants all overrides on one side. InputError for a wrong switch."""

    def refuse(message: str) -> NoReturn:
        raise InputError(f"{message}; --hydra-help tells of the switches")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    overrides = parser.parse_intermixed_args(words).overrides
    switches = list(words)
    for word in overrides:
        switches.remove(word)
    return switches, overrides


def as_sweep(switches: list[str], overrides: list[str]) -> list[str]:
    """The words of one run as those of a sweep: its folder becomes the sweep's."""
    kept = [word for word in switches if word not in ("--run", "-r")]
    words = [word for word in overrides if not word.startswith("hydra.mode=")]
    if not any(word.startswith("hydra.sweep.dir=") for word in words):
        words = [re.sub(r"^hydra\.run\.dir=", "hydra.sweep.dir=", word) for word in words]
    return [*kept, "--multirun", *words]


def _is_dry(overrides: list[str]) -> bool:
    values = [word.partition("=")[2] for word in overrides if re.match(r"\+{0,2}dry_run=", word)]
    return bool(values) and re.fullmatch(r"\W*(true|yes|on|y|1)\W*", values[-1], re.IGNORECASE) is not None


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: no process left, and a row that says cancelled."""

    def interrupt(number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            cluster_runs.terminated.set()
        process.cancelled.set()
        raise KeyboardInterrupt

    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    heard = [sign for sign, handler in before.items() if handler != signal.SIG_IGN]  # nohup keeps its word
    process.cancelled.clear()
    cluster_runs.terminated.clear()
    try:
        for sign in heard:
            signal.signal(sign, interrupt)
        yield
    finally:
        process.cancelled.clear()
        for sign in heard:
            signal.signal(sign, before[sign])


def _stop(session: SweepSession, line: str) -> int:
    """Report what there is of a sweep; a second Ctrl-C ends that, too."""
    session.console.error(line)
    with contextlib.suppress(InputError, OSError, KeyboardInterrupt):
        session.stop()
    return 1


def _refuse(session: SweepSession, line: str) -> int:
    session.drop_unused_folder()
    session.console.error(line)
    return 2
