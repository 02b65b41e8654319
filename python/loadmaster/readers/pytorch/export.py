"""Reads programs that ``torch.export.save`` wrote (``.pt2``), without PyTorch.

Such a file is a zip with the program as JSON beside its weights, which are never read. The JSON's
schema is ``torch/_export/serde/schema.py`` of PyTorch; files of PyTorch 2.5 and later are read.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError, malformed, refusing
from loadmaster.base.files import naming, parse_json, read_counted, system_errors
from loadmaster.model.graph import OpGraph
from loadmaster.readers.pytorch.aten_program import (
    AtenNode,
    AtenPlaceholder,
    AtenProgram,
    Size,
    Sized,
    Stored,
    ValueRef,
    sign,
    to_graph,
)
from loadmaster.readers.pytorch.export_calls import DTYPES, call_of, tensor_names
from loadmaster.readers.pytorch.nn_modules import innermost


def read(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> OpGraph:
    """Read a program that ``torch.export.save`` wrote, as an op graph.

    Parameters
    ----------
    path
        A ``.pt2`` file. Its weights are not looked at.
    batch
        Size of the first dimension of every input that leaves it open.
    shapes
        Complete shapes of inputs by name, for what ``batch`` does not settle.
    sizes
        Sizes of the program's symbols by name, as ``{"s0": 8}``.

    Raises
    ------
    InputError
        The file holds no such program or a damaged one, a size is left open, or what was given
        contradicts the program.

    Warns
    -----
    UserWarning
        What the costs leave out: kinds of ops they do not know, sizes known only at run time, and
        how often control flow was assumed to run. ``graph.meta["assumed"]`` keeps the same.

    Example
    -------
    >>> graph = read("resnet18.pt2", batch=8)                         # doctest: +SKIP
    """
    with naming(path):
        try:
            document, tied = _load(path)
            return to_graph(
                _checked(document, tied),
                name=Path(path).stem,
                framework=f"torch {document.get('torch_version', '')}".strip(),
                batch=batch,
                shapes=shapes,
                sizes=sizes,
            )
        except RecursionError:
            raise InputError("its programs are nested too deeply") from None


# ---- the archive ------------------------------------------------------------------------------


def _load(path: str | os.PathLike[str]) -> tuple[Any, dict[str, str]]:
    """The program's JSON, and the file of its weights by parameter."""
    damage = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
    with (
        system_errors("cannot be read"),
        refusing("a damaged or truncated zip file", *damage),
        zipfile.ZipFile(path) as archive,
    ):
        member = _program_in(archive)
        document = parse_json(_bytes(archive, member), member)
        return document, _weight_files(archive, member)


def _program_in(archive: zipfile.ZipFile) -> str:
    names = archive.namelist()
    models = [n for n in names if re.fullmatch(r"(.*/)?models/[^/]+\.json", n)]
    models += [n for n in names if n.rpartition("/")[2] == "serialized_exported_program.json"]
    if len(models) == 1:
        return models[0]
    if models:
        named = [n for n in models if n.endswith("/model.json")]
        if len(named) == 1:
            return named[0]
        raise InputError(f"it holds {len(models)} programs ({', '.join(models)}): save one alone")
    raise InputError(_what_else(names))


def _what_else(names: Sequence[str]) -> str:
    """The kind of a zip file without a program, and the way out."""
    parts = {name.partition("/")[2] for name in names}
    if any(part.startswith("code/") for part in parts):
        return (
            "a TorchScript archive, which has no sizes of tensors: export the model with "
            "torch.export.export(model, inputs) and torch.export.save, or use lm.capture"
        )
    if any("aotinductor/" in name for name in names):
        return "a package of compiled code (AOTInductor): read the program it was compiled from"
    if "data.pkl" in parts:
        return (
            "a checkpoint of torch.save: weights without a graph. Export the model with "
            "torch.export.export(model, inputs) and torch.export.save, or use lm.capture"
        )
    return "a zip file without a program of torch.export (models/model.json)"


def _bytes(archive: zipfile.ZipFile, member: str) -> bytes:
    with archive.open(member) as file:
        return read_counted(file, member)


def _weight_files(archive: zipfile.ZipFile, member: str) -> dict[str, str]:
    """The file of each parameter's weights; tied parameters have one. Older archives name none."""
    config = member.partition("models/")[0] + "data/weights/model_weights_config.json"
    if config not in archive.namelist():
        return {}
    document = parse_json(_bytes(archive, config), config)
    with malformed(f"{config} has not the schema of torch.export"):
        return {name: str(entry["path_name"]) for name, entry in document["config"].items()}


# ---- the program ------------------------------------------------------------------------------


