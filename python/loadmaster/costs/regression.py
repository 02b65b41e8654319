"""Times as functions of the batch: constant, linear or saturating, each helped by ops of its kind.

Celeritas (section 4.2.1) fits a line per op and calls it rough. Three things make such lines rough.
Most ops are so short that their times differ by noise alone from batch to batch. A line through
three points carries that noise far. On a shared machine, long ops wait. Hence:

* *Shapes*: a time is ``a``, ``a + s b`` or ``max(a, s b)`` of batch b, fitted by relative error, no
  part negative. The score of a shape comes from leaving out each batch in turn. A shape's weight
  comes from its score and from how many ops of the same group follow it (empirical Bayes), so that
  noise alone makes no op grow.
* *Shrinkage*: a part of an op's time is proportional to the batch. That part is drawn towards the
  usual part in the op's group, the more so the noisier ops of that length are.
* *Drift*: some ops do the same work at every batch. A change that these ops share comes from the
  machine, and is divided out.
* *Waiting*: shapes are fitted to the fastest step, without its waits between turns of the processor
  (:mod:`~loadmaster.costs.turns`). The usual step takes longer by three factors: the waits between
  turns, a monotone function of the op's length that all ops share, and a factor of the op's own.

O(n log n) in ops, times batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.turns import turns

Floats = NDArray[np.float64]

#: Ways in which a time may depend on the batch.
SHAPES = ("constant", "linear", "saturating")

#: The noise of an op is estimated from so many shorter and so many longer ops.
_NEIGHBOURS = 25
#: Weight of all ops in the statistics of a group, as a number of ops.
_PRIOR = 5.0
#: Degrees of freedom of the noise (Student's t): its tails are as heavy as those of single steps.
_TAILS = 3.0
_ROUNDS = 30
#: With fewer ops than these, times are not taken for rounded.
_LEAST_ROUNDED = 20
#: Seconds: the finest resolution of any clock.
_TICK = 1e-12
#: Relative noise that is always assumed.
_LEAST_NOISE = 1e-6
#: Least variance among the shares of a group.
_LEAST_SPREAD = 1e-4
#: Number of measurements per point of the waiting trend.
_BLOCK = 9
#: Share of errors within one standard deviation of the normal distribution.
_WITHIN_ONE = 0.683
#: Least number of steady ops from which the machine's drift is estimated.
_LEAST_STEADY = 10
#: A larger factor between two batches is no drift: ops that seemed steady do more work.
_MOST_DRIFT = 1.5
#: Standard deviation / mean absolute deviation of the normal distribution.
_OF_MEAN = float(np.sqrt(np.pi / 2))


@dataclass(frozen=True)
class Growth:
    """Times at another batch.

    Attributes
    ----------
    seconds : float64 [n_ops]
    deviation : float64 [n_ops]
        Relative standard deviation of each, from noise and from doubt about the shape.
    weights : float64 [n_ops, 3]
        Weight of each of :data:`SHAPES`.
    """

    seconds: Floats
    deviation: Floats
    weights: Floats


def grown(
    fastest: Floats,
    usual: Floats,
    batches: Floats,
    target: float,
    groups: NDArray[np.int64],
    steady: NDArray[np.bool_],
) -> Growth:
    """Times at a target batch from times at several.

    Parameters
    ----------
    fastest, usual : float64 [n_ops, n_batches]
        Seconds of the fastest and of the median step; positive.
    batches : float64 [n_batches]
        Distinct and ascending, at least two.
    target : float
    groups : int64 [n_ops]
        Number of each op's group, from 0. Ops of a group learn from each other.
    steady : bool [n_ops]
        Whether an op is known to do the same work at every batch.

    Examples
    --------
    >>> import numpy as np
    >>> times = np.array([[1., 1., 1., 1.], [3., 5., 7., 9.]]) * 1e-3
    >>> at = np.array([1., 2., 3., 4.])
    >>> found = grown(times, times, at, 10.0, np.arange(2), np.zeros(2, bool))
    >>> np.round(found.seconds * 1e3, 3).tolist()
    [1.0, 21.0]
    """
    fastest = fastest / _drift(fastest, steady)
    usual = usual / _drift(usual, steady)
    predicted = _predicted(fastest, usual, batches, target, groups)
    if len(batches) < 3:
        return predicted
    # Deviations are widened so far that they cover the largest batch, predicted from the others.
    known = _predicted(fastest[:, :-1], usual[:, :-1], batches[:-1], batches[-1], groups)
    off = np.abs(np.log(known.seconds / usual[:, -1])) / known.deviation
    wider = max(1.0, float(np.quantile(off, _WITHIN_ONE)))
    return replace(predicted, deviation=predicted.deviation * wider)


def _predicted(
    fastest: Floats, usual: Floats, batches: Floats, target: float, groups: NDArray[np.int64]
) -> Growth:
    """Times at a target batch, from times without drift."""
    seen = turns(fastest.ravel(), usual.ravel())
    work = seen.work(fastest)
    errors, scales = _left_out(work, batches)
    length = np.median(np.log(work), axis=1)
    noise = _OF_MEAN * _by_length(length, np.abs(errors / scales).mean(axis=2).min(axis=0))
    noise = np.maximum(noise, _LEAST_NOISE + _resolution(fastest) / np.exp(length))
    weights = _weights(errors, scales * noise[:, None], groups)
    curves = [fit(work, batches) for fit in _FITS]
    curves[1] = _shrunk(curves[1], work, batches, noise, groups)

    at = np.append(batches, target)
    by_shape = np.log(np.stack([_at(c, shape, at) for shape, c in enumerate(curves)], axis=2))
    need = (by_shape * weights[:, None, :]).sum(axis=2)
    in_turns = np.log(seen.usual(np.exp(need)))
    wait, scatter = _waiting(need, in_turns, np.log(usual))

    doubt = (weights * (by_shape[:, -1] - need[:, -1:]) ** 2).sum(axis=1)
    rough = np.maximum(noise, _OF_MEAN * _by_length(length, scatter))
    reach = 1 + (1 + _reach(batches, target) * weights[:, 1:].sum(axis=1)) / len(batches)
    # A line that does not rise is a constant.
    floor, slope = curves[1]
    flat = slope * target <= _LEAST_NOISE * floor
    weights[flat] = weights[flat] @ [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    return Growth(np.exp(in_turns[:, -1] + wait), np.sqrt(doubt + rough**2 * reach), weights)


def _drift(times: Floats, steady: NDArray[np.bool_]) -> Floats:
    """Slowness of the machine at each batch, estimated from ops that do the same work at each."""
    if steady.sum() < _LEAST_STEADY:
        return np.ones(times.shape[1])
    logs = np.log(times[steady])
    drift = np.median(logs - np.median(logs, axis=1, keepdims=True), axis=0)
    if np.ptp(drift) > np.log(_MOST_DRIFT):
        return np.ones(times.shape[1])
    return np.asarray(np.exp(drift - drift.mean()))


# -- shapes ------------------------------------------------------------------------------------

#: Floor a and slope s of each op.
Curve = tuple[Floats, Floats]


def _constant(times: Floats, batches: Floats) -> Curve:
    level = np.exp(np.log(times).mean(axis=1))
    return level, np.zeros_like(level)


def _linear(times: Floats, batches: Floats) -> Curve:
    """Least squares of relative errors, neither part negative."""
    w = times**-2.0
    sums = [(w * part).sum(axis=1) for part in (1.0, batches, batches**2, times, batches * times)]
    s1, sb, sbb, sy, sby = sums
    if len(batches) == 1:
        return np.zeros_like(sy), sby / sbb
    scale = s1 * sbb - sb**2
    floor, slope = (sbb * sy - sb * sby) / scale, (s1 * sby - sb * sy) / scale
    falls, dips = slope < 0, floor < 0
    floor = np.where(falls, sy / s1, np.where(dips, 0.0, floor))
    return floor, np.where(falls, 0.0, np.where(dips, sby / sbb, slope))


def _saturating(times: Floats, batches: Floats) -> Curve:
    """The curve whose knee between two batches leaves the least sum of squared log errors."""
    logs, rates = np.log(times), np.log(times / batches)
    least = np.full(len(times), np.inf)
    best = np.zeros(len(times)), np.exp(rates.mean(axis=1))
    for knee in range(1, len(batches)):
        floor = np.exp(logs[:, :knee].mean(axis=1))
        slope = np.exp(rates[:, knee:].mean(axis=1))
        error = ((np.log(_at((floor, slope), 2, batches)) - logs) ** 2).sum(axis=1)
        better = error < least
        least = np.where(better, error, least)
        best = np.where(better, floor, best[0]), np.where(better, slope, best[1])
    return best


_FITS: Sequence[Callable[[Floats, Floats], Curve]] = (_constant, _linear, _saturating)


def _at(curve: Curve, shape: int, batches: Floats) -> Floats:
    """A curve's seconds at batches, [n_ops, n_batches]."""
    floor, slope = curve[0][:, None], curve[1][:, None] * batches
    return np.maximum(floor, slope) if shape == 2 else floor + slope


