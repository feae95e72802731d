"""`python -m scripts.docs` writes the generated parts of docs/reference: strategies, config keys, results, plugin API.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; the rest of a page is written by hand.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from scalebench.analysis.columns import COLUMNS
from scalebench.analysis.verdicts import read_flags
from scalebench.cli.commands.list import format_value, group_names
from scalebench.core import result
from scalebench.core.config_files import (
    describe_entry,
    read_composed,
    read_key_comments,
    read_strategy_config,
    read_yaml,
)
from scalebench.core.config_fingerprint import flatten
from scalebench.core.json_files import write_text
from scalebench.core.spec import KubernetesSpec, SlurmSpec
from scalebench.report.flag_text import format_flag
from scalebench.strategies.base import Probes, Strategy
from scalebench.strategies.registry import built_in_strategies

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/reference"
CONF = ROOT / "conf"
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MEASURES = ("default", "quick", "thorough", "max_batch")


class Key(NamedTuple):
    """One key of a YAML file with its comment."""

    name: str  # with those it stands under: stop.epochs
    value: str
    comment: str


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a YAML file and of those that it inherits, in order; a key with a comment that holds others
    stands before these."""
    group = path.parent.name
    tree, comments = read_composed(group, path), read_key_comments(group, path)
    keys: dict[str, Key] = {}
    for name, value in flatten(tree):
        for end in [match.start() for match in re.finditer(r"\.", name)]:
            parent = name[:end]
            if parent in comments and parent not in keys:
                keys[parent] = Key(parent, "", comments[parent])
        keys[name] = Key(name, format_value(value), comments.get(name, ""))
    return list(keys.values())


def first_sentence(text: str) -> str:
    """Return the text up to its first full stop or colon, without it, or with its first question mark."""
    text = " ".join(text.split())
    return re.split(r"(?<=\?) |[.:](?= [A-Z`]|$)", text)[0]


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of plain texts; names of pages in them become links."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in lines)


def _escape(cell: str) -> str:
    text = cell.replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"docs/(\w+/([\w-]+)\.md)", r"[\2](../\1)", text)


def quote(name: str) -> str:
    return f"`{name}`" if name else ""


# Strategies


def format_strategies() -> str:
    """Return a table of strategies for each group of `scalebench list`, and below it a table of their options."""
    parts = []
    for title, names in group_names("strategy", built_in_strategies()).items():
        rows = [_strategy_row(name, variants) for name, variants in _group_variants(names).items()]
        parts += [f"## {title[0].upper()}{title[1:]}", format_table(["strategy", "is"], rows)]
        options = _option_rows([name for name in names if name != "simulated"])  # its options are for tests
        parts += [format_table(["`strategy.options.`", "default", "means"], options)] if options else []
    return "\n\n".join(parts)


