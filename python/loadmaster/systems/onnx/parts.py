"""An ONNX model with the device and the segment of each node.

Weights and Constant nodes belong to no segment: every segment that reads one has a copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, system_errors
from loadmaster.base.reached import reached
from loadmaster.plans.plan import Plan
from loadmaster.plans.segments import Segments
from loadmaster.readers.onnx.costs import ELEMENT_TYPES
from loadmaster.readers.onnx.model import check_whole, inlined, load, op_names, without_payload
from loadmaster.readers.onnx.nodes import (
    in_order,
    initializer_name,
    initializers,
    library_errors,
    values_read,
)
from loadmaster.systems.onnx.semantics import SESSION
from loadmaster.systems.shared.names import check_names

_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


@dataclass(frozen=True)
class ModelSegment:
    """A segment of a model.

    Attributes
    ----------
    device : int
    nodes : list of int
        Positions of its nodes, in order.
    stored : list of str
        Weights and constants that it reads.
    inputs, outputs : list of str
        Values that come from outside, and that are read outside.
    """

    device: int
    nodes: list[int]
    stored: list[str]
    inputs: list[str]
    outputs: list[str]


class PlacedModel:
    """A model, its nodes in order, and where the plan has them.

    Parameters
    ----------
    plan : Plan
    source : path of the ``.onnx`` file that the plan's graph was read from.

    Raises
    ------
    InputError
        No ONNX model, or not the plan's.
    """

    def __init__(self, plan: Plan, source: str | os.PathLike[str]) -> None:
        self.plan = plan
        self.source = Path(source)
        with naming(self.source):
            model = load(source)
            check_whole(model)
        self.model = inlined(model)
        graph = self.model.graph
        self.nodes = in_order(graph)
        names, positions = op_names(graph)
        check_names(plan, names, str(self.source))
        #: The op of the plan's graph that each node is.
        self.op = [plan.graph.index(names[i]) for i in positions]
        self.device = [int(plan.devices[op]) for op in self.op]
        self.weights = {initializer_name(i): i for i in initializers(graph)}
        self.constants = {
            node.output[0]: i for i, node in enumerate(self.nodes) if node.op_type == "Constant"
        }
        self.inputs = [i.name for i in graph.input if i.name not in self.weights]
        self.outputs = [o.name for o in graph.output]

    @cached_property
    def segments(self) -> Segments:
        """The plan's segments."""
        return Segments.cut(self.plan, SESSION)

    @cached_property
    def parts(self) -> list[ModelSegment]:
        """Segments in an order in which they can run; nodes that no output needs are left out."""
        maker = {
            value: i
            for i, node in enumerate(self.nodes)
            if node.op_type != "Constant"
            for value in filter(None, node.output)
        }
        kept = self._needed(maker)
        nodes_of: dict[int, list[int]] = {}
        for i in kept:
            nodes_of.setdefault(int(self.segments.of[self.op[i]]), []).append(i)
        wanted: dict[int, set[str]] = {segment: set() for segment in sorted(nodes_of)}
        of = {i: segment for segment, nodes in nodes_of.items() for i in nodes}
        for value in self.outputs:
            if value in maker:
                wanted[of[maker[value]]].add(value)
            elif value in self.weights or value in self.constants:
                # An output of the model that is a weight comes from the first part.
                next(iter(wanted.values())).add(value)
        for i in kept:
            for value in values_read(self.nodes[i]):
                if value in maker and of[maker[value]] != of[i]:
                    wanted[of[maker[value]]].add(value)
        devices = self.segments.devices
        return [
            self._part(int(devices[segment]), nodes_of[segment], outputs)
            for segment, outputs in wanted.items()
        ]

    def _needed(self, maker: Mapping[str, int]) -> list[int]:
        def makers(values: Iterable[str]) -> list[int]:
            return [maker[value] for value in values if value in maker]

        return sorted(
            reached(makers(self.outputs), lambda node: makers(values_read(self.nodes[node])))
        )

    def _part(self, device: int, nodes: list[int], outputs: set[str]) -> ModelSegment:
        nodes = sorted(nodes)
        produced = {v for i in nodes for v in self.nodes[i].output}
        read = dict.fromkeys(v for i in nodes for v in values_read(self.nodes[i]))
        stored = {
            v: None
            for v in (*read, *sorted(outputs))
            if v not in produced and (v in self.weights or v in self.constants)
        }
        return ModelSegment(
            device,
            nodes,
            list(stored),
            [v for v in read if v not in produced and v not in stored],
            sorted(outputs),
        )

    @cached_property
    def types(self) -> dict[str, Any]:
        """``ValueInfoProto`` of every value whose type can be known.

        Shapes are inferred anew, since those that a file declares may be stale, or wrong: ONNX
        Runtime only warns of them. Those of outputs hold where nothing else is known.
        """
        import onnx

        light = without_payload(self.model)
        del light.graph.value_info[:]
        for output in light.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        try:
            inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
        except Exception:  # inference raises whatever its C++ side meets; types remain
            inferred = light.graph
        known = {}
        for node, op in zip(self.nodes, self.op, strict=True):
            texts = self.plan.graph.outputs[op].split(";")
            for value, text in zip(node.output, texts, strict=False):
                dtype, _, dims = text.removesuffix("]").partition("[")
                # The plan's sizes are those of one batch; that there are so many holds for all.
                shape = None if dims == "..." else [None for _ in filter(None, dims.split(","))]
                if value and dtype in _NUMBERS:
                    known[value] = onnx.helper.make_tensor_value_info(value, _NUMBERS[dtype], shape)
        for infos in (inferred.value_info, inferred.output, self.model.graph.input):
            known |= {v.name: v for v in infos if _is_whole(v) or v.name not in known}
        for declared in self.model.graph.output:
            if not _is_whole(known.get(declared.name, declared)):
                known[declared.name] = declared
        return known

    def type(self, value: str) -> Any:
        """The type of a value that crosses between parts.

        Raises
        ------
        InputError
            It is not known.
        """
        if value not in self.types:
            names = self.plan.graph.names
            maker = next(
                names[op]
                for node, op in zip(self.nodes, self.op, strict=True)
                if value in node.output
            )
            raise InputError(
                f"{self.source}: the type of {value!r}, which op {maker!r} sends to another "
                "device, is not known: place the op with its readers, --no-split or --pin"
            )
        return self.types[value]

    def priority(self, node: int) -> int:
        """The plan's priority of a node."""
        return int(self.plan.priority[self.op[node]])


