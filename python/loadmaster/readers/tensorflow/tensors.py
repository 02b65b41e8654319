"""Known facts about outputs of TensorFlow's nodes: from a run, or as the graph declares them."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.readers.shared.ops import Tensor
from loadmaster.readers.tensorflow.costs import ELEMENT_TYPES, INPUTS, VARIABLES, VIEWS
from loadmaster.readers.tensorflow.nodes import GraphNode, Port
from loadmaster.readers.tensorflow.run import Execution, tensor

_FED = "_arg_"


class OutputTensors:
    """The outputs of a graph's nodes."""

    def __init__(self, nodes: Mapping[str, GraphNode], run: Mapping[str, Execution]) -> None:
        self._nodes = nodes
        self._run = run
        self._fed = _fed(run, nodes)
        self._known: dict[Port, Tensor] = {}

    def of(self, port: Port) -> Tensor:
        """An output, as far as it is known: as it ran, else as the graph declares it. For an op
        that only forwards and did not run, it is what is known of its input.
        """
        path: dict[Port, None] = {}
        while port not in self._known and port not in path:
            path[port] = None
            node = self._nodes[port[0]]
            if self._tells(node, port) or node.kind not in VIEWS or not node.data:
                self._known[port] = self._told(node, port)
            else:
                port = node.data[0]
        tensor = self._known.get(port, Tensor())
        self._known.update(dict.fromkeys(path, tensor))
        return tensor

    def _tells(self, node: GraphNode, port: Port) -> bool:
        """True if an output is known better than its node's input."""
        return not self._run or node.name in self._run or port in self._fed

    def _told(self, node: GraphNode, port: Port) -> Tensor:
        name, number = port
        if node.kind in VARIABLES:
            return tensor(_type(node, "dtype"), node.proto.attr["shape"].shape)
        ran = self._run.get(name)
        if ran is not None and number in ran.outputs:
            return ran.outputs[number]
        if port in self._fed:
            return self._fed[port]
        dtype, shapes = _output_type(node, number), node.proto.attr["_output_shapes"].list.shape
        if number < len(shapes):
            return tensor(dtype, shapes[number])
        return Tensor(ELEMENT_TYPES.get(dtype % 100, ""))

    def ports(self, name: str) -> int:
        """The number of outputs that are known of an op."""
        node, ran = self._nodes[name], self._run.get(name)
        if node.kind in VARIABLES or node.kind in INPUTS:
            return 1
        if ran is not None:
            return min(1 + max(ran.outputs, default=-1), len(ran.outputs) + 64)
        return len(node.proto.attr["_output_shapes"].list.shape)


def _fed(run: Mapping[str, Execution], nodes: Mapping[str, GraphNode]) -> dict[Port, Tensor]:
    """Tensors that were fed, by the output that they replace: ``_arg_NAME_PORT_NUMBER``."""
    fed = {}
    for name, execution in run.items():
        if name.startswith(_FED) and execution.outputs:
            head, _, port = name.removeprefix(_FED).rpartition("_")[0].rpartition("_")
            if head in nodes and port.isascii() and port.isdigit():
                fed[head, int(port)] = next(iter(execution.outputs.values()))
    return fed


def _type(node: GraphNode, attribute: str) -> int:
    return int(node.proto.attr[attribute].type) if attribute in node.proto.attr else 0


#: Attributes that name the element type of outputs, by kind; T and dtype elsewhere.
_TYPE_OF = {
    "Cast": "DstT",
    "Bitcast": "type",
    "Shape": "out_type",
    "ShapeN": "out_type",
    "Size": "out_type",
    "ArgMax": "output_type",
    "ArgMin": "output_type",
    "GatherV2": "Tparams",
    "Gather": "Tparams",
    "GatherNd": "Tparams",
    "TensorArrayReadV3": "dtype",
    "TensorArrayGatherV3": "dtype",
    "StackPopV2": "elem_type",
    "OneHot": "T",
}
_BOOLEANS = frozenset(
    (
        *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd"),
        *("LogicalOr", "LogicalNot", "LoopCond", "VarIsInitializedOp", "IsFinite", "IsInf"),
        *("IsNan", "All", "Any", "IsVariableInitialized"),
    )
)
_BOOL, _INT32, _RESOURCE = 10, 3, 20


def _output_type(node: GraphNode, port: int) -> int:
    """The number of an output's element type, as far as attributes tell; 0: unknown."""
    kind = node.kind
    if kind in _BOOLEANS:
        return _BOOL
    if kind in ("Rank", "ConcatOffset", "InvertPermutation", "BroadcastGradientArgs"):
        return _type(node, "T") or _INT32
    if kind in ("Shape", "ShapeN", "Size", "ArgMax", "ArgMin", "VariableShape"):
        return _type(node, _TYPE_OF.get(kind, "out_type")) or _INT32
    if kind in ("TensorArrayV3", "StackV2", "VarHandleOp") and port == 0:
        return _RESOURCE
    if kind.startswith("FusedBatchNorm") and port > 0:
        return _type(node, "U") or _type(node, "T")
    if kind in ("Unique", "UniqueV2", "TopKV2", "Merge") and port > 0:
        return _type(node, "out_idx") or _INT32
    wanted = (_TYPE_OF[kind],) if kind in _TYPE_OF else ("T", "dtype")
    return next((number for name in wanted if (number := _type(node, name))), 0)
