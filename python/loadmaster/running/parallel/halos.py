"""Halos: which rows a part of a window's op needs beside its own, and gradients of its own rows.

The op works on tensors of whole size, with zeros for what the part lacks, and what it makes beyond
the part's own is left out. A gradient of weights is a sum over rows: of the gradient of what the
forward pass made, each part counts its own rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.dimensions.form import Cut, Form
from loadmaster.running.parallel.pieces import Piece, PieceMove

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Halo:
    """Needs of a part of an op along one dimension that is cut so that windows reach over parts.

    ``places`` are those of the dimension that the part works on, ``n`` is how many there are.
    """

    cut: Cut
    form: Form
    places: Ints
    n: int

    @classmethod
    def of(
        cls, form: Form, cut: Cut, inputs: Sequence[Piece | None], outputs: Sequence[Piece | None]
    ) -> Halo:
        """Of a device that has these pieces, and makes these; None: none that is cut."""
        n_inputs, rows, n = len(form.inputs), [np.empty(0, dtype=np.int64)], 1
        every = [*zip(cut.inputs, form.inputs, inputs, strict=True)]
        every += [*zip(cut.outputs, form.outputs, outputs, strict=True)]
        for i, (spec, factors, piece) in enumerate(every):
            if spec < 0 or piece is None:
                continue
            step, axis = _step(cut, i), factors[spec][0]
            if i >= n_inputs or step == 1:
                rows.append(piece.box[axis] // step)
            if step == 1:
                n = max(n, piece.sizes[axis])
        places = np.unique(np.concatenate(rows))
        return cls(cut, form, places[places < n], n)

    def wider(self, i: int, piece: Piece) -> Piece:
        """The piece of an argument, with all that the part needs along the dimension."""
        spec = self.cut.inputs[i]
        axis, step = self.form.inputs[i][spec][0], _step(self.cut, i)
        before, after = self.cut.halos[i] if i < len(self.cut.halos) else (0, 0)
        size = piece.sizes[axis]
        reach = np.arange(-before, step + after)
        rows = np.unique((self.places[:, None] * step + reach).ravel())
        if len(self.places) and self.places[-1] == self.n - 1:
            rows = np.union1d(rows, np.arange(min(max(rows[-1], 0), size), size))
        rows = np.union1d(rows[(rows >= 0) & (rows < size)], piece.box[axis])
        box = tuple(rows if a == axis else part for a, part in enumerate(piece.box))
        return Piece(piece.sizes, box)


def _step(cut: Cut, i: int) -> int:
    return cut.steps[i] if i < len(cut.steps) else 1


def of_own_rows(function: Callable[..., Any], own: Piece) -> Callable[..., Any]:
    """A convolution's backward pass: gradients of weights are of the part's own rows."""
    return partial(_backward, function, PieceMove.of(own, Piece.whole(own.sizes)).target)


def _backward(
    function: Callable[..., Any], own: Any, gradient: torch.Tensor, *args: Any
) -> list[torch.Tensor | None]:
    *others, mask = args
    mine = torch.zeros_like(gradient)
    mine[own] = gradient[own]
    of_input = function(gradient, *others, [mask[0], False, False])
    of_weights = function(mine, *others, [False, *mask[1:]])
    return [of_input[0], *of_weights[1:]]
