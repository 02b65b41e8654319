"""torch.distributed.pipelining: a plan of stages as a Python file.

A split point stands before or after a module's ``forward``, so a pipeline is cut only where a
module begins or ends (:mod:`loadmaster.rules.module_cuts`). Autograd runs the backward of a stage
on the stage's own device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, python, python_file
from loadmaster.base.units import counted
from loadmaster.model.micro import IN_V, Micro
from loadmaster.model.module_paths import module_path
from loadmaster.plans.plan import Plan
from loadmaster.rules.module_cuts import ModuleCuts, inside
from loadmaster.strategies.grids.module_space import MULTI
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.names import device_names, torch_device
from loadmaster.systems.shared.refusal import Reason, refusal

#: PyTorch's classes, by the names of schedules.
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
}

_FILE = '''"""A pipeline by torch.distributed.pipelining: written by Loadmaster.

torchrun --nproc-per-node {ranks} train.py

    dist.init_process_group()
    schedule, modules = parallelize(Model(), inputs{loss_fn})
{step}
"""

{figures}

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.pipelining import {schedule}, SplitPoint, pipeline

#: The device of each rank: rank r has the stages {of_rank}.
DEVICES = {devices}
STAGES = {stages}

#: Where the model is cut: before or behind the forward pass of these modules.
SPLIT_SPEC = {{{spec}}}

#: Parts of the batch that follow one another through the stages.
MICRO_BATCHES = {micro}


def parallelize(model, inputs, loss_fn=None, device=None, group=None):
    """The schedule that this rank runs, and the modules of its stages, which hold its parameters.

    ``inputs`` is a tuple with what the model is called with, a whole batch: its sizes count.
    """
    rank = dist.get_rank(group)
    device = torch.device(DEVICES[rank] if device is None else device)
    micro = tuple(x.chunk(MICRO_BATCHES)[0] for x in inputs)
    spec = {{module: SplitPoint[side] for module, side in SPLIT_SPEC.items()}}
    pipe = pipeline(model, micro, split_spec=spec)
    if pipe.num_stages != STAGES:
        raise RuntimeError(f"the model has {{pipe.num_stages}} stages, and the plan {{STAGES}}")
    for index in range(STAGES):
        _send_in_order(pipe.get_stage_module(index))
    stages = [pipe.build_stage(index, device, group) for index in {indices}]
    schedule = {schedule}({which}, MICRO_BATCHES, loss_fn=loss_fn)
    return schedule, [stage.submod for stage in stages]


def _send_in_order(stage):
    """{in_order:words}"""
    *nodes, output = stage.graph.nodes
    for node in nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta["val"] = node.meta["val"].contiguous()
    with stage.graph.inserting_before(output):
        for node in output.all_input_nodes:
            if isinstance(node.meta.get("val"), torch.Tensor):
                sent = stage.graph.call_method({sent})
                sent.meta["val"] = node.meta["val"].contiguous()
                output.replace_input_with(node, sent)
    stage.recompile()
'''

#: Ops that make a message of a tensor, and why.
_SENT = (
    Code('"contiguous", (node,)'),
    "Elements of what a stage is sent and sends lie one after another, as messages want them.",
)
#: Where the gradients of weights come later than those of inputs, PyTorch detaches what was sent in
#: place, which no view bears, nor an op of the stage that has kept it for the gradient of a weight.
_SENT_APART = (
    Code('"clone", (node,), {"memory_format": torch.contiguous_format}'),
    "Messages are copies: PyTorch detaches them in place before the gradients of weights.",
)

_TRAINED = (
    "    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.1)\n"
    "    given = inputs if dist.get_rank() == 0 else ()\n"
    "    schedule.step(*given, target=targets, losses=(losses := []))\n"
    "    optimizer.step()\n"
    "\n"
    "loss_fn(output, target) is a mean over samples; gradients are of the mean over the batch.\n"
    "The {last} rank has the losses of micro-batches."
)
_EVALUATED = (
    "    given = inputs if dist.get_rank() == 0 else ()\n"
    "    outputs = schedule.eval(*given)  # As the {last} rank has them."
)


def pipelining(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """The plan as a Python file that cuts a model into stages and runs them by a schedule.

    Parameters
    ----------
    plan : Plan
        Of stages with micro-batches, or of whole ops in one run of modules per device: these are
        stages with one micro-batch.
    path : optional
        Where to write it.
    root : str, optional
        As for :func:`~loadmaster.systems.accelerate.write.device_map`; what the plan was made
        with if absent.
    names : mapping, optional
        Device name to the name to use instead.

    Returns
    -------
    str
        The file: ``parallelize(model, inputs, loss_fn)`` gives the schedule of a rank and the
        modules of its stages.

    Raises
    ------
    InputError
        Everything that PyTorch cannot run of the plan, with the command that plans for it.

    Notes
    -----
    O(ops x depth of the module tree).

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> plan = lm.place(graph, cluster, "single")
    >>> [line for line in lm.writers.pipelining(plan).splitlines() if line.startswith("SPLIT_SPEC")]
    ['SPLIT_SPEC = {}']
    """
    if root is None:
        root = str(plan.options.get("root", ""))
    reasons: list[Reason] = []
    staged = _staged(plan, root, reasons)
    if staged is not None:
        reasons += staged.in_the_way()
    if staged is None or reasons:
        raise refusal(plan, "pipelining", reasons)
    spelled = device_names(plan, torch_device, names)
    points = (staged.cuts.points[place] for place in staged.places)
    spec = "".join(f"\n    {python(module)}: {python(side)}," for module, side in points)
    trains = "b" in plan.graph.phases
    sent, in_order = _SENT_APART if staged.schedule in ("zero-bubble", IN_V) else _SENT
    in_v = staged.schedule == IN_V
    file = python_file(
        _FILE,
        ranks=len(staged.devices),
        figures=figures(plan),
        schedule=Code(SCHEDULES[staged.schedule]),
        devices=tuple(spelled[d] for d in staged.devices),
        stages=staged.n_stages,
        spec=Code(spec and f"{spec}\n"),
        micro=1 if staged.micro is None else staged.micro.n,
        of_rank=Code(
            f"r and {staged.n_stages - 1} - r" if in_v else f"r, r + {len(staged.devices)}, ..."
        ),
        indices=Code("(rank, STAGES - 1 - rank)" if in_v else "range(rank, STAGES, len(DEVICES))"),
        which=Code("stages" if staged.schedule in MULTI else "stages[0]"),
        loss_fn=Code(", loss_fn" if trains else ""),
        step=python_file(
            _TRAINED if trains else _EVALUATED, last=Code("first" if in_v else "last")
        ),
        sent=sent,
        in_order=in_order,
    )
    if path is not None:
        write_bytes(path, file.encode())
    return file


@dataclass(frozen=True, eq=False)
class _Staged:
    """A plan by stages.

    Attributes
    ----------
    plan : Plan
    cuts : ModuleCuts
    stage : int32 [n_ops]
        Of each op of the user's graph that runs.
    devices : tuple of int
        Of each rank, by index.
    n_stages : int
    micro : Micro or None
        None: the batch goes through as a whole.
    """

    plan: Plan
    cuts: ModuleCuts
    stage: NDArray[np.int32]
    devices: tuple[int, ...]
    n_stages: int
    micro: Micro | None

    @property
    def schedule(self) -> str:
        """Its name."""
        return "gpipe" if self.micro is None else self.micro.schedule

    @cached_property
    def of_place(self) -> NDArray[np.int32]:
        """The stage of each place of the forward pass."""
        return np.asarray(self.stage[self.cuts.order])

    @cached_property
    def places(self) -> list[int]:
        """The places before which stages begin."""
        return (np.flatnonzero(np.diff(self.of_place)) + 1).tolist()

    def in_the_way(self) -> Iterator[Reason]:
        """Reasons why PyTorch cannot run the plan."""
        names = self.plan.graph.names
        if self.schedule not in SCHEDULES:
            yield f"its schedule is one of its own, and PyTorch has {', '.join(SCHEDULES)}"
        if self.plan.recipe is not None and self.plan.recipe.recompute:
            yield "modules are recomputed: PyTorch's stages keep their activations"
        if self.schedule == "1f1b" and self.micro is not None and self.micro.n < self.n_stages:
            yield f"1f1b takes {self.n_stages} micro-batches or more, as there are stages"
        if self.of_place[[0, *self.places]].tolist() != list(range(self.n_stages)):
            again = [
                f"{names[self.cuts.order[at]]!r} ({self._where(int(self.of_place[at]))})"
                for at in self.places
            ]
            yield "stages are not one run of the forward pass each; they begin with", again
        yield from self._of_cuts()
        yield from self._of_tensors()
        if stray := self._stray():
            yield "autograd runs these with their module's forward pass, elsewhere", stray

    def _where(self, stage: int) -> str:
        n = len(self.devices)
        at = 2 * n - 1 - stage if self.schedule == IN_V and stage >= n else stage % n
        return self.plan.cluster.devices[self.devices[at]].name

    def _of_cuts(self) -> Iterator[Reason]:
        names, order, modules = self.plan.graph.names, self.cuts.order, self.cuts.module_of
        inner, late = [], []
        for place in self.places:
            before, after = (names[op] for op in order[[place - 1, place]])
            if place > self.cuts.last:
                late.append(f"from {after!r} on")
            elif place not in self.cuts.points:
                within = _common(modules[place - 1], modules[place])
                inside_of = f" in {within!r}" if within else ""
                inner.append(f"{before!r} and {after!r}{inside_of}")
        if inner:
            yield "no module begins or ends between", inner
        if late:
            yield "a stage has no module", late

    def _of_tensors(self) -> Iterator[Reason]:
        cuts, names = self.cuts, self.plan.graph.names
        tied = [names[s.op] for s in cuts.tied if len(set(self.of_place[list(s.places)])) > 1]
        if tied:
            yield "several stages read a parameter, whose copies would drift apart", tied
        late = [names[s.op] for s in cuts.inputs if self.of_place[list(s.places)].max() > 0]
        if late:
            yield "only the first stage is given inputs, and others read", late
        train = "b" in self.plan.graph.phases
        several = self.schedule in MULTI
        unsent = cuts.unsendable(self.of_place, train=train, neighbours=several).tolist()
        if unsent:
            to = "the next stage only" if several else "one other stage only, with gradients"
            yield f"results are sent to {to}, and more read", [names[op] for op in unsent]

    def _stray(self) -> list[str]:
        """Ops of the backward pass and of the optimizer in another stage than their module, each
        with its device.
        """
        graph, root = self.plan.graph, self.cuts.root
        homes: dict[str, set[int]] = {}
        for place, module in enumerate(self.cuts.module_of):
            if module:
                homes.setdefault(module, set()).add(int(self.of_place[place]))
        moved = []
        forward = set(self.cuts.order.tolist())
        for op in np.flatnonzero(graph.reduced.runs).tolist():
            if op in forward or not graph.modules[op]:
                continue
            module = inside(".".join(module_path(graph.modules[op])), root) or ""
            while module and module not in homes:
                module = module.rpartition(".")[0]
            if module and int(self.stage[op]) not in homes[module]:
                moved.append(f"{graph.names[op]!r} on {self._where(int(self.stage[op]))}")
        return moved


def _staged(plan: Plan, root: str, reasons: list[Reason]) -> _Staged | None:
    """The plan by stages; None: there are none, and the reasons say why."""
    graph, recipe = plan.graph, plan.recipe
    cuts = ModuleCuts(graph, root)
    if not any(cuts.module_of):
        below = f" below {root!r}" if root else ""
        reasons.append(f"no op of {graph.name!r} is in a module{below}")
        return None
    if recipe is not None and recipe.micro is not None and recipe.micro.in_turn:
        counts = [str(n) for n in recipe.micro.in_turn]
        reasons.append(("devices of a stage take micro-batches in turn; stages have", counts))
        return None
    if recipe is not None and recipe.micro is not None and not recipe.labels:
        on = tuple(recipe.mesh.on(plan.cluster).tolist())
        n = len(on) * recipe.micro.virtual
        return _Staged(plan, cuts, recipe.stage_of(graph), on, n, recipe.micro)
    divided = np.flatnonzero(plan.devices < 0).tolist()
    if divided:
        kind = "replicas" if plan.parts(divided[0])[0].replica >= 0 else "parts"
        reasons.append((f"ops are in {kind}", [repr(graph.names[op]) for op in divided]))
        return None
    return _by_device(plan, cuts, reasons)


def _by_device(plan: Plan, cuts: ModuleCuts, reasons: list[Reason]) -> _Staged | None:
    """Stages of a plan of whole ops: its devices, in the order in which the model comes to them;
    None: a device has several.
    """
    devices = plan.devices[cuts.order]
    begins = [0, *(np.flatnonzero(np.diff(devices)) + 1).tolist()]
    runs = devices[begins].tolist()
    order = list(dict.fromkeys(runs))
    names = [plan.cluster.devices[d].name for d in order]
    if len(runs) > len(order):
        several = [
            f"{name} {counted(runs.count(d), 'run')}"
            for d, name in zip(order, names, strict=True)
            if runs.count(d) > 1
        ]
        reasons.append((f"each rank has one stage, and of {len(runs)} runs of modules", several))
        return None
    number = np.full(plan.cluster.n_devices, -1, dtype=np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    return _Staged(plan, cuts, number[plan.devices], tuple(order), len(order), None)


def _common(a: str, b: str) -> str:
    """The module that two modules are in."""
    parts: Sequence[str] = []
    for x, y in zip(a.split("."), b.split("."), strict=False):
        if x != y:
            break
        parts = [*parts, x]
    return ".".join(parts)
