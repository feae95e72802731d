"""Change a cable of the running test cluster: python -m tests.cluster.shape NODE RATE|none|cut|mend."""

from __future__ import annotations

import sys

from tests.cluster import links
from tests.cluster.settings import ClusterError, chosen_folder, read_settings


def main(words: list[str]) -> int:
    settings = read_settings(chosen_folder())
    try:
        if settings is None:
            raise ClusterError(f"there is no test cluster in {chosen_folder()}: make cluster-up")
        if len(words) != 2:
            raise ClusterError(
                "asks for a node and what becomes of its cable: 1gbit (or another rate), none, cut or mend"
            )
        node, asked = words
        if asked == "cut":
            links.cut(settings, node)
        elif asked == "mend":
            links.mend(settings, node)
        else:
            links.shape(settings, node, asked)
    except ClusterError as error:
        print(f"shape: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
