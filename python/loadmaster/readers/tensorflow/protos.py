"""TensorFlow's protobuf messages, the fields that a graph is read from, without TensorFlow.

Fields not named here are skipped by the parser. Numbers and types are those of TensorFlow's
``graph``, ``node_def``, ``attr_value``, ``step_stats``, ``cost_graph``, ``config`` and
``meta_graph.proto``; they never change.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from loadmaster.base.errors import InputError, refusing
from loadmaster.base.files import read_bytes
from loadmaster.readers.shared.varint import varint

#: Fields by message: name, number, type; ``*``: repeated, ``{}``: map from text.
_MESSAGES = {
    "Dim": "size 1 int64",
    "TensorShape": "dim 2 *Dim, unknown_rank 3 bool",
    "Tensor": "dtype 1 DataType, tensor_shape 2 TensorShape, tensor_content 4 bytes, "
    "int_val 7 *int32, int64_val 10 *int64",
    "AttrList": "s 2 *bytes, i 3 *int64, f 4 *float, b 5 *bool, type 6 *DataType, "
    "shape 7 *TensorShape",
    "AttrValue": "list 1 AttrList, s 2 bytes, i 3 int64, f 4 float, b 5 bool, type 6 DataType, "
    "shape 7 TensorShape, tensor 8 Tensor",
    "NodeDef": "name 1 string, op 2 string, input 3 *string, device 4 string, attr 5 {}AttrValue",
    "Versions": "producer 1 int32",
    "GraphDef": "node 1 *NodeDef, versions 4 Versions",
    "MetaInfo": "tensorflow_version 5 string",
    "MetaGraphDef": "meta_info_def 1 MetaInfo, graph_def 2 GraphDef",
    "SavedModel": "meta_graphs 2 *MetaGraphDef",
    "Allocation": "requested_bytes 1 int64",
    "TensorDescription": "dtype 1 DataType, shape 2 TensorShape, "
    "allocation_description 4 Allocation",
    "NodeOutput": "slot 1 int32, tensor_description 3 TensorDescription",
    "MemoryStats": "temp_memory_size 1 int64",
    "NodeStats": "node_name 1 string, op_start_rel_micros 3 int64, op_end_rel_micros 4 int64, "
    "output 7 *NodeOutput, timeline_label 8 string, memory_stats 12 MemoryStats, "
    "op_start_rel_nanos 14 int64, op_end_rel_nanos 15 int64",
    "DeviceStats": "device 1 string, node_stats 2 *NodeStats",
    "StepStats": "dev_stats 1 *DeviceStats",
    "CostOutput": "size 1 int64, shape 3 TensorShape, dtype 4 DataType",
    "CostNode": "name 1 string, device 2 string, output_info 5 *CostOutput, compute_cost 9 int64",
    "CostGraph": "node 1 *CostNode",
    "RunMetadata": "step_stats 1 StepStats, cost_graph 2 CostGraph",
}
#: Messages of which one field is set: the name that these fields go by.
_ONE_OF = {"AttrValue": "value"}
#: Element types as texts name them, from number 0 on; references are 100 further on.
_DATA_TYPES = (
    "INVALID FLOAT DOUBLE INT32 UINT8 INT16 INT8 STRING COMPLEX64 INT64 BOOL QINT8 QUINT8 QINT32 "
    "BFLOAT16 QINT16 QUINT16 UINT16 COMPLEX128 HALF RESOURCE VARIANT UINT32 UINT64 FLOAT8_E5M2 "
    "FLOAT8_E4M3FN FLOAT8_E4M3FNUZ FLOAT8_E4M3B11FNUZ FLOAT8_E5M2FNUZ INT4 UINT4 INT2 UINT2"
)
_REFERENCE = 100
#: Beginning of a text, after comments.
_TEXT = re.compile(
    rb"(?:\s|#[^\n]*\n)*(?:(?P<meta>meta_info_def|graph_def)|node|versions|library)\s*:?\s*\{"
)
#: Form of the name of an op; bytes read as the wrong message do not.
_OP = re.compile(r"[A-Za-z_][\w.>/-]*")


def load_graph(path: str | os.PathLike[str]) -> Any:
    """The GraphDef in a file: itself, or inside a MetaGraphDef, binary or text, or a SavedModel
    of TensorFlow 1; plain or gzipped.

    Raises
    ------
    InputError
        Another kind of file, or a damaged one.
    MissingExtraError
        The package ``protobuf`` is not installed.
    """
    data = read_bytes(path)
    name = os.fspath(path)
    if not data:
        raise InputError(f"{name} is empty")
    if may_be_saved_model(data):
        return _graph_saved(data, name)
    graph = _graph_in_text(data, name) if may_be_text(data) else _graph_in(data)
    if graph is not None:
        return graph
    if _parsed(data, "RunMetadata") is not None and is_run(_parsed(data, "RunMetadata")):
        raise InputError(
            f"{name} is RunMetadata: it says how long ops took, not which graph they are of; give "
            "the GraphDef, and this as profile= (--profile)"
        )
    raise InputError(f"{name} is no TensorFlow GraphDef, or a truncated one")


def _graph_in(data: bytes) -> Any:
    """The GraphDef that some bytes are, or hold as a MetaGraphDef; None if they are neither."""
    graph = _parsed(data, "GraphDef")
    if graph is not None and is_graph(graph):
        return graph
    meta = _parsed(data, "MetaGraphDef")
    return meta.graph_def if meta is not None and is_graph(meta.graph_def) else None


def _graph_saved(data: bytes, name: str) -> Any:
    """The GraphDef of the first graph of a SavedModel, as TensorFlow 1 saves it."""
    model = _parsed(data, "SavedModel")
    graph = model.meta_graphs[0].graph_def if model is not None and model.meta_graphs else None
    if graph is None or not is_graph(graph):
        raise InputError(f"{name} is a SavedModel without a graph, or a truncated one")
    if any(node.op.endswith("PartitionedCall") for node in graph.node):
        raise InputError(
            f"{name} is a SavedModel, whose ops are inside functions: give the GraphDef of one, "
            "as convert_variables_to_constants_v2(function).graph.as_graph_def(add_shapes=True) is"
        )
    return graph


def _graph_in_text(data: bytes, name: str) -> Any:
    """The GraphDef that a text is, or holds as a MetaGraphDef; None if it has no nodes."""
    begins = _TEXT.match(data)
    message = "MetaGraphDef" if begins and begins["meta"] else "GraphDef"
    parsed = _classes()[message]()
    from google.protobuf import text_format

    refusal = f"{name} is no text of a TensorFlow graph, or a cut one"
    with refusing(refusal, text_format.ParseError, UnicodeDecodeError, RecursionError):
        text_format.Parse(data, parsed, allow_unknown_field=True)
    graph = parsed.graph_def if message == "MetaGraphDef" else parsed
    return graph if is_graph(graph) else None


def load_run(path: str | os.PathLike[str]) -> Any:
    """The RunMetadata in a file, plain or gzipped.

    Raises
    ------
    InputError, MissingExtraError
        As :func:`load_graph`.
    """
    run = _parsed(read_bytes(path), "RunMetadata")
    if run is None or not is_run(run):
        raise InputError(
            f"{os.fspath(path)} is no RunMetadata, a truncated one, or one without step stats (run "
            "with RunOptions(trace_level=FULL_TRACE))"
        )
    return run


def is_graph(graph: Any) -> bool:
    """True if a message parsed as a GraphDef is one: every node has a name and an op."""
    return bool(graph.node) and all(n.name and _OP.fullmatch(n.op) for n in graph.node)


def is_run(run: Any) -> bool:
    """True if a message parsed as RunMetadata is one: it has ops, with names."""
    stats = [node for device in run.step_stats.dev_stats for node in device.node_stats]
    named = [*(s.node_name for s in stats), *(n.name for n in run.cost_graph.node)]
    return bool(named) and all(named)


def _parsed(data: bytes, message: str) -> Any:
    """The bytes as a message; None if they cannot be one."""
    parsed = _classes()[message]()
    from google.protobuf.message import DecodeError

    from loadmaster.readers.shared.messages import check_messages

    check_messages(data, f"a {message} in the file")
    try:
        parsed.ParseFromString(data)
    except DecodeError:
        return None
    return parsed


@functools.cache
def _classes() -> dict[str, Any]:
    """A class per message, in a pool of their own: TensorFlow may be imported beside them."""
    from loadmaster.readers.shared.messages import message_classes

    names = _DATA_TYPES.split()
    types = {f"DT_{name}": number for number, name in enumerate(names)}
    types |= {f"DT_{name}_REF": number for number, name in enumerate(names[1:], _REFERENCE + 1)}
    return message_classes(
        "loadmaster.tensorflow",
        _MESSAGES,
        "reading TensorFlow graphs",
        one_of=_ONE_OF,
        enums={"DataType": types},
    )


def data_type(number: int) -> str:
    """The name of an element type; of a reference, that of what it refers to.

    >>> data_type(1), data_type(101)
    ('DT_FLOAT', 'DT_FLOAT')
    """
    names = _DATA_TYPES.split()
    known = number % _REFERENCE
    return f"DT_{names[known]}" if known < len(names) else str(number)


# ---- without parsing --------------------------------------------------------------------------


def may_be_text(data: bytes) -> bool:
    """True if bytes begin as the text of a GraphDef or a MetaGraphDef does.

    >>> may_be_text(b'node { name: "a" op: "Const" }')
    True
    """
    return _TEXT.match(data) is not None


def may_be_saved_model(data: bytes) -> bool:
    r"""True if bytes begin as a SavedModel does: schema 1, then a MetaGraphDef.

    An ONNX model has its version there, then who wrote it.

    >>> [may_be_saved_model(data) for data in (b"\x08\x01\x12\x09\x0a\x07", b"\x08\x08\x12\x02me")]
    [True, False]
    """
    if not data.startswith(b"\x08\x01\x12"):
        return False
    _, at = varint(data, 3)
    return data[at : at + 1] in (b"\x0a", b"\x12")


#: Tags of the fields that a NodeDef or a MetaInfoDef may begin with.
_MARKS = b"\x0a\x12\x1a\x22\x2a"


def may_be_graph(data: bytes) -> bool:
    r"""True if bytes can be a GraphDef or a MetaGraphDef, told by the fields they start with.

    Both begin with field 1 as a message, which is marked by a line feed; an ONNX model has a number
    there. Text that begins with a line feed has no marks where fields must be, or, if it is JSON,
    does not add up to whole fields.

    >>> may_be_graph(b"\n\x05\n\x01a\x12\x00"), may_be_graph(b'\n{"format": "opgraph"}')
    (True, False)
    """
    if data[:1] != b"\n":
        return False
    if data.lstrip()[:1] in (b"{", b"["):
        return max(_field_ends(data), default=0) == len(data)
    _, at = varint(data, 1)
    return at < len(data) and data[at] in _MARKS


def _field_ends(data: bytes) -> Iterator[int]:
    """The end of each field; up to the first that is none."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        match key & 7:
            case 0:
                _, at = varint(data, at)
            case 1:
                at += 8
            case 2:
                size, at = varint(data, at)
                at += size
            case 5:
                at += 4
            case _:
                return
        if key >> 3 == 0 or at > len(data):
            return
        yield at
