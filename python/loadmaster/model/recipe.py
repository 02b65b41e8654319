"""Recipe: what is split, replicated and sharded how, in terms of the user's modules and tensors.

A recipe is small and readable. It is read from TOML or JSON, and written by hand or by a solver.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import (
    check_format,
    naming,
    parse_json,
    parse_toml,
    read_bytes,
    read_text,
    write_bytes,
)
from loadmaster.base.quoting import json_text
from loadmaster.base.text import Printed, shown
from loadmaster.base.units import SIZE, counted, parse_bytes
from loadmaster.model.cluster import Cluster
from loadmaster.model.compression import compressed, nested
from loadmaster.model.graph import OpGraph
from loadmaster.model.micro import Micro
from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import Places, Selector
from loadmaster.model.recomputed import RecomputeLine

FORMAT = "loadmaster-recipe"
VERSION = 1

#: The label of an op that every device of an axis does as a whole.
WHOLE = "whole"

#: The spec of a tensor that every device of an axis has as a whole.
REPLICATE = "Replicate"

#: Left to a solver.
AUTO = "auto"

#: Bytes of gradients that one collective sums: the default of DistributedDataParallel, 25 MB.
BUCKET_BYTES = 25_000_000

#: Parts of an update that are sharded (ZeRO 1, 2 and 3).
SHARD_STATES = ("none", "optimizer", "gradients", "parameters")

#: Samples from which batch norms take their statistics.
BATCH_NORMS = ("local", "synchronised")

#: Gathered parameters of a unit after the forward pass: they are gathered again
#: in the backward pass, or kept until it has used them. "each": by a collective for each of them.
UNITS = ("again", "kept", "each again", "each kept")

_LABEL = re.compile(r"[A-Za-z_][\w.-]*")
_SPEC = re.compile(r"Replicate|Shard\(\d{1,3}\)(?:\.\d{1,3})?|flat|owner|auto")
_AXIS = re.compile(r"[A-Za-z_]\w*")


def imbalance(value: object) -> float:
    """The busiest device's work over its fair share, checked: 1 or more."""
    factor = checks.positive("expert_imbalance", value)
    if factor < 1:
        raise InputError(
            f"expert_imbalance is {factor:g}: wants 1, if tokens are spread evenly, or more"
        )
    return factor


@dataclass(frozen=True)
class MeshAxis:
    """An axis of a mesh: its ``name``, its ``size``, and the ``shares`` of the work along it.

    Shares are positive numbers, one per place on the axis, and count in proportion. None: equal.
    """

    name: str
    size: int
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _AXIS.fullmatch(self.name):
            raise InputError(f"an axis is named {shown(self.name)}: wants letters and digits")
        checks.integer(f"size of axis {self.name!r}", self.size, 1, 2**20)
        if self.shares is None:
            return
        noun = f"shares of axis {self.name!r}"
        shares = tuple(checks.positive(noun, share) for share in self.shares)
        if len(shares) != self.size:
            raise InputError(f"{noun}: {counted(len(shares), 'share')} for {self.size} devices")
        object.__setattr__(self, "shares", shares)


