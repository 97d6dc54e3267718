"""Shared prefixes. Chains of runs whose first links have the same keys are trained once, before they part."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Trunk:
    """Links `start` + 1 to `depth` of `run`: one group of runs has all of them."""

    run: str
    start: int
    depth: int


def trunks(chains: Mapping[str, Sequence[str]]) -> list[Trunk]:
    """The trunks of chains of link keys, each after those it grows from.

    A link belongs to the group of runs that have it. Along a chain groups only shrink; where one shrinks a trunk ends,
    and if two runs are left, the next one begins there. The first run of a group stands for it.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for run, keys in chains.items():
        for key in keys:
            groups[key].append(run)
    found: list[Trunk] = []
    for run, keys in chains.items():
        depth = 0
        for group, links in itertools.groupby(keys, key=groups.__getitem__):
            start, depth = depth, depth + len(list(links))
            if len(group) > 1 and group[0] == run:
                found.append(Trunk(run, start, depth))
    return sorted(found, key=lambda trunk: trunk.depth)
