"""FSDP2: a plan that shards parameters over the batch's processes, as a Python file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, json_text, python_file
from loadmaster.model.graph import PARAMETER
from loadmaster.model.patterns import innermost
from loadmaster.model.shapes import parse_output
from loadmaster.plans.plan import Plan
from loadmaster.strategies.sharding.units import wrapped
from loadmaster.systems.fsdp.semantics import NAME
from loadmaster.systems.shared.backward import backward_of, kept
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.processes import command, optimizer_of
from loadmaster.systems.shared.sharded_plans import (
    below_root,
    mesh_of,
    parallelism_in,
    words_of_units,
)
from loadmaster.systems.shared.training_file import USAGE, ProcessShares, parts
from loadmaster.systems.shared.uniform_meshes import PARTS
from loadmaster.systems.shared.wrapped_modules import wrapped_modules

#: Ending of the name of the file beside it, which says which shard goes where.
SHARDS = ".shards.json"

_HEAD = '''"""Sharded data parallelism by torch.distributed.fsdp.fully_shard: written by Loadmaster.

'''

_REST = '''
The loss is a mean over the samples of a process; gradients are the mean over all processes.
"""

{figures}

{imports}

{constants}
#: Sizes of the mesh by name: parameters are sharded on "shard", and alike on "replicate".
MESH = {mesh}
{units}{whole}{recomputed}

{start}

def parallelize(model, device):
    """The model as each process runs it: parameters are DTensors, sharded by their first axis."""
    model = model.to(device)
{kept}{wrap}    sizes, names = tuple(MESH.values()), tuple(MESH)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    options = {{"mesh": mesh{but}}}
    for path, again in UNITS.items():
        fully_shard(model.get_submodule(path), reshard_after_forward=again, **options)
    fully_shard(model, reshard_after_forward=False, **options)
{ahead}    torch.manual_seed(torch.initial_seed() + place())  # Each has a dropout of its own.
    return model


{backward}

{clip}

{optimizer_of}

{data}

{checkpoints}

{main}'''

_AHEAD = """\
    # Units gather the two that run after them, in the backward pass the two before them.
    units = [model, *map(model.get_submodule, UNITS)]
    for at, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(units[at + 1 : at + 3])
        unit.set_modules_to_backward_prefetch(units[max(at - 2, 1) : at][::-1])
"""

_IMPORTS = (
    "from torch.distributed.device_mesh import init_device_mesh",
    "from torch.distributed.tensor import DTensor",
)


def fsdp(plan: Plan, path: str | os.PathLike[str] | None = None, *, root: str = "") -> str:
    """The plan as a Python file that wraps modules with ``fully_shard``.

    Parameters
    ----------
    plan : Plan
        That shares the batch among processes, and parameters on one axis of its mesh.
    path : optional
        Where to write it. Beside it, in ``<path>.shards.json``, stands what :func:`shards` says.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.

    Returns
    -------
    str
        The file: ``start()`` joins the processes that ``torchrun`` began, and ``parallelize(model,
        device)`` wraps the model.

    Raises
    ------
    InputError
        The plan shares its work otherwise; everything that is in the way is named, with the
        command that plans for it. A module that is not below ``root``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> plan = lm.place(graph, cluster, target="fsdp", replicas=2)
    >>> written = lm.writers.fsdp(plan)
    >>> [line for line in written.splitlines() if line.startswith("MESH") or "h.3" in line]
    ["MESH = {'shard': 2}", "    'h.3': False,"]
    """
    parallelism = parallelism_in(plan, NAME)
    assert plan.recipe is not None
    devices = plan.recipe.mesh.on(plan.cluster).tolist()
    units = _units(plan, root)
    ahead = _in_turn(units)
    modules = wrapped_modules(plan, units, lambda path: below_root(path, root))
    file = python_file(
        _HEAD + USAGE + _REST,
        run=command(plan, devices),
        figures=figures(plan, _more(plan, ahead=ahead)),
        mesh=mesh_of(parallelism),
        kept=kept(plan),
        ahead=Code(_AHEAD if ahead else ""),
        optimizer=optimizer_of(plan),
        **modules.parts,
        **backward_of(plan, after=modules.after, parts=True),
        **parts(plan, ProcessShares(devices, len(devices)), (*_IMPORTS, *modules.imports)),
    )
    if path is not None:
        write_bytes(path, file.encode())
        text = f"{json_text(shards(plan, root=root), indent=1)}\n"
        write_bytes(f"{os.fspath(path)}{SHARDS}", text.encode())
    return file


def shards(plan: Plan, *, root: str = "") -> dict[str, Any]:
    """The part of each parameter that each process has.

    Returns
    -------
    dict
        ``mesh``: sizes by name. ``parameters``: by name the ``shape``, the ``unit`` (a module; the
        empty text: the model), and ``rows``: from which row to before which the process at each
        place of the axis "shard" has, as ``torch.chunk`` cuts them; none of a single number, which
        every process has. Places of processes are their ranks, modulo the size of that axis.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> found = shards(lm.place(graph, cluster, target="fsdp", replicas=2))
    >>> found["parameters"]["h.0.fc.weight"]
    {'shape': [4096, 1024], 'unit': 'h.0', 'rows': [[0, 2048], [2048, 4096]]}
    """
    graph, mesh = plan.graph, mesh_of(parallelism_in(plan, NAME))
    of = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    units = innermost([graph.modules[op] for op in of], list(words_of_units(plan)), "units")
    rows_of = {}
    for op, (unit, _) in zip(of, units, strict=True):
        shape = [int(size) for size in parse_output(graph.outputs[op])[0][1] or ()]
        n, k = (shape or [1])[0], mesh[PARTS]
        each = -(-n // k)
        rows = [[min(i * each, n), min((i + 1) * each, n)] for i in range(k)]
        if not shape:  # A single number is on every process.
            rows = []
        rows_of[below_root(graph.names[op], root)] = {
            "shape": shape,
            "unit": unit if unit == "" else below_root(unit, root),
            "rows": rows,
        }
    return {"mesh": mesh, "parameters": rows_of}


def _units(plan: Plan, root: str) -> dict[str, bool]:
    """Modules that are wrapped, inner ones first and in the order in which they run, and whether
    they are gathered again.
    """
    graph = plan.graph
    first: dict[str, int] = {}
    for op, module in enumerate(graph.modules):
        if graph.phases[op] == "f" and not graph.placeholder[op]:
            first.setdefault(module, op)
    units = wrapped(graph, words_of_units(plan))
    begins = {
        path: min(
            (op for module, op in first.items() if f"{module}.".startswith(f"{path}.")), default=0
        )
        for path in units
    }
    order = sorted(units, key=lambda path: (-path.count("."), begins[path]))
    return {below_root(path, root): units[path] for path in order}


def _in_turn(units: Mapping[str, bool]) -> bool:
    """True if there are several units, none of which is in another: these run one after another."""
    return len(units) > 1 and not any(
        path != other and path.startswith(f"{other}.") for path in units for other in units
    )


def _more(plan: Plan, *, ahead: bool) -> Iterator[str]:
    """Lines on what FSDP2 does otherwise than the recipe, and on what is gathered ahead."""
    assert plan.recipe is not None
    if ahead:
        yield "A unit is gathered from when the second one before it begins, in the plan and here."
    if not plan.recipe.units:
        yield (
            "The plan gathers parameters in buckets by size; fully_shard gathers them by module, "
            "so the step is another than simulated."
        )
    yield (
        "fully_shard cuts parameters by their first axis, and pads what that does not divide: "
        "parts are equal in the plan."
    )