@dataclass(frozen=True)
class DeviceMesh:
    """Devices on named axes, as in DTensor and JAX.

    Attributes
    ----------
    axes : tuple of MeshAxis
        The first changes slowest: neighbours on the last are neighbours in ``devices``.
    devices : tuple of str
        Names; empty: the first devices of the cluster, as many as there are.

    Examples
    --------
    >>> mesh = DeviceMesh.of({"dp": 2, "tp": 2}, ["a", "b", "c", "d"])
    >>> mesh.shape, mesh.groups("dp").tolist(), mesh.groups("tp").tolist()
    ((2, 2), [[0, 2], [1, 3]], [[0, 1], [2, 3]])
    """

    axes: tuple[MeshAxis, ...]
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "devices", tuple(self.devices))
        if not self.axes:
            raise InputError("the mesh has no axis: name one and its size, such as tp = 4")
        for noun, names in (("axis", self.names), ("device", self.devices)):
            if twice := [name for i, name in enumerate(names) if name in names[:i]]:
                raise InputError(f"the mesh has the {noun} {twice[0]!r} twice")
        if self.devices and len(self.devices) != self.size:
            sizes = " x ".join(f"{axis.name} {axis.size}" for axis in self.axes)
            raise InputError(
                f"the mesh names {counted(len(self.devices), 'device')} and its axes are {sizes}: "
                f"name {self.size}, or none, for the first devices of the cluster"
            )

    @classmethod
    def of(cls, sizes: Mapping[str, int], devices: Iterable[str] = ()) -> DeviceMesh:
        """From the sizes of its axes by name."""
        return cls(tuple(MeshAxis(name, size) for name, size in sizes.items()), tuple(devices))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    def groups(self, axis: str) -> NDArray[np.int64]:
        """The sets of devices along an axis, as indices into ``devices``: int64 [n, size]."""
        places = np.arange(self.size).reshape(self.shape)
        return np.moveaxis(places, self.names.index(axis), -1).reshape(-1, self._size(axis))

    def _size(self, axis: str) -> int:
        return self.shape[self.names.index(axis)]

    def on(self, cluster: Cluster) -> NDArray[np.int32]:
        """Index of each device in a cluster, int32 [size].

        Raises
        ------
        InputError
            The cluster lacks a device, or has fewer than the mesh.
        """
        if self.devices:
            return np.array([cluster.index(name) for name in self.devices], dtype=np.int32)
        if self.size > cluster.n_devices:
            raise InputError(
                f"the mesh has {self.size} devices, and {cluster!r} only {cluster.n_devices}"
            )
        return np.arange(self.size, dtype=np.int32)


class RecipeLine(NamedTuple):
    """A line of a recipe, and the ops of a graph that it means, as indices."""

    table: str
    axis: str
    selector: str
    word: str
    ops: NDArray[np.int64]

    def __str__(self) -> str:
        return f"{self.table}.{self.axis}, {self.selector!r}"


class _Words(NamedTuple):
    """The words that one of a recipe's tables may have."""

    table: str
    form: re.Pattern[str]
    known: str


_LABELS = _Words("labels", _LABEL, "whole, flat, owner, auto or a cut, such as row or column")
_SPECS = _Words("parameters", _SPEC, "Replicate, Shard(0), Shard(1), ..., flat, owner or auto")


