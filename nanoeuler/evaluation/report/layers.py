"""Places for the nodes of a small directed graph, in layers from top to bottom (Sugiyama, Tagawa and Toda 1981).

Every node stands as low as what needs it allows; an edge over several layers bends at a place of its own in each; the order
within a layer comes from the neighbours' mean places; and the final places are, layer by layer, as near to the neighbours' mean as
the widths allow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

ROUNDS = 24


@dataclass
class Layout:
    """`place` of a node is (x of its middle, layer from the top); `edges` are (from, to) → the places that the edge goes through."""

    place: dict[str, tuple[float, int]]
    edges: dict[tuple[str, str], list[tuple[float, int]]]
    width: float
    layers: int


def without_shortcuts(needs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The graph without the edges that a longer way says already."""

    def reaches(start: str, goal: str) -> bool:
        return any(other == goal or reaches(other, goal) for other in needs[start])

    return {
        node: [
            one
            for one in direct
            if not any(reaches(other, one) for other in direct if other != one)
        ]
        for node, direct in needs.items()
    }


def lay_out(
    needs: Mapping[str, Sequence[str]], node_width: float, bend_width: float, gap: float
) -> Layout:
    """Places for a graph without cycles, given as node → the nodes that it needs."""
    users: dict[str, list[str]] = {
        node: [user for user in needs if node in needs[user]] for node in needs
    }
    height: dict[str, int] = {}

    def level(node: str) -> int:
        if node not in height:
            height[node] = max((level(user) + 1 for user in users[node]), default=0)
        return height[node]

    top = max((level(node) for node in needs), default=0)
    layers: list[list[str]] = [[] for _ in range(top + 1)]
    for node in needs:
        layers[top - height[node]].append(node)
    chains = {}
    for node, direct in needs.items():
        for needed in direct:
            between = [
                f"{needed}>{node}@{layer}"
                for layer in range(top - height[needed] + 1, top - height[node])
            ]
            for bend, layer in zip(
                between, range(top - height[needed] + 1, top - height[node]), strict=True
            ):
                layers[layer].append(bend)
            chains[needed, node] = [needed, *between, node]
    links = [link for chain in chains.values() for link in pairwise(chain)]
    above = {name: [a for a, b in links if b == name] for layer in layers for name in layer}
    below = {name: [b for a, b in links if a == name] for layer in layers for name in layer}
    widths = {
        name: node_width if name in needs else bend_width for layer in layers for name in layer
    }
    order = {name: float(index) for layer in layers for index, name in enumerate(layer)}
    for turn in range(ROUNDS):
        neighbours = above if turn % 2 == 0 else below
        for layer in layers if turn % 2 == 0 else layers[::-1]:
            middle = {
                name: fmean(order[other] for other in neighbours[name])
                if neighbours[name]
                else order[name]
                for name in layer
            }
            layer.sort(key=lambda name: middle[name])
            order |= {name: float(index) for index, name in enumerate(layer)}
    x = {
        name: (index - (len(layer) - 1) / 2) * (node_width + gap)
        for layer in layers
        for index, name in enumerate(layer)
    }
    for turn in range(ROUNDS):
        for layer in layers if turn % 2 == 0 else layers[::-1]:
            wanted = [
                fmean([x[other] for other in above[name] + below[name]] or [x[name]])
                for name in layer
            ]
            x |= dict(
                zip(layer, spread(wanted, [widths[name] for name in layer], gap), strict=True)
            )
    left = min((x[name] - widths[name] / 2 for name in x), default=0.0)
    right = max((x[name] + widths[name] / 2 for name in x), default=0.0)
    place = {name: (x[name] - left, index) for index, layer in enumerate(layers) for name in layer}
    return Layout(
        {name: place[name] for name in needs},
        {ends: [place[name] for name in chain] for ends, chain in chains.items()},
        right - left,
        top + 1,
    )


def spread(wanted: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """The places in this order that keep the gap and are nearest to the wanted ones in squares: pools of neighbours that would overlap."""
    offsets = [0.0]
    for before, after in pairwise(widths):
        offsets.append(offsets[-1] + (before + after) / 2 + gap)
    pools: list[list[float]] = []  # [sum, count]
    for value, offset in zip(wanted, offsets, strict=True):
        pools.append([value - offset, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1] = [pools[-1][0] + total, pools[-1][1] + count]
    means = [total / count for total, count in pools for _ in range(int(count))]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
