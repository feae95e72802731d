"""`python -m scalebench [hydra overrides]`: the entry point of runs and sweeps.

A command line is composed, checked and run here, by Hydra's rules. Hydra itself is called for its own switches, such as
`--cfg job`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from scalebench.config import compose
from scalebench.config.error_messages import EXPECTED_ERRORS, explain_bare_word, explain_error, explain_switch
from scalebench.config.resolve import resolve
from scalebench.config.script import split_fixed_arguments
from scalebench.core import process
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec

if TYPE_CHECKING:
    from scalebench.sweeps.task import SweepSession

_printed_warnings: set[str] = set()  # of this process


class Composed(NamedTuple):
    """The composed configuration of a command line."""

    loader: compose.Loader
    config: DictConfig
    single: RunSpec | None  # None: a sweep


def main(arguments: list[str]) -> int:
    """Run what the command line describes. Return 2 for bad input, else the status of its runs
    (`plan.compute_exit_status`): 1 where one failed, or where none could be done."""
    try:
        return run(arguments)[0]
    except InputError as error:
        process.print_error(str(error))
        return 2
    except KeyboardInterrupt:
        return 1


def run(
    arguments: Sequence[str], more: Sequence[str] = (), shows_tables: bool = True, is_single: bool = False
) -> tuple[int, Path | None]:
    """Run what the arguments describe, with `more` that are for Hydra alone. Return the status of the runs, and their
    folder. `is_single`: several repeats, which make a sweep, are refused.

    Raises InputError where nothing was started, and KeyboardInterrupt when the finished runs of a cancelled sweep have
    been reported.
    """
    session: SweepSession | None = None
    with process.interrupt_at_signals(), _own_hydra():
        try:
            composed = _compose([*arguments, *more], is_single)
            if composed is None:
                return 0, None
            from scalebench.sweeps.hydra_launcher import make_context, run_sweep
            from scalebench.sweeps.task import SweepSession  # their imports take longer than a refusal

            session = SweepSession(arguments, shows_tables)
            if composed.single is None:
                run_sweep(session, composed.loader, composed.config)
            else:
                context = make_context(composed.loader, composed.config)
                session.run_single(composed.single, composed.config, context)
            return session.finish(), session.folder
        except (*EXPECTED_ERRORS, OSError) as error:
            return _end_early(session, error, arguments)
        except Exception as error:
            if _has_started(session) or os.environ.get("SCALEBENCH_TRACEBACK"):
                raise
            return _end_early(session, error, arguments)
        except SystemExit as end:  # raised by Hydra's own switches
            return int(end.code or 0), None
        except KeyboardInterrupt as interrupt:
            _stop_sweep(session, str(interrupt) or "cancelled")
            raise
        finally:
            if session is not None:
                session.release()


def _compose(arguments: list[str], is_single: bool) -> Composed | None:
    """Compose what the arguments describe, and check a single run. Return None where Hydra has answered."""
    options = read_arguments(arguments)
    _register_and_warn()
    if _is_for_hydra(options):
        _call_hydra(options)
        return None
    loader = compose.make_loader(options.config_path, options.config_dir)
    compose_line = partial(loader.load_command_line, options.config_name or "config")
    config = compose_line(options.overrides, options.multirun)
    if config.hydra.mode == RunMode.MULTIRUN:
        if is_single:
            raise InputError("several values, or sweep=NAME, are a sweep: call scalebench.sweep instead of run")
        as_sweep = make_sweep_overrides(options.overrides)
        if not options.multirun and as_sweep != options.overrides:
            config = compose_line(as_sweep, True)
        return Composed(loader, config, None)
    spec = resolve(compose.to_config(config))
    if spec.repeats == 1:
        return Composed(loader, config, spec)
    if is_single:
        raise InputError(
            'measure.repeats makes a sweep of a run: scalebench.sweep({"strategy": ["ddp"]}, ...), or '
            'measure={"repeats": 1}'
        )
    return Composed(loader, compose_line(make_sweep_overrides(options.overrides), True), None)


def _register_and_warn() -> None:
    """Register everything with Hydra. Print warnings about plugins, which make no run fail, once."""
    for line in compose.register_with_hydra():
        if line not in _printed_warnings:
            _printed_warnings.add(line)
            process.print_error(line)


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


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the values of Hydra's switches, and as `overrides` the other arguments; both may be in any order. Raise
    InputError for a wrong switch."""

    def refuse(message: str) -> NoReturn:
        raise InputError(
            explain_switch(message, arguments, [name for a in parser._actions for name in a.option_strings])
        )

    arguments, fixed = split_fixed_arguments(arguments)
    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    options = parser.parse_intermixed_args(arguments)
    if options.experimental_rerun is not None:
        raise InputError(
            "--experimental-rerun is refused: its file may hold any code; give the arguments of the run again"
        )
    for override in options.overrides:
        if "=" not in override and not override.startswith("~"):
            raise InputError(explain_bare_word(override, arguments))
    options.switches = list(arguments)
    for override in options.overrides:
        options.switches.remove(override)
    if fixed:
        words = (compose.quote(word.replace("${", "\\${")) for word in fixed)
        options.overrides.append(f"script.fixed=[{','.join(words)}]")
    options.overrides = compose.accept_words(options.overrides)
    return options


def _is_for_hydra(options: argparse.Namespace) -> bool:
    """Return whether Hydra is to answer: about the config or itself, or that its switches contradict each other."""
    shows = options.cfg or options.info or options.help or options.hydra_help or options.shell_completion
    return bool(shows or options.resolve or (options.run and options.multirun))


def _call_hydra(options: argparse.Namespace) -> None:
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["scalebench", *options.switches, *options.overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # it raises its errors, which become one line
    try:
        hydra.main(version_base=compose.HYDRA_VERSION, config_path=str(conf_dir()), config_name="config")(main)()
    finally:
        sys.argv = argv
        del os.environ["HYDRA_FULL_ERROR"]
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def make_sweep_overrides(overrides: list[str]) -> list[str]:
    """Turn the overrides of a single run into those of a sweep, whose folder is that of the run."""
    if any(override.startswith("hydra.sweep.dir=") for override in overrides):
        return overrides
    return [re.sub(r"^hydra\.run\.dir=", "hydra.sweep.dir=", override) for override in overrides]


def _has_started(session: SweepSession | None) -> bool:
    return session is not None and session.has_started()


def _end_early(session: SweepSession | None, error: Exception, arguments: Sequence[str]) -> tuple[int, Path | None]:
    """Report the finished runs after an error outside of any run; raise InputError where nothing was started."""
    line = explain_error(error, list(arguments))
    if session is None or not session.has_started():
        raise InputError(line) from None
    line = process.describe_error(error) if isinstance(error, OSError) else line
    way_out = "" if session.sweep is None else "; the sweep ends here, and resume=true does the rest"
    _stop_sweep(session, f"{line}{way_out}")
    return 1, session.folder


def _stop_sweep(session: SweepSession | None, line: str) -> None:
    """Report the finished runs of a sweep, which a second Ctrl-C interrupts."""
    process.print_error(line)
    try:
        with contextlib.suppress(InputError, OSError, KeyboardInterrupt):
            if session is not None:
                session.stop()
    except RuntimeError as error:  # what Python makes of a Ctrl-C while an import creates a class
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
