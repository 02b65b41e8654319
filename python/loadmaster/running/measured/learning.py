"""Lessons of plans that ran on a machine: times of ops, figures of links.

The fastest steps of a run count, as :func:`loadmaster.running.measured.measured.fastest` has
them: times of a step that something disturbed would be taken for those of the ops.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.costs import CostModel, Entry, fit_links
from loadmaster.model.cluster import Cluster
from loadmaster.plans.plan import Plan
from loadmaster.running.measured.measured import Measured, fastest
from loadmaster.running.measured.profiled import types_of


def times_of(plan: Plan) -> CostModel:
    """A model of the times that a plan was made with. What is measured replaces them."""
    model = CostModel()
    for k, device_type in enumerate(plan.costs.types):
        for name, seconds in zip(plan.graph.names, plan.costs.time[:, k].tolist(), strict=True):
            model.put(device_type, name, Entry.regressed(seconds, 0.0))
    return model


def learn_times(model: CostModel, seen: Measured) -> None:
    """Merges what ops took in a run into a model: of several runs, each counts as much."""
    for device_type in types_of(seen):
        profile = seen.profile(device_type)
        seconds = profile.seconds[:, fastest(seen.steps.seconds)].mean(axis=1)
        model.update(replace(profile, seconds=seconds[:, None]))


def learnt_links(cluster: Cluster, seen: Measured) -> Cluster:
    """The cluster with the latency and bandwidth that the transfers of a run had on each link.

    A link keeps its figures where the run sent nothing over it, or tensors of one size only: they
    cannot tell latency from bandwidth. So does one whose sender has a
    :attr:`~loadmaster.DeviceType.send_cost`: what was measured is the copy.
    """
    sent, took = seen.plan.schedule.transfers, seen.part_seconds("sent_start", "sent_finish")
    copies = {t.name for t in cluster.types if t.send_cost is not None}
    type_of = {device.name: device.type for device in cluster.devices}
    for link in cluster.links:
        if type_of[link.src] in copies:
            continue
        ends = cluster.index(link.src), cluster.index(link.dst)
        here = (sent.src == ends[0]) & (sent.dst == ends[1]) & (sent.bytes > 0) & (took > 0)
        if len(np.unique(sent.bytes[here])) > 1:
            fitted = fit_links({(link.src, link.dst, ""): (sent.bytes[here], took[here])})
            cluster = fitted.cluster(cluster)
    return cluster
