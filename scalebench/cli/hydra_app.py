"""`python -m scalebench [hydra overrides]`: the entry point of runs and sweeps, on top of Hydra."""

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
from scalebench.config.error_messages import EXPECTED_ERRORS, explain_error
from scalebench.core import process
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.sweeps import cluster_runs
from scalebench.sweeps.console import Console
from scalebench.sweeps.task import RepeatsRequested, SweepSession

_printed_warnings: set[str] = set()  # of this process


def main(arguments: list[str]) -> int:
    """Run what the command line describes. Return 0 where all runs are ok or unsupported, 1 where one is not, 2 for bad
    input."""
    session = SweepSession(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch, compose.raise_hydra_errors(), _raise_interrupt_on_sigterm():
            switches, overrides = split_arguments(arguments)
            if _is_dry_run(overrides):  # Hydra makes its folders before it calls us
                overrides += [f"hydra.run.dir={scratch}", f"hydra.sweep.dir={scratch}"]
            _register_and_warn()
            try:
                _run_hydra(session, [*switches, *overrides])
            except RepeatsRequested:
                _run_hydra(session, make_sweep_arguments(switches, overrides))
            return session.finish()
    except (*EXPECTED_ERRORS, OSError) as error:
        return _reject(session, explain_error(error, arguments))
    except Exception as error:
        if session.done or os.environ.get("SCALEBENCH_TRACEBACK"):
            raise
        return _reject(session, explain_error(error, arguments))
    except SystemExit as end:  # raised by callbacks and by Hydra's own switches
        return int(end.code or 0)
    except cluster_runs.UserDetached as left:
        return _stop_sweep(session, str(left))
    except KeyboardInterrupt:
        return _stop_sweep(session, "cancelled")
    finally:
        session.release()


def _register_and_warn() -> None:
    """Register everything with Hydra. Print warnings about plugins, which make no run fail, once."""
    for line in compose.register_with_hydra():
        if line not in _printed_warnings:
            _printed_warnings.add(line)
            Console().print_error(line)


def _run_hydra(session: SweepSession, arguments: list[str]) -> None:
    before = sys.argv
    sys.argv = ["scalebench", *arguments]
    try:
        hydra.main(version_base=compose.HYDRA_VERSION, config_path=str(conf_dir()), config_name="config")(
            session.run_one
        )()
    finally:
        sys.argv = before


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments in any order into (Hydra's switches, overrides). Raise InputError for a wrong switch.

    Hydra's own parser accepts the overrides only next to each other."""

    def refuse(message: str) -> NoReturn:
        raise InputError(f"{message}; --hydra-help lists the switches")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    overrides = parser.parse_intermixed_args(arguments).overrides
    switches = list(arguments)
    for override in overrides:
        switches.remove(override)
    return switches, overrides


def make_sweep_arguments(switches: list[str], overrides: list[str]) -> list[str]:
    """Turn the arguments of a single run into those of a sweep, whose folder is that of the run."""
    switches = [switch for switch in switches if switch not in ("--run", "-r")]
    overrides = [override for override in overrides if not override.startswith("hydra.mode=")]
    if not any(override.startswith("hydra.sweep.dir=") for override in overrides):
        overrides = [re.sub(r"^hydra\.run\.dir=", "hydra.sweep.dir=", override) for override in overrides]
    return [*switches, "--multirun", *overrides]


def _is_dry_run(overrides: list[str]) -> bool:
    values = [override.partition("=")[2] for override in overrides if re.match(r"\+{0,2}dry_run=", override)]
    return bool(values) and re.fullmatch(r"\W*(true|yes|on|y|1)\W*", values[-1], re.IGNORECASE) is not None


@contextlib.contextmanager
def _raise_interrupt_on_sigterm() -> Iterator[None]:
    """Make SIGTERM end a run as Ctrl-C does: no process is left, and the result is recorded as cancelled."""

    def interrupt(number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            cluster_runs.terminated.set()
        process.cancelled.set()
        raise KeyboardInterrupt

    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    handled = [sign for sign, handler in before.items() if handler != signal.SIG_IGN]  # what nohup ignores stays so
    process.cancelled.clear()
    cluster_runs.terminated.clear()
    try:
        for sign in handled:
            signal.signal(sign, interrupt)
        yield
    finally:
        process.cancelled.clear()
        for sign in handled:
            signal.signal(sign, before[sign])


def _stop_sweep(session: SweepSession, line: str) -> int:
    """Report the finished runs of a sweep; a second Ctrl-C ends that, too."""
    session.console.print_error(line)
    with contextlib.suppress(InputError, OSError, KeyboardInterrupt):
        session.stop()
    return 1


def _reject(session: SweepSession, line: str) -> int:
    session.drop_unused_folder()
    session.console.print_error(line)
    return 2
