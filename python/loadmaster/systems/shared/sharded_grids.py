"""Grids whose replicas have a part each of all state: FSDP beside tensor parallelism and stages.

A stage has tp x shard x replicate devices. Parameters are cut by tensor parallelism first, and each
piece lies in parts on the devices of ``shard``; HSDP has replicas of these. A layer's parameters
are gathered by one collective before they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.graph import PARAMETER
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.grids.grids import Asked, Grid, Grids
from loadmaster.strategies.grids.recomputation_levels import whole_layers
from loadmaster.strategies.grids.tensor_parallel import divides, weights_cut
from loadmaster.strategies.sharding.judging import layout as layout_of
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.systems.shared.uniform_meshes import MODEL, PARTS, REPLICAS
from loadmaster.transforms.layout import Layout


@dataclass(frozen=True, eq=False)
class ShardedGrids(Grids):
    """The grids of a training step in which all state lies in parts.

    Attributes
    ----------
    replicate : int or None
        How many replicas share the batch; None: one, of as many parts as devices share it.
    shard : int or None
        How many devices have a part each of a replica; None: as many as there are.
    word : "kept" or "again"
        Whether layers are gathered for the backward pass again. What is kept is gathered once for
        all micro-batches.
    """

    replicate: int | None = None
    shard: int | None = None
    word: str = "kept"

    @property
    def state(self) -> str:
        """All state in parts, and layers gathered once, or again: "kept" or "again"."""
        return self.word

    def parts(self, dp: int) -> int:
        """The number of devices that have a part each, of those that share the batch; 1: no such
        grid.
        """
        replicas = self.replicate or 1
        parts = self.shard or dp // replicas
        return parts if parts and dp % parts == dp % replicas == 0 else 1

    def sizes(self, asked: Asked) -> Iterator[Grid]:
        """Grids that have parts, and tensor parallelism or stages beside them."""
        for grid in super().sizes(asked):
            parts = self.parts(grid.dp)
            if parts > 1 and self.replicate in (None, grid.dp // parts) and grid.tp * grid.pp > 1:
                yield grid

    def micro(self, grid: Grid, asked: Asked) -> list[int]:
        """As there are, but one without stages: torchtitan would scatter gradients of each."""
        numbers = super().micro(grid, asked)
        return [m for m in numbers if m == 1] if grid.pp == 1 else numbers

    def _labelled(self, tp: int, dp: int, ep: int) -> Ranked | None:
        assert ep == 1, "no experts are apart"
        space = self.space
        if space is None or (tp > 1 and not divides(Dimensions.of(self.problem.model), tp)):
            return None
        parts = self.parts(dp)
        sizes = {REPLICAS: dp // parts, PARTS: parts, MODEL: tp}
        axes = {name: size for name, size in sizes.items() if size > 1}
        names = [self.problem.cluster.devices[d].name for d in self.devices[: tp * dp]]
        return weights_cut(space, DeviceMesh.of(axes, names), self.listed, sequence=self.sequence)

    def layout(self, grid: Grid, *, flat: bool) -> Layout | None:
        """The layout of ops inside of a stage, with all state in parts."""
        ranked = self.labels(grid.tp, grid.dp)
        if ranked is None or self.space is None:
            return None
        layout = layout_of(self.space, ranked)
        axis = layout.mesh.names.index(PARTS)
        layout = layout.with_sharded_state(["parameters"] * layout.graph.n_ops, [axis])
        return replace(layout, units={whole_layers(self.listed): self.word, ".": "kept"})

    def shards(self, parallelism: Parallelism, *, flat: bool) -> Parallelism:
        """The same with all state in parts."""
        n, parts = parallelism.dp, self.parts(parallelism.dp)
        return replace(parallelism, replicate=n // parts, shard=parts, shard_state="parameters")

    def _held(self, grid: Grid, ranked: Ranked) -> float:
        """Bytes of a device at the estimated peak, which has all state whole: so are parameters
        that are kept.
        """
        layout = self.layout(grid, flat=True)
        assert layout is not None
        graph, is_spared = layout.graph, layout.set_of >= 0
        if self.word == "kept":
            is_spared &= graph.stands_for != PARAMETER
        state = float(graph.param_bytes[is_spared].sum())
        spared = state / grid.tp * (1 - 1 / self.parts(grid.dp))
        return ranked.labels.estimate.peak - spared - grid.recomputed.spared / grid.size
