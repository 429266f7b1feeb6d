"""Lay out a small directed graph in layers from top to bottom (Sugiyama, Tagawa and Toda 1981).

Every node stands as low as what needs it allows. An edge over several layers bends at a point of
its own in each. The order within a layer comes from the mean position of the neighbours; the final
positions are, layer by layer, as near to the neighbours' mean as the widths allow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

ROUNDS = 24

Point = tuple[float, int]
"""x of the middle, and the layer from the top."""


@dataclass
class Layout:
    """`edges` are (from, to) → the points that the edge goes through."""

    nodes: dict[str, Point]
    edges: dict[tuple[str, str], list[Point]]
    width: float
    layers: int


def without_shortcuts(needs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The graph without the edges that a longer path implies."""

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
    """Lay out a graph without cycles, given as node → the nodes that it needs."""
    depth = layers_from_the_top(needs)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in needs:
        layers[depth[node]].append(node)
    chains: dict[tuple[str, str], list[str]] = {}  # edge → its ends, with the bends between them
    for node, direct in needs.items():
        for needed in direct:
            chains[needed, node] = [needed]
            for between in range(depth[needed] + 1, depth[node]):
                bend = f"{needed}>{node}@{between}"
                layers[between].append(bend)
                chains[needed, node].append(bend)
            chains[needed, node].append(node)
    links = [link for chain in chains.values() for link in pairwise(chain)]
    names = [name for layer in layers for name in layer]
    above = {name: [upper for upper, lower in links if lower == name] for name in names}
    below = {name: [lower for upper, lower in links if upper == name] for name in names}
    widths = {name: node_width if name in needs else bend_width for name in names}
    sort_layers(layers, above, below)
    x = {
        name: (index - (len(layer) - 1) / 2) * (node_width + gap)
        for layer in layers
        for index, name in enumerate(layer)
    }
    for number in range(ROUNDS):
        for layer in layers[:: 1 if number % 2 == 0 else -1]:
            wanted = [
                fmean([x[other] for other in above[name] + below[name]] or [x[name]])
                for name in layer
            ]
            placed = spread(wanted, [widths[name] for name in layer], gap)
            x |= dict(zip(layer, placed, strict=True))
    left = min((x[name] - widths[name] / 2 for name in x), default=0.0)
    right = max((x[name] + widths[name] / 2 for name in x), default=0.0)
    points = {name: (x[name] - left, index) for index, layer in enumerate(layers) for name in layer}
    return Layout(
        nodes={name: points[name] for name in needs},
        edges={ends: [points[name] for name in chain] for ends, chain in chains.items()},
        width=right - left,
        layers=len(layers),
    )


def layers_from_the_top(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The layer of each node: directly above the highest node that needs it, or the lowest one."""
    height: dict[str, int] = {}

    def measure(node: str) -> int:
        if node not in height:
            users = [user for user in needs if node in needs[user]]
            height[node] = max((measure(user) + 1 for user in users), default=0)
        return height[node]

    top = max(map(measure, needs), default=0)
    return {node: top - height[node] for node in needs}


def sort_layers(
    layers: list[list[str]], above: Mapping[str, list[str]], below: Mapping[str, list[str]]
) -> None:
    """Sort each layer by the mean index of the neighbours in the layer before it, downwards and
    upwards in turn."""
    order = {name: float(index) for layer in layers for index, name in enumerate(layer)}
    for number in range(ROUNDS):
        down = number % 2 == 0
        neighbours = above if down else below
        for layer in layers if down else layers[::-1]:
            middle = {
                name: fmean([order[other] for other in neighbours[name]] or [order[name]])
                for name in layer
            }
            layer.sort(key=lambda name: middle[name])
            order |= {name: float(index) for index, name in enumerate(layer)}


def spread(wanted: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """The positions in this order that keep the gap, and are nearest to the wanted ones by the sum
    of squares: neighbours that would overlap are pooled and share their mean shift."""
    offsets = [0.0]
    for before, after in pairwise(widths):
        offsets.append(offsets[-1] + (before + after) / 2 + gap)
    pools: list[tuple[float, int]] = []  # (sum, count)
    for value, offset in zip(wanted, offsets, strict=True):
        total, count = value - offset, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / count:
            pooled, members = pools.pop()
            total, count = pooled + total, members + count
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
