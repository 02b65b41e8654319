"""Layer splits, read by the systems that they are for.

vLLM's reader of its partition runs alone: ``pip install --no-deps vllm`` will do. llama.cpp wants
devices: its own servers stand for GPUs, which ``CMAKE_ARGS=-DGGML_RPC=ON pip install
llama-cpp-python gguf`` brings along.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from placed import by_module
from stacks import CPU_AND_GPUS, stack
from written import settings

import loadmaster as lm

#: Layers on a CPU and on three GPUs.
COUNTS = [(0, 1, 0, 0), (0, 4, 3, 5), (3, 1, 6, 2), (0, 7, 1, 1), (5, 0, 0, 2), (6, 0, 0, 0)]
COUNTS += np.random.default_rng(0).integers(0, 30, (20, 4)).tolist()


def split_plan(counts):
    """A plan for layers in runs of these lengths; the device of each, and of the head."""
    order = [device for device, count in enumerate(counts) for _ in range(count)]
    where = {f"layers.{i}": device for i, device in enumerate(order)}
    ends = {"": 0, "emb": order[0], "head": order[-1]}
    return by_module(stack(len(order)), ends | where, CPU_AND_GPUS), [*order, order[-1]]


# ---- vLLM -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def get_pp_indices():
    """vLLM's function of that name, out of its file: to import that takes PyTorch with CUDA."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("needs vllm: pip install --no-deps vllm")
    folder = Path(spec.origin).parent
    tree = ast.parse((folder / "distributed" / "utils.py").read_text())
    named = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    function = ast.Module([named["get_pp_indices"]], [])
    envs = importlib.util.spec_from_file_location("vllm_envs", folder / "envs.py")
    names = {"envs": importlib.util.module_from_spec(envs), "logger": SimpleNamespace()}
    envs.loader.exec_module(names["envs"])
    exec(compile(function, "get_pp_indices", "exec"), names)
    return names["get_pp_indices"]


@pytest.mark.needs("vllm")
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_vllm_reads_the_partition(get_pp_indices, monkeypatch, counts):
    plan, order = split_plan(counts)
    keys, variables = settings(lm.writers.vllm(plan))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ranks = keys["pipeline-parallel-size"]
    found = [get_pp_indices(len(order) - 1, rank, ranks) for rank in range(ranks)]
    devices = list(dict.fromkeys(order))
    assert [set(order[a:b]) for a, b in found] == [{device} for device in devices]