def _is_whole(info: Any) -> bool:
    """True if a value's type has all that ONNX asks for."""
    kind = info.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or info.type.tensor_type.HasField("shape"))


#: Beginning of the keys of ``metadata_props`` that Loadmaster writes.
PREFIX = "loadmaster."


def without_facts(message: Any) -> None:
    """Removes the ``metadata_props`` of an earlier export from a model or a node."""
    keep_of(message.metadata_props, lambda fact: not fact.key.startswith(PREFIX))


def keep_of(messages: Any, holds: Callable[[Any], bool]) -> None:
    """Removes those of a repeated field for which a condition does not hold."""
    kept = [message for message in messages if holds(message)]
    del messages[:]
    messages.extend(kept)


#: Weights of more bytes go into a file of their own: a protobuf holds less than 2 GiB.
_OUTSIDE = 1 << 30


def save(model: Any, path: Path, source: Path) -> None:
    """Writes a model with its weights, whose data may lie outside beside ``source``.

    Raises
    ------
    InputError
        Data that is not there, or a file that cannot be written.
    """
    import onnx

    outside = onnx.external_data_helper.uses_external_data
    tensors = [t for t in model.graph.initializer if outside(t)]
    damage = (OSError, ValueError, onnx.checker.ValidationError)
    with library_errors(f"{source}: its weights cannot be read", *damage):
        onnx.external_data_helper.load_external_data_for_model(model, str(source.parent))
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    with system_errors(f"cannot write {path}"):
        onnx.save_model(
            model,
            path,
            save_as_external_data=bool(tensors) or size > _OUTSIDE,
            location=f"{path.stem}.data",
        )
