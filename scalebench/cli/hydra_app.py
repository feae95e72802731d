"""`python -m scalebench [hydra overrides]`: the entry point of runs and sweeps, on top of Hydra."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from scalebench.config import compose
from scalebench.config.error_messages import EXPECTED_ERRORS, explain_bare_word, explain_error, explain_switch
from scalebench.core import process
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.sweeps import cluster_runs
from scalebench.sweeps.console import Console
from scalebench.sweeps.task import NothingStarted, RepeatsRequested, SweepSession

_printed_warnings: set[str] = set()  # of this process


def main(arguments: list[str]) -> int:
    """Run what the command line describes. Return 2 for bad input, else the status of its runs
    (`plan.compute_exit_status`): 1 where one failed, or where none could be done."""
    session = SweepSession(arguments)
    try:
        return run_session(session)
    except InputError as error:
        session.console.print_error(str(error))
        return 2
    except KeyboardInterrupt:
        return 1


def run_session(session: SweepSession, more: Sequence[str] = ()) -> int:
    """Run what the arguments of a session describe, with `more` that are for Hydra alone, and return the status of its
    runs.

    Raises InputError where nothing was started, and KeyboardInterrupt when the finished runs of a cancelled sweep have
    been reported.
    """
    with process.interrupt_at_signals(), _own_hydra():
        try:
            return _run_or_sweep(session, more)
        except NothingStarted as refused:
            raise InputError(refused.line) from None  # Hydra's frames help nobody
        except (*EXPECTED_ERRORS, OSError) as error:
            return _end_early(session, error)
        except Exception as error:
            if session.has_started() or os.environ.get("SCALEBENCH_TRACEBACK"):
                raise
            return _end_early(session, error)
        except SystemExit as end:  # raised by callbacks and by Hydra's own switches
            return int(end.code or 0)
        except cluster_runs.UserDetached as left:
            _stop_sweep(session, str(left))
            raise
        except KeyboardInterrupt:
            _stop_sweep(session, "cancelled")
            raise
        finally:
            session.release()


def _run_or_sweep(session: SweepSession, more: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch, compose.raise_hydra_errors():
        switches, overrides = split_arguments([*session.arguments, *more])
        if _is_dry_run(overrides):  # Hydra makes its folders before it calls us
            overrides += [f"hydra.run.dir={scratch}", f"hydra.sweep.dir={scratch}"]
        _register_and_warn()
        try:
            _run_hydra(session, [*switches, *overrides])
        except RepeatsRequested:
            if session.is_single:
                raise InputError(
                    'measure.repeats makes a sweep of a run: scalebench.sweep({"strategy": ["ddp"]}, ...), or '
                    'measure={"repeats": 1}'
                ) from None
            _run_hydra(session, make_sweep_arguments(switches, overrides))
        return session.finish()


def _register_and_warn() -> None:
    """Register everything with Hydra. Print warnings about plugins, which make no run fail, once."""
    for line in compose.register_with_hydra():
        if line not in _printed_warnings:
            _printed_warnings.add(line)
            Console().print_error(line)


@contextlib.contextmanager
def _own_hydra() -> Iterator[None]:
    """Have a Hydra of our own in the block; that of a caller, or of a module that it imports, is unchanged."""
    hydra_state, config = GlobalHydra.instance(), HydraConfig.instance()
    before = hydra_state.hydra, config.cfg
    hydra_state.hydra = config.cfg = None
    try:
        yield
    finally:
        hydra_state.hydra, config.cfg = before


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
        raise InputError(
            explain_switch(message, arguments, [name for a in parser._actions for name in a.option_strings])
        )

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    options = parser.parse_intermixed_args(arguments)
    if options.experimental_rerun is not None:
        raise InputError(
            "--experimental-rerun is refused: its file may hold any code; give the arguments of the run again"
        )
    overrides = options.overrides
    switches = list(arguments)
    for override in overrides:
        switches.remove(override)
        if "=" not in override and not override.startswith("~"):
            raise InputError(explain_bare_word(override, arguments))
    return switches, compose.accept_words(overrides)


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


def _end_early(session: SweepSession, error: Exception) -> int:
    """Report the finished runs after an error outside of any run; raise InputError where nothing was started."""
    line = explain_error(error, session.arguments)
    if not session.has_started():
        session.drop_unused_folder()
        raise InputError(line) from None
    line = process.describe_error(error) if isinstance(error, OSError) else line
    way_out = "" if session.sweep is None else "; the sweep ends here, and resume=true does the rest"
    _stop_sweep(session, f"{line}{way_out}")
    return 1


def _stop_sweep(session: SweepSession, line: str) -> None:
    """Report the finished runs of a sweep, which a second Ctrl-C interrupts."""
    session.console.print_error(line)
    with contextlib.suppress(InputError, OSError, KeyboardInterrupt):
        session.stop()
