"""Costs of transfers: latency and bandwidth of links, from times of transfers of many sizes.

The papers fit ``t = k d + b`` by ordinary least squares (Pesto section 3.1, Celeritas section
4.2.1, FastT section 4). There the largest transfers decide the fit, and small ones get negative
times. Here relative errors of the median time per size count, and no coefficient is negative.

A *curve* is a chain of lines, with as many bends as the Bayesian information criterion warrants:
transfers slow down where caches or buffers overflow. Clusters, and so the judge, the strategies and
the bounds, know lines (``latency + bytes / bandwidth``). The line has the curve's latency. Its
bandwidth is the one with the least mean relative error over the measured sizes or, if a graph is
given, with the least error in the time of the graph's tensors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.text import aligned
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.costs.least_squares import nonnegative
from loadmaster.costs.transfers import TransferTimes, title
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph

Floats = NDArray[np.float64]

#: Relative error that counts as noise in every fit.
_NOISE = 0.01
_MOST_BENDS = 8


@dataclass(frozen=True, eq=False)
class LinkFit:
    """One link, as a line and as a curve.

    Attributes
    ----------
    src, dst, method : str
    latency, bandwidth : float
        Coefficients of the line: seconds, B/s.
    knots, times : float64 [n]
        The curve: bytes, from 0, and the seconds at each. Straight lines join these points, and
        the last line goes on.
    sizes, seconds : float64 [m]
        Measured sizes in bytes, and the median time of each.
    repeats : int
        Number of measured transfers.
    tensor_error : float or None
        |Time of the graph's edges on the line - time on the curve| / time on the curve. None
        without a graph.
    """

    src: str
    dst: str
    method: str
    latency: float
    bandwidth: float
    knots: Floats
    times: Floats
    sizes: Floats
    seconds: Floats
    repeats: int
    tensor_error: float | None = None

    @property
    def title(self) -> str:
        """Name of the link, for people."""
        return title((self.src, self.dst, self.method))

    def line(self, size: ArrayLike) -> Floats:
        """Seconds of transfers by the line."""
        return np.asarray(self.latency + np.asarray(size, dtype=np.float64) / self.bandwidth)

    def curve(self, size: ArrayLike) -> Floats:
        """Seconds of transfers by the curve."""
        return _along(self.knots, self.times, np.asarray(size, dtype=np.float64))

    def errors(self, predicted: Floats) -> dict[int, float]:
        """Mean relative error over the sizes of each decade, by its power of ten."""
        off = np.abs(predicted / self.seconds - 1)
        decade = np.floor(np.log10(self.sizes)).astype(int)
        return {int(d): float(off[decade == d].mean()) for d in np.unique(decade)}

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "src": self.src,
            "dst": self.dst,
            "method": self.method,
            "latency": self.latency,
            "bandwidth": self.bandwidth,
            "curve": {"bytes": self.knots.tolist(), "seconds": self.times.tolist()},
            "repeats": self.repeats,
            "tensor_error": self.tensor_error,
            "error_of_line": self.errors(self.line(self.sizes)),
            "error_of_curve": self.errors(self.curve(self.sizes)),
        }


@dataclass(frozen=True)
class Links:
    """Links fitted: ``fits``, in the order in which they were measured.

    Examples
    --------
    >>> size = [1024, 65536, 1048576]
    >>> found = fit_links({"tcp": (size, [5e-6 + s / 2e9 for s in size])})
    >>> round(found.fits[0].latency, 9), round(found.fits[0].bandwidth)
    (5e-06, 2000000000)
    """

    fits: tuple[LinkFit, ...]

    def cluster(self, cluster: Cluster, method: str | None = None) -> Cluster:
        """A cluster whose links have the latency and bandwidth that were measured.

        Parameters
        ----------
        cluster : Cluster
            Where fits name no devices, all of its links get the measured figures.
        method : str, optional
            The method of transfer to take, where several were measured between the same devices.

        Raises
        ------
        InputError
            A method that was not measured; several methods, and none is chosen; devices that no
            link of the cluster joins.
        """
        methods = sorted({fit.method for fit in self.fits})
        if method is not None and method not in methods:
            raise InputError(f"no method is named {method!r}; measured: {', '.join(methods)}")
        chosen: dict[tuple[str, str], LinkFit] = {}
        for fit in self.fits:
            if method is not None and fit.method != method:
                continue
            if (fit.src, fit.dst) in chosen:
                raise InputError(
                    f"between {_ends(fit)} {', '.join(methods)} were measured: choose a method"
                )
            chosen[fit.src, fit.dst] = fit
        pairs = {(k.src, k.dst) for k in cluster.links}
        for ends in chosen:
            if any(ends) and ends not in pairs:
                known = ", ".join(sorted(f"{a} -> {b}" for a, b in pairs))
                raise InputError(
                    f"no direct link of the cluster leads from {ends[0]!r} to {ends[1]!r}; "
                    f"it has {known}"
                )
        every = chosen.get(("", ""))
        links = []
        for k in cluster.links:
            fit_of = chosen.get((k.src, k.dst), every)
            if fit_of is not None:
                k = replace(
                    k, latency=fit_of.latency, bandwidth=fit_of.bandwidth, source=_source(fit_of)
                )
            links.append(k)
        return Cluster(
            cluster.devices,
            links,
            cluster.types,
            name=cluster.name,
            description=cluster.description,
            source=cluster.source,
            collectives=cluster.collectives,
            dispatch=cluster.dispatch,
        )

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {"links": [fit.to_document() for fit in self.fits]}

    def __str__(self) -> str:
        decades = sorted({d for fit in self.fits for d in fit.errors(fit.seconds)})
        graph = any(fit.tensor_error is not None for fit in self.fits)
        head = ("link", "latency", "bandwidth", "error of", *map(_decade, decades))
        head += ("graph's tensors",) if graph else ()
        rows: list[tuple[str, ...]] = [head]
        for fit in self.fits:
            line, curve = fit.errors(fit.line(fit.sizes)), fit.errors(fit.curve(fit.sizes))
            bends = len(fit.knots) - 2
            rate = f"{format_bytes(fit.bandwidth)}/s"
            latency = format_seconds(fit.latency)
            last = () if fit.tensor_error is None else (f"{fit.tensor_error:.1%}",)
            rows.append((fit.title, latency, rate, "line", *_cells(line, decades), *last))
            if bends > 0:
                words = f"curve, {bends} bend{'s' if bends > 1 else ''}"
                first = format_seconds(float(fit.times[0]))
                rows.append(("", first, "", words, *_cells(curve, decades)))
        return "\n".join(aligned(rows))


def fit_links(
    transfers: TransferTimes
    | str
    | os.PathLike[str]
    | Mapping[str | tuple[str, str, str], tuple[ArrayLike, ArrayLike]],
    graph: OpGraph | None = None,
) -> Links:
    """Latency and bandwidth of each link from measured transfers.

    Parameters
    ----------
    transfers : TransferTimes, CSV file, or mapping to (bytes, seconds)
        At least two sizes per link. The median counts where a size was repeated.
    graph : OpGraph, optional
        The lines are fitted to the tensors of this graph; each edge counts once.

    Returns
    -------
    Links

    Raises
    ------
    InputError
        A missing column, a size or time that is not positive, a link with one size only.

    Notes
    -----
    O(bends · sizes) small least squares per link.

    Examples
    --------
    >>> size = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8]
    >>> slow = [s / 4e9 + max(0, s - 1e6) / 1e9 for s in size]
    >>> found = fit_links({"pipe": (size, [1e-5 + t for t in slow])}).fits[0]
    >>> float(found.knots[1]), [round(float(t), 6) for t in found.curve([1e3, 1e8])]
    (1000000.0, [1e-05, 0.12401])
    """
    if isinstance(transfers, (str, os.PathLike)):
        transfers = TransferTimes.read(transfers)
    elif not isinstance(transfers, TransferTimes):
        transfers = TransferTimes.of(transfers)
    tensors = None
    if graph is not None and graph.bytes.any():
        tensors = graph.bytes[graph.bytes > 0].astype(np.float64)
    fits = []
    for i, link in enumerate(transfers.links):
        rows = transfers.link == i
        fits.append(_fit(link, transfers.bytes[rows], transfers.seconds[rows], tensors))
    return Links(tuple(fits))


def _fit(link: tuple[str, str, str], size: Floats, time: Floats, tensors: Floats | None) -> LinkFit:
    sizes = np.unique(size)
    if len(sizes) < 2:
        raise InputError(
            f"link {title(link)} was measured with {sizes[0]:.0f} bytes only: latency and "
            "bandwidth take at least two sizes, better several per decade"
        )
    seconds = np.array([np.median(time[size == s]) for s in sizes])
    knots, times = _bent(sizes, seconds)
    latency = float(times[0])
    if tensors is None:
        per_byte = _per_byte(latency, sizes, seconds, 1 / seconds)
    else:
        taken = _along(knots, times, tensors)
        per_byte = _per_byte(latency, tensors, taken, np.ones(len(tensors)))
    # The times do not grow: the bandwidth is what the largest transfer proves.
    per_byte = per_byte or float(seconds[-1] / sizes[-1])
    fit = LinkFit(*link, latency, 1 / per_byte, knots, times, sizes, seconds, len(time))
    if tensors is None:
        return fit
    off = np.abs(fit.line(tensors) - taken).sum() / taken.sum()
    return replace(fit, tensor_error=float(off))


def _per_byte(latency: float, sizes: Floats, seconds: Floats, weight: Floats) -> float:
    """Seconds per byte of the line from a given latency with the least weighted absolute error.

    That is the weighted median of the slopes through the points.
    """
    slopes = np.maximum(seconds - latency, 0) / sizes
    order = np.argsort(slopes, kind="stable")
    reached = np.cumsum((weight * sizes)[order])
    return float(slopes[order][np.searchsorted(reached, reached[-1] / 2)])


def _bent(sizes: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """The curve: bends are added, the most useful first, while the criterion falls."""
    n = len(sizes)
    knots = np.array([0.0, sizes[-1]])
    times, error = _joined(knots, sizes, seconds)
    best = _criterion(error, n, 0)
    for bends in range(1, min(_MOST_BENDS, n - 2) + 1):
        tried = []
        for s in sizes[1:-1]:
            if s not in knots:
                at = np.sort(np.append(knots, s))
                tried.append((*_joined(at, sizes, seconds)[::-1], at))
        error, new_times, new_knots = min(tried, key=lambda row: row[0])
        criterion = _criterion(error, n, bends)
        if criterion >= best:
            break
        best, knots, times = criterion, new_knots, new_times
    return knots, times


def _criterion(error: float, n: int, bends: int) -> float:
    """Schwarz' criterion; a bend has two parameters, its place and a slope."""
    return n * math.log(error / n + _NOISE**2) + (2 + 2 * bends) * math.log(n)