@pytest.mark.needs("vllm")
@pytest.mark.parametrize("apart", [False, True])
def test_vllm_reads_the_file(tmp_path, apart):
    """Its reader of ``--config``, out of its file, and the names of what its engine takes."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("needs vllm: pip install --no-deps vllm")
    folder = Path(spec.origin).parent
    reader = defined(folder / "utils" / "argparse_utils.py", "load_config_file")
    names = {"yaml": yaml, "json": json, "logger": SimpleNamespace(), "Any": Any}
    exec(compile(ast.Module([reader], []), "load_config_file", "exec"), names)
    engine = defined(folder / "engine" / "arg_utils.py", "EngineArgs")
    taken = {line.target.id for line in engine.body if isinstance(line, ast.AnnAssign)}
    plan = lm.place(
        lm.read("example:mixtral"), lm.Cluster.preset("8xH100-NVLink"),
        target="vllm", tp=4, pp=2, expert_parallel=apart,
    )  # fmt: skip
    lm.writers.vllm(plan, tmp_path / "vllm.yaml")
    words = names["load_config_file"](None, str(tmp_path / "vllm.yaml"))
    sizes = ["--tensor-parallel-size", "4", "--pipeline-parallel-size", "2"]
    assert words == sizes + ["--enable-expert-parallel"] * apart
    given = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
    assert given <= taken


def defined(path, name):
    """The class or function of a name in a file."""
    return next(node for node in ast.walk(ast.parse(path.read_text()))
                if getattr(node, "name", None) == name)  # fmt: skip


# ---- llama.cpp --------------------------------------------------------------------------------

SERVER = """
import ctypes, sys
from llama_cpp import _ggml
lib = _ggml.libggml
lib.ggml_backend_load_all()
lib.ggml_backend_dev_by_type.restype = ctypes.c_void_p
cpu = (ctypes.c_void_p * 1)(lib.ggml_backend_dev_by_type(0))
rpc = ctypes.CDLL(sys.argv[2])
rpc.ggml_backend_rpc_start_server.argtypes = [
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p
]
rpc.ggml_backend_rpc_start_server(sys.argv[1].encode(), None, 1, 1, cpu)
"""


@pytest.fixture(scope="module")
def llama():
    """llama.cpp with three servers that it takes for GPUs."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    ggml = importlib.import_module("llama_cpp._ggml").libggml
    pytest.importorskip("gguf", reason="needs gguf")
    folder = Path(llama_cpp.llama_cpp._lib._name).parent
    library = next(folder.glob("libggml-rpc.*"), None)
    if library is None:
        pytest.skip("llama-cpp-python was built without CMAKE_ARGS=-DGGML_RPC=ON")
    rpc = ctypes.CDLL(str(library))
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    register = ggml.ggml_backend_register
    register.argtypes = [ctypes.c_void_p]
    ends = [f"127.0.0.1:{port}" for port in free_ports(3)]
    command = [sys.executable, "-c", SERVER]
    servers = [
        subprocess.Popen([*command, end, str(library)], stdout=subprocess.DEVNULL) for end in ends
    ]
    try:
        for end in ends:
            wait_for(end)
            register(rpc.ggml_backend_rpc_add_server(end.encode()))
        yield llama_cpp
    finally:
        for server in servers:
            server.kill()
            server.wait()


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(end):
    host, _, port = end.partition(":")
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.05)


def tiny(path, n_layers):
    """A Llama of so many layers, without a vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8)
    writer.add_embedding_length(32)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(32)
    writer.add_tokenizer_model("no_vocab")
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.zeros((32, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    for i in range(n_layers):
        for part in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{part}.weight", np.zeros(32, np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            writer.add_tensor(f"blk.{i}.{part}.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.needs("llama_cpp")
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_llama_cpp_puts_layers_where_the_plan_has_them(llama, tmp_path, counts):
    plan, order = split_plan(counts)
    names = {f"gpu{i}": f"RPC{i}" for i in range(3)}
    words = lm.writers.llama_cpp(plan, names=names)["arguments"]
    given = dict(zip(words[::2], words[1::2], strict=True))
    tiny(tmp_path / "tiny.gguf", len(order) - 1)
    params = llama.llama_model_default_params()
    params.n_gpu_layers = int(given["--n-gpu-layers"])
    if "--device" in given:
        assert given["--split-mode"] == "layer"
        by_name = llama._ggml.libggml.ggml_backend_dev_by_name
        by_name.restype = ctypes.c_void_p
        found = [by_name(name.encode()) for name in given["--device"].split(",")]
        assert all(found)
        devices = (ctypes.c_void_p * (len(found) + 1))(*found)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        shares = [float(share) for share in given["--tensor-split"].split(",")]
        split = (ctypes.c_float * llama.llama_max_devices())(*shares)
        params.tensor_split = ctypes.cast(split, ctypes.POINTER(ctypes.c_float))
    said = []
    log = llama.llama_log_callback(lambda level, text, _: said.append(text.decode()))
    llama.llama_log_set(log, None)
    model = llama.llama_model_load_from_file(str(tmp_path / "tiny.gguf").encode(), params)
    llama.llama_log_set(llama.llama_log_callback(), None)
    assert model, "".join(said)
    llama.llama_model_free(model)
    placed = re.findall(r"layer +(\d+) assigned to device (\w+)", "".join(said))
    assert placed == [(str(i), ["CPU", *names.values()][d]) for i, d in enumerate(order)]
