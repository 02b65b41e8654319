"""The costs of labels, as all solvers of labellings take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast


@dataclass(frozen=True, eq=False)
class LabelCosts:
    """Costs of each label of a node, and of each pair of labels of an edge's ends.

    Nodes share tables, and so do edges. A cost has C components, such as seconds, seconds of
    gradient traffic, and bytes; weights, one per component, turn it into one number. A component of
    ``+inf`` forbids a choice whatever the weights. The arrays are checked where :attr:`problem` is
    made of them.

    Attributes
    ----------
    node_table : int32 [n]
        The table of each node.
    unary_start : int64 [n_unary_tables + 1]
        Rows ``unary_start[t]`` to ``unary_start[t + 1]`` of ``unary`` are the labels of table t.
    unary : float64 [labels of all tables, C]
    src, dst : int32 [m]
        The ends of each edge.
    edge_table : int32 [m]
        The table of each edge.
    pair_start : int64 [n_pair_tables + 1]
        Rows ``pair_start[p]`` to ``pair_start[p + 1]`` of ``pair`` are the pairs of table p: a row
        per label of ``src`` and label of ``dst``, the latter varying fastest.
    pair_columns : int32 [n_pair_tables]
        Labels of ``dst``.
    pair : float64 [pairs of all tables, C]

    Examples
    --------
    Two nodes with two labels each: the second label is cheaper, but both may not have it.

    >>> costs = LabelCosts(
    ...     node_table=np.zeros(2, dtype=np.int32),
    ...     unary_start=np.array([0, 2]),
    ...     unary=np.array([[3.0], [1.0]]),
    ...     src=np.array([0], dtype=np.int32),
    ...     dst=np.array([1], dtype=np.int32),
    ...     edge_table=np.array([0], dtype=np.int32),
    ...     pair_start=np.array([0, 4]),
    ...     pair_columns=np.array([2], dtype=np.int32),
    ...     pair=np.array([[0.0], [0.5], [0.5], [np.inf]]),
    ... )
    >>> found = costs.problem.solve(np.ones(1))
    >>> sorted(found.labels.tolist()), found.energy
    ([0, 1], 4.5)
    """

    node_table: NDArray[np.int32]
    unary_start: NDArray[np.int64]
    unary: NDArray[np.float64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    edge_table: NDArray[np.int32]
    pair_start: NDArray[np.int64]
    pair_columns: NDArray[np.int32]
    pair: NDArray[np.float64]

    @cached_property
    def problem(self) -> fast.Labelling:
        """The problem, made once.

        Raises
        ------
        InputError
            The arrays do not fit each other, or have a cost that is NaN or ``-inf``.
        """
        return fast.Labelling(
            node_table=self.node_table,
            unary_start=self.unary_start,
            unary=self.unary,
            src=self.src,
            dst=self.dst,
            edge_table=self.edge_table,
            pair_start=self.pair_start,
            pair_columns=self.pair_columns,
            pair=self.pair,
        )