def _joined(knots: Floats, sizes: Floats, seconds: Floats) -> tuple[Floats, float]:
    """Seconds at the knots with the least squared relative error, and that error.

    No time is negative or less than at the knot before.
    """
    part = np.clip((sizes[:, None] - knots[:-1]) / np.diff(knots), 0, 1)
    columns = np.concatenate([np.ones((len(sizes), 1)), part], axis=1)
    relative = columns / seconds[:, None]
    rises = nonnegative(relative, np.ones(len(sizes)))
    return np.cumsum(rises), float(((relative @ rises - 1) ** 2).sum())


def _along(knots: Floats, times: Floats, size: Floats) -> Floats:
    """The curve's seconds; beyond the last knot its last line goes on."""
    slope = (times[-1] - times[-2]) / (knots[-1] - knots[-2])
    beyond = np.maximum(size - knots[-1], 0) * slope
    return np.asarray(np.interp(size, knots, times) + beyond)


def _ends(fit: LinkFit) -> str:
    return f"{fit.src} and {fit.dst}" if fit.src or fit.dst else "the devices"


def _source(fit: LinkFit) -> str:
    smallest, largest = format_bytes(fit.sizes[0]), format_bytes(fit.sizes[-1])
    off = float(np.abs(fit.line(fit.sizes) / fit.seconds - 1).mean())
    error = f"off by {off:.0%} on average"
    if fit.tensor_error is not None:
        error = f"off by {fit.tensor_error:.0%} of the time that the graph's tensors take"
    return (
        f"measured{f' by {fit.method}' if fit.method else ''}: "
        f"{counted(fit.repeats, 'transfer')} of {smallest} to {largest}; this line is {error}"
    )


def _decade(power: int) -> str:
    unit = ("B", "kB", "MB", "GB")[min(power // 3, 3)]
    return f"{10 ** (power - 3 * min(power // 3, 3))} {unit}.."


def _cells(errors: dict[int, float], decades: Iterable[int]) -> Sequence[str]:
    return [f"{errors[d]:.1%}" if d in errors else "" for d in decades]
