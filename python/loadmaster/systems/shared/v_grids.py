"""Grids whose stages go through the devices and back, by the zero-bubble schedule in a V."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from loadmaster.model.micro import Named
from loadmaster.strategies.grids.grids import Asked, Grid, Grids
from loadmaster.strategies.pipelines.v_schedule import CHUNKS
from loadmaster.systems.shared.sharded_grids import ShardedGrids


class GridInV(Grid):
    """A grid with two runs of layers per stage, in a V."""

    @property
    def schedule(self) -> Named:
        """The schedule in a V."""
        return "zb-v"


class GridsInV(Grids):
    """The grids of a training step with stages in a V."""

    def sizes(self, asked: Asked) -> Iterator[Grid]:
        """Grids with stages, and two runs of layers for each."""
        for grid in super().sizes(asked):
            if grid.pp > 1 and len(self.listed) >= CHUNKS * grid.pp:
                yield GridInV(**{one.name: getattr(grid, one.name) for one in fields(grid)})

    def virtual(self, grid: Grid, asked: Asked) -> list[int]:
        """Two runs of layers per stage."""
        return [CHUNKS]


@dataclass(frozen=True, eq=False)
class ShardedGridsInV(GridsInV, ShardedGrids):
    """The same with all state in parts."""
