"""Random labelling problems, and the best of all their labellings."""

from __future__ import annotations

import itertools

import numpy as np

from loadmaster.strategies.sharding.labels import LabelCosts


def random_costs(
    seed: int, *, n: int, m: int, labels: int = 3, forbidden: float = 0.0, components: int = 2
) -> LabelCosts:
    """A problem whose nodes share tables, a few for each number of labels, and whose edges do."""
    rng = np.random.default_rng(seed)
    sizes = np.repeat(np.arange(1, labels + 1), 2)
    node_table = rng.integers(0, len(sizes), n)
    src, dst = rng.integers(0, n, (2, m))
    src, dst = src[src != dst], dst[src != dst]
    shapes = list(itertools.product(range(1, labels + 1), repeat=2))
    shapes = [shape for shape in shapes for _ in range(2)]
    of_shape = {shape: i for i, shape in enumerate(shapes)}
    ends = zip(sizes[node_table[src]], sizes[node_table[dst]], strict=True)
    edge_table = np.array([of_shape[int(a), int(b)] - rng.integers(0, 2) for a, b in ends])
    pairs = [a * b for a, b in shapes]

    def drawn(rows: int) -> np.ndarray:
        costs = rng.gamma(0.7, 1.0, (rows, components))
        costs[rng.random(rows) < forbidden, 0] = np.inf
        return costs

    return LabelCosts(
        node_table=node_table.astype(np.int32),
        unary_start=np.concatenate([[0], np.cumsum(sizes)]),
        unary=drawn(int(sizes.sum())),
        src=src.astype(np.int32),
        dst=dst.astype(np.int32),
        edge_table=edge_table.astype(np.int32),
        pair_start=np.concatenate([[0], np.cumsum(pairs)]),
        pair_columns=np.array([b for _, b in shapes], dtype=np.int32),
        pair=drawn(sum(pairs)),
    )


def n_labels(costs: LabelCosts) -> np.ndarray:
    """Number of labels per node."""
    return np.diff(costs.unary_start)[costs.node_table]


def least_energy(costs: LabelCosts, weights: np.ndarray, tied: np.ndarray | None = None) -> float:
    """The least energy of all labellings that agree with the ties."""
    choices = itertools.product(*(range(k) for k in n_labels(costs)))
    groups = [] if tied is None else [np.flatnonzero(tied == t) for t in np.unique(tied[tied >= 0])]
    best = np.inf
    for labels in map(np.array, choices):
        if all((labels[group] == labels[group[0]]).all() for group in groups):
            best = min(best, energy(costs, labels, weights))
    return best


def energy(costs: LabelCosts, labels: np.ndarray, weights: np.ndarray) -> float:
    """The energy of labels, in numpy."""
    own = costs.unary[costs.unary_start[costs.node_table] + labels]
    at = costs.pair_start[costs.edge_table] + labels[costs.dst]
    at = at + labels[costs.src] * costs.pair_columns[costs.edge_table]
    total = np.concatenate([own, costs.pair[at]])
    return np.inf if np.isinf(total).any() else float((total @ weights).sum())


def tied_by_labels(costs: LabelCosts, seed: int) -> np.ndarray:
    """Random ties of nodes that have equally many labels; some nodes are tied to none."""
    draw = np.random.default_rng(seed).integers(-1, 2, len(costs.node_table))
    return np.where(draw < 0, -1, 2 * n_labels(costs) + draw).astype(np.int32)
