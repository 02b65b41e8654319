"""The chain of causes of a plan by class: seconds that an error of the class stretches together."""

from __future__ import annotations

from collections import defaultdict

from loadmaster.costs.op_classes import OF_OPS, classes_of
from loadmaster.costs.roofline import PROVENANCES
from loadmaster.judge.simulation import Blame
from loadmaster.plans.plan import Plan

COLLECTIVES, TRANSFERS, LAUNCHES = "collectives", "transfers", "launches"

#: Times that a user measured.
MEASURED = "measured"

#: Classes whose times are estimated.
ESTIMATED = (*OF_OPS, COLLECTIVES, TRANSFERS, LAUNCHES)

#: Words of provenance for times that are not estimated from a device type's figures.
_KNOWN = ("measured", "given")


def seconds_by_class(plan: Plan) -> dict[str, float]:
    """Seconds of a plan's chain of causes by class; they add up to the step. O(links).

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:vgg19"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> by_class = seconds_by_class(plan)
    >>> max(by_class, key=by_class.get), abs(sum(by_class.values()) / plan.makespan - 1) < 1e-6
    ('convolutions', True)
    """
    seconds: dict[str, float] = defaultdict(float)
    classes, labels = classes_of(plan.program.graph), plan.program.graph.collectives
    known = {PROVENANCES.index(word) for word in _KNOWN}
    provenance = plan.problem.costs.provenance.tolist()

    def of(link: Blame) -> str:
        if link.doing == "launch":
            return LAUNCHES
        if link.op is None:
            return TRANSFERS
        if labels[link.op]:
            return COLLECTIVES
        return MEASURED if provenance[link.op] in known else classes[link.op]

    for link in plan.schedule.blame:
        seconds[of(link)] += link.finish - link.start
    return dict(seconds)
