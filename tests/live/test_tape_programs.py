"""Tapes of exported programs and FX graphs, against the programs themselves: bit for bit.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from steps import made  # noqa: E402
from torch import nn  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.running.run import started  # noqa: E402

CASES = [
    (name, how)
    for name in ("LSTM", "tied", "in place")
    for how in ("exported", "decomposed", "traced")
    if (name, how) not in (("in place", "traced"), ("LSTM", "decomposed"))
] + [("ResNet-18", "traced"), ("experts", "exported")]


def program_of(name, how):
    """A program, what runs it, and its inputs."""
    model, inputs, _ = made(name)
    model.eval()
    if how == "traced":
        module = torch.fx.symbolic_trace(model)
        return module, copy.deepcopy(module), (inputs,)
    program = torch.export.export(model, (inputs,))
    if how == "decomposed":
        program = program.run_decompositions()
    return program, copy.deepcopy(program.module()), (inputs,)


@pytest.mark.filterwarnings("ignore:devices share a core")
@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_program_is_run_as_it_stands(name, how):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    program, module, inputs = program_of(name, how)
    tape = lm.Tape.of_program(program, inputs)
    assert tape.graph.digest == lm.read(program, example_inputs=inputs).digest
    called = [op for call in tape.calls for op in (call.op, *call.parts) if op >= 0]
    placed = [placeholder.op for placeholder in tape.placeholders]
    assert sorted(called + placed) == list(range(tape.graph.n_ops))
    with torch.no_grad():
        expected = [module(*inputs) for _ in range(2)]
    assert torch.equal(tape.replay(1)["output"], expected[0])
    cluster = lm.Cluster.preset("4xV100-PCIe").subset(range(2))
    with started(lm.place(tape.graph, cluster, "round-robin"), tape) as devices:
        devices.run(2)
        assert torch.equal(devices.fetch(["output"])["output"], expected[1])
    torch.set_num_threads(threads)


def test_inputs_are_those_of_the_export_where_none_are_given():
    program, module, (inputs,) = program_of("tied", "exported")
    tape = lm.Tape.of_program(program)
    other = (inputs + 1) % 50
    with torch.no_grad():
        assert torch.equal(tape.replay()["output"], module(inputs))
        assert torch.equal(tape.replay(1, other)["output"], module(other))


class Several(nn.Module):
    def forward(self, x, y):
        values, indices = (x + y).max(1)
        return {"values": values, "indices": indices, "parts": x.split(1, 1)[1]}


def test_several_outputs_have_names():
    model, given = Several(), (torch.rand(3, 2), torch.rand(3, 2))
    expected = list(model(*given).values())
    taped = lm.record(model, given, train=False).replay()
    named = [taped[f"output.{name}"] for name in ("values", "indices", "parts")]
    exported = lm.Tape.of_program(torch.export.export(model, given)).replay()
    counted = [exported[f"output.{i}"] for i in range(3)]
    for found in (named, counted):
        assert all(map(torch.equal, found, expected))


def test_what_cannot_be_taped_is_refused():
    model, inputs, _ = made("tied")
    with pytest.raises(InputError, match="give example_inputs"):
        lm.Tape.of_program(torch.fx.symbolic_trace(model))
    rows = torch.export.Dim("rows", min=2, max=8)
    program = torch.export.export(model.eval(), (inputs,), dynamic_shapes={"x": {0: rows}})
    with pytest.raises(InputError, match=r"open|given for"):
        lm.Tape.of_program(program)
    with pytest.raises(InputError, match=r"wants a torch\.fx\.GraphModule"):
        lm.Tape.of_program(model, inputs)