def _left_out(times: Floats, batches: Floats) -> tuple[Floats, Floats]:
    """Log error of each shape at each batch, fitted to the other batches; and its scale.

    Both are [3, n_ops, n_batches]. The scale is the error's standard deviation, by noise alone, in
    units of the noise of one time.
    """
    errors = np.empty((len(SHAPES), *times.shape))
    scales = np.full_like(errors, np.sqrt(1 + 1 / (len(batches) - 1)))
    for j in range(len(batches)):
        rest = np.arange(len(batches)) != j
        for shape, fit in enumerate(_FITS):
            predicted = _at(fit(times[:, rest], batches[rest]), shape, batches[j : j + 1])[:, 0]
            errors[shape, :, j] = np.log(times[:, j] / predicted)
        scales[1, :, j] = _carried(times[:, rest], batches[rest], times[:, j], batches[j])
    return errors, scales


def _carried(times: Floats, batches: Floats, time: Floats, batch: float) -> Floats:
    """Standard error of a line's prediction of one more time, in units of one time's noise."""
    if len(batches) == 1:
        return np.full(len(times), np.sqrt(2))
    w = times**-2.0
    s1, sb, sbb = w.sum(axis=1), w @ batches, w @ batches**2
    spread = (sbb - 2 * batch * sb + batch**2 * s1) / (s1 * sbb - sb**2)
    return np.asarray(np.sqrt(1 + spread / time**2))


