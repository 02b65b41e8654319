"""Degrees of parallelism of labels that are alike on each axis of a mesh.

An axis shares the batch, with state whole or in parts; or it cuts weights. Labels that a solver
mixes on an axis have no such name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.form import FLAT, OWNER, Form
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.micro import Micro
from loadmaster.model.parallelism import Parallelism, ShardState
from loadmaster.model.recomputed import RecomputedSegments, RecomputeLine
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shares import only_gradients

#: The share of a step's FLOPs that an axis of the batch may leave whole, and of the state that may
#: be kept otherwise than the rest.
_LITTLE = 0.01


@dataclass(frozen=True)
class _Axis:
    """An axis of a mesh: its size, and what is done along it."""

    size: int
    shares_batch: bool
    state: ShardState = "none"
    by_tokens: bool = False
    by_experts: bool = False


def degrees(layout: Layout, lines: Iterable[str] = ()) -> Parallelism | None:
    """The degrees of parallelism of a layout; of stages, those inside of a stage.

    Parameters
    ----------
    layout : Layout
    lines : iterable of str
        What is recomputed, as a recipe says it.

    Returns
    -------
    Parallelism or None
        None: an axis does several things, or two axes do the same to weights.

    Notes
    -----
    O(axes x ops).

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> by_batch = lm.Recipe({"dp": 4}, {"dp": {"**": "batch"}}, shard_state={"**": "parameters"})
    >>> print(degrees(Layout.of(graph, by_batch)))
    FSDP over 4
    """
    axes = [_axis(layout, axis) for axis in range(len(layout.mesh.axes))]
    if None in axes:
        return None
    batch = [axis for axis in axes if axis is not None and axis.shares_batch]
    weights = [axis for axis in axes if axis is not None and not axis.shares_batch]
    states = {axis.state for axis in batch} - {"none"}
    cut = [at for at, axis in enumerate(axes) if axis in weights]
    if len(weights) > 1 or len(states) > 1 or any(layout.mesh.axes[at].shares for at in cut):
        return None
    shard = prod(axis.size for axis in batch if axis.state != "none")
    tp = prod(axis.size for axis in weights)
    is_apart = any(axis.by_experts for axis in weights)
    parallelism = Parallelism(
        replicate=prod(axis.size for axis in batch if axis.state == "none"),
        shard=shard,
        shard_state=states.pop() if states else "none",
        shares=_shares(layout),
        tp=tp,
        sequence=any(axis.by_tokens for axis in weights),
        ep=prod(axis.size for axis in batch if axis.by_experts) * (tp if is_apart else 1),
        experts="apart" if is_apart else "cut",
    )
    return recomputing(parallelism, layout.graph, lines)


def _axis(layout: Layout, axis: int) -> _Axis | None:
    """The kind of parallelism on an axis; None: several kinds, or none."""
    graph, labels, role = layout.graph, layout.labels[axis], _roles(layout, axis)
    runs = ~(graph.view | graph.placeholder | graph.updates)
    runs &= ~only_gradients(graph, graph.roles)
    is_cut = runs & (labels > 0)
    of = {name for name in role[is_cut].tolist() if name != "partial"}
    size, parameter = layout.mesh.shape[axis], graph.stands_for == PARAMETER
    if "batch" in of:
        left = runs & (labels == 0) & _has_batch(layout)
        is_little = graph.flops[left].sum() <= _LITTLE * graph.flops[runs].sum()
        if of - {"batch", "expert"} or not is_little:
            return None
        state = _state(layout, labels, parameter)
        return None if state is None else _Axis(size, True, state, by_experts="expert" in of)
    cuts_weights = (labels[parameter] > 0).any()
    return _Axis(size, False, "none", "token" in of, _apart(layout, axis)) if cuts_weights else None


def _state(
    layout: Layout, labels: NDArray[np.integer], parameter: NDArray[np.bool_]
) -> ShardState | None:
    """The state that devices of an axis have in parts; None: that of some parameters alone.

    A part is a shard of a tensor, or the whole tensor on one device of the axis. Parameters count
    by their bytes.
    """
    in_parts, bytes_ = np.isin(labels, (FLAT, OWNER)), layout.graph.param_bytes
    updates = (layout.set_of >= 0) & ~parameter
    of_parameters = _share(in_parts[parameter], bytes_[parameter])
    of_updates = _share(in_parts[updates], np.ones(int(updates.sum())))
    if of_parameters >= 1 - _LITTLE:
        return "parameters"
    if of_parameters > _LITTLE or _LITTLE < of_updates < 1 - _LITTLE:
        return None
    return "optimizer" if of_updates >= 1 - _LITTLE else "none"


def _share(mask: NDArray[np.bool_], weight: NDArray[Any]) -> float:
    """The weighted share of a mask; 0 where nothing has a weight."""
    total = float(weight.sum(dtype=np.float64))
    return float(weight[mask].sum(dtype=np.float64)) / total if total else 0.0


def _apart(layout: Layout, axis: int) -> bool:
    """True if devices of an axis have routed experts whole, others than the next one."""
    forms, labels = layout.dimensions.forms, layout.labels[axis]
    of = zip(layout.dimensions.form_of.tolist(), labels.tolist(), strict=True)
    pairs = {(form, label) for form, label in of if form >= 0 and label > 0}
    return any(forms[form].cuts[label - 1].shares_experts for form, label in pairs)


def _roles(layout: Layout, axis: int) -> NDArray[np.object_]:
    """The role of the cut of each op on an axis: "" where there is none or it is not known."""
    forms = (*layout.dimensions.forms, Form((), (), ()))
    pairs = np.stack([layout.form_of, layout.labels[axis]])
    some, which = np.unique(pairs, axis=1, return_inverse=True)
    names = [_role(forms[form], label) for form, label in some.T.tolist()]
    roles: NDArray[np.object_] = np.array(names, dtype=object)[which.ravel()]
    return roles


def _role(form: Form, label: int) -> str:
    if not 0 < label <= len(form.cuts):
        return ""
    cut = form.cuts[label - 1]
    return "partial" if cut.name == "partial" else cut.role


def _has_batch(layout: Layout) -> NDArray[np.bool_]:
    """Mask of the ops that could be cut by the batch."""
    forms = layout.dimensions.forms
    has = [any(cut.role == "batch" for cut in form.cuts) for form in forms]
    mask: NDArray[np.bool_] = np.array([*has, False])[layout.form_of]
    return mask


def _shares(layout: Layout) -> tuple[float, ...]:
    """The share of each device that shares the batch; empty: they are equal."""
    axes = [axis for axis in layout.mesh.axes if axis.shares is not None]
    if not axes:
        return ()
    shares = np.ones(1)
    for at, axis in enumerate(layout.mesh.axes):
        if layout.is_batch[at].any():
            shares = np.outer(shares, axis.shares or np.ones(axis.size)).ravel()
    return tuple(shares.tolist())


def in_stages(
    graph: OpGraph,
    layout: Layout | None,
    stage: NDArray[np.integer],
    micro: Micro,
    lines: Iterable[str] = (),
) -> Parallelism | None:
    """The degrees of parallelism of a pipeline.

    Parameters
    ----------
    graph : OpGraph
    layout : Layout or None
        Inside of stages; None: each is on one device.
    stage : int [n_ops]
        The virtual stage of each op.
    micro : Micro
    lines : iterable of str
        What is recomputed, as a recipe says it.

    Returns
    -------
    Parallelism or None
        None: that inside of stages has none, or stages take micro-batches in turn.
    """
    inside = Parallelism() if layout is None else degrees(layout)
    if inside is None or micro.in_turn:
        return None
    n_stages = (int(stage.max(initial=0)) + 1) // micro.virtual
    if n_stages > 1:
        inside = replace(inside, stages=n_stages, virtual=micro.virtual, schedule=micro.schedule)
    return recomputing(replace(inside, micro_batches=micro.n), graph, lines, stage)


def recomputing(
    parallelism: Parallelism,
    graph: OpGraph,
    lines: Iterable[str],
    stage: NDArray[np.integer] | None = None,
) -> Parallelism:
    """The same with what lines of a recipe recompute: of each virtual stage, if there are any."""
    lines = list(lines)
    if not lines:
        return parallelism
    if any(RecomputeLine.parse(line).only for line in lines):
        return replace(parallelism, recompute="selective")
    forward = np.array([phase == "f" for phase in graph.phases]) & ~graph.placeholder
    of = np.where(forward, RecomputedSegments.of_lines(graph, lines).of, -1)
    if stage is None or parallelism.stages == 1:
        stage = np.zeros(graph.n_ops, dtype=np.int64)
    return replace(parallelism, recompute="full", recompute_layers=tuple(_numbers(of, stage)))


def _numbers(of: NDArray[np.int64], stage: NDArray[np.integer]) -> Iterator[int]:
    """The number of modules of each stage that are recomputed."""
    for at in range(int(stage.max()) + 1):
        here = of[stage == at]
        yield len(np.unique(here[here >= 0]))
