"""`python -m scalebench`: the command line. Reading the program starts here."""

from __future__ import annotations

import argparse
import importlib
import sys

from scalebench import __version__
from scalebench.cli.commands.arguments import CommandParser
from scalebench.core import process

# What each command shows or does, and an example for the end of its help. Its module in cli/commands is imported for
# it only, and has add_arguments(parser) and main(options) -> exit status.
COMMANDS = {
    "list": (
        "the strategies, models, data sets, hardware and sweeps there are",
        "list strategies, scalebench list strategies ddp",
    ),
    "plugins": ("what other packages add, and whether it loads", ""),
    "check": (
        "check that a strategy, a model or a data set keeps its contract; --gpu: a new GPU machine",
        "check ddp gpus=2, scalebench check model=mynet:build, or check --gpu",
    ),
    "new": (
        "a package with a strategy or a data set of your own; or the YAML of a SLURM partition",
        "new strategy my_ring, scalebench new dataset my_curves",
    ),
    "install": ("build Horovod for the installed frameworks: install horovod", ""),
    "doctor": (
        "this machine: devices, versions, Horovod, what is missing; hardware=NAME: whether it fits that YAML",
        "doctor, scalebench doctor hardware=alpha",
    ),
    "show": (
        "the table of the runs below one or more folders",
        "show, scalebench show multirun/A multirun/B --details",
    ),
    "report": (
        "one HTML page of the runs below one or more folders; also for papers",
        "report, scalebench report multirun/A --csv --figures",
    ),
    "export": (
        "pass finished runs on to Weights & Biases or MLflow",
        "export --to mlflow, scalebench export multirun/A --to wandb",
    ),
    "compare": (
        "compare two sweeps, or the values of a key: what is faster, how surely; for people and for CI",
        "compare A B --threshold 3%, scalebench compare --by train.precision",
    ),
    "predict": (
        "what more devices would give, with intervals, from measured runs",
        "predict --gpus 16,64, scalebench predict --hardware alpha, scalebench predict --check",
    ),
}

BRIEF_HELP = """\
scalebench measures how a training scales under each parallel strategy.

  scalebench script=train.py gpus=1,2                         your own program, on one and on two devices
  scalebench model=mynet.py:build strategy=ddp,fsdp gpus=1,2  your own network, under two strategies
  scalebench sweep=demo                                       a first sweep, which takes minutes
  scalebench sweep=demo dry_run=true                          what that would run
  scalebench show, scalebench report                          its table, its page
  scalebench doctor                                           what this machine has, and lacks

scalebench --help has the rest, scalebench list the names."""

USAGE = """\
scalebench KEY=VALUE [...]                  one run; with several values (gpus=1,2) a sweep, with its baselines
       scalebench sweep=demo                       a sweep from conf/sweep
       scalebench COMMAND [...]                    see below; each has its own --help"""

DESCRIPTION = f"""\
scalebench {__version__}: how does my training scale under each parallel strategy?

Choose:    model=  dataset=  strategy=  hardware=  measure=  train=  sweep=   (scalebench list names them)
Set:       gpus=2  scaling=weak|strong  seed=0  measure.repeats=3  train.batch_per_device=75  strategy.options.KEY=...
Also:      dry_run=true lists the runs and starts nothing; resume=true skips what earlier sweeps ended well;
           baseline=none adds no one-device runs, baseline=attribution also those that split the loss of strong scaling;
           sweep.max_minutes=30 leaves out the least informative runs; debug=true keeps rank 0 in the foreground;
           strict=true: the exit status is 1 also where a run of a sweep is unsupported
See:       --cfg job prints the composed config; --hydra-help lists Hydra's own options;
           eval "$(scalebench -sc install=bash)" completes keys and names in the shell
Status:    0: a run is ok and none failed; 1: one failed, or none could be done here; 2: nothing was started"""


def main(arguments: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    process.replace_unprintable()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        print(BRIEF_HELP)
        return 0
    if "=" not in arguments[0] and not arguments[0].startswith(("-", "~", "+")):
        return _run_command_to_its_end(arguments[0], arguments[1:])
    if "--help" in arguments or "-h" in arguments:
        build_parsers()[""].print_help()
        return 0
    if arguments == ["--version"]:
        print(f"scalebench {__version__}")
        return 0
    has_switches = any(word.startswith("-") and word not in ("--multirun", "-m") for word in arguments)
    if sys.stdout is not None and sys.stdout.isatty() and not has_switches:
        # At once: the imports and the checks of all runs take seconds on a cold start.
        print(f"scalebench {__version__}: preparing the runs", flush=True)
    from scalebench.cli import hydra_app

    return hydra_app.main(arguments)


def _run_command_to_its_end(name: str, arguments: list[str]) -> int:
    """Return the exit status of a command, also of one that ends with an error of its user or of the output."""
    from scalebench.core.errors import InputError

    try:
        status = run_command(name, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except InputError as error:
        process.print_error(str(error))
        return 2
    except OSError as error:
        process.drop_output()  # what is left of it would fail again at the end
        if isinstance(error, BrokenPipeError):  # `head` has read enough
            return 0
        process.print_error(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return 1
    except SystemExit as end:  # after --help
        return int(end.code or 0)


def run_command(name: str, arguments: list[str]) -> int:
    """Run a command with the arguments after it and return its exit status. Raise InputError for an unknown command."""
    if name not in COMMANDS:
        from scalebench.core.errors import InputError

        raise InputError(explain_unknown_command(name, arguments))
    module = importlib.import_module(f"scalebench.cli.commands.{name}")
    parser = build_parsers()[name]
    module.add_arguments(parser)
    return int(module.main(parser.read(arguments)))


def explain_unknown_command(name: str, arguments: list[str]) -> str:
    """Return a line with what to write instead of a word that is not a command."""
    from scalebench.config.aliases import read_names
    from scalebench.core.errors import nearest_names, unknown_name_message

    if (hint := read_names("commands").get(name)) is not None:
        return f"no command '{name}'; {hint.format(name=name)}"
    if not nearest_names(name, COMMANDS):
        from scalebench.config.error_messages import explain_bare_word

        line = explain_bare_word(name, [name, *arguments])
        if "KEY=VALUE" not in line:
            return line
    return unknown_name_message("command", name, COMMANDS)


def build_parsers() -> dict[str, CommandParser]:
    """Return the parser of the program by the name "", and that of each command, without the command's arguments."""

    def make_formatter(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=16)

    parser = CommandParser(prog="scalebench", usage=USAGE, description=DESCRIPTION, formatter_class=make_formatter)
    parser.add_argument("--version", action="store_true", help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser, prog="scalebench")
    parsers = {
        name: commands.add_parser(
            name, help=text, description=text, epilog=f"example: scalebench {example}" if example else None
        )
        for name, (text, example) in COMMANDS.items()
    }
    return {"": parser, **parsers}


if __name__ == "__main__":
    sys.exit(main())
