"""Parallelism: how many devices share what of a step, in the words of the systems that run it.

A plan has one where its devices all do the same on equal parts. Planners of systems choose it, and
their writers read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.text import shown
from loadmaster.base.units import counted
from loadmaster.model.micro import IN_V, NAMED, WINDOWS

#: The part of the state that devices share out: nothing, or as ZeRO 1, 2 and 3 do.
ShardState = Literal["none", "optimizer", "gradients", "parameters"]

#: Routed experts in a group of tensor parallelism: each device has a part of every one,
#: or some of them whole.
Experts = Literal["cut", "apart"]

#: Share of a layer that is computed again in the backward pass.
Recompute = Literal["none", "selective", "full"]

_ZERO = {"optimizer": "ZeRO-1", "gradients": "ZeRO-2", "parameters": "FSDP"}

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "interleaved 1F1B",
    "zero-bubble": "zero bubble",
    IN_V: "zero bubble in a V",
    WINDOWS: "a schedule of its own",
}


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Degrees of parallelism, and the choices that go with them.

    A device has one rank. Along ranks tensor parallelism changes fastest, then context parallelism,
    ``shard``, ``replicate``, and stages.

    Attributes
    ----------
    replicate : int
        Replicas of all state, which share the batch (DDP; the outer size of HSDP).
    shard : int
        Devices that share the batch of a replica, and have a part each of its state.
    shard_state : str
        What of the state is in parts: "none", "optimizer" (ZeRO 1), "gradients" as well (ZeRO 2),
        or "parameters" as well (ZeRO 3, FSDP).
    shares : tuple of float
        What each of the devices that share the batch gets of it, in proportion. Empty: equal
        shares.
    tp : int
        Devices that share the weights of each layer (tensor parallelism).
    sequence : bool
        Whether these share the tokens between the products of a layer (sequence parallelism).
    cp : int
        Devices that share the tokens of a sequence all the way (context parallelism).
    ep : int
        Devices that have different routed experts of each layer (expert parallelism).
    experts : str
        "cut": the ``tp`` devices have a part each of a routed expert, and ``ep`` of those that
        share the batch have different ones. "apart": ``tp`` devices have different ones, too;
        ``ep`` is a multiple of ``tp``.
    stages : int
        Sets of devices that have different layers (pipeline parallelism).
    virtual : int
        Runs of layers of each set of devices (virtual stages).
    layers : tuple of int
        Layers of each virtual stage, in their order. Empty: no list of layers is divided.
    micro_batches : int
        Parts of the batch of a device, one after another. Without stages their gradients are
        accumulated.
    schedule : str or None
        The order of micro-batches on stages: a name of :data:`loadmaster.model.micro.NAMED`, or
        "windows". None: there are no stages.
    recompute : str
        What is recomputed in the backward pass: "none", "selective" (some ops of layers) or "full"
        (layers as a whole).
    recompute_modules : tuple of str
        Modules of a layer that are recomputed, in the words of the system; for "selective". Empty:
        what the system selects.
    recompute_layers : tuple of int
        Of each virtual stage, how many modules (of a list of layers, its first ones) are
        recomputed; for "full". Empty: all layers.

    Raises
    ------
    InputError
        Values that are no sizes or known words, or that do not go together.

    Examples
    --------
    >>> print(Parallelism(replicate=2, shard=4, shard_state="parameters"))
    HSDP 2 x 4
    >>> grid = Parallelism(tp=8, stages=4, replicate=2, schedule="1f1b", micro_batches=16)
    >>> print(grid, grid.devices)
    TP 8 x PP 4 x DP 2, 1F1B, 16 micro-batches 64
    """

    replicate: int = 1
    shard: int = 1
    shard_state: ShardState = "none"
    shares: tuple[float, ...] = ()
    tp: int = 1
    sequence: bool = False
    cp: int = 1
    ep: int = 1
    experts: Experts = "cut"
    stages: int = 1
    virtual: int = 1
    layers: tuple[int, ...] = ()
    micro_batches: int = 1
    schedule: str | None = None
    recompute: Recompute = "none"
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("replicate", "shard", "tp", "cp", "ep", "stages", "virtual", "micro_batches"):
            checks.integer(f"parallelism: {name}", getattr(self, name))
        checks.flag("parallelism: sequence", self.sequence)
        checks.one_of("parallelism: shard_state", self.shard_state, get_args(ShardState))
        checks.one_of("parallelism: experts", self.experts, get_args(Experts))
        checks.one_of("parallelism: recompute", self.recompute, get_args(Recompute))
        for name in ("shares", "layers", "recompute_modules", "recompute_layers"):
            object.__setattr__(self, name, self._checked_list(name))
        self._check_state()
        self._check_experts()
        self._check_stages()

    def _checked_list(self, name: str) -> tuple[Any, ...]:
        values, noun = getattr(self, name), f"parallelism: {name}"
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise InputError(f"{noun} is {shown(values)}: wants a list")
        if name == "shares":
            return tuple(checks.positive(noun, value) for value in values)
        if name != "recompute_modules":
            return tuple(checks.integer(noun, value, 0) for value in values)
        if not all(isinstance(value, str) for value in values):
            raise InputError(f"{noun} is {shown(values)}: wants a list of names")
        return tuple(values)

    def _check_state(self) -> None:
        if (self.shard > 1) != (self.shard_state != "none"):
            raise InputError(
                f"parallelism: shard is {self.shard} and shard_state {self.shard_state!r}: state "
                "is in parts on 2 devices or more, and one of optimizer, gradients, parameters"
            )
        if self.shares and len(self.shares) != self.dp:
            raise InputError(
                f"parallelism: {counted(len(self.shares), 'share')} for the {self.dp} devices "
                "that share the batch"
            )
        if self.sequence and self.tp == 1:
            raise InputError("parallelism: sequence is for tp of 2 or more")

    def _check_experts(self) -> None:
        if self.experts == "apart" and (self.tp == 1 or self.ep % self.tp):
            raise InputError(
                f"parallelism: experts are apart on the {self.tp} devices of tp and ep is "
                f"{self.ep}: wants a multiple of tp, which is 2 or more"
            )
        if (self.dp * self.cp) % self.expert_replicas:
            raise InputError(
                f"parallelism: {self.expert_replicas} of the {self.dp * self.cp} devices that "
                "share the batch have different experts: wants a divisor"
            )

    def _check_stages(self) -> None:
        if (self.schedule is not None) != (self.stages > 1):
            raise InputError(
                f"parallelism: {counted(self.stages, 'stage')} and the schedule {self.schedule!r}: "
                "2 stages or more have a schedule, and one has none"
            )
        if self.schedule is not None:
            checks.one_of("parallelism: schedule", self.schedule, (*NAMED, WINDOWS))
        if self.virtual > 1 and self.stages == 1:
            raise InputError("parallelism: virtual stages are for 2 stages or more")
        if self.schedule == IN_V and self.virtual != 2:
            raise InputError(f"parallelism: schedule {IN_V!r} is for 2 virtual stages")
        runs = self.stages * self.virtual
        for name in ("layers", "recompute_layers"):
            values = getattr(self, name)
            if values and len(values) != runs:
                raise InputError(
                    f"parallelism: {name} has {counted(len(values), 'number')} for "
                    f"{counted(runs, 'virtual stage')}"
                )
        if self.recompute_modules and self.recompute != "selective":
            raise InputError("parallelism: recompute_modules are for selective recomputation")
        if self.recompute_layers and self.recompute != "full":
            raise InputError("parallelism: recompute_layers are for full recomputation")

    # -- what follows from it ----------------------------------------------------------------------

    @property
    def dp(self) -> int:
        """Devices that share the batch."""
        return self.replicate * self.shard

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.dp * self.cp * self.tp * self.stages

    @property
    def expert_replicas(self) -> int:
        """Of the devices that share the batch, those that have different routed experts."""
        return self.ep // self.tp if self.experts == "apart" else self.ep

    def __str__(self) -> str:
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        others = [("TP", self.tp), ("CP", self.cp), ("PP", self.stages)]
        factors = [f"{name} {size}" for name, size in others if size > 1]
        yield " x ".join([*factors, *self._inner_data()]) if factors else self._data()
        if self.shares:
            yield "unequal shares"
        if factors and self.shard_state in ("optimizer", "gradients"):
            yield _ZERO[self.shard_state] + f" over {self.shard}" * (self.replicate > 1)
        if self.sequence:
            yield "sequence parallelism"
        if self.ep > 1:
            yield f"EP {self.ep}" + " within TP" * (self.experts == "apart")
        if self.schedule is not None and self.micro_batches > 1:
            yield _SCHEDULES[self.schedule]
        if self.virtual > 1:
            yield f"{self.virtual} virtual stages per device"
        if self.micro_batches > 1:
            yield f"{self.micro_batches} micro-batches"
        if self.recompute != "none":
            modules = ", ".join(self.recompute_modules)
            of = counted(sum(self.recompute_layers), "module")
            yield (
                f"{self.recompute} recomputation"
                + f" ({modules})" * bool(modules)
                + f" of {of}" * bool(self.recompute_layers)
            )

    def _data(self) -> str:
        """The name of data parallelism, where nothing else is shared."""
        if self.dp == 1:
            return "one device"
        if self.shard == 1:
            return f"DDP over {self.replicate}"
        if self.replicate == 1:
            return f"{_ZERO[self.shard_state]} over {self.shard}"
        name = {"parameters": "HSDP"}.get(self.shard_state, _ZERO[self.shard_state])
        return f"{name} {self.replicate} x {self.shard}"

    def _inner_data(self) -> Iterator[str]:
        """The name of data parallelism, as a factor among others."""
        if self.shard_state == "parameters":
            yield (
                self._data().replace("over ", "")
                if self.replicate == 1
                else (f"HSDP ({self.replicate} x {self.shard})")
            )
        elif self.dp > 1:
            yield f"DP {self.dp}"

    # -- on disk -----------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """As plain data that :meth:`from_document` reads back; what is usual is left out.

        >>> Parallelism(replicate=2, tp=4, sequence=True).to_document()
        {'replicate': 2, 'tp': 4, 'sequence': True}
        """
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, (value, usual) in values.items()
            if value != usual
        }

    @classmethod
    def from_document(cls, document: Any, source: str = "parallelism") -> Parallelism:
        """From plain data with the attributes' names; ``source`` is named in errors.

        Raises
        ------
        InputError
            No table, an unknown key, or as the class says.
        """
        if not isinstance(document, Mapping):
            raise InputError(f"{source} is {shown(document)}: wants a table")
        checks.known_keys(source, document, [one.name for one in fields(cls)])
        return cls(**document)
