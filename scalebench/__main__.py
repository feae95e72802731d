"""`python -m scalebench`: the words of the command line. Reading the program starts here."""

from __future__ import annotations

import importlib
import sys

from scalebench import __version__
from scalebench.suggest import no_such

# A first word without `=` is one of these; each module has main(arguments) -> exit status.
VERBS = {
    "strategies": ("scalebench.verbs.strategies", "what is registered, from where, and whether it can run here"),
    "plugins": ("scalebench.verbs.plugins", "what other packages add, and whether it loads"),
    "check": (
        "scalebench.verbs.check",
        "does a strategy, a model or a data set keep its contract? NAME, or model=custom model.torch=... dataset=...",
    ),
    "new": ("scalebench.verbs.new", "new strategy NAME writes a package with a strategy of your own; --into FOLDER"),
    "doctor": (
        "scalebench.verbs.doctor",
        "this machine: devices, versions, Horovod, what is missing; hardware=NAME: does it fit that YAML",
    ),
    "show": (
        "scalebench.verbs.show",
        "the table of the runs below one or more folders; --details: where each run's time went; --baseline RUN",
    ),
    "report": (
        "scalebench.verbs.report",
        "one HTML page of the runs below one or more folders; --markdown, --csv and --figures for papers",
    ),
    "compare": (
        "scalebench.verbs.compare",
        "two sweeps, or the values of a key (--by KEY): what is faster, how surely; --threshold 3% for CI",
    ),
}

HELP = """\
scalebench {version}: how does my training scale under each parallel strategy?

  python -m scalebench [KEY=VALUE ...]                  one run
  python -m scalebench --multirun gpus=1,2 [...]        a sweep, with its baselines
  python -m scalebench sweep=demo                       a sweep from conf/sweep
  python -m scalebench VERB [...]                       {verbs}

Choose:    model=  dataset=  strategy=  hardware=  measure=  train=  sweep=   (names are files in conf/)
Set:       gpus=2  scaling=weak|strong  seed=0  measure.repeats=3  train.batch_per_device=75  strategy.options.KEY=...
Also:      dry_run=true lists the runs and starts nothing; resume=true skips what earlier sweeps ended well;
           baseline=none adds no one-device runs, baseline=ladder those that take a strong scaling's loss apart;
           sweep.max_minutes=30 leaves out what says least; debug=true keeps rank 0 in the foreground
See:       --cfg job prints the composed config; --hydra-help tells of Hydra's own switches

Verbs:
{verb_lines}
"""


def main(arguments: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if "--help" in words or "-h" in words:
        print(help_text(), end="")
        return 0
    if words == ["--version"]:
        print(f"scalebench {__version__}")
        return 0
    if words and "=" not in words[0] and not words[0].startswith(("-", "~", "+")):
        return _verb(words[0], words[1:])
    from scalebench import cli

    return cli.main(words)


def _verb(verb: str, arguments: list[str]) -> int:
    from scalebench.spec import InputError

    if verb not in VERBS:
        print(f"scalebench: {no_such('verb', verb, VERBS)}", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(VERBS[verb][0]).main(arguments))
    except InputError as error:
        print(f"scalebench: {error}", file=sys.stderr)
        return 2


def help_text() -> str:
    lines = "\n".join(f"  {verb:<12} {text}" for verb, (_, text) in VERBS.items())
    return HELP.format(version=__version__, verbs=", ".join(VERBS), verb_lines=lines)


if __name__ == "__main__":
    sys.exit(main())
