"""Layout: where every tensor of a graph lies on a mesh, and what each device does of every op.

Labels say how ops are shared along each axis (:mod:`.specs`). From these follow the specs of
outputs, the specs that arguments need, and per device the share of FLOPs, of bytes and of what
stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import ANY, FLAT, OWNER, PARTIAL, PICKED, REPLICATE, Form
from loadmaster.dimensions.words import FREE, labels_of, labels_there, words_of
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import innermost
from loadmaster.model.recipe import BUCKET_BYTES, DeviceMesh, Recipe
from loadmaster.model.shapes import parse_output
from loadmaster.transforms.batch_dimensions import batch_dimensions
from loadmaster.transforms.batch_norm import sums_gradients
from loadmaster.transforms.gradients import Reducer, Updates
from loadmaster.transforms.label_tables import LabelTables
from loadmaster.transforms.mesh_ways import ALL, EVEN, Load, MeshWays
from loadmaster.transforms.shares import batch_size
from loadmaster.transforms.specs import FORBIDDEN, conversion, may_be_flat, part_weights
from loadmaster.transforms.tensor_columns import TensorColumns, tensor_columns

#: Fields of a recipe that a layout has beside its mesh and labels.
_SETTINGS = ("units", "batch_norm", "bucket_bytes", "expert_imbalance")

#: Words for specs that are no cuts.
_SPECS = {
    REPLICATE: "whole",
    PARTIAL: "in parts of a sum",
    FLAT: "flat",
    OWNER: "on one device",
    PICKED: "by what an index picks",
}


@dataclass(frozen=True, eq=False)
class Layout:
    """Labels of the ops of a graph on a mesh.

    Attributes
    ----------
    dimensions : Dimensions
    mesh : Mesh
    labels : int32 [n_axes, n_ops]
        Per axis, outermost first, and op: 0 whole, i > 0 cut i - 1 of its form, FLAT or OWNER.
        Those of views count for nothing.
    units : mapping of pattern to "again", "kept", "each again" or "each kept"
        Modules whose parameters one collective takes, or each of them one, and whether these are
        kept from the forward pass to the backward pass. Empty: collectives take ``bucket_bytes``.
    batch_norm : "local" or "synchronised"
        Whether batch norms have the statistics of their part of the batch, or of all of it.
    bucket_bytes : int
        Bytes of gradients or of parameters that one collective takes.
    expert_imbalance : float
        How much more than its fair share of the experts' work the busiest device does, where
        experts are shared out: that at the first place of the outermost such axis. It counts in
        thousandths.
    stage : int32 [n_ops], optional
        The stage of a pipeline that each op is in: no bucket has tensors of several. The mesh is
        that inside of a stage. Absent: there are no stages.
    reducer : Reducer, optional
        The buckets in which gradients are summed. Absent: collectives take ``bucket_bytes``, or
        what ``units`` say.

    Raises
    ------
    InputError
        A label that an op's form lacks; an op that is OWNER and belongs to no parameter's update
        and to no expert; specs that nothing turns into each other.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> mesh = DeviceMesh.of({"tp": 2})
    >>> layout = Layout(Dimensions.of(graph), mesh, np.zeros((1, graph.n_ops), dtype=np.int32))
    >>> layout.share[graph.index("addmm")].tolist()
    [1.0, 1.0]
    """

    dimensions: Dimensions
    mesh: DeviceMesh
    labels: NDArray[np.int32]
    batch_norm: str = "local"
    bucket_bytes: int = BUCKET_BYTES
    expert_imbalance: float = 1.0
    stage: NDArray[np.int32] | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    reducer: Reducer | None = None

    def __post_init__(self) -> None:
        wanted = (len(self.mesh.axes), self.graph.n_ops)
        if self.labels.shape != wanted:
            raise InputError(f"labels have shape {self.labels.shape}: want {wanted}")
        is_bad = (self.labels > self.tables.n_cuts[self.form_of]) & ~self.graph.view
        is_bad |= (self.labels < 0) & ~np.isin(self.labels, (FLAT, OWNER))
        may_own = (self.set_of >= 0) | (self.expert[0] >= 0)
        is_bad |= (self.labels == OWNER) & ~may_own & ~self.graph.view
        if is_bad.any():
            axis, op = np.argwhere(is_bad)[0].tolist()
            label, kind = int(self.labels[axis, op]), self.graph.kinds[op]
            has = int(self.tables.n_cuts[self.form_of[op]])
            why = f"it has {has} cuts"
            why = "it is of no parameter's update and of no expert" if label == OWNER else why
            raise InputError(
                f"axis {self.mesh.names[axis]!r}, op {self.graph.names[op]!r} ({kind}): "
                f"it cannot have label {label}: {why}"
            )

    @property
    def graph(self) -> OpGraph:
        """The user's graph."""
        return self.dimensions.graph

    @classmethod
    def of(cls, graph: OpGraph, recipe: Recipe) -> Layout:
        """The layout that a recipe describes. What it recomputes lies as it does the first time.

        Of a recipe with micro-batches it is that inside of stages.

        Raises
        ------
        InputError
            The recipe leaves something to a solver, or names a cut that an op has not, or has
            stages of one device each.
        """
        stage = None if recipe.micro is None else recipe.stage_of(graph)
        if (inside := recipe.inside) is None:
            raise InputError(
                "recipe: nothing is shared inside of its stages, which have one device each: give "
                "its mesh a second axis"
            )
        recipe, dimensions = inside, _dimensions(graph, inside)
        labels = labels_of(dimensions, recipe)
        if (labels == FREE).any():
            op = graph.names[int((labels == FREE).any(axis=0).argmax())]
            raise InputError(
                f'recipe: it leaves {op!r} to a solver: label all that is "auto", or write '
                'rest = "whole"'
            )
        of = {name: getattr(recipe, name) for name in _SETTINGS}
        layout = cls(dimensions, recipe.mesh, labels, **of, stage=stage)
        if recipe.shard_state:
            axes = np.flatnonzero(layout.is_batch.any(axis=1)).tolist()
            layout = layout.with_sharded_state(recipe.sharded_state(graph), axes)
        return layout

    def of_graph(self, graph: OpGraph, ops: Sequence[int]) -> Layout:
        """The layout of another graph, each op of which has the label of an op of this one: that in
        ``ops``, by the names of cuts.
        """
        of, batch = np.array(ops, dtype=np.int64), self.dimensions.batch
        is_synchronised = self.batch_norm == "synchronised"
        there = (
            Dimensions.of(graph)
            if batch is None
            else batch_dimensions(graph, batch, is_synchronised=is_synchronised)
        )
        labels = labels_there(self.dimensions, self.labels, of, there)
        stage = None if self.stage is None else self.stage[of]
        return Layout(there, self.mesh, labels, **self._settings, stage=stage)

    def recipe(self) -> Recipe:
        """The recipe that describes the layout; of stages, what is inside of them."""
        words = words_of(self.dimensions, self.mesh.names, self.labels)
        return Recipe.of_labels(self.graph, self.mesh, words, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS}

    def with_sharded_state(self, words: Sequence[str], axes: Sequence[int]) -> Layout:
        """The layout with updates FLAT on some axes, as the words of ``shard_state`` say per op.

        Gradients that are summed for a FLAT update are scattered: so ZeRO 1 and 2 are one.
        Parameters that a training step leaves as they are, since they are frozen, are FLAT too.
        """
        graph, labels = self.graph, self.labels.copy()
        word = np.array(words, dtype=object)
        may = np.array([may_be_flat(form) for form in (*self.dimensions.forms, Form((), (), ()))])
        is_frozen = (graph.stands_for == PARAMETER) & graph.updates.any()
        wanted = ((self.set_of >= 0) | is_frozen) & (word != "none") & may[self.form_of]
        wanted &= (graph.stands_for != PARAMETER) | (word == "parameters")
        for axis in axes:
            labels[axis, wanted & (labels[axis] == 0)] = FLAT
        return replace(self, labels=labels)

    @cached_property
    def is_batch(self) -> NDArray[np.bool_]:
        """Per axis and op, whether the op is cut by the batch: bool [n_axes, n_ops]."""
        by_batch: NDArray[np.bool_] = self.tables.is_batch(self.form_of, self.labels)
        by_batch &= ~self.graph.view
        return by_batch

    # -- ops, their outputs and arguments: the same for every layout of the graph ---------------

    @cached_property
    def columns(self) -> TensorColumns:
        """The outputs and arguments of the graph."""
        return tensor_columns(self.dimensions)

    @property
    def tables(self) -> LabelTables:
        """The meaning of labels, looked up for many ops at once."""
        return self.columns.tables

    @property
    def form_of(self) -> NDArray[np.int32]:
        """The form of each op; the last, which has nothing, where there is none."""
        return self.columns.form_of

    @property
    def first_output(self) -> NDArray[np.int64]:
        """The first output of each op, and one past the last of all."""
        return self.columns.first_output

    @property
    def maker(self) -> NDArray[np.int64]:
        """The op of each output."""
        return self.columns.maker

    @property
    def is_read(self) -> NDArray[np.bool_]:
        """True for arguments that are tensors of some op or placeholder, through edges."""
        return self.columns.is_read

    @property
    def tensor(self) -> NDArray[np.int64]:
        """The output that each argument is, through views; not known: output 0."""
        return self.columns.tensor

    @property
    def set_of(self) -> NDArray[np.int64]:
        """The update that each op belongs to, parameters among them; -1: none."""
        return self.columns.set_of

    @property
    def updates(self) -> Updates:
        """The optimizer's ops by parameter."""
        return self.columns.updates

    @property
    def expert(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The expert of its layer that each op is of, -1: none; and how many the layer has."""
        return self.columns.expert

    @property
    def tensor_bytes(self) -> NDArray[np.uint64]:
        """Bytes of each output."""
        return self.columns.tensor_bytes

    @property
    def carrying(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Outputs that some edge carries from the op that makes them, and such an edge of each."""
        return self.columns.carrying

    @cached_property
    def unit(self) -> NDArray[np.int64]:
        """The unit of each parameter, and of all that updates it; -1: none. int64 [n_ops]."""
        return self._units[0]

    @cached_property
    def is_kept(self) -> NDArray[np.bool_]:
        """True for parameters that stay gathered between the passes, bool [n_ops]."""
        return self._units[1]

    @cached_property
    def padding(self) -> NDArray[np.float64]:
        """The bytes of each parameter, and of all that updates it, as a unit gathers them, over its
        own: rows are shared out as ``torch.chunk`` does, and filled up to equal parts.
        """
        graph, factor = self.graph, np.ones(self.graph.n_ops)
        if not self.units:
            return factor
        for op in np.flatnonzero(graph.stands_for == PARAMETER).tolist():
            rows = (parse_output(graph.outputs[op])[0][1] or (1,))[0]
            flat = zip(self.labels[:, op].tolist(), self.mesh.shape, strict=True)
            k = prod(size for label, size in flat if label == FLAT)
            factor[op] = -(-rows // k) * k / max(rows, 1)
        of_set = np.ones(self.updates.n + 1)
        of_set[self.updates.of_parameter] = factor[self.updates.parameter]
        return np.where(self.set_of >= 0, of_set[self.set_of], factor)

    @cached_property
    def begins_backward(self) -> NDArray[np.int64]:
        """The first op of the backward pass of each unit, or of the module that it is a parameter
        of; one past the last: it has none.
        """
        graph, paths = self.graph, self._units[2]
        first = dict.fromkeys(paths, graph.n_ops)
        runs = self.columns.is_backward & (self.dimensions.form_of >= 0)
        for op in np.flatnonzero(runs).tolist()[::-1]:
            words = module_path(graph.modules[op])
            for length in range(len(words) + 1):
                if (path := ".".join(words[:length])) in first:
                    first[path] = op
        return np.array([first[path] for path in paths], dtype=np.int64)

    @cached_property
    def _units(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], list[str]]:
        """The unit of each op, if it is kept, and the module of each unit."""
        graph, number, homes = self.graph, dict[str, int](), list[str]()
        unit, kept = np.full(graph.n_ops, -1), np.zeros(graph.n_ops, dtype=bool)
        of = np.flatnonzero(graph.stands_for == PARAMETER)
        if not self.units:
            return unit, kept, homes
        words = [*self.units.values(), ""]
        modules = [graph.modules[op] for op in of.tolist()]
        for op, (path, at) in zip(
            of.tolist(), innermost(modules, list(self.units), "units"), strict=True
        ):
            name = graph.names[op] if words[at].startswith("each") else path
            unit[op] = number.setdefault(name, len(number))
            homes += [path] * (len(number) - len(homes))
            kept[op] = words[at].endswith("kept")
        of_set = np.full(self.updates.n + 1, -1)
        of_set[self.updates.of_parameter] = unit[self.updates.parameter]
        return np.where(self.set_of >= 0, of_set[self.set_of], unit), kept, homes

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """Per axis and op, the place on the axis of what is OWNER: int64 [n_axes, n_ops].

        Expert i of a layer is at place i, modulo the size of the axis; where several axes have
        experts, the last of these counts fastest. Of other updates, the set with most to do comes
        first, and goes where the devices have least to do so far, of what is owned.
        """
        n, shape, number = self.updates.n, self.mesh.shape, self.expert[0]
        in_set = np.flatnonzero((self.set_of >= 0) & (number < 0))
        is_owned = np.zeros((len(shape), n + 1), dtype=bool)
        for axis, labels in enumerate(self.labels):
            is_owned[axis, self.set_of[in_set[labels[in_set] == OWNER]]] = True
        places = _places(is_owned, self.columns.update_work, shape)
        of_sets = places[:, self.set_of]
        of_experts = number // self.expert_stride[:, None] % np.array(shape)[:, None]
        return np.where(number >= 0, of_experts, of_sets)

    @cached_property
    def expert_stride(self) -> NDArray[np.int64]:
        """Per axis, how many experts in a row are at one place of it, if they are whole there."""
        has = ((self.labels == OWNER) & (self.expert[0] >= 0)).any(axis=1)
        sizes = np.where(has, self.mesh.shape, 1)
        return np.cumprod(np.append(1, sizes[:0:-1]))[::-1]

    @cached_property
    def experts_cut(self) -> NDArray[np.int64]:
        """The number of experts that each op shares out on each axis: int64 [n_axes, n_ops]; 0:
        none.

        Of an op that one expert has whole, it is those of its layer.
        """
        graph, (number, count) = self.graph, self.expert
        is_whole = (self.labels == OWNER) & (number >= 0)
        counts = np.where(is_whole, count, self.tables.experts(self.form_of, self.labels))
        return np.where(graph.view | graph.placeholder | graph.updates, 0, counts)

    def loaded(self, way: NDArray[np.int64], ops: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ways [n] in which ops share something, with the load of experts as it is."""
        thousandths = round(1000 * self.expert_imbalance)
        cut = self.experts_cut[:, ops]
        if thousandths == 1000 or not cut.any():
            return way
        axis = (cut > 0).argmax(axis=0)
        of_axis = cut[axis, np.arange(len(ops))]
        is_whole = self.labels[axis, ops] == OWNER
        code = np.stack([way, axis, of_axis, is_whole])
        some, which = np.unique(code, axis=1, return_inverse=True)
        ways = [
            self.ways.loaded(one, at, Load(thousandths, self._first(at, n, bool(whole)), n))
            if n
            else one
            for one, at, n, whole in some.T.tolist()
        ]
        return np.array(ways, dtype=np.int64)[which.ravel()]

    def _first(self, axis: int, n: int, is_whole: bool) -> int:
        """The number of experts, of so many, at the first place of an axis."""
        size = self.mesh.shape[axis]
        if is_whole:
            place = np.arange(n) // self.expert_stride[axis] % size
            return int((place == 0).sum())
        return int(part_weights(n, self.mesh.axes[axis].shares or (1.0,) * size)[0])

    # -- specs -------------------------------------------------------------------------------------

    @cached_property
    def made(self) -> NDArray[np.int32]:
        """Per axis and output, how it lies: int32 [n_axes, n_outputs]."""
        which = np.arange(len(self.maker)) - self.first_output[self.maker]
        specs = self.tables.made(self.form_of[self.maker], which, self.labels[:, self.maker])
        if self.batch_norm == "local":
            of = np.flatnonzero(sums_gradients(self.graph)[self.maker] & (which > 0))
            is_cut = self.tables.exchanged(self.form_of, self.labels)[:, self.maker[of]] > 0
            specs[:, of] = np.where(is_cut & (specs[:, of] == REPLICATE), PARTIAL, specs[:, of])
        return specs

    @cached_property
    def wanted(self) -> NDArray[np.int32]:
        """Per axis and argument, the spec that its tensor must have: int32 [n_axes, n_arguments].

        In factors of the tensor as it was made, before views.
        """
        d = self.dimensions
        which = np.arange(len(d.reader)) - d.first[d.reader]
        spec = self.tables.needed(self.form_of[d.reader], which, self.labels[:, d.reader])
        wanted = np.where(spec < 0, spec, self.columns.backs[d.back, np.maximum(spec, 0)])
        if self.reducer is not None:
            whole = self.reducer.is_summed_whole(d.edge) & np.isin(wanted, (FLAT, OWNER))
            wanted = np.where(whole, np.int32(REPLICATE), wanted)
        return wanted

    @cached_property
    def conversion(self) -> NDArray[np.int8]:
        """The collective that each argument needs on each axis (:func:`.specs.conversion`)."""
        have = self.made[:, self.tensor]
        kinds = conversion(have, self.wanted)
        is_elsewhere = (
            self.owner[:, self.maker[self.tensor]] != self.owner[:, self.dimensions.reader]
        )
        is_elsewhere &= (have == OWNER) & (self.wanted == OWNER)
        kinds = np.where(is_elsewhere, np.int8(FORBIDDEN), kinds)
        is_bad = (kinds == FORBIDDEN) & self.is_read
        if is_bad.any():
            axis, at = np.argwhere(is_bad)[0].tolist()
            d, names = self.dimensions, self.graph.names
            wanted, have = self.wanted[axis, at], self.made[axis, self.tensor[at]]
            raise InputError(
                f"axis {self.mesh.names[axis]!r}: op {names[d.reader[at]]!r} needs the tensor of "
                f"{names[d.root[at]]!r} {_SPECS.get(int(wanted), 'cut')}, and it is "
                f"{_SPECS.get(int(have), 'cut')}: no collective turns one into the other, so label "
                "one of the two otherwise"
            )
        return np.where(self.is_read, kinds, np.int8(-1))

    # -- what each device has and does -------------------------------------------------------------

    @cached_property
    def ways(self) -> MeshWays:
        """The ways in which things are shared on the mesh."""
        return MeshWays(self.mesh, self.tables.sizes)

    @cached_property
    def made_way(self) -> NDArray[np.int64]:
        """The way in which each output is shared."""
        return self.way(np.arange(len(self.maker)), self.made, self.owner[:, self.maker])

    @cached_property
    def wanted_way(self) -> NDArray[np.int64]:
        """The way in which what each argument needs of its tensor is shared."""
        return self.way(self.tensor, self.wanted, self.owner[:, self.dimensions.reader])

    def way(
        self, tensor: NDArray[np.int64], specs: NDArray[np.int32], owner: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The ways [n] in which tensors are shared, from specs and owners [n_axes, n]."""
        if not len(self.maker):
            return np.zeros(specs.shape[1], dtype=np.int64)
        maker = self.maker[tensor]
        which = tensor - self.first_output[maker]
        size = self.tables.size_class(self.form_of[maker], which, np.maximum(specs, 0))
        classes = np.where(
            specs >= 0, size, np.where((specs == FLAT) | (specs == PICKED), EVEN, ALL)
        )
        return self.ways.of(np.where(specs == OWNER, self.ways.owned + owner, classes))

    @cached_property
    def work_way(self) -> NDArray[np.int64]:
        """The way in which the work of each op is shared."""
        classes = self.tables.work_class(self.form_of, self.labels)
        is_owned = (self.labels == OWNER) & ~self.graph.view
        classes = np.where(is_owned, self.ways.owned + self.owner, classes)
        classes[:, self.graph.view] = ALL
        return self.loaded(self.ways.of(classes), np.arange(self.graph.n_ops))

    @cached_property
    def homes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The device whose copies each device reads, int64 [n, k], and which row holds for each op.

        What is OWNER on an axis is at one place of it; so is a view of it.
        """
        k, shape = self.mesh.size, self.mesh.shape
        d, graph = self.dimensions, self.graph
        shown = np.arange(graph.n_ops)
        views = np.flatnonzero(graph.view & (np.diff(d.first) > 0))
        root = d.root[d.first[views]]
        shown[views] = np.where(root >= 0, root, views)
        place = np.where(self.labels == OWNER, self.owner, -1)
        place[:, graph.view] = -1
        place = place[:, shown]
        code = np.zeros(graph.n_ops, dtype=np.int64)
        for of_axis, size in zip(place, shape, strict=True):
            code = code * (size + 1) + of_axis + 1
        some, home = np.unique(code, return_inverse=True)
        rows = np.empty((len(some), k), dtype=np.int64)
        for i, one in enumerate(some.tolist()):
            places = self.ways.places.copy()
            for axis in reversed(range(len(shape))):
                one, at = divmod(one, shape[axis] + 1)
                if at:
                    places[axis] = at - 1
            rows[i] = np.ravel_multi_index(tuple(places), shape)
        return rows, home

    @cached_property
    def share(self) -> NDArray[np.float64]:
        """Part of each op's work that each device does, float64 [n_ops, k]."""
        way = self.work_way  # Before fractions are asked for: these are of all ways that are known.
        return self.ways.fractions[way]

    @cached_property
    def exchanged(self) -> NDArray[np.int64]:
        """Bytes that the parts of each op all-reduce while they run: int64 [n_axes, n_ops].

        Those of the largest part on the other axes. An axis on which they are exchanged, too, makes
        them no smaller.
        """
        bytes_ = self.tables.exchanged(self.form_of, self.labels)
        if self.batch_norm == "local" and bytes_.any():
            bytes_ = np.where(self.columns.is_batch_norm, 0, bytes_)
        if not bytes_.any():
            return bytes_
        classes = self.tables.work_class(self.form_of, self.labels)
        unsummed = np.where(bytes_ > 0, ALL, classes)
        for axis in range(len(classes)):
            others = unsummed.copy()
            others[axis] = ALL
            some = np.flatnonzero(bytes_[axis])
            if not len(some):
                continue
            # Ways are found before fractions are asked for: these are of all that are known.
            way = self.ways.of(others[:, some])
            largest = self.ways.fractions[way].max(axis=1, initial=0)
            bytes_[axis, some] = np.ceil(bytes_[axis, some] * largest)
        return bytes_

    # -- bytes -------------------------------------------------------------------------------------

    @cached_property
    def argument_bytes(self) -> NDArray[np.uint64]:
        """Bytes of each argument that is read for its values."""
        edge = self.dimensions.edge
        some = self.is_read & (self.wanted != ANY).any(axis=0)
        return np.where(some, self.graph.bytes[np.where(some, edge, 0)], np.uint64(0))


def _dimensions(graph: OpGraph, recipe: Recipe) -> Dimensions:
    """The dimensions that a recipe speaks of: those of calls, or, where these are not known and the
    recipe shares the batch alone, the batch as sizes tell it.
    """
    batch = batch_size(graph)
    if graph.args is not None or batch is None or not recipe.shares_only_the_batch:
        return Dimensions.of(graph)
    return batch_dimensions(graph, batch, is_synchronised=recipe.batch_norm == "synchronised")


def _places(
    is_owned: NDArray[np.bool_], work: NDArray[np.float64], shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """The place on each axis of the updates that one device of it owns: the update with most to do
    first, where the devices have least to do so far.
    """
    places = np.zeros(is_owned.shape, dtype=np.int64)
    order = np.argsort(-work, kind="stable")
    order = order[np.flatnonzero(is_owned[:, order].any(axis=0))]
    if len(shape) == 1:
        on_place = [0.0] * shape[0]
        for unit, seconds in zip(order.tolist(), work[order].tolist(), strict=True):
            least = on_place.index(min(on_place))
            places[0, unit] = least
            on_place[least] += seconds
        return places
    load = np.zeros(shape)
    for unit in order.tolist():
        own = np.flatnonzero(is_owned[:, unit])
        of_places = load.sum(axis=tuple(np.flatnonzero(~is_owned[:, unit]).tolist()))
        at = np.unravel_index(int(of_places.argmin()), of_places.shape)
        slab: list[Any] = [slice(None)] * len(shape)
        for axis, place in zip(own.tolist(), at, strict=True):
            places[axis, unit] = slab[axis] = int(place)
        load[tuple(slab)] += work[unit]
    return places