def _checked(document: Any, files: Mapping[str, str]) -> AtenProgram:
    """The program of a whole document; an `InputError` where the document breaks the schema."""
    with malformed("its JSON has not the schema of torch.export"):
        module = document["graph_module"]
        program = _program(module["graph"])
        sign(program, *_signature(module["signature"], files))
        program.ranges = {
            str(symbol): (_bound(entry["min_val"]), _bound(entry["max_val"]))
            for symbol, entry in (document.get("range_constraints") or {}).items()
        }
    if not program.nodes:
        raise InputError("the program has no ops")
    return program


def _bound(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**62 else None


def _program(graph: Mapping[str, Any]) -> AtenProgram:
    """A graph of the schema; its inputs are plain ones until a signature says more."""
    metas = {name: _meta(value) for name, value in graph["tensor_values"].items()}
    program = AtenProgram()
    for argument in graph["inputs"]:
        for name in tensor_names(argument):
            program.placeholders.append(AtenPlaceholder(name, name, "input", metas[name]))
    sizes = {name: _told(value) for name, value in (graph.get("sym_int_values") or {}).items()}
    for node in graph["nodes"]:
        program.nodes.append(_node(node, metas, sizes))
    return program


_STRIDED = 7  # the layout's number in the schema


def _meta(value: Mapping[str, Any]) -> Sized:
    dtype = DTYPES.get(value["dtype"], f"type{value['dtype']}")
    sizes = tuple(map(_size, value["sizes"]))
    if value.get("layout", _STRIDED) != _STRIDED:
        return Sized(dtype, sizes)
    strides = tuple(map(_size, value["strides"]))
    if len(strides) != len(sizes):
        raise ValueError(f"{len(strides)} strides for {len(sizes)} sizes")
    return Sized(dtype, sizes, strides)


def _size(value: Mapping[str, Any]) -> Size:
    if "as_int" in value:
        size = value["as_int"]
        if not isinstance(size, int) or size < 0 or size >= 2**62:
            raise ValueError(f"size {size!r}")
        return int(size)
    return str(value["as_expr"]["expr_str"])


def _told(value: Mapping[str, Any]) -> str:
    """The number or the expression that an integer of the program is."""
    return str(value["as_expr"]["expr_str"] if "as_expr" in value else value["as_int"])


def _node(
    node: Mapping[str, Any], metas: Mapping[str, Sized], sizes: Mapping[str, Size]
) -> AtenNode:
    outputs = node["outputs"]
    names = [name for output in outputs for name in tensor_names(output)]
    several = len(outputs) > 1 or any("as_tensor" not in output for output in outputs)
    kind = str(node["target"]).removeprefix("torch.ops.")
    if node.get("is_hop_single_tensor_return") is False:
        several = True
    name = node.get("name") or ("" if several or not names else names[0])
    return AtenNode(
        name=str(name),
        kind=kind,
        arguments=[_argument(entry["arg"], metas) for entry in node["inputs"]],
        results=[("" if "_unused_" in n else n, metas.get(n)) for n in names],
        call=call_of(node["inputs"], sizes),
        several=several,
        module=innermost(str((node.get("metadata") or {}).get("nn_module_stack", ""))),
    )


def _argument(argument: Mapping[str, Any], metas: Mapping[str, Sized]) -> Any:
    [(kind, value)] = argument.items()
    if kind == "as_graph":
        return _program(value["graph"])
    names = tensor_names(argument)
    if kind == "as_tensor" or (kind == "as_optional_tensor" and names):
        return ValueRef(names[0])
    if kind == "as_optional_tensors":
        return [ValueRef(str(e["as_tensor"]["name"])) if "as_tensor" in e else None for e in value]
    if kind.endswith(("tensors", "argument")):
        return [ValueRef(name) for name in names]
    if kind in ("as_bool", "as_int", "as_float", "as_string"):
        return value
    return None


# ---- the signature ----------------------------------------------------------------------------

_STORED = {
    "parameter": ("parameter", "parameter_name"),
    "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
}


def _signature(
    signature: Mapping[str, Any], files: Mapping[str, str]
) -> tuple[dict[str, Stored], list[tuple[str, str, str]]]:
    """Inputs that the model holds, and outputs with their roles."""
    stored = {}
    for spec in signature["input_specs"]:
        [(role, entry)] = spec.items()
        if role in _STORED:
            kind, key = _STORED[role]
            name = str(entry[key])
            stored[str(entry["arg"]["name"])] = Stored(kind, name, files.get(name, name))
    outputs = []
    for spec in signature["output_specs"]:
        [(role, entry)] = spec.items()
        argument = entry["arg"]
        names = [str(argument["name"])] if "name" in argument else tensor_names(argument)
        targets = [str(text) for key, text in entry.items() if key != "arg"]
        outputs += [(role, name, targets[0] if targets else "") for name in names]
    return stored, outputs
