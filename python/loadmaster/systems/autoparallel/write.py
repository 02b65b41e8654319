"""AutoParallel: a plan as a Python file of placements by parameter, which are its constraints."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, lines, python, python_file
from loadmaster.model.graph import INPUT, PARAMETER
from loadmaster.plans.plan import Plan
from loadmaster.systems.autoparallel.semantics import NAME
from loadmaster.systems.shared.array_specs import ArraySpecs
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.processes import command, start
from loadmaster.systems.shared.refusal import Reason, refusal

_FILE = '''"""{title:words}: placements for AutoParallel, written by Loadmaster.

{run:words}

    device = start()
    with torch.device("meta"):
        model = Model()
    model = parallelize(model, inputs, device)  # inputs(): a batch of all processes, as a tuple

Then give the parameters their values: model.to_empty(device=device), model.init_weights().
"""

{figures}

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

{processes}

#: Sizes of the mesh by name, outermost first.
MESH = {mesh}

#: Of each parameter, by axis of the mesh, the axis of the tensor that is cut; None: it is whole.
PLACEMENTS = {{
{parameters}
}}

#: The same of inputs, in the order in which the model takes them.
INPUTS = {{
{inputs}
}}


def placements(cut):
    """Placements of DTensor, by axis of the mesh."""
    return tuple(Replicate() if axis is None else Shard(axis) for axis in cut)


def constrain(planner):
    """Tells an AutoParallel that was entered where parameters and inputs lie."""
    named = {{}}
    inputs = 0
    for node in planner.gm.graph.find_nodes(op="placeholder"):
        target = getattr(node.meta.get("desc"), "target", None)
        if target in PLACEMENTS:
            named[target] = node
        inputs += type(node.meta.get("desc")).__name__ == "PlainAOTInput"
    if missing := sorted(set(PLACEMENTS) - set(named)):
        raise KeyError(f"the model has no parameters {{missing[:3]}} ...: plan for this model")
    planner.add_input_constraints([placements(cut) for cut in [*INPUTS.values()][:inputs]])
    for name, node in named.items():
        planner.sharding_optimizer.add_node_constraint(node, placements(PLACEMENTS[name]))


def parallelize(model, inputs, device):
    """The model, which is on the meta device, as each process runs it; parameters are DTensors."""
    from autoparallel.api import AutoParallel

    mesh = init_device_mesh(device.type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))
    with AutoParallel(model, inputs, mesh) as planner:
        constrain(planner)
        return planner.apply_placement(planner.optimize_placement())
'''


def autoparallel(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as a Python file: a mesh, placements of every parameter and input.

    Parameters
    ----------
    plan : Plan
        That :func:`loadmaster.place` made for the target ``"autoparallel"``, or whose labels
        placements can say.
    path : optional
        Where to write it.

    Returns
    -------
    str
        The file: ``parallelize(model, inputs, device)`` makes the model that each process runs,
        ``constrain(planner)`` tells an AutoParallel of one's own.

    Raises
    ------
    InputError
        All that is in the way, and what plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    >>> file = lm.writers.autoparallel(lm.place(graph, cluster, target="autoparallel", tp=1))
    >>> [line for line in file.splitlines() if line.startswith("MESH")]
    ["MESH = {'dp': 2}"]
    """
    layout = plan.layout
    if layout is None or plan.recipe is None or plan.recipe.micro is not None:
        raise refusal(plan, NAME, ["it shares no work by labels of one mesh"])
    specs = ArraySpecs(plan, layout, {})
    reasons: list[Reason] = list(specs.in_the_way())
    if plan.recipe.recompute:
        reasons.append(("modules are recomputed, which no placement says", plan.recipe.recompute))
    if reasons:
        raise refusal(plan, NAME, reasons)
    devices = layout.mesh.on(plan.cluster).tolist()
    said = "AutoParallel chooses how the tensors lie whose placements are not here."
    text = python_file(
        _FILE,
        title=plan.graph.name,
        run=command(plan, devices),
        figures=figures(plan, [said]),
        processes=start(plan, devices),
        mesh={axis.name: axis.size for axis in layout.mesh.axes},
        parameters=lines(_rows(specs, PARAMETER)),
        inputs=lines(_rows(specs, INPUT)),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _rows(specs: ArraySpecs, kind: int) -> Iterator[Code]:
    """A line per parameter or input: for each axis of the mesh, the tensor's axis that it cuts."""
    structure = specs.structure
    for node in np.flatnonzero(structure.stands_for == kind).tolist():
        axes = specs.spec(node) or []
        cut = tuple(
            next((at for at, by in enumerate(axes) if axis.name in by), None)
            for axis in specs.mesh.axes
        )
        yield Code(f"    {python(specs.graph.names[structure.op[node]])}: {python(cut)},")
