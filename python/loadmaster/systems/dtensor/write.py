"""PyTorch's DTensor: a plan as a Python file, and beside it the part of each parameter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.files import write_bytes, write_json
from loadmaster.base.quoting import Code, lines, python, python_file
from loadmaster.dimensions.form import FLAT, PARTIAL, REPLICATE
from loadmaster.model.families import families
from loadmaster.model.graph import PARAMETER
from loadmaster.model.module_paths import alike
from loadmaster.model.shapes import parse_output
from loadmaster.plans.plan import Plan
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.units import unit_patterns, wrapped
from loadmaster.systems.dtensor.chosen_styles import from_document
from loadmaster.systems.dtensor.module_styles import (
    COLUMNS,
    OUTPUT,
    ROWS,
    SEQUENCE,
    Forward,
    Style,
    Styled,
)
from loadmaster.systems.shared.backward import backward_of, kept
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.processes import command, optimizer_of, several_families
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.sharded_plans import one_by_one
from loadmaster.systems.shared.training_file import USAGE, ProcessShares, parts
from loadmaster.systems.shared.uniform_meshes import DATA, MODEL, PARTS, REPLICAS
from loadmaster.systems.shared.wrapped_modules import wrapped_modules
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shares import only_gradients

#: The name of an axis of one place.
_ONE = "dp_shard"

_HEAD = '''"""Parallel styles of modules by torch.distributed.tensor: written by Loadmaster.

'''

_REST = '''
The loss is a mean over a share of the batch; gradients are the mean over all shares.
"""

{figures}

{imports}

{constants}
#: Axes of the mesh, the outermost first, as init_device_mesh takes them.
MESH = {mesh}
{fused}{tables}{units}{whole}{recomputed}

{start}

def parallelize(model, device):
    """The model as each process runs it, cut in place."""
    model = model.to(device)
{kept}    sizes, names = tuple(MESH.values()), tuple(MESH)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
{styles}{wrap}{shard}    torch.manual_seed(torch.initial_seed() + place())  # Dropout of its own.
    return model


{backward}
{summed}
{clip}

{optimizer_of}

{data}

{checkpoints}

{main}'''

_SHARD = """\
    options = {{"mesh": mesh[{axes}]{but}}}
    for path, again in UNITS.items():
        fully_shard(model.get_submodule(path), reshard_after_forward=again, **options)
    fully_shard(model, reshard_after_forward=False, **options)
"""

_PARALLEL = "torch.distributed.tensor.parallel"

#: Contexts of a step, with their imports.
_REPLICATED = (
    "implicit_replication()",
    "from torch.distributed.tensor.experimental import implicit_replication",
)
_LOSS = "loss_parallel()", f"from {_PARALLEL} import loss_parallel"
_ATTENTION = (
    "sdpa_kernel(SDPBackend.MATH)",
    "from torch.nn.attention import SDPBackend, sdpa_kernel",
)

_MESH = "from torch.distributed.device_mesh import init_device_mesh"

_SUMMED = '''
def summed(model):
    """Sums gradients of which each process has those of its tokens, all in one."""
    parts = [p for p in model.parameters() if isinstance(p.grad, DTensor)]
    parts = [p for p in parts if p.grad.placements[0].is_partial()]
    whole = torch.cat([p.grad.to_local().flatten() for p in parts])
    dist.all_reduce(whole)
    for p, grad in zip(parts, whole.split([p.numel() for p in parts])):
        p.grad = DTensor.from_local(grad.view(p.shape), p.device_mesh, p.placements)

'''

_TABLE = """

#: {about}
{name} = {{
{rows}
}}
"""

_FUSED = '''

class Fused:
    """What a fused product makes, [..., parts, a device's share]; its parts are DTensors."""

    def __init__(self, parts):
        self.parts = parts

    def split(self, *_, **__):
        return self.parts.unbind(-2)

    chunk = split

    def view(self, *sizes):
        return self.parts.view(*sizes)

    reshape = view

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.split, torch.chunk):
            return args[0].split()
        raise TypeError(f"{function} of a fused product: split, chunk and view take it apart")


class FusedColwise(ColwiseParallel):
    """Columns of several products that are one: each device has its columns of every one of them.

    Rows of the weight and of the bias are interleaved: those of the first device come first.
    """

    def __init__(self, parts, **layouts):
        super().__init__(**layouts, use_local_output=False)
        self.parts = parts

    def _apply(self, module, device_mesh):
        for name, tensor in module.named_parameters():
            rows = tensor.detach().unflatten(0, (self.parts, device_mesh.size(), -1))
            mixed = rows.transpose(0, 1).reshape(tensor.shape).contiguous()
            module.register_parameter(name, torch.nn.Parameter(mixed, tensor.requires_grad))
        module = super()._apply(module, device_mesh)
        module.register_forward_hook(self._taken_apart)
        return module

    def _taken_apart(self, module, inputs, output):
        local = output.to_local().unflatten(-1, (self.parts, -1))
        return Fused(DTensor.from_local(local, output.device_mesh, [Shard(local.dim() - 1)]))
