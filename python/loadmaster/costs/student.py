"""Student's t: the quantiles that a test of two means needs.

G. W. Hill, "Algorithm 396: Student's t-quantiles", Communications of the ACM 13 (10), 1970.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist


@lru_cache(maxsize=4096)
def two_sided(level: float, freedom: int) -> float:
    """The value that |t| exceeds with a probability of ``level``; good to six digits.

    Parameters
    ----------
    level : float
        In (0, 1).
    freedom : int
        Degrees of freedom, at least 1.

    Examples
    --------
    >>> round(two_sided(0.05, 10), 4)
    2.2281
    """
    n = float(freedom)
    if freedom == 1:
        return 1 / math.tan(level * math.pi / 2)
    if freedom == 2:
        return math.sqrt(2 / (level * (2 - level)) - 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * level) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(level / 2)
        y = x * x
        if freedom < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1
        ) * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)
