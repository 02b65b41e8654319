"""torch.distributed.pipelining: a plan of stages as a Python file.

A split point stands before or after a module's ``forward``, so a pipeline is cut only where a
module begins or ends (:mod:`loadmaster.rules.module_cuts`). Autograd runs the backward of a stage
on the stage's own device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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
from loadmaster.rules.module_cuts import ModuleCuts, inside, upwards
from loadmaster.strategies.grids.module_space import ZERO_BUBBLE
from loadmaster.systems.pipelining.semantics import NAME
from loadmaster.systems.pipelining.stages import IMPORTS, STAGES
from loadmaster.systems.shared.backward import kept
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.precision import computed_in, dtype_of
from loadmaster.systems.shared.processes import command, optimizer_of, several_families
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.training_file import ProcessShares, parts

#: PyTorch's classes, by the names of schedules.
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
}

#: Those that PyTorch runs on lists of stages.
MULTI = ("interleaved-1f1b", *ZERO_BUBBLE)

_FILE = '''"""A pipeline by torch.distributed.pipelining: written by Loadmaster.

{run:words}

{step}

A batch is (args, kwargs, targets), the same on each rank, and loss_of(model(*args, **kwargs),
*targets) a mean over its samples.
"""

{figures}

{imports}

{constants}
#: Where the model is cut into stages: before or behind the forward pass of these modules.
SPLIT_SPEC = {{{spec}}}

#: Rank r has the stages {of_rank}.
STAGES = {stages}

#: If a stage hands tensors to a later one of its process: not where weights' gradients come later.
HANDS_OVER = {hands_over}


{start}

def parallelize(model, device, batch, loss_of=None):
    """The model with the parameters of this rank's stages, which its schedule runs.

    ``batch`` is of all samples: its sizes count. Without a loss the model is evaluated.
    """
{kept}{recorded}
    rank, parts, stages = dist.get_rank(), _cut(calls, result, tensors), {{}}
    model.kept = {{}}
    for index in {indices}:
        later = parts[index + 1].reads if index + 1 < STAGES else ()
        sends = {{value: tensors[value].dtype for value in later}}
        stages[index] = _Stage(model, parts[index], sends, None if sends else result, device)
    _drop_others(model, stages.values())
    model.to(device).stage_device = device

    def like(values):
        every = [tensors[value] for value in values]
        sizes = [{{"dtype": x.dtype, "requires_grad": x.requires_grad}} for x in every]
        return tuple(torch.empty(x.shape, device="meta", **of) for x, of in zip(every, sizes))

    pipeline = []
    for index, stage in stages.items():
        owned = (one for one in stage.owned() if isinstance(one, nn.Parameter))
        stage.weights = list({{id(one): one for one in owned}}.values())
        sends = like(stage.sends or _parts(result, Value))
        pipeline.append(PipelineStage(stage, index, STAGES, device, like(stage.reads), sends))
    loss_fn = (lambda loss, _: loss.sum()) if loss_of else None
    model.schedule = {schedule}({which}, MICRO_BATCHES, loss_fn=loss_fn)
    torch.manual_seed(torch.initial_seed() + rank)  # Each has a dropout of its own.
    return model


{passes}

{parts}{main}'''

_UNSCALED = "Losses in float16 are not scaled: gradients that are small may become zeros."

_RECORDED = "    calls, result, tensors = _recorded(model, batch, loss_of)"
_MIXED = """\
    with torch.autocast("cpu", PRECISION):  # Each call is repeated so, on its device.
        calls, result, tensors = _recorded(model, batch, loss_of)"""

_MESSAGE = '''

def _message(tensor, is_received):
    """A tensor as it is sent: {why}."""
    return {sent}
'''
_SENT = (
    Code("its elements lie one after another"),
    Code("tensor.clone() if is_received else tensor.contiguous()"),
)
#: Where the gradients of weights come later than those of inputs, PyTorch detaches what was sent in
#: place, which no view bears, nor an op of the stage that has kept it for the gradient of a weight.
_SENT_APART = (
    Code("a copy, which PyTorch detaches in place before the gradients of weights"),
    Code("tensor.clone(memory_format=torch.contiguous_format)"),
)

_TRAINED = (
    "trains on the example input of the model. In a script of one's own:\n"
    "\n"
    "    device = start()\n"
    "    model = parallelize(Model(), device, batch, loss_of)\n"
    "    optimizer = optimizer_of(model, torch.optim.{optimizer}, lr=1e-3)\n"
    "    for batch in loader:\n"
    "        loss = backward(model, batch)\n"
    "        clip(model, 1.0)\n"
    "        optimizer.step()\n"
    "        optimizer.zero_grad()"
)
_PASSES = '''\
def backward(model, batch, loss_of=None):
    """The loss of a whole batch, by that of parallelize; gradients are of the mean over it."""
    model.micro_batches, losses = _micro_batches(batch), []
    each = torch.arange(MICRO_BATCHES)
    model.schedule.step(micro_batch=each, target=each, losses=losses)
    whole = torch.zeros((), device=model.stage_device)
    if losses:
        whole += torch.stack(losses).mean().detach()
    dist.broadcast(whole, {last})  # The rank of the last stage.
    return whole


def clip(model, max_norm):
    """Scales all gradients to a norm of at most max_norm together; the norm that they had."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.zeros((), device=model.stage_device)
    for gradient in gradients:
        norm += gradient.float().square().sum()
    dist.all_reduce(norm)
    norm.sqrt_()
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm.item() + 1e-6)))
    return norm


