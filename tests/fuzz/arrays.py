"""Every function and method of ``loadmaster.fast``, on arguments of any type, shape and value.

Whatever is wrong is a ``ValueError``; an integer beyond 64 bits is Python's own ``OverflowError``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import numpy as np

from loadmaster import fast
from loadmaster.base.errors import LoadmasterError

from .drawn import Draw
from .frame import target

_WEIGHTS = np.ones(2)

#: By name: a call of each function, of each class and of each method.
CALLS: dict[str, Callable[[Draw], object]] = {
    "Board": lambda d: d.board(),
    "Board.stop": lambda d: d.board().stop(),
    "Board.words": lambda d: d.called(fast.Board.words, 2, 3, 4),
    "Cluster": lambda d: d.called(fast.Cluster, *d.cluster_parts()),
    "Cluster.channel_name": lambda d: d.called(d.cluster().channel_name, 0),
    "Cluster.collective": lambda d: d.called(
        d.cluster().collective, d.random.choice(fast.COLLECTIVES), [0, 1], 1000
    ),
    "Cluster.route": lambda d: d.called(d.cluster().route, 0, 1),
    "Cluster.transfer_time": lambda d: d.called(d.cluster().transfer_time, 0, 1, 1000),
    "Dispatcher": lambda d: d.dispatcher(d.board()),
    "Dispatcher.arrive": lambda d: d.called(d.dispatcher(d.board()).arrive, 0, 1, 2),
    "Dispatcher.begin": lambda d: d.stepped(),
    "Dispatcher.done": lambda d: d.called(d.dispatcher(d.board()).done, 0),
    "Dispatcher.end": lambda d: d.stepped(),
    "Dispatcher.missing": lambda d: d.dispatcher(d.board()).missing(),
    "Dispatcher.next": lambda d: d.stepped(),
    "Emulated": lambda d: d.emulated(d.board()),
    "Emulated.step": lambda d: d.emulated_step(),
    "Graph": lambda d: d.graph(),
    "Graph.flows": lambda d: d.graph().flows(),
    "Labelling": lambda d: d.labelling(),
    "Labelling.components": lambda d: d.called(d.labelling().components, d.labels()),
    "Labelling.descend": lambda d: d.called(d.labelling().descend, d.labels(), _WEIGHTS),
    "Labelling.energy": lambda d: d.called(d.labelling().energy, d.labels(), _WEIGHTS),
    "Labelling.solve": lambda d: d.called(
        d.labelling().solve, _WEIGHTS, start=d.maybe(d.labels), sweeps=9
    ),
    "Labelling.walk": lambda d: d.called(
        partial(d.labelling().walk, steps=99, seed=0), d.labels(), _WEIGHTS
    ),
    "Labels": lambda d: d.labelling().solve(_WEIGHTS),
    "Links": lambda d: d.links(),
    "OpGraph": lambda d: d.op_graph(),
    "OpGraph.changed": lambda d: d.called(
        d.op_graph().changed, flops=d.sizes(), resident=d.sizes()
    ),
    "OpGraph.column": lambda d: d.called(
        d.op_graph().column, d.random.choice(("src", "tensor", "flops"))
    ),
    "OpGraph.reduce": lambda d: d.called(d.op_graph().reduce, d.maybe(d.sizes)),
    "OpGraph.sent": lambda d: d.op_graph().sent(),
    "Part": lambda d: d.part(),
    "Pattern": lambda d: fast.Pattern(d.pattern()),
    "Pattern.matches": lambda d: d.called(fast.Pattern(d.pattern()).matches, d.pattern()),
    "Problem": lambda d: d.problem(),
    "Problem.led_by": lambda d: d.problem().led_by(d.ids()),
    "Problem.mean": lambda d: d.problem().mean(d.times()),
    "Problem.restricted": lambda d: d.problem().restricted(d.sizes()),
    "Problem.within": lambda d: d.problem().within(capacity=d.sizes(), op_bytes=d.maybe(d.sizes)),
    "Problem.without_contention": lambda d: d.problem().without_contention(),
    "Schedule": lambda d: fast.simulate(d.problem(), d.devices()),
    "Schedule.blame": lambda d: fast.simulate(
        d.problem(), d.devices(), d.maybe(d.ids), **d.simulated()
    ).blame(),
    "Schedule.collectives": lambda d: d.schedule().collectives(),
    "Schedule.memory": lambda d: fast.simulate(
        d.problem(), d.devices(), d.maybe(d.ids), record_memory=True, **d.simulated()
    ).memory(),
    "Schedule.shares": lambda d: d.schedule().shares(),
    "Schedule.transfers": lambda d: d.schedule().transfers(),
    "Schedule.waited": lambda d: d.called(d.schedule().waited, 0),
    "Stop": lambda d: d.stop("moves"),
    "Weights": lambda d: d.weights(),
    "Weights.kept_to": lambda d: d.called(d.weights().kept_to, d.devices()),
    "adjusting_placement": lambda d: fast.adjusting_placement(d.problem(), d.order()),
    "batch_merge": lambda d: fast.batch_merge(d.weights(), d.count(), **d.limits()),
    "best_stages": lambda d: d.staged(),
    "bounds": lambda d: fast.bounds(d.problem()),
    "breakpoints": lambda d: fast.breakpoints(
        d.weights(), d.order(), max_ops=d.maybe(d.count), **d.limits()
    ),
    "contract": lambda d: fast.contract(d.graph(), d.ids(), colocated=d.random.random() < 0.5),
    "cpd_topo": lambda d: fast.cpd_topo(d.weights()),
    "critical_path": lambda d: fast.critical_path(d.weights()),
    "dfs_topo": lambda d: fast.dfs_topo(d.graph()),
    "dominant_sequences": lambda d: fast.dominant_sequences(d.weights()),
    "edges": lambda d: fast.edges(d.graph()),
    "exact_breakpoints": lambda d: fast.exact_breakpoints(
        d.weights(), d.order(), d.count(), **d.limits()
    ),
    "expand": lambda d: d.expanded(),
    "fill_in_order": lambda d: fast.fill_in_order(
        d.problem(), d.order(), devices=d.maybe(d.devices)
    ),
    "follow_bytes": lambda d: fast.follow_bytes(d.problem(), d.order()),
    "fuse": lambda d: fast.fuse(
        d.weights(), d.ids(), [[[0], [1]], [[d.count()]]], d.count(), **d.limits()
    ),
    "heads_and_tails": lambda d: fast.heads_and_tails(d.problem()),
    "levels": lambda d: fast.levels(d.weights()),
    "linear_clusters": lambda d: fast.linear_clusters(d.weights()),
    "m_topo": lambda d: fast.m_topo(d.graph()),
    "multilevel_partition": lambda d: fast.multilevel_partition(
        d.weights(), d.count(), **d.limits()
    ),
    "needed_control": lambda d: fast.needed_control(d.graph()),
    "optimistic_costs": lambda d: fast.optimistic_costs(
        d.problem(), d.times(), control_time=d.number()
    ),
    "parallel_merge": lambda d: fast.parallel_merge(d.weights(), d.count(), **d.limits()),
    "partition": lambda d: fast.partition(d.sizes(), *d.pairs(), d.sizes(), d.shares()),
    "peak_bytes": lambda d: fast.peak_bytes(d.graph(), d.maybe(d.order)),
    "piper_stages": lambda d: d.piper(),
    "placed_paths": lambda d: fast.placed_paths(d.problem(), d.devices()),
    "priority_order": lambda d: fast.priority_order(d.graph(), d.times()),
    "refine_placement": lambda d: fast.refine_placement(
        d.problem(), d.order(), d.devices(), [d.ids(), d.ids()], budget=d.random.choice((0, 999))
    ),
    "repeated_groups": lambda d: fast.repeated_groups(
        d.weights(), d.count(), [d.number(), d.number()]
    ),
    "replace_op": lambda d: d.replaced(),
    "roles": lambda d: d.called(fast.roles, d.op_graph(), d.flags(), d.flags(), d.flags()),
    "round_robin": lambda d: fast.round_robin(d.problem(), d.order()),
    "schedule": lambda d: fast.schedule(
        d.problem(),
        d.order(),
        pinned=d.maybe(d.devices),
        bias=d.maybe(d.times),
        delay_weight=d.count(),
    ),
    "schedule_below": lambda d: fast.schedule_below(
        d.problem(), d.number(), d.order(), pinned=d.maybe(d.devices)
    ),
    "schedule_earliest": lambda d: fast.schedule_earliest(
        d.problem(), d.order(), favourite=d.maybe(d.ids)
    ),
    "schedule_placed": lambda d: fast.schedule_placed(d.problem(), d.order(), d.devices()),
    "search": lambda d: fast.search(
        d.problem(), (d.devices(), d.order()), d.stop("moves"), **d.searched()
    ),
    "search_windows": lambda d: fast.search_windows(
        d.problem(), (d.devices(), d.order()), d.stop("visits"), **d.searched()
    ),
    "segments": lambda d: fast.segments(d.order(), np.unique(d.ids())),
    "simulate": lambda d: fast.simulate(d.problem(), d.devices(), d.maybe(d.ids), **d.simulated()),
    "simulate_below": lambda d: fast.simulate_below(
        d.problem(), d.number(), d.devices(), d.maybe(d.ids), **d.simulated()
    ),
    "split_max_load": lambda d: d.split(),
    "summed_edges": lambda d: d.called(
        fast.summed_edges, d.op_graph(), d.flags(), d.flags(), d.flags()
    ),
    "with_control": lambda d: d.called(fast.with_control, d.op_graph(), *d.some_pairs(d.n, d.n)),
}


def functions() -> Iterator[str]:
    """The names of all that can be called in ``loadmaster.fast``, classes and methods too."""
    for name, value in vars(fast).items():
        if not name.startswith("_") and callable(value):
            yield name
            if isinstance(value, type):
                methods = (m for m in vars(value) if not m.startswith("_"))
                yield from (f"{name}.{m}" for m in methods if callable(getattr(value, m)))


def _looked_at(value: object) -> None:
    """Reads every property of what a call made."""
    if isinstance(value, tuple):
        for part in value:
            _looked_at(part)
    elif type(value).__module__ == fast.__name__:
        for name in dir(value):
            getattr(value, name)


@target("arrays", in_ci=10000)
def one(random: Random) -> None:
    """A call of one of the functions."""
    call = random.choice(list(CALLS.values()))
    with contextlib.suppress(ValueError, TypeError, OverflowError, LoadmasterError, *_REFUSED):
        _looked_at(call(Draw(random)))


#: What calls raise besides: an index that there is not, and a wait that ended.
_REFUSED = (IndexError, TimeoutError, InterruptedError)
