"""Costs and a cluster from measurements, and figures that say how good they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.text import Printed, aligned
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.costs import (
    CostModel,
    Join,
    Links,
    Regression,
    TransferTimes,
    Trust,
    Update,
    estimate,
    fit_links,
    held_out,
    sweep,
    trust,
)
from loadmaster.costs.measuring_device import DeviceCosts
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.links import CollectiveTimes
from loadmaster.model.graph import OpGraph
from loadmaster.model.profile import Profile, joined


@dataclass(frozen=True)
class Calibration(Printed):
    """The result of a calibration.

    Attributes
    ----------
    cluster : Cluster
        Its links are the measured ones, if links were measured.
    model : CostModel or None
        None without profiles.
    regressions : tuple of Regression
        Times and sizes at a batch that was not measured; one regression per device type.
    updates : tuple of Update
        What each profile changed.
    join : Join or None
        The ops that the graph and the costs share, by name.
    shares : dict of str to float, or None
        Share of the graph's time by provenance, on the slowest device type.
    trust : Trust or None
        Predicted against measured times. A regression is compared with profiles of its target
        batch. If there are none, its largest batch is held out and compared. Without a regression,
        the costs known before, else the roofline, are compared with the profiles.
    against : str
        What ``trust`` compares, in words.
    links : Links or None
    device : DeviceCosts or None
        What sending and launching cost, if that was measured.
    collectives : tuple of CollectiveTimes
        Those of the cluster, if they were measured.
    """

    cluster: Cluster
    model: CostModel | None = None
    regressions: tuple[Regression, ...] = ()
    updates: tuple[Update, ...] = ()
    join: Join | None = None
    shares: dict[str, float] | None = None
    trust: Trust | None = None
    against: str = ""
    links: Links | None = None
    device: DeviceCosts | None = None
    collectives: tuple[CollectiveTimes, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "updates": [update.to_document() for update in self.updates],
            "join": None if self.join is None else vars(self.join),
            "provenance": self.shares,
            "trust": None if self.trust is None else self.trust.to_document(),
            "against": self.against,
            "links": None if self.links is None else self.links.to_document()["links"],
            "device": None if self.device is None else self.device.to_document(),
            "collectives": [times.facts for times in self.collectives],
        }

    def __str__(self) -> str:
        parts = [str(part) for part in (*self.regressions, *self.updates, self.join) if part]
        if self.shares:
            shares = ", ".join(f"{share:.0%} {word}" for word, share in self.shares.items())
            parts.append(f"times of the graph: {shares}")
        if self.trust is not None:
            parts.append(f"\n{self.against}\n{self.trust}")
        if self.links is not None:
            parts.append(f"\nLinks: mean relative error per decade of bytes\n{self.links}")
        if self.device is not None:
            parts.append(f"\nThis machine's runtime\n{self.device}")
        if self.collectives:
            parts.append(f"\nCollectives\n{_collective_lines(self.collectives)}")
        return "\n".join(parts).lstrip("\n")


def calibrate(
    cluster: Cluster,
    graph: OpGraph | None = None,
    profiles: Sequence[Profile] = (),
    *,
    batch: int | None = None,
    model: CostModel | None = None,
    transfers: TransferTimes | None = None,
    way: str | None = None,
    device: DeviceCosts | None = None,
    device_type: str | None = None,
    collectives: Sequence[CollectiveTimes] = (),
) -> Calibration:
    """Costs from profiles, links from transfers, the cost of sending from copies.

    Parameters
    ----------
    cluster : Cluster
        Its links are replaced by measured ones. Its rooflines stand in for unmeasured times.
    graph : OpGraph, optional
        The graph that the costs are for.
    profiles : sequence of Profile
        Profiles of one batch are measurements. Of several batches: profiles of other batches than
        ``batch`` are regressed to it, by device type; profiles of ``batch`` then count as measured.
    batch : int, optional
        The batch that the costs are for.
    model : CostModel, optional
        Costs known before. The profiles update this object.
    transfers, way
        See :func:`loadmaster.costs.fit_links` and :meth:`loadmaster.costs.Links.cluster`.
    device, device_type
        See :func:`loadmaster.measure_device` and :meth:`loadmaster.DeviceCosts.sending`. What
        launches cost stays out of the cluster: :meth:`loadmaster.DeviceCosts.launching` puts it in.
    collectives
        See :func:`loadmaster.measure_collectives`. They stand in the place of the cluster's own.

    Raises
    ------
    InputError
        Nothing to learn from; profiles of several batches without ``batch``; input that
        sweeps, updates and fits of links refuse.

    Examples
    --------
    >>> import numpy as np, loadmaster as lm
    >>> profile = lm.Profile(("a",), ("MatMul",), np.array([[1e-3, 1.1e-3]]), "cpu")
    >>> found = calibrate(lm.Cluster.preset("cpu+gpu"), profiles=[profile])
    >>> print(found.updates[0])
    cpu: 1 op measured, 1 new, 0 moved
    """
    if not profiles and transfers is None and device is None and not collectives:
        raise InputError("nothing to learn from: give profiles, transfers, or what was measured")
    links = None if transfers is None else fit_links(transfers, graph)
    times = tuple(collectives)
    if links is not None:
        cluster = links.cluster(cluster, way)
    if device is not None:
        cluster = device.sending(cluster, device_type)
    cluster = cluster.with_collectives(times) if times else cluster
    if not profiles:
        return Calibration(cluster, links=links, device=device, collectives=times)
    small, measured, batches = _by_batch(profiles, batch)
    regressions: tuple[Regression, ...] = ()
    if small:
        if model is not None:
            raise InputError("costs known before are updated by profiles of their own batch only")
        assert batch is not None
        regressions = _swept(small, batch)
        model = CostModel(batch)
        for regression in regressions:
            regression.teach(model)
        if measured:
            checked = _trust(regressions[0], measured, graph, cluster)
            against = f"Regressed to batch {batch}, against what was measured there"
        else:
            checked, against = _held_out(small, regressions[0])
    elif model is not None:
        checked = _trust(model, measured, graph, cluster)
        against = "Costs as they were known before, against what was measured"
    else:
        model = CostModel(batch or (batches[0] if batches else None))
        checked = _trust(None, measured, graph, cluster)
        against = "What would be assumed without a profile, against what was measured"
    updates = tuple(model.update(profile) for profile in measured)
    return Calibration(
        cluster,
        model,
        regressions,
        updates,
        None if graph is None else model.join(graph),
        None if graph is None else model.costs(graph, cluster).shares(),
        checked,
        against if checked is not None else "",
        links,
        device,
        times,
    )


def _collective_lines(collectives: Sequence[CollectiveTimes]) -> str:
    """Seconds of each by bytes, and for how much of that its devices are busy."""
    rows = [("kind", "devices", "bytes", "takes", "of which devices are busy")]
    for times in collectives:
        busy = times.busy or (0.0,) * len(times.bytes)
        for size, seconds, own in zip(times.bytes, times.seconds, busy, strict=True):
            share = f"{own / seconds:.0%}" if seconds else ""
            cells = format_bytes(size), format_seconds(seconds), share
            rows.append((times.kind, str(times.devices), *cells))
    return "\n".join(aligned(rows))


def _by_batch(
    profiles: Sequence[Profile], batch: int | None
) -> tuple[list[Profile], list[Profile], list[int]]:
    """Profiles to regress to the batch, those that count as measured, and the batches of these.

    The last has one batch at most.
    """
    small = [p for p in profiles if batch is not None and p.batch not in (None, batch)]
    measured = [p for p in profiles if p not in small]
    batches = sorted({p.batch for p in measured if p.batch is not None})
    if len(batches) > 1:
        raise InputError(
            f"profiles of batches {', '.join(map(str, batches))}: give the batch that the costs "
            "are for, and they are regressed to it"
        )
    return small, measured, batches


def _swept(profiles: Sequence[Profile], batch: int) -> tuple[Regression, ...]:
    """A sweep per device type, in the order of the profiles."""
    types = dict.fromkeys(p.device_type for p in profiles)
    return tuple(sweep([p for p in profiles if p.device_type == t], batch) for t in types)


def _held_out(profiles: Sequence[Profile], regression: Regression) -> tuple[Trust | None, str]:
    """The largest batch of a sweep, predicted from the other batches, if these suffice."""
    if len(regression.batches) < 3:
        return None, ""
    checked = held_out([p for p in profiles if p.device_type == regression.device_type])
    largest = regression.batches[-1]
    return checked, f"Batch {largest}, regressed from the smaller ones, against its profile"


def _trust(
    predicted: CostModel | Regression | None,
    profiles: Sequence[Profile],
    graph: OpGraph | None,
    cluster: Cluster,
) -> Trust | None:
    """Costs known before, else the roofline, compared with the profiles.

    Only profiles of the first profile's device type count. None: the two cannot be compared.
    """
    measured = joined([p for p in profiles if p.device_type == profiles[0].device_type])
    try:
        if predicted is not None:
            return trust(predicted, measured, graph)
        return None if graph is None else trust(estimate(graph, cluster), measured, graph)
    except InputError:
        return None