# -- what ops tell of each other -----------------------------------------------------------------


def _by_length(length: Floats, values: Floats) -> Floats:
    """The median of a value among the ops nearest in length."""
    order = np.argsort(length, kind="stable")
    window = min(2 * _NEIGHBOURS + 1, len(values))
    rows = np.lib.stride_tricks.sliding_window_view(values[order], window)
    middles = np.median(rows, axis=1)
    first = np.clip(np.arange(len(values)) - window // 2, 0, len(middles) - 1)
    smooth: Floats = np.empty(len(values))
    smooth[order] = middles[first]
    return smooth


def _resolution(times: Floats) -> float:
    """Standard deviation of the rounding of times, in seconds; 0: times are not rounded.

    Profilers may round to whole microseconds. Times count as rounded if there are many, and all
    differ by whole multiples of one step.
    """
    ticks = np.unique(np.rint(times / _TICK))
    step = np.diff(ticks).min(initial=np.inf)
    if len(times) < _LEAST_ROUNDED or len(ticks) == 1 or ((ticks - ticks[0]) % step).any():
        return 0.0
    return float(step * _TICK / np.sqrt(12))


def _weights(errors: Floats, scales: Floats, groups: NDArray[np.int64]) -> Floats:
    """Weight of each shape for each op, [n_ops, 3].

    A weight comes from the shape's score and from the share of the group's ops that follow the
    shape. Weights and shares are found together, by expectation maximisation.
    """
    density = -(_TAILS + 1) / 2 * np.log1p((errors / scales) ** 2 / _TAILS) - np.log(scales)
    score = density.sum(axis=2).T
    size = np.bincount(groups)
    often = np.full((len(size), len(SHAPES)), 1 / len(SHAPES))
    weights: Floats = np.empty_like(score)
    for _ in range(_ROUNDS):
        log = score + np.log(often[groups])
        likely = np.exp(log - log.max(axis=1, keepdims=True))
        weights = likely / likely.sum(axis=1, keepdims=True)
        counts = np.stack([np.bincount(groups, w, len(size)) for w in weights.T], axis=1)
        overall = np.maximum(weights.mean(axis=0), 1e-9)
        often = (counts + _PRIOR * overall) / (size[:, None] + _PRIOR)
    return weights


def _shrunk(
    line: Curve, times: Floats, batches: Floats, noise: Floats, groups: NDArray[np.int64]
) -> Curve:
    """Lines whose part that is proportional to the batch is drawn towards the group's part."""
    floor, slope = line
    x = batches / batches[-1]
    share = slope * batches[-1] / (floor + slope * batches[-1])
    own = noise**2 / ((x - x.mean()) ** 2).sum()
    weight = np.bincount(groups, 1 / own)
    usual = np.bincount(groups, share / own) / weight
    spread = np.bincount(groups, (share - usual[groups]) ** 2 / own) / weight
    spread = np.maximum(spread - np.bincount(groups) / weight, _LEAST_SPREAD)[groups]
    share = (share * spread + usual[groups] * own) / (spread + own)
    shape = (1 - share[:, None]) + share[:, None] * x
    level = np.exp(np.log(times / shape).mean(axis=1))
    return level * (1 - share), level * share / batches[-1]


def _waiting(need: Floats, in_turns: Floats, usual: Floats) -> tuple[Floats, Floats]:
    """Log of (usual time / time with turns) at the target, and its scatter over the batches.

    Parameters
    ----------
    need : float64 [n_ops, n_batches + 1]
        Log of the time that each op needs at the batches, and at the target.
    in_turns : float64 [n_ops, n_batches + 1]
        Log of that time with the waits between turns.
    usual : float64 [n_ops, n_batches]
        Log of the time of the usual step.
    """
    wait = usual - in_turns[:, :-1]
    trend = _monotone(need[:, :-1].ravel(), wait.ravel())
    rest = wait - trend(need[:, :-1])
    own = np.median(rest, axis=1)
    return trend(need[:, -1]) + own, np.abs(rest - own[:, None]).mean(axis=1)


def _monotone(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """The non-decreasing function that is nearest to the medians of blocks of points.

    By pooling adjacent violators; constant beyond the first and the last block.
    """
    order = np.lexsort((y, x))
    whole = (max(1, len(x) // _BLOCK) - 1) * _BLOCK
    first, last = order[:whole].reshape(-1, _BLOCK), order[whole:]
    at, level = (np.append(np.median(v[first], axis=1), np.median(v[last])) for v in (x, y))
    sizes = [_BLOCK] * len(first) + [len(last)]
    pools: list[tuple[float, int, int]] = []  # Mean, points, blocks.
    for mean, points in zip(level.tolist(), sizes, strict=True):
        count = 1
        while pools and pools[-1][0] >= mean:
            before, more, others = pools.pop()
            mean = (before * more + mean * points) / (more + points)
            points, count = points + more, count + others
        pools.append((mean, points, count))
    rising = np.repeat([mean for mean, _, _ in pools], [count for _, _, count in pools])
    return lambda where: np.interp(where, at, rising)


def _reach(batches: Floats, target: float) -> float:
    """Squared distance of the target from the batches / variance of the batches, in logs."""
    logs = np.log(batches)
    return float((np.log(target) - logs.mean()) ** 2 / logs.var())
