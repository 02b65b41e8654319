"""Least squares without negative coefficients.

Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23. Meant for the few columns of
the fits in this package.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: A gradient below this counts as 0, relative to the sizes of the columns.
_TOLERANCE = 1e-12


def nonnegative(columns: Floats, target: Floats) -> Floats:
    """The non-negative coefficients of the columns whose sum is nearest to a target.

    Parameters
    ----------
    columns : float64 [n, k]
    target : float64 [n]

    Returns
    -------
    float64 [k]

    Examples
    --------
    >>> import numpy as np
    >>> nonnegative(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0])).round(3).tolist()
    [0.0, 1.4]
    """
    scale = np.sqrt((columns**2).sum(axis=0))
    scale[scale == 0] = 1.0
    a = columns / scale
    x = np.zeros(a.shape[1])
    free: NDArray[np.bool_] = np.zeros(len(x), dtype=bool)
    enough = _TOLERANCE * float(np.abs(a.T @ target).max(initial=0.0))
    # Each round ends at a better vertex, and there are finitely many vertices. Only rounding could
    # repeat one, so the number of rounds is limited.
    for _ in range(3 * len(x)):
        gradient = np.where(free, -np.inf, a.T @ (target - a @ x))
        if gradient.max(initial=-np.inf) <= enough:
            break
        free[int(gradient.argmax())] = True
        while True:
            best = np.zeros(len(x))
            best[free] = np.linalg.lstsq(a[:, free], target, rcond=None)[0]
            if (best[free] > 0).all():
                break
            falling = free & (best <= 0)
            drop = (x - best)[falling]
            step = float(np.divide(x[falling], drop, out=np.zeros_like(drop), where=drop > 0).min())
            x = x + step * (best - x)
            free &= ~(falling & (x <= _TOLERANCE))
            x[~free] = 0.0
        x = best
    return np.asarray(x / scale, dtype=np.float64)
