"""A measured step of a plan, and the lessons that other plans on such devices take from it."""

from __future__ import annotations

import math

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import parse_seconds
from loadmaster.costs.observed import META, Observed
from loadmaster.model.graph import INPUT
from loadmaster.model.shapes import parse_output
from loadmaster.plans import ranges
from loadmaster.plans.plan import Plan
from loadmaster.plans.ranges import ALL
from loadmaster.plans.words import title
from loadmaster.transforms.shares import batch_size

#: Rates by their unit, for people.
_RATES = ("samples/s", "tokens/s")


def observe(plan: Plan, observed: float | str) -> Observed:
    """Factors that explain a measured step, one a class of op, and what they leave open.

    Parameters
    ----------
    plan : Plan
        With estimated times, on GPUs of the table of device types.
    observed : float or str
        Seconds of a step (``2.46``, ``"2.46s"``), or what it comes to: ``"5200 tokens/s"``,
        ``"320 samples/s"``.

    Returns
    -------
    Observed
        ``observed.save(path)`` writes what ``--costs`` takes.

    Raises
    ------
    InputError
        No positive time, a rate of a graph that does not say its batch; a plan whose times were
        measured, or on devices of other types.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:vgg19"), lm.Cluster.preset("2xV100-NVLink")
    >>> plan = lm.place(graph, cluster, "single")
    >>> seen = observe(plan, 1.5 * plan.makespan)
    >>> again = lm.place(seen.on(graph), cluster, "single", costs=seen.costs(graph, cluster))
    >>> 1.2 < again.makespan / plan.makespan < 1.6
    True
    """
    seconds = checks.positive("observed", _seconds(plan, observed))
    errors = ranges.errors_of(plan)
    if errors is None:
        raise InputError(
            "nothing of this plan is estimated on GPUs of known types, so there is nothing to "
            "learn: --profile FILE takes measured times of ops"
        )
    if META in plan.graph.meta:
        raise InputError(
            "the plan was made with the costs of an observed step: observe one that was made "
            "without --costs"
        )
    left = (math.log(seconds / plan.as_run) - errors.bias) / errors.variance
    pull = {name: errors.spreads[name] ** 2 * share for name, share in errors.shares.items()}
    all_of = errors.shared**2 * sum(errors.shares.values())
    factors = {
        name: math.exp(errors.biases[name] + (one + all_of) * left) for name, one in pull.items()
    }
    root = math.sqrt(errors.variance)
    known = {name: one / root for name, one in {**pull, ALL: all_of}.items()}
    return Observed(
        title(plan),
        seconds,
        plan.as_run,
        tuple(kind.name for kind in plan.cluster.types),
        {name: round(factor, 6) for name, factor in factors.items()},
        {name: round(part, 6) for name, part in known.items()},
    )


def _seconds(plan: Plan, observed: float | str) -> float:
    """Seconds of a step, from seconds or from a rate."""
    text = str(observed).strip()
    unit = next((unit for unit in _RATES if text.endswith(unit)), None)
    if unit is None:
        return parse_seconds(observed, "observed")
    try:
        rate = float(text.removesuffix(unit))
    except ValueError:
        raise InputError(f"observed is {text!r}: wants such as '5200 tokens/s'") from None
    samples = batch_size(plan.graph)
    per_step = samples if unit == "samples/s" else _tokens(plan)
    if not per_step or rate <= 0:
        raise InputError(
            f"observed is {text!r}, and the graph does not say how many {unit.partition('/')[0]} "
            "a step has: give the seconds of a step"
        )
    return per_step / rate


def _tokens(plan: Plan) -> int:
    """Tokens of a step: elements of the first input of integers with two sizes; 0: none."""
    graph = plan.graph
    for op in range(graph.n_ops):
        if graph.stands_for[op] == INPUT:
            dtype, sizes = parse_output(graph.outputs[op])[0]
            if sizes is not None and len(sizes) == 2 and str(dtype).startswith("i"):
                return math.prod(sizes)
    return 0
