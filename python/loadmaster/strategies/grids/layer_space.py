"""Pipelines that are cut between the layers of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.grids.module_space import ModuleSpace
from loadmaster.strategies.pipelines.cuts import cuts
from loadmaster.strategies.pipelines.lines import Line


@dataclass(frozen=True, eq=False)
class LayerSpace(ModuleSpace):
    """Pipelines that are cut between layers."""

    listed: LayerList | None = None

    @cached_property
    def lines(self) -> list[tuple[Line, NDArray[np.int64]]]:
        """The one order, with the places at which layers begin, but for the first."""
        assert self.listed is not None
        line = self.line
        is_open = np.zeros_like(line.is_open)
        is_open[[0, *self.listed.begins[1:], -1]] = True
        line = Line(line.place, is_open & line.is_open)
        return [(line, cuts(self.problem, line))]