def _group_variants(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the strategies that choose their backend, each with those of a fixed one, and all others."""
    variants: dict[str, list[str]] = {}
    for name in names:
        base = re.sub(r"_(gloo|nccl|mpi)$", "", name)
        variants.setdefault(base if base in names else name, []).append(name)
    return variants


def _strategy_row(name: str, variants: Sequence[str]) -> list[str]:
    tree = read_strategy_config(name)
    remarks = ["GPUs only"] if tree["devices"] == ["cuda"] else []
    remarks += [f"approximate: {tree['approximate']}"] if tree.get("approximate") else []
    return [", ".join(map(quote, variants)), "; ".join([tree["description"], *remarks])]


def _option_rows(names: Sequence[str]) -> list[list[str]]:
    """Return a row for each option of these strategies; one that differs between them says in which way."""
    comments: dict[str, str] = {}
    defaults: dict[str, dict[str, list[str]]] = {}
    for name in names:
        for key in read_keys(CONF / f"strategy/{name}.yaml"):
            if key.name.startswith("options."):
                option = key.name.removeprefix("options.")
                comments[option] = comments.get(option) or key.comment
                defaults.setdefault(option, {}).setdefault(key.value, []).append(name)
    with_options = {name for values in defaults.values() for group in values.values() for name in group}
    rows = []
    for option, values in defaults.items():
        owners = [name for group in values.values() for name in group]
        default = ", ".join(values) if len(values) == 1 else "by name: " + ", ".join(values)
        owner = "" if set(owners) == with_options else _abbreviate(owners, names)
        rows.append([quote(option), default, f"{owner}: {comments[option]}" if owner else comments[option]])
    return rows


def _abbreviate(owners: Sequence[str], names: Sequence[str]) -> str:
    """Return the strategies that have an option, those of one beginning as `ddp*`."""
    stems: dict[str, None] = {}
    for owner in owners:
        beginnings = [owner[: match.start()] for match in re.finditer(r"_|$", owner)]
        named = {stem: {name for name in names if name.startswith(stem)} for stem in beginnings}
        stem = next((stem for stem, with_stem in named.items() if with_stem <= {*owners}), owner)
        stems[f"`{stem}*`" if len(named[stem]) > 1 else f"`{owner}`"] = None
    return ", ".join(stems)


# Config

SKIPPED = {"name", "description", "sources", "hydra", "defaults", "options"}


def _format_keys(head: str, file: str, value: str = "default") -> str:
    """Return a table of the keys of a file, and below it a line with those that have no comment."""
    keys = [key for key in read_keys(CONF / file) if key.name.split(".")[0] not in SKIPPED]
    table = format_table(
        [head, value, "means"], [[quote(key.name), key.value, key.comment] for key in keys if key.comment]
    )
    others = ", ".join(quote(key.name) for key in keys if key.value and not key.comment)
    return f"{table}\n\nAlso: {others}." if others else table


def format_measure() -> str:
    """Return the keys of `measure` with their values in each of its files."""
    files = {name: {key.name: key for key in read_keys(CONF / f"measure/{name}.yaml")} for name in MEASURES}
    rows = []
    for name, key in files["default"].items():
        values = [files[file][name].value for file in MEASURES]
        others = [value if value != values[0] else "" for value in values[1:]]
        rows.append([quote(name), values[0], *others, key.comment])
    return format_table(["`measure.`", *MEASURES, "means"], rows)


def format_hardware() -> str:
    """Return the keys of a machine and of its scheduler, and the names of the machines that there are."""
    slurm, pods = (
        [[quote(name), comment] for name, comment in _field_comments(kind)] for kind in (SlurmSpec, KubernetesSpec)
    )
    paths = sorted((CONF / "hardware").glob("*.yaml"))
    machines = ", ".join(quote(path.stem) for path in paths)
    return "\n\n".join(
        [
            _format_keys("`hardware.`", "hardware/local.yaml", "`local`"),
            format_table(["`hardware.slurm.`", "means"], [row for row in slurm if row[1]]),
            f"Also: {', '.join(name for name, comment in slurm if not comment)}.",
            format_table(["`hardware.kubernetes.`", "means"], [row for row in pods if row[1]]),
            f"Machines: {machines}.",
        ]
    )


def _field_comments(kind: type) -> list[tuple[str, str]]:
    """Return the fields of a dataclass with the comment beside or above each."""
    source = inspect.getsource(kind)
    lines, (node,) = source.splitlines(), ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    fields = []
    for item in node.body:
        if not isinstance(item, ast.AnnAssign):
            continue
        above, number = [], item.lineno - 2
        while lines[number].lstrip().startswith("#"):
            above.insert(0, lines[number].strip()[2:])
            number -= 1
        beside = lines[(item.end_lineno or item.lineno) - 1].partition("  # ")[2]
        fields.append((ast.unparse(item.target), " ".join([*above, beside]).strip()))
    return fields


def format_models() -> str:
    """Return the keys of a model, and the models that there are."""
    trees = [read_yaml(path) for path in sorted((CONF / "model").glob("*.yaml"))]
    sizes = {tree["name"]: f" ({tree['params'] / 1e6:.3g} M)" if tree.get("params") else "" for tree in trees}
    names = ", ".join(quote(name) + size for name, size in sizes.items())
    return f"{_format_keys('`model.`', 'model/custom.yaml', '`custom`')}\n\nModels, with parameters: {names}."


def format_datasets() -> str:
    """Return the keys of a data set, and the data sets that there are."""
    paths = sorted((CONF / "dataset").glob("*.yaml"))
    rows = [[quote(path.stem), describe_entry(path), str(read_yaml(path)["size"])] for path in paths]
    datasets = format_table(["`dataset=`", "is", "size"], rows)
    custom, decoded = (read_keys(CONF / f"dataset/{name}.yaml") for name in ("custom", "imagenet_jpeg"))
    others = {key.name for key in custom}
    added = [[quote(key.name), key.value, key.comment] for key in decoded if key.name not in others]
    decoding = format_table(["`dataset.`", "`imagenet_jpeg`", "means"], added)
    return f"{_format_keys('`dataset.`', 'dataset/custom.yaml', '`custom`')}\n\n{decoding}\n\n{datasets}"


def format_sweeps() -> str:
    rows = [[quote(path.stem), describe_entry(path)] for path in sorted((CONF / "sweep").glob("*.yaml"))]
    return format_table(["`sweep=`", "answers"], rows)


# Results


def format_columns() -> str:
    """Return the columns of the frame as a table, and in one line those whose names say all."""
    names = {column: quote(column.name) + (" ±" if column.limits else "") for column in COLUMNS}
    rows = [[name, column.about] for column, name in names.items() if column.about]
    plain = ", ".join(name for column, name in names.items() if not column.about)
    return f"{format_table(['column', 'is'], rows)}\n\nAlso: {plain}."


def format_flags() -> str:
    rows = [[format_flag(name), texts["raised"]] for name, texts in read_flags().items()]
    return format_table(["flag", "raised where"], rows)


def format_record() -> str:
    """Return the fields of result.json: the comment beside each, or the docstring of its type."""
    comments = dict(_field_comments(result.Result))
    rows = []
    for name, field in result.result_schema()["properties"].items():
        kinds = [vars(result).get(word) for word in re.findall(r"[A-Z]\w+", str(field))]
        kind = next((kind for kind in kinds if inspect.getmodule(kind) is result), None)
        rows.append([quote(name), comments[name] or first_sentence(getattr(kind, "__doc__", None) or "")])
    return format_table(["field", "is"], [row for row in rows if row[1]])


# Plugin API

PACKAGES = tuple(f"scalebench.{name}" for name in "plugin_api strategies.torch strategies.tensorflow testing".split())


def format_api() -> str:
    """Return what plugins may import: a table for each package."""
    parts = []
    for package in map(importlib.import_module, PACKAGES):
        exported = {name: getattr(package, name) for name in package.__all__}
        rows = [
            [quote(name), first_sentence(inspect.getdoc(each) or "") if callable(each) else quote(str(each))]
            for name, each in exported.items()
        ]
        parts += [f"## `{package.__name__}`", format_table(["name", "is"], rows)]
    return "\n\n".join(parts)


def format_methods() -> str:
    """Return the methods of Strategy and Probes; those that a subclass has to define in bold."""
    parts = []
    for kind in (Strategy, Probes):
        rows = [
            [
                f"**`{name}`**" if hasattr(each, "__isabstractmethod__") else quote(name),
                first_sentence(each.__doc__ or ""),
            ]
            for name, each in vars(kind).items()
            if inspect.isfunction(each) and not name.startswith("_")
        ]
        parts.append(format_table([f"method of `{kind.__name__}`", "does"], rows))
    return "\n\n".join(parts)


FORMATS: dict[str, Callable[[], str]] = {
    "strategies": format_strategies,
    "root": lambda: _format_keys("key", "config.yaml"),
    "train": lambda: _format_keys("`train.`", "train/default.yaml"),
    "measure": format_measure,
    "hardware": format_hardware,
    "models": format_models,
    "datasets": format_datasets,
    "sweeps": format_sweeps,
    "columns": format_columns,
    "flags": format_flags,
    "record": format_record,
    "api": format_api,
    "methods": format_methods,
}


def update_page(text: str) -> str:
    """Return a page with its generated parts as they are now."""
    return PART.sub(lambda match: f"{match[1]}\n{FORMATS[match[2]]()}\n\n{match[3]}", text)


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (current := update_page(text)) != text:
            write_text(page, current)
            print(page)


if __name__ == "__main__":
    main()