def optimizer_of(model, optimizer, **options):
    """An optimizer of the parameters of this rank that are trained, of which there may be none."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return optimizer([{{"params": trained}}], **options)

'''
_EVALUATED = (
    "and in a script of one's own:\n"
    "\n"
    "    device = start()\n"
    "    model = parallelize(Model(), device, (args, kwargs, ()))\n"
    "    output = evaluate(model, *args, **kwargs)  # The {last} rank has it."
)
_EVALUATE = '''\
@torch.no_grad()
def evaluate(model, *args, **kwargs):
    """The output for a whole batch, on the {last} rank."""
    model.micro_batches = _micro_batches((args, kwargs, ()))
    return model.schedule.eval(micro_batch=torch.arange(MICRO_BATCHES))

'''


def pipelining(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
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

    Returns
    -------
    str
        The file: ``parallelize(model, device, batch, loss_of)`` gives the model with the
        stages of a rank.

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
        raise refusal(plan, NAME, reasons)
    file = _written(staged)
    if path is not None:
        write_bytes(path, file.encode())
    return file


def _written(staged: _Staged) -> Code:
    """The file of a plan that PyTorch can run."""
    plan, n = staged.plan, staged.n_stages
    points = (staged.cuts.points[place] for place in staged.places)
    spec = "".join(f"\n    {python(module)}: {python(side)}," for module, side in points)
    trains = "b" in plan.graph.phases
    in_v = staged.schedule == IN_V
    last = Code("first" if in_v else "last")
    last_rank = 0 if in_v else (n - 1) % len(staged.devices)
    why, sent = _SENT_APART if staged.schedule in ZERO_BUBBLE else _SENT
    is_mixed = computed_in(plan.graph) in ("f16", "bf16") and dtype_of(plan.graph) == "f32"
    schedule, ranks = SCHEDULES[staged.schedule], len(staged.devices)
    common = parts(
        plan,
        ProcessShares(staged.devices, 1, 1 if staged.micro is None else staged.micro.n),
        (*IMPORTS, f"from torch.distributed.pipelining import PipelineStage, {schedule}"),
        "parallelize(model.train(), device, batch, loss_of)",
        is_called=False,
    )
    of_training = [common[name] for name in ("data", "checkpoints", "main")] if trains else []
    message = python_file(_MESSAGE, why=why, sent=sent)
    return python_file(
        _FILE,
        run=command(plan, staged.devices),
        step=python_file(
            _TRAINED if trains else _EVALUATED, last=last, optimizer=optimizer_of(plan)
        ),
        figures=figures(plan, [_UNSCALED] if trains and computed_in(plan.graph) == "f16" else []),
        imports=common["imports"],
        constants=common["constants"],
        start=common["start"],
        kept=kept(plan),
        recorded=Code(_MIXED if is_mixed else _RECORDED),
        spec=Code(spec and f"{spec}\n"),
        of_rank=Code(f"r and {n - 1} - r" if in_v else f"r, r + {ranks}, ..."),
        stages=n,
        hands_over=staged.schedule not in ZERO_BUBBLE,
        indices=Code("(rank, STAGES - 1 - rank)" if in_v else "range(rank, STAGES, PROCESSES)"),
        schedule=Code(schedule),
        which=Code("pipeline" if staged.schedule in MULTI else "pipeline[0]"),
        passes=python_file(_PASSES, last=last_rank)
        if trains
        else python_file(_EVALUATE, last=last),
        parts=Code(f"{STAGES}{message}"),
        main=Code("".join(f"\n\n{part}" for part in of_training)),
    )


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
        yield from several_families(self.plan, self.devices)
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
        # Planning for the system places the backward pass as well as the graph tells of autograd.
        if self.plan.target != NAME and (stray := self._stray()):
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
        again = [
            f"{self.cuts.module_of[a]!r} and {self.cuts.module_of[b]!r}"
            for a, b in cuts.recomputed
            if any(a < place <= b for place in self.places)
        ]
        if again:
            yield "what is recomputed together is apart: between", again

    def _stray(self) -> list[str]:
        """Ops of the backward pass and of the optimizer in another stage than their module, each
        with its device.
        """
        graph, root = self.plan.graph, self.cuts.root
        homes: dict[str, tuple[int, int]] = {}
        for place, path in enumerate(self.cuts.module_of):
            at = int(self.of_place[place])
            for module in upwards(path):
                first, last = homes.get(module, (at, at))
                homes[module] = min(first, at), max(last, at)
        moved = []
        forward = set(self.cuts.order.tolist())
        for op in np.flatnonzero(graph.reduced.runs).tolist():
            if op in forward or not graph.modules[op]:
                continue
            module = inside(".".join(module_path(graph.modules[op])), root) or ""
            while module and module not in homes:
                module = module.rpartition(".")[0]
            if module and not homes[module][0] <= self.stage[op] <= homes[module][1]:
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
