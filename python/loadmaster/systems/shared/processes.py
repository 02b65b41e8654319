"""Processes of PyTorch, one per device: how they are begun, and what each does first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from loadmaster.base.quoting import Code, python_file, python_name
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import recipe_in_words
from loadmaster.systems.shared.refusal import Reason

#: The backend of torch.distributed by the family of devices.
BACKENDS = {"gpu": "nccl", "cpu": "gloo", "npu": "hccl"}

#: Part of a device's name that may say which machine it is in.
_MACHINE = re.compile(r"(?:node|host|machine)\d+")

#: The user's own file.
_SCRIPT = Code("train.py")


_START = '''\
#: Processes, one on each device of the plan.
PROCESSES = {n}


def start(backend={backend}, seed=0, **options):
    """Joins the processes that torchrun began; the device of this one."""
    device = torch.device({kind}, {number})
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(backend, **options)
    if dist.get_world_size() != PROCESSES:
        raise RuntimeError(f"for {{PROCESSES}} processes, and there are {{dist.get_world_size()}}")
    torch.manual_seed(seed)  # Models that are built now have the same weights on all processes.
    return device
'''


def start(plan: Plan, devices: Sequence[int]) -> Code:
    """The function ``start`` of a file: it joins the processes, and gives each its device."""
    family = family_of(plan, devices)
    kind = {"gpu": "cuda"}.get(family, family)
    number = Code("0" if family == "cpu" else 'int(os.environ.get("LOCAL_RANK", 0))')
    return python_file(_START, n=len(devices), backend=BACKENDS[family], kind=kind, number=number)


def optimizer_of(plan: Plan) -> Code:
    """The class in ``torch.optim`` of the graph's optimizer; of a graph without one, SGD."""
    return python_name(plan.graph.meta.get("optimizer", ""), "SGD")


def command(plan: Plan, devices: Sequence[int], script: Code = _SCRIPT) -> Code:
    """The command that begins a process on each of these devices, in this order, for a script.

    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe"), "single")
    >>> command(plan, [0, 2])
    'CUDA_VISIBLE_DEVICES=0,2 torchrun --nproc-per-node 2 train.py'
    """
    n = machines(plan, devices)
    if n > 1:
        each = -(-len(devices) // n)
        return Code(
            f"torchrun --nnodes {n} --nproc-per-node {each} --rdzv-backend c10d "
            f"--rdzv-endpoint HOST:PORT {script}"
        )
    visible = ",".join(map(str, visible_gpus(plan, devices)))
    before = f"CUDA_VISIBLE_DEVICES={visible} " if visible else ""
    return Code(f"{before}torchrun --nproc-per-node {len(devices)} {script}")


def machines(plan: Plan, devices: Sequence[int]) -> int:
    """The number of machines that devices are in, as far as their names say."""
    names = [plan.cluster.devices[d].name for d in devices]
    return len({match[0] if (match := _MACHINE.match(name)) else "" for name in names})


def visible_gpus(plan: Plan, devices: Sequence[int]) -> list[int]:
    """The numbers of the GPUs among devices; none if these are all that there are, in order."""
    of = families(plan.cluster)
    numbers = [number for family, number in (of[d] for d in devices) if family == "gpu"]
    there = sum(family == "gpu" for family, _ in of)
    return [] if numbers == [*range(there)] else numbers


def family_of(plan: Plan, devices: Sequence[int]) -> str:
    """The family of the devices of processes: one backend serves all of them."""
    return families(plan.cluster)[devices[0]][0]


def several_families(plan: Plan, devices: Sequence[int]) -> Iterator[Reason]:
    """The reason against processes on devices of several families, between which no backend sends:
    that of the first would serve all.
    """
    of = families(plan.cluster)
    if len({of[d][0] for d in devices}) > 1:
        names = [f"{plan.cluster.devices[d].name} ({of[d][0]})" for d in devices]
        yield (
            "processes are on devices of several kinds, which PyTorch sends nothing between",
            names,
        )


def number_of_processes(plan: Plan) -> int:
    """Devices that run something, which have a process each."""
    return len(set(plan.running_devices[plan.running_devices >= 0].tolist()))


def devices_of(plan: Plan) -> list[int]:
    """The device of each replica, or the one that has the whole model."""
    replica, device = plan.program.replica, plan.running_devices
    if plan.program.is_plain:
        return sorted(set(device.tolist()))[:1]
    return [int(device[(replica == r).argmax()]) for r in range(int(replica.max()) + 1)]


def no_replicas(plan: Plan) -> Iterator[Reason]:
    """Reasons against a process per device that has equal work and a whole model."""
    program, devices, names = plan.program, plan.running_devices, plan.cluster.devices
    if program.is_plain:
        used = sorted(set(devices[plan.problem.reduced.op_of].tolist()))
        if len(used) > 1:
            yield "ops of one model are apart", [names[d].name for d in used]
        return
    replica = program.replica
    yield from several_families(plan, np.unique(devices[devices >= 0]).tolist())
    if program.recipe is not None:
        yield f"its recipe shares ops otherwise than by replicas ({recipe_in_words(plan)})"
        return
    if (is_part := program.parts > 1).any():
        yield "ops are split", [repr(program.graph.names[op]) for op in np.flatnonzero(is_part)]
    if (outside := np.unique(program.serves[replica < 0])).size:
        yield "ops are in no replica", [repr(program.source.names[op]) for op in outside]
    runs = plan.problem.reduced.op_of
    for r in range(int(replica.max()) + 1):
        of = runs[replica[runs] == r]
        home = np.bincount(devices[of]).argmax()
        if (stray := of[devices[of] != home]).size:
            yield (
                f"ops of replica {r} are not on {names[int(home)].name}",
                [repr(program.graph.names[op]) for op in stray],
            )
    shares = {round(float(s), 6) for s in np.unique(program.share[~program.own])}
    if len(shares - {1.0}) > 1:
        yield (
            "replicas have unequal shares of the batch",
            [f"{s:.3f}" for s in sorted(shares - {1.0})],
        )