@dataclass(frozen=True)
class Recipe(Printed):
    """Splits, replicas and shards of a model, in terms of its modules and tensors.

    Attributes
    ----------
    mesh : Mesh
        The devices, on named axes; or the sizes of axes by name, for the cluster's first devices.
    labels : mapping of axis to mapping of selector to word
        How ops are shared along an axis: ``"whole"`` (every device does all of it), a cut's name
        (``"row"``, ``"column"``, ``"contraction"``, ...) or what its dimension is in the model
        (``"batch"``, ``"token"``, ``"head"``, ``"feature"``, ``"expert"``), ``"flat"`` or
        ``"owner"`` (of an update: by equal parts of its storage, or one device for each
        parameter; of an expert: all of it on one device), ``"auto"``. A selector is a pattern of
        module paths, then, if wanted, a space, a kind of op, and which of these ops of the module:
        ``"h.*.fc"``, ``"h.*.fc aten.mm.default#1"``. Of lines that mean an op the last counts.
    parameters : mapping of axis to mapping of pattern to spec
        How parameters, buffers and inputs lie on an axis, by their names: ``"Replicate"``,
        ``"Shard(0)"``, ``"flat"``, ``"owner"``, ``"auto"``. ``"Shard(1).2"`` is by the third factor
        of axis 1, where views take that axis apart.
    rest : "whole" or "auto"
        What no line speaks of.
    shard_state : mapping of pattern to word
        What of the updates of a module's parameters is sharded: ``"none"``, ``"optimizer"``, or
        ``"gradients"``, ``"parameters"`` too (ZeRO 1, 2 and 3).
    recompute : tuple of patterns
        Modules whose activations are not kept but recomputed in the backward pass. Behind bars,
        selectors of the ops of theirs that alone are: ``"h.* | h.* aten._softmax.default"``.
    units : mapping of pattern to word
        Modules whose parameters are gathered together, and whose gradients are scattered together,
        by one collective each, where ``shard_state`` has them sharded: ``"again"``, they are
        gathered a second time in the backward pass, or ``"kept"`` from the forward pass. By ``"each
        again"`` and ``"each kept"`` every parameter is a unit of its own. Of nested ones the
        innermost counts, and ``"."``, the model, has the rest. None: buckets by size. With
        micro-batches, what is kept is gathered once for all of them, and all else for each.
    batch_norm : "local" or "synchronised"
        Whether batch norms have the statistics of their part of the batch, or of all of it.
    bucket_bytes : int
        Bytes of gradients that one collective sums.
    expert_imbalance : float
        How much more than its fair share of the experts' work the busiest device does, where
        devices share experts: 1 or more.
    stages : mapping of selector to int
        The stage of a pipeline that ops are in, from 0. Of lines that mean an op the last counts;
        what no line means is in stage 0.
    micro : Micro or mapping, optional
        How many micro-batches go through the stages, and by which schedule. The first axis of the
        mesh is then that of the stages, in the order of the samples: of p slices of the mesh along
        it, stage k is on slice k mod p (by "zb-v", stages p to 2 p - 1 on the slices in reverse);
        with ``in_turn``, the first stage is on the first devices, and so on. Its other axes are
        inside of a stage: ``labels``, ``parameters`` and ``shard_state`` speak of these alone, and
        without any a stage is on one device.
    overrides : mapping of pattern to device
        Ops, by name, that run on this device. Not with micro-batches.
    name : str
        What it is called.

    In patterns ``*`` stands for text within a word of a path, ``**`` for any number of words:
    ``h.*`` are the layers, ``h.**`` all that is in them too. ``.`` is the model itself.

    Raises
    ------
    InputError
        An axis that the mesh lacks, a word or pattern of another form; it is named.

    Examples
    --------
    >>> import loadmaster as lm
    >>> recipe = lm.Recipe.from_toml('''
    ... [mesh.axes]
    ... tp = 4
    ... [labels.tp]
    ... "h.*.fc" = "column"
    ... [parameters.tp]
    ... "h.*.fc.weight" = "Shard(0)"
    ... ''')
    >>> words = recipe.words(lm.read("example:gpt3-330m"))["tp"]
    >>> words.count("column"), words.count("Shard(0)")
    (336, 24)
    """

    mesh: DeviceMesh
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rest: str = WHOLE
    shard_state: Mapping[str, str] = field(default_factory=dict)
    recompute: tuple[str, ...] = ()
    batch_norm: str = "local"
    bucket_bytes: int = BUCKET_BYTES
    expert_imbalance: float = 1.0
    stages: Mapping[str, int] = field(default_factory=dict)
    micro: Micro | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    units: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.to_toml()

    def __repr__(self) -> str:
        axes = " x ".join(f"{axis.name} {axis.size}" for axis in self.mesh.axes)
        stages = len(set(self.stages.values()) | {0}) if self.micro is not None else 0
        micro = f", {counted(stages, 'stage')}, {self.micro.n} micro-batches" if self.micro else ""
        lines = sum(map(len, (*self.labels.values(), *self.parameters.values())))
        return f"Recipe({axes}{micro}, {counted(lines, 'line')} of labels and parameters)"

    def __post_init__(self) -> None:
        if isinstance(self.mesh, Mapping):
            object.__setattr__(self, "mesh", DeviceMesh.of(self.mesh))
        if not isinstance(self.mesh, DeviceMesh):
            raise InputError(f"mesh is {shown(self.mesh)}: wants sizes of axes by name, or a Mesh")
        if not isinstance(self.name, str):
            raise InputError(f"name is {shown(self.name)}: wants a text")
        checks.one_of("rest", self.rest, (WHOLE, AUTO))
        checks.one_of("batch_norm", self.batch_norm, BATCH_NORMS)
        if self.micro is not None and not isinstance(self.micro, Micro):
            object.__setattr__(self, "micro", Micro.from_document(self.micro))
        checked: dict[str, Any] = {
            "labels": self._checked(self.labels, _LABELS),
            "parameters": self._checked(self.parameters, _SPECS),
            "shard_state": _texts("shard_state", self.shard_state),
            "units": _texts("units", self.units),
            "overrides": _texts("overrides", self.overrides),
            "recompute": _patterns("recompute", self.recompute),
            "bucket_bytes": parse_bytes(self.bucket_bytes, "bucket_bytes"),
            "expert_imbalance": imbalance(self.expert_imbalance),
        }
        for line in checked["recompute"]:
            with naming("recompute"):
                RecomputeLine.parse(line)
        for pattern, word in checked["shard_state"].items():
            checks.one_of(f"shard_state of {pattern!r}", word, SHARD_STATES)
        for pattern, word in checked["units"].items():
            checks.one_of(f"units of {pattern!r}", word, UNITS)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "stages", self._checked_stages())

    def _checked_stages(self) -> dict[str, int]:
        """The stages, if they go with the rest."""
        if not isinstance(self.stages, Mapping):
            raise InputError(f"stages is {shown(self.stages)}: wants a table")
        if self.micro is None:
            if self.stages:
                raise InputError("the recipe has stages and no micro: say how many micro-batches")
            return {}
        along = self.mesh.axes[0]
        if along.shares is not None:
            raise InputError(
                f"axis {along.name!r} is that of the stages and has shares: lines of [stages] say "
                "what each stage does"
            )
        if len(self.mesh.axes) == 1 and self.shard_state:
            raise InputError(
                "shard_state shards updates inside of a stage, and a stage has one device: give "
                "the mesh a second axis"
            )
        if self.overrides:
            raise InputError(
                f"overrides has {next(iter(self.overrides))!r}, and the recipe has micro-batches: "
                "each op is on the devices of its stage. Write the op's module in [stages] instead"
            )
        if self.is_open:
            raise InputError(
                "the recipe has micro-batches and leaves labels to a solver: write them all, or "
                'have method "pipeline" find them without a recipe'
            )
        in_turn = self.micro.in_turn
        if in_turn and (len(self.mesh.axes) > 1 or sum(in_turn) != along.size):
            raise InputError(
                f"in_turn has {sum(in_turn)} devices in all, and the mesh axes of "
                f"{' x '.join(map(str, self.mesh.shape))}: wants one axis of as many"
            )
        most = (len(in_turn) or along.size * self.micro.virtual) - 1
        for selector, stage in self.stages.items():
            with naming(f"stages, {shown(selector)}"):
                Selector.parse(selector)
                checks.integer("stage", stage, 0, most)
        return dict(self.stages)

    @property
    def is_open(self) -> bool:
        """True if it leaves something to a solver: ``"auto"``.

        >>> Recipe({"tp": 2}).is_open, Recipe({"tp": 2}, {"tp": {"h.*": "auto"}}).is_open
        (False, True)
        """
        tables = (*self.labels.values(), *self.parameters.values())
        return self.rest == AUTO or any(AUTO in table.values() for table in tables)

    @property
    def shares_only_the_batch(self) -> bool:
        """True if every axis shares the batch, and the recipe says nothing else of ops and tensors.

        >>> Recipe({"dp": 2}, {"dp": {"**": "batch"}}).shares_only_the_batch
        True
        """
        by_batch = [self.labels.get(axis) == {"**": "batch"} for axis in self.mesh.names]
        return all(by_batch) and not self.parameters and self.rest == WHOLE

    @property
    def inside(self) -> Recipe | None:
        """The recipe inside of a stage, on a mesh of the axes inside of it, whose devices
        have no names. Without micro-batches it is the recipe itself; None: stages are on one device
        each.

        >>> from loadmaster.model.micro import Micro
        >>> recipe = Recipe({"pp": 2, "tp": 4}, {"tp": {"**": "column"}}, micro=Micro(8))
        >>> recipe.inside.mesh.shape, recipe.inside.labels
        ((4,), {'tp': {'**': 'column'}})
        """
        if self.micro is None:
            return self
        axes = self.mesh.axes[1:]
        return replace(self, mesh=DeviceMesh(axes), stages={}, micro=None) if axes else None

    def _checked(self, tables: Any, words: _Words) -> dict[str, dict[str, str]]:
        """A table per axis, each selector and word of the form that it must have."""
        if not isinstance(tables, Mapping):
            raise InputError(f"{words.table} is {shown(tables)}: wants a table per axis")
        for axis in tables:
            if self.micro is not None and axis == self.mesh.names[0]:
                raise InputError(
                    f"{words.table} has the axis {axis!r}, which is that of the stages, since the "
                    "recipe has micro-batches: what a stage shares is said of the mesh's other axes"
                )
            if axis not in self.mesh.names:
                raise InputError(
                    f"{words.table} has an axis {shown(axis)}, and the mesh has "
                    f"{', '.join(self.mesh.names)}"
                )
        checked = {axis: _texts(f"{words.table}.{axis}", table) for axis, table in tables.items()}
        for axis, table in checked.items():
            for selector, word in table.items():
                noun = f"{words.table}.{axis}, {selector!r}"
                with naming(noun):
                    Selector.parse(selector)
                if not words.form.fullmatch(word):
                    raise InputError(f"{noun} is {shown(word)}: wants {words.known}")
        return {axis: table for axis, table in checked.items() if table}

    # -- what it says of a graph ------------------------------------------------------------------

    @classmethod
    def of_labels(
        cls,
        graph: OpGraph,
        mesh: DeviceMesh,
        words: Mapping[str, Sequence[str | None]],
        **rest: Any,
    ) -> Recipe:
        """The recipe of a word per axis and op, in few lines.

        Parameters
        ----------
        graph : OpGraph
        mesh : Mesh
        words : mapping of axis to sequence of str
            Per op of the graph: of a placeholder a spec, else a label, as :meth:`words` gives
            them. None: any, for views and others that have no label.
        rest
            Other attributes.

        Examples
        --------
        >>> import loadmaster as lm
        >>> graph = lm.read("example:gpt3-330m")
        >>> mesh = DeviceMesh.of({"dp": 4})
        >>> words = ["Replicate" if p else "row" for p in graph.placeholder]
        >>> Recipe.of_labels(graph, mesh, {"dp": words}).labels
        {'dp': {'**': 'row'}}
        """
        sides = _sides(graph)
        tables: dict[str, dict[str, dict[str, str]]] = {}
        for kind, (ops, places) in sides.items():
            start = _start(kind, rest.get("rest", WHOLE))
            for axis, column in words.items():
                if len(column) != graph.n_ops:
                    raise InputError(
                        f"words of axis {axis!r}: {len(column)} for {counted(graph.n_ops, 'op')}"
                    )
                numbers = {start: 0}
                wanted = [
                    -1 if (word := column[op]) is None else numbers.setdefault(word, len(numbers))
                    for op in ops.tolist()
                ]
                known, table = list(numbers), tables.setdefault(kind, {}).setdefault(axis, {})
                for selector, word in compressed(places, np.array(wanted, dtype=np.int64), 0):
                    # A line that is written again takes effect at its new place.
                    table.pop(str(selector), None)
                    table[str(selector)] = known[word]
        return cls(mesh, tables["labels"], tables["parameters"], **rest)

    def words(self, graph: OpGraph) -> dict[str, list[str]]:
        """Per axis and op of a graph the label, or of a placeholder the spec.

        ``"auto"``: left to a solver. The axis of stages is not among them.

        Raises
        ------
        InputError
            A line means nothing in the graph; it is named, with what may have been meant.
        """
        axes = self.mesh.names if self.micro is None else self.mesh.names[1:]
        by_axis = {axis: np.empty(graph.n_ops, dtype=object) for axis in axes}
        for column in by_axis.values():
            column[:] = _start("labels", self.rest)
            column[graph.placeholder] = _start("parameters", self.rest)
        for line in self.lines(graph):
            by_axis[line.axis][line.ops] = line.word
        return {axis: column.tolist() for axis, column in by_axis.items()}

    def lines(self, graph: OpGraph) -> Iterator[RecipeLine]:
        """Its lines in their order, with the ops of a graph that each means.

        Raises
        ------
        InputError
            As :meth:`words`.
        """
        for table, (ops, places) in _sides(graph).items():
            for axis, lines in getattr(self, table).items():
                for text, word in lines.items():
                    selector = Selector.parse(text)
                    meant = places.matching(selector)
                    if not len(meant):
                        noun = "op" if table == "labels" else "parameter, buffer or input"
                        near = places.near(selector)
                        raise InputError(f"recipe: {table}.{axis}: no {noun} is {text!r}{near}")
                    yield RecipeLine(table, axis, text, word, ops[meant])

    @classmethod
    def of_stages(
        cls, graph: OpGraph, mesh: DeviceMesh, stage: NDArray[np.integer], micro: Micro, **rest: Any
    ) -> Recipe:
        """The recipe of a stage per op, in few lines.

        Parameters
        ----------
        graph : OpGraph
        mesh : Mesh
            The devices of the stages; its first axis is that of the stages.
        stage : int [n_ops]
            What is read of ops that run.
        micro : Micro
        rest
            Other attributes, such as labels inside of stages.

        Examples
        --------
        >>> import loadmaster as lm
        >>> graph = lm.read("example:gpt3-330m")
        >>> late = np.array(["ln_f" in module for module in graph.modules])
        >>> Recipe.of_stages(graph, DeviceMesh.of({"pp": 2}), late * 1, Micro(2)).stages
        {'ln_f.**': 1}
        """
        wanted = np.where(graph.reduced.runs, stage, -1).astype(np.int64)
        table: dict[str, int] = {}
        for selector, number in nested(_modules(graph), wanted, 0):
            # A line that is written again takes effect at its new place.
            table.pop(str(selector), None)
            table[str(selector)] = number
        return cls(mesh, stages=table, micro=micro, **rest)

    def stage_of(self, graph: OpGraph) -> NDArray[np.int32]:
        """The stage of each op of a graph: int32 [n_ops].

        The ops of an optimizer count as those of their parameter, in its module. What does not run,
        such as a parameter, is in the stage of the op that has it.

        Raises
        ------
        InputError
            A line means nothing in the graph; it is named, with what may have been meant.
        """
        stages = np.zeros(graph.n_ops, dtype=np.int32)
        places = _modules(graph)
        for text, stage in self.stages.items():
            selector = Selector.parse(text)
            meant = places.matching(selector)
            if not len(meant):
                near = places.near(selector)
                raise InputError(f"recipe: stages: no op is {text!r}{near}")
            stages[meant] = stage
        reduced = graph.reduced
        return stages[reduced.op_of[reduced.map]]

    def sharded_state(self, graph: OpGraph) -> list[str]:
        """Per op the word of :attr:`shard_state` for its module, ``"none"`` where no line speaks.

        The ops and slots of an optimizer count as those of the module of their parameter.

        Raises
        ------
        InputError
            A line means nothing in the graph.
        """
        column = ["none"] * graph.n_ops
        for pattern, word in self.shard_state.items():
            for op in self._of_modules(graph, pattern, "shard_state"):
                column[op] = word
        return column

    @staticmethod
    def _of_modules(graph: OpGraph, pattern: str, table_name: str) -> list[int]:
        paths = [".".join(module_path(module)) for module in graph.modules]
        places, selector = Places(paths, graph.kinds), Selector(pattern)
        meant: list[int] = places.matching(selector).tolist()
        if not meant:
            raise InputError(
                f"recipe: {table_name}: no module is {pattern!r}{places.near(selector)}"
            )
        return meant

    # -- on disk ----------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """As plain data that :meth:`from_document` reads back; what is usual is left out."""
        mesh = {
            "axes": {axis.name: axis.size for axis in self.mesh.axes},
            "shares": {a.name: list(a.shares) for a in self.mesh.axes if a.shares is not None},
            "devices": list(self.mesh.devices),
        }
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "mesh": {key: value for key, value in mesh.items() if value},
        }
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            document[one.name] = list(value) if isinstance(value, tuple) else value
        document["micro"] = None if self.micro is None else self.micro.to_document()
        document["bucket_bytes"] = SIZE.write(float(self.bucket_bytes))
        usual = {"rest": WHOLE, "batch_norm": "local", "expert_imbalance": 1.0}
        usual["bucket_bytes"] = SIZE.write(float(BUCKET_BYTES))
        kept = {k: v for k, v in document.items() if v and usual.get(k) != v}
        # Tables come after the values of the recipe itself, which TOML wants.
        return dict(sorted(kept.items(), key=lambda row: isinstance(row[1], Mapping)))

    @classmethod
    def from_document(cls, document: Any, source: str = "recipe") -> Recipe:
        """From plain data with the attributes' names; ``source`` is named in errors.

        ``mesh`` has ``axes`` (sizes by name), and may have ``shares`` (lists by name) and
        ``devices``.
        """
        if isinstance(document, Mapping):
            document = {"format": FORMAT, "version": VERSION, **document}
        check_format(document, FORMAT, VERSION, "a recipe", source)
        with naming(source):
            known = [one.name for one in fields(cls)]
            checks.known_keys("recipe", document, ("format", "version", *known))
            entries = {key: value for key, value in document.items() if key in known}
            if "mesh" not in entries:
                raise InputError("the recipe has no mesh: write [mesh.axes], and under it tp = 4")
            entries["mesh"] = _mesh(entries["mesh"])
            if checks.is_number(size := entries.get("bucket_bytes")):
                entries["bucket_bytes"] = SIZE.read(size, "bucket_bytes")
            return cls(**entries)

    @classmethod
    def from_toml(cls, text: str, source: str = "recipe") -> Recipe:
        """From TOML text; ``source`` is named in errors."""
        return cls.from_document(parse_toml(text, source), source)

    def to_toml(self) -> str:
        """As TOML that :meth:`from_toml` reads back.

        >>> print(Recipe(DeviceMesh.of({"dp": 4}), {"dp": {"**": "row"}}).to_toml(), end="")
        format = "loadmaster-recipe"
        version = 1
        <BLANKLINE>
        [mesh.axes]
        dp = 4
        <BLANKLINE>
        [labels.dp]
        "**" = "row"
        """
        import tomli_w

        return tomli_w.dumps(self.to_document())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recipe:
        """From a file of JSON, if its name ends in ``.json`` or ``.json.gz``, else of TOML.

        Raises
        ------
        InputError
            The file cannot be read or describes no valid recipe.
        """
        if _is_json(path):
            return cls.from_document(parse_json(read_bytes(path), path), os.fspath(path))
        return cls.from_toml(read_text(path), os.fspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes JSON, if the name ends in ``.json`` or ``.json.gz``, else TOML."""
        as_json = _is_json(path)
        text = f"{json_text(self.to_document(), indent=1)}\n" if as_json else self.to_toml()
        write_bytes(path, text.encode())


def _is_json(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).removesuffix(".gz").endswith(".json")


def _sides(graph: OpGraph) -> dict[str, tuple[NDArray[np.intp], Places]]:
    """By table of a recipe, what of a graph its lines speak of: indices, and where they stand."""
    ops, tensors = np.flatnonzero(~graph.placeholder), np.flatnonzero(graph.placeholder)
    modules, kinds, names = graph.modules, graph.kinds, graph.names
    return {
        "labels": (
            ops,
            Places((modules[op] for op in ops.tolist()), (kinds[op] for op in ops.tolist())),
        ),
        "parameters": (
            tensors,
            Places((names[op] for op in tensors.tolist()), [""] * len(tensors)),
        ),
    }


def _modules(graph: OpGraph) -> Places:
    """The modules that ops stand in, those of an optimizer with their parameters."""
    return Places((".".join(module_path(module)) for module in graph.modules), graph.kinds)


def _start(table: str, rest: str) -> str:
    """The word of what no line of a table speaks of."""
    return REPLICATE if table == "parameters" and rest == WHOLE else rest


def _texts(name: str, table: Any) -> dict[str, str]:
    if not isinstance(table, Mapping):
        raise InputError(f"{name} is {shown(table)}: wants a table")
    for key, value in table.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InputError(f"{name}, {shown(key)} is {shown(value)}: wants a text")
    return dict(table)


def _patterns(name: str, values: Any) -> tuple[str, ...]:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not all(isinstance(value, str) for value in values):
        raise InputError(f"{name} is {shown(values)}: wants a list of patterns")
    return tuple(values)


def _mesh(document: Any) -> DeviceMesh:
    if not isinstance(document, Mapping) or not isinstance(document.get("axes"), Mapping):
        raise InputError("the mesh has no axes: write [mesh.axes], and under it tp = 4")
    checks.known_keys("mesh", document, ("axes", "shares", "devices"))
    axes, shares = document["axes"], document.get("shares", {})
    if not isinstance(shares, Mapping) or not set(shares) <= set(axes):
        raise InputError(f"shares of the mesh are {shown(shares)}: wants a list per axis")
    for name, of_axis in shares.items():
        if not isinstance(of_axis, list):
            raise InputError(f"shares of axis {name!r} are {shown(of_axis)}: wants a list")
    return DeviceMesh(
        tuple(
            MeshAxis(name, size, tuple(shares[name]) if name in shares else None)
            for name, size in axes.items()
        ),
        _patterns("devices of the mesh", document.get("devices", [])),
    )
