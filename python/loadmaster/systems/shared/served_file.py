"""Parts of the files of servers: the parallelism of a plan, refusals, and the head with figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loadmaster.base.quoting import Code, comment, yaml_file
from loadmaster.plans.plan import Plan
from loadmaster.rules.layer_list import LayerList
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.layered import is_encoder
from loadmaster.systems.shared.layers import options_of
from loadmaster.systems.shared.names import device_names, torch_device
from loadmaster.systems.shared.parallelism_of_plan import RankedDevices, parallelism_of
from loadmaster.systems.shared.refusal import Reason, refusal

_HEAD = """\
{figures}
#
{command:words}
# Ranks are on
{ranks}"""


@dataclass(frozen=True)
class ServedFile:
    """A plan that a server can run.

    Attributes
    ----------
    plan : Plan
    ranked : RankedDevices
        Its parallelism, and the device of each rank.
    """

    plan: Plan
    ranked: RankedDevices

    @classmethod
    def of(
        cls, plan: Plan, name: str, root: str | None, layers: str | None, replicas: str
    ) -> ServedFile:
        """A plan for the server of a name.

        Parameters
        ----------
        plan : Plan
        name : str
        root, layers : str, optional
            As :class:`~loadmaster.rules.layer_list.LayerList` takes them; what the plan was made
            with if None.
        replicas : str
            The way to have replicas, which this server does not have of one batch.

        Raises
        ------
        InputError
            Everything that such a server cannot run of the plan.
        """
        root, layers = options_of(plan, root, layers)
        reasons: list[Reason] = []
        ranked = parallelism_of(plan, name, root, layers, reasons)
        if ranked is not None:
            reasons += _in_the_way(plan, ranked, replicas)
            if ranked.parallelism.stages > 1 and is_encoder(LayerList.of(plan.graph, root, layers)):
                reasons.append("it has no stages of an encoder, and attention here is not causal")
        if ranked is None or reasons:
            raise refusal(plan, name, reasons)
        return cls(plan, ranked)

    @property
    def is_uneven(self) -> bool:
        """True if stages have unequal numbers of layers."""
        return len(set(self.ranked.parallelism.layers)) > 1

    def setting(self, variable: str) -> str:
        """The beginning of a command that sets a variable to the layers of each stage; empty: they
        are equal.
        """
        counts = ",".join(map(str, self.ranked.parallelism.layers))
        return f"{variable}={counts} " if self.is_uneven else ""

    def head(self, command: str, names: Mapping[str, str] | None) -> Code:
        """Comments: the plan's figures, the command that takes the file, the device of each rank.

        Raises
        ------
        InputError
            ``names`` speaks of a device that the cluster does not have.
        """
        spelled = device_names(self.plan, torch_device, names)
        ranks = " ".join(spelled[device] for device in self.ranked.devices)
        parallelism = self.ranked.parallelism
        order = f"tp {parallelism.tp} changes fastest, then pp {parallelism.stages}"
        said = (
            "The step is one pass over the prompts of the graph. The cache of keys and values is "
            "not in it."
        )
        return Code(
            yaml_file(
                _HEAD,
                figures=figures(self.plan, [said]),
                command=command,
                ranks=comment(f"{ranks}: {order}.", "#   "),
            )
        )


def _in_the_way(plan: Plan, ranked: RankedDevices, replicas: str) -> Iterator[Reason]:
    parallelism = ranked.parallelism
    if parallelism.virtual > 1:
        first = ranked.devices[:: parallelism.tp * parallelism.dp]
        said = [f"{plan.cluster.devices[d].name} has {parallelism.virtual}" for d in first]
        yield "each device has one run of layers, and in the plan", said
    if parallelism.dp > 1:
        yield (
            f"{parallelism.dp} replicas share one batch: they are servers of their own, each with "
            f"its own requests ({replicas})"
        )
    if parallelism.sequence:
        yield "norms are cut by tokens"
