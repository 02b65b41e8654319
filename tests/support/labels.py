"""Labels of ops, drawn or by what is cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT, OWNER, PARTIAL
from loadmaster.model.graph import PARAMETER
from loadmaster.model.recipe import DeviceMesh
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.specs import FORBIDDEN, conversion, may_be_flat, specs_of

#: The output of a fused LSTM on CPUs that its backward pass alone can read.
_WORKSPACE = 3


def whole(dimensions: Dimensions, mesh: DeviceMesh) -> NDArray[np.int32]:
    """Every op on every device."""
    return np.zeros((len(mesh.axes), dimensions.graph.n_ops), dtype=np.int32)


def cut_along(dimensions: Dimensions, role: str) -> NDArray[np.int32]:
    """Every op by its first cut of a role, and partial sums kept as long as can be: [1, n_ops]."""
    d = dimensions
    labels = np.zeros((1, d.graph.n_ops), dtype=np.int32)
    for op in np.flatnonzero(d.form_of >= 0).tolist():
        cuts = d.forms[d.form_of[op]].cuts
        labels[0, op] = next((i + 1 for i, cut in enumerate(cuts) if cut.role == role), 0)
        if not labels[0, op] and not d.graph.placeholder[op]:
            made = [_made(d, labels[0], a) for a in range(d.first[op], d.first[op + 1])]
            labels[0, op] = next((i + 1 for i, cut in enumerate(cuts) if _keeps(cut, made)), 0)
    return labels


def _made(d: Dimensions, labels: NDArray[np.int32], argument: int) -> int | None:
    root = int(d.root[argument])
    if root < 0 or d.form_of[root] < 0:
        return None
    return specs_of(d.forms[d.form_of[root]], int(labels[root]))[1][d.output[argument]]


def _keeps(cut, made: list[int | None]) -> bool:
    """Whether a cut takes partial sums as they are made."""
    if PARTIAL not in cut.inputs:
        return False
    return all(
        have == PARTIAL for have, need in zip(made, cut.inputs, strict=True) if need == PARTIAL
    )


def by_experts(dimensions: Dimensions, mesh: DeviceMesh) -> NDArray[np.int32]:
    """Tokens by the batch, and the ops of experts that have none of it whole on their device, but
    for those that make gradients of routers.
    """
    labels = cut_along(dimensions, "batch")
    owned = Layout(dimensions, mesh, whole(dimensions, mesh)).expert[0] >= 0
    is_batched = [any(cut.role == "batch" for cut in form.cuts) for form in dimensions.forms]
    kinds = dimensions.graph.kinds
    is_routing = [kind.startswith(("aten.scatter", "aten.new_zeros")) for kind in kinds]
    owned &= ~dimensions.graph.view & ~np.array(is_routing)
    owned &= ~np.array([*is_batched, False])[dimensions.form_of]
    labels[0, owned] = OWNER
    return labels


def with_state(layout: Layout, label: int, *, parameters: bool = False) -> NDArray[np.int32]:
    """Labels with all updates FLAT or OWNER on the first axis, and their parameters too."""
    graph, labels = layout.graph, layout.labels.copy()
    chosen = (layout.set_of >= 0) & ~graph.view
    chosen &= (graph.stands_for != PARAMETER) | parameters
    labels[0, chosen] = label
    return labels


def drawn(
    dimensions: Dimensions, mesh: DeviceMesh, seed: int, chance: float = 0.7
) -> NDArray[np.int32]:
    """Labels drawn one op after another, among those that its arguments' specs allow.

    What needs halos, or has fewer parts than devices, is left out.
    """
    d, graph, random = dimensions, dimensions.graph, np.random.default_rng(seed)
    labels = whole(d, mesh)
    layout = Layout(d, mesh, labels)
    set_of, (expert, _) = layout.set_of, layout.expert
    unit = np.where(expert >= 0, len(set_of) + expert, set_of)
    for axis, size in enumerate(mesh.shape):
        made: dict[int, tuple[int, ...]] = {}
        for op in np.flatnonzero((d.form_of >= 0) & ~graph.view).tolist():
            form = d.forms[d.form_of[op]]
            known = [
                i + 1
                for i, cut in enumerate(form.cuts)
                if not cut.halos and (not cut.size or cut.size >= size)
            ]
            if set_of[op] >= 0:
                known += [OWNER, FLAT] if may_be_flat(form) else [OWNER]
            elif expert[op] >= 0:
                known += [OWNER] * 3
            random.shuffle(known)
            tried = [*(known if random.random() < chance else []), 0]
            if (maker := _workspace_of(d, op)) >= 0:
                names = ["", *(cut.name for cut in form.cuts)]
                cuts = d.forms[d.form_of[maker]].cuts
                tried = [names.index(["", *(cut.name for cut in cuts)][labels[axis, maker]])]
            label = next(one for one in tried if _is_allowed(d, op, one, made, unit))
            labels[axis, op], made[op] = label, specs_of(form, label)[1]
    return labels


def _workspace_of(d: Dimensions, op: int) -> int:
    """The op whose kernel left its workspace for another, which is cut as that one is; else -1."""
    if not d.graph.kinds[op].startswith("aten.mkldnn_rnn_layer_backward"):
        return -1
    arguments = range(d.first[op], d.first[op + 1])
    return next(int(d.root[at]) for at in arguments if d.output[at] == _WORKSPACE)


def _is_allowed(
    d: Dimensions, op: int, label: int, made: dict[int, tuple[int, ...]], unit: NDArray[np.int64]
) -> bool:
    needs, gives = specs_of(d.forms[d.form_of[op]], label)
    for i, argument in enumerate(range(d.first[op], d.first[op + 1])):
        root, want = int(d.root[argument]), needs[i]
        if root < 0 or d.edge[argument] < 0:
            continue
        want = d.backs[d.back[argument]][want] if want >= 0 else want
        have = made[root][d.output[argument]]
        if conversion(have, want) == FORBIDDEN:
            return False
        if have == want == OWNER and unit[root] != unit[op]:
            return False
    state = int(d.graph.alias_of[op])
    writes = state >= 0 and d.graph.placeholder[state] and d.graph.updates[op]
    return not writes or conversion(gives[0], made[state][0]) != FORBIDDEN
