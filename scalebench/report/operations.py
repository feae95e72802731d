"""What takes the time in the framework's own profile of some updates. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench import probed
from scalebench.report import units
from scalebench.results import Profile, Result

MOST_OPERATIONS = 10
LONGEST_NAME = 60


def operations(result: Result) -> Iterator[Table | str]:
    """The largest of the first rank's profile, and what collectives take of kernels and of the clock."""
    profile = result.ranks[0].probes.profile if result.ranks[0].probes is not None else None
    if profile is None:
        yield f"top operations: - ({probed.reasons(result).get('profile', 'no profile was left')})"
        return
    yield f"top operations of rank 0, {profile.updates} updates under the profiler, which slows them down"
    yield top_operations(profile)
    yield collectives(result)


def top_operations(profile: Profile) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("operation")
    for name in ("calls an update", "own time an update", "of all operations"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in profile.operations[:MOST_OPERATIONS]:
        name = one.name if len(one.name) <= LONGEST_NAME else f"{one.name[: LONGEST_NAME - 3]}..."
        part = units.share(one.self_s / profile.kernel_s) if profile.kernel_s else "-"
        kind = "collective" if one.collective else ""
        table.add_row(*map(Text, (name, f"{one.calls:,.4g}", units.seconds(one.self_s), part, kind)))
    return table


def collectives(result: Result) -> str:
    """Both shares in one line, for they are taken for each other."""
    of_kernels, of_steps = probed.collective_shares(result)
    if of_kernels is None or of_steps is None:
        return "collectives: the profile shows no operation that carries data between devices"
    return (
        f"collectives: {units.share(of_kernels)} of the own time of all operations, and as long as "
        f"{units.share(of_steps)} of an update by the clock; what they cost is neither, but exposed sync"
    )