'''


def dtensor(plan: Plan, path: str | os.PathLike[str] | None = None, *, root: str = "") -> str:
    """The plan as a Python file that cuts modules by styles, and wraps them with ``fully_shard``.

    Parameters
    ----------
    plan : Plan
        That :func:`loadmaster.place` made for the target ``"dtensor"``, or whose labels styles of
        modules can say.
    path : optional
        Where to write it. Beside it, with ``.shards.json`` at the end, stands which part of each
        parameter each place of the mesh has: ``axes`` and, per parameter, ``shape``, ``placements``
        per axis, and ``interleaved`` where rows of so many products are mixed.
    root : str
        What the model is called in the graph's module paths, where it was captured as part of a
        larger one.

    Returns
    -------
    str
        The file: ``start()`` joins the processes that ``torchrun`` began, and ``parallelize(model,
        device)`` cuts the model.

    Raises
    ------
    InputError
        All that is in the way, and what plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> plan = lm.place(graph, lm.Cluster.preset("8xH100-NVLink"), target="dtensor", tp=2)
    >>> "parallelize_module(model, mesh['tp'], STYLES)" in lm.writers.dtensor(plan)
    True
    """
    said = _DTensorFile(plan, root)
    text = said.text()
    if path is not None:
        write_bytes(path, text.encode())
        write_json(Path(path).with_suffix(".shards.json"), said.shards())
    return text


def axes_by_role(layout: Layout) -> list[str]:
    """The name of each axis of a layout: that of the batch, if most ops are cut by it; two of
    these, if parameters are whole on the outer and in parts on the inner one.
    """
    names = [
        DATA if 2 * is_batch[some].sum() >= some.sum() else MODEL
        for some, is_batch in zip(_cut(layout), layout.is_batch, strict=True)
    ]
    flat = (layout.labels[:, layout.graph.stands_for == PARAMETER] == FLAT).any(axis=1)
    of_batch = [at for at, name in enumerate(names) if name == DATA]
    if flat[of_batch].tolist() == [False, True]:
        names[of_batch[0]], names[of_batch[1]] = REPLICAS, PARTS
    return names


def _cut(layout: Layout) -> NDArray[np.bool_]:
    """Mask of the ops that are cut on each axis, bool [n_axes, n_ops]; ops that only add gradients
    up are not.
    """
    graph = layout.graph
    runs = ~(graph.view | graph.placeholder | graph.updates | only_gradients(graph, graph.roles))
    is_cut: NDArray[np.bool_] = (layout.labels > 0) & runs
    return is_cut


def _passes_sums_on(layout: Layout, axis: int, op: int) -> bool:
    """True if an op makes sums of partial sums on an axis: ops without a batch do."""
    first = layout.dimensions.first
    reads = layout.wanted[axis, first[op] : first[op + 1]] == PARTIAL
    return bool(reads.any()) and layout.made[axis, layout.first_output[op]] == PARTIAL


class _DTensorFile:
    """The contents of the file, read off a plan's labels."""

    def __init__(self, plan: Plan, root: str) -> None:
        layout, staged = plan.layout, plan.recipe is not None and plan.recipe.micro is not None
        why: list[Reason] = ["it is a pipeline of stages"] if staged else []
        if layout is None:
            raise refusal(plan, "dtensor", why or ["it shares no work by labels"])
        names = axes_by_role(layout)
        for name in (DATA, MODEL):
            if names.count(name) > 1:
                of = [layout.mesh.names[i] for i, one in enumerate(names) if one == name]
                use = "share the batch" if name == DATA else "cut weights"
                why.append((f"several axes {use}", of))
        if why and len(set(names)) < len(names):
            raise refusal(plan, "dtensor", why)
        axes = tuple(replace(a, name=n) for a, n in zip(layout.mesh.axes, names, strict=True))
        self.plan, self.root, self.mesh = plan, root, replace(layout.mesh, axes=axes)
        self.layout, self.labels = layout, layout.labels
        self.structure = Structure.of(layout.dimensions)
        self.graph = plan.graph
        self.specs, self.styled = self._read()
        apart = several_families(plan, layout.mesh.on(plan.cluster).tolist())
        reasons = [*why, *apart, *one_by_one(plan), *self._reasons()]
        if reasons:
            raise refusal(plan, "dtensor", reasons)

    def _spec(self, axis: int, node: int) -> int:
        """The spec of a parameter on an axis."""
        label = int(self.labels[axis, self.structure.op[node]])
        return label - 1 if label > 0 else FLAT if label == FLAT else REPLICATE

    def _read(self) -> tuple[dict[int, int], Styled]:
        """Specs of parameters that are cut, and styles of modules: those that the planner left, or,
        of a plan that was made otherwise, those that make its labels.
        """
        if MODEL not in self.mesh.names:
            return {}, Styled({}, {}, {})
        axis = self.mesh.names.index(MODEL)
        parameters = np.flatnonzero(self.structure.stands_for == PARAMETER).tolist()
        specs = {n: spec for n in parameters if (spec := self._spec(axis, n)) >= 0}
        if (chosen := from_document(self.plan.for_writer)) is not None:
            return specs, chosen
        forward = Forward(self.structure, self.mesh.shape[axis])
        ways = [forward.styled(specs, sequence=sequence) for sequence in (False, True)]
        return specs, min(ways, key=lambda styled: len(self._others(styled)))

    def _others(self, styled: Styled) -> list[int]:
        """Nodes of the forward pass whose labels are not what styles make of them."""
        axis, structure = self.mesh.names.index(MODEL), self.structure
        return [
            node
            for node, column in styled.column.items()
            if structure.ways.label[structure.way[node], column]
            != self.labels[axis, structure.op[node]]
        ]

    def _reasons(self) -> list[Reason]:
        reasons: list[Reason] = [f"{m or 'the model'}: {r}" for m, r in self.styled.reasons.items()]
        if MODEL in self.mesh.names:
            names = [self.graph.names[self.structure.op[n]] for n in self._others(self.styled)]
            if names:
                reasons.append(("styles of modules cut these in another way", names))
        for axis in self.of_batch:
            reasons += self._data_reasons(axis)
        if any(axis.shares is not None for axis in self.mesh.axes):
            reasons.append("devices have unequal shares")
        return reasons

    def _data_reasons(self, axis: int) -> Iterator[Reason]:
        """Reasons against an axis of the batch: ops that are cut otherwise, and state that does not
        lie as parameters do.
        """
        layout, names = self.layout, self.graph.names
        cut = np.flatnonzero(_cut(layout)[axis] & ~layout.is_batch[axis]).tolist()
        others = [op for op in cut if not _passes_sums_on(layout, axis, op)]
        if others:
            yield (
                "on the axis of the batch ops are cut otherwise",
                [repr(names[op]) for op in others],
            )
        updates = (layout.set_of >= 0) & (self.graph.stands_for != PARAMETER)
        if not self._is_flat(axis) and (self.labels[axis, updates] != 0).any():
            yield "updates are shared among replicas, and parameters are whole"

    def _name(self, module: str) -> str:
        return module.removeprefix(f"{self.root}.") if self.root else module

    # -- the text ---------------------------------------------------------------------------------

    def text(self) -> str:
        """The file."""
        plan, rows, outputs = self.plan, self._rows(_style), self._rows(_output)
        is_fused = any(style.parts > 1 for style in self.styled.styles.values())
        styles = {row.partition("(")[0] for _, row in [*rows, *outputs]} - {"FusedColwise"}
        styles |= {"ColwiseParallel"} if is_fused else set()
        modules = wrapped_modules(plan, self._units() if self.of_batch else None, self._name)
        contexts = list(self._contexts())
        whole = ["loss = loss.full_tensor() if isinstance(loss, DTensor) else loss"]
        after = [*modules.after, *["summed(model)"] * self._has_sums, *whole * bool(contexts)]
        of = ", Replicate, Shard" if styles else ""
        imports = [_MESH, f"from torch.distributed.tensor import DTensor{of}"]
        imports += [*modules.imports, *(line for _, line in contexts)]
        if styles:
            names = "".join(f"    {name},\n" for name in sorted({*styles, "parallelize_module"}))
            imports.append(f"from {_PARALLEL} import (\n{names})")
        tables = [
            ("STYLES", "Styles of modules, by their paths.", rows),
            ("OUTPUTS", "Turns of what modules give, after their styles.", outputs),
        ]
        axes = [*(self.mesh.names[at] for at in self.of_batch), *[_ONE] * self.are_whole]
        said = dict(modules.parts)
        said["shard"] = python_file(
            _SHARD if self.of_batch else "",
            axes=Code(", ".join(map(python, axes))),
            but=said.pop("but"),
        )
        return python_file(
            _HEAD + USAGE + _REST,
            run=command(plan, self.devices),
            figures=figures(plan, self._more()),
            mesh=dict(self._axes()),
            fused=Code(_FUSED if is_fused else ""),
            summed=Code(_SUMMED if self._has_sums else ""),
            tables=Code("".join(_table(*table) for table in tables if table[2])),
            styles=self._styles([name for name, _, of in tables if of]),
            kept=kept(plan),
            optimizer=optimizer_of(plan),
            **said,
            **backward_of(plan, [context for context, _ in contexts], after, parts=True),
            **parts(plan, ProcessShares(self.devices, self._shares), imports),
        )

    def _contexts(self) -> Iterator[tuple[str, str]]:
        """Contexts of a step, each with its import."""
        is_whole = any(not style.is_local for style in self.styled.styles.values())
        if is_whole:
            yield _REPLICATED
        if self.styled.loss_parallel:
            yield _LOSS
        if is_whole and families(self.plan.cluster)[self.devices[0]][0] == "cpu":
            # There DTensor knows attention by its parts alone.
            yield _ATTENTION

    def _more(self) -> Iterator[str]:
        """Further lines of the head of the file."""
        if words := [context for context, _ in self._contexts()]:
            yield (
                "Some modules give DTensors, for code that knows the sizes of the whole. Forward "
                f"passes beside backward() run within {' and '.join(words)}, as it does."
            )
        if self.are_whole:
            yield (
                f"Parameters are whole on {DATA!r}: fully_shard cuts them on {_ONE!r}, an axis of "
                "one place. It keeps a copy of them, which the peak leaves out."
            )

    @property
    def order(self) -> list[int]:
        """The axes as the file has them: those that share the batch first."""
        return sorted(range(len(self.mesh.axes)), key=lambda at: self.mesh.names[at] == MODEL)

    @property
    def devices(self) -> list[int]:
        """The device of each process."""
        grid = self.mesh.on(self.plan.cluster).reshape(self.mesh.shape)
        devices: list[int] = grid.transpose(self.order).ravel().tolist()
        return devices

    @property
    def _shares(self) -> int:
        """The shares of the batch."""
        return prod(self.mesh.shape[at] for at in self.of_batch)

    def _axes(self) -> list[tuple[str, int]]:
        """Names and sizes of the axes of the mesh, as the file has them: with parameters whole
        there is one more, of one place, on which fully_shard cuts nothing.
        """
        axes = [(self.mesh.names[at], self.mesh.shape[at]) for at in self.order]
        return [*axes[:1], (_ONE, 1), *axes[1:]] if self.are_whole else axes

    @property
    def of_batch(self) -> list[int]:
        """The axes that share the batch."""
        return [at for at, name in enumerate(self.mesh.names) if name != MODEL]

    @property
    def _has_sums(self) -> bool:
        """True if gradients are of parts of the tokens, and no fully_shard sums them."""
        if self.of_batch:
            return False
        graph, styles = self.graph, self.styled.styles
        by_tokens = {m for m, style in styles.items() if style.kind == SEQUENCE}
        trained = self.structure.updates.parameter.tolist()
        return any(graph.modules[op] in by_tokens for op in trained)

    @property
    def are_whole(self) -> bool:
        """True if the batch is shared, and no axis that shares it has parameters in parts."""
        return bool(self.of_batch) and not any(map(self._is_flat, self.of_batch))

    def _is_flat(self, axis: int) -> bool:
        """True if parameters lie in parts on an axis."""
        nodes = np.flatnonzero(self.structure.stands_for == PARAMETER).tolist()
        return any(self._spec(axis, n) == FLAT for n in nodes)

    def _rows(self, said: Callable[[Style], str]) -> list[tuple[str, str]]:
        """Lines of styles, one per module or per modules that are alike; no empty one."""
        rows = {m: row for m, style in self.styled.styles.items() if (row := said(style))}
        by_pattern: dict[str, set[str]] = {}
        for module, row in rows.items():
            by_pattern.setdefault(alike(self._name(module)), set()).add(row)
        lines: dict[str, str] = {}
        for module, row in rows.items():
            pattern = alike(self._name(module))
            lines[pattern if len(by_pattern[pattern]) == 1 else self._name(module)] = row
        return list(lines.items())

    def _styles(self, tables: list[str]) -> Code:
        """Lines of ``parallelize`` that cut modules by tables, and tie weights that are cut."""
        code = [f"    parallelize_module(model, mesh['tp'], {table})\n" for table in tables]
        for module, name, owner in self._tied():
            tied, its = python(module), python(f"{owner}.{name}".removeprefix("."))
            code.append(
                f"    model.get_submodule({tied}).register_parameter("
                f"{python(name)}, model.get_parameter({its}))\n"
            )
        return Code("".join(code))

    def _tied(self) -> list[tuple[str, str, str]]:
        """Modules with a cut weight that is another's: the module, its weight, and the first module
        whose style cuts it.
        """
        a, readers = self.structure.arguments, dict[int, dict[str, None]]()
        for reader, rooted in zip(a.reader.tolist(), a.root.tolist(), strict=True):
            if self.structure.stands_for[rooted] == PARAMETER and rooted in self.specs:
                module = self.graph.modules[self.structure.op[reader]]
                if self.styled.styles.get(module, Style(OUTPUT)).kind != OUTPUT:
                    readers.setdefault(rooted, {})[module] = None
        rows = []
        for rooted, modules in readers.items():
            owner, _, name = self.graph.names[self.structure.op[rooted]].rpartition(".")
            first, *others = [owner] * (owner in modules) + [m for m in modules if m != owner]
            # The owner may be a module that nothing calls.
            others += [owner] * (owner not in modules)
            rows += [(self._name(module), name, self._name(first)) for module in others]
        return rows

    def _units(self) -> dict[str, bool]:
        """Modules that are wrapped, and whether they are gathered again."""
        assert self.plan.recipe is not None
        usual = {**dict.fromkeys(unit_patterns(self.graph), "kept"), ".": "kept"}
        units = wrapped(self.graph, self.plan.recipe.units or usual)
        return {self._name(path): again for path, again in units.items()}

    def shards(self) -> dict[str, Any]:
        """The part of each parameter that each place of the mesh has."""
        parameters = {}
        for node in np.flatnonzero(self.structure.stands_for == PARAMETER).tolist():
            op = int(self.structure.op[node])
            shape = [int(size) for size in parse_output(self.graph.outputs[op])[0][1] or ()]
            placements, parts = {}, 1
            for axis, name in enumerate(self.mesh.names):
                spec = self._spec(axis, node)
                if spec == FLAT:
                    placements[name] = "Shard(0)"
                elif spec >= 0:
                    at = self._factors(node)[spec][0]
                    placements[name] = f"Shard({at})"
                    before = [s for a, s in self._factors(node)[:spec] if a == at]
                    parts = int(np.prod(before)) if before else 1
                else:
                    placements[name] = "Replicate"
            row: dict[str, Any] = {"shape": shape, "placements": placements}
            parameters[self._name(self.graph.names[op])] = row | (
                {"interleaved": parts} if parts > 1 else {}
            )
        axes = {self.mesh.names[at]: self.mesh.shape[at] for at in self.order}
        return {"axes": axes, "parameters": parameters}

    def _factors(self, node: int) -> tuple[tuple[int, int], ...]:
        d = self.structure.dimensions
        factors: tuple[tuple[int, int], ...]
        factors = d.forms[d.form_of[self.structure.op[node]]].outputs[0]
        return factors


def _table(name: str, about: str, rows: list[tuple[str, str]]) -> Code:
    """A table of modules, a line for each."""
    of = lines(Code(f"    {python(path)}: {row},") for path, row in rows)
    return python_file(_TABLE, about=Code(about), name=Code(name), rows=of)


def _style(style: Style) -> str:
    """The style of a module, in Python."""
    takes, gives = _placement(style.takes), _placement(style.gives)
    if style.kind == OUTPUT:
        return ""
    if style.kind == SEQUENCE:
        return f"SequenceParallel(sequence_dim={style.takes})"
    if style.parts > 1:
        return f"FusedColwise({style.parts}, input_layouts={takes})"
    name = {COLUMNS: "ColwiseParallel", ROWS: "RowwiseParallel"}[style.kind]
    return f"{name}(input_layouts={takes}, output_layouts={gives}{_local(style)})"


def _output(style: Style) -> str:
    """The treatment of a module's output, in Python; "": none."""
    if style.kind not in (SEQUENCE, OUTPUT) or style.takes == style.gives:
        return ""
    takes, gives = _placement(style.takes), _placement(style.gives)
    layouts = f"output_layouts={takes}, desired_output_layouts={gives}"
    return f"PrepareModuleOutput({layouts}{_local(style)})"


def _local(style: Style) -> str:
    return "" if style.is_local else ", use_local_output=False"


def _placement(axis: int | None) -> str:
    return "Replicate()" if axis is None else f"Shard({axis})"
