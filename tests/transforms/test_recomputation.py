"""Activations that are recomputed in the backward pass."""

from __future__ import annotations

import numpy as np
import pytest

import loadmaster as lm
import loadmaster.fast as fast
from loadmaster.model.patterns import instances
from loadmaster.model.recomputed import RecomputedSegments, line_of
from loadmaster.transforms import recompute, shard


def chain() -> lm.OpGraph:
    """Two layers of two ops, forward and backward; the second op of a layer is read outside."""
    names = ["x", "a0", "b0", "a1", "b1", "loss", "gb1", "ga1", "gb0", "ga0"]
    modules = ["", "h.0", "h.0", "h.1", "h.1", "", "h.1", "h.1", "h.0", "h.0"]
    src = [0, 1, 2, 3, 4, 5, 3, 6, 2, 7, 1, 8, 0]
    dst = [1, 2, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    pairs = list(zip(src, dst, strict=True))
    calls = [None, *([[{"op": s} for s, d in pairs if d == op]] for op in range(1, 10))]
    return lm.OpGraph(
        {
            "name": names,
            "module": modules,
            "kind": ["input", *["op"] * 9],
            "phase": list("ffffffbbbb"),
            "output_bytes": [8] * 10,
            "flops": [0, *[3] * 9],
            "args": calls,
        },
        {"src": src, "dst": dst, "bytes": [8] * len(src)},
    )


def reads(graph: lm.OpGraph, name: str) -> set[str]:
    """The names of the ops that an op reads, and in brackets those that it waits for."""
    at = graph.index(name)
    tensors = graph.src if graph.tensor is None else graph.tensor
    return {
        graph.names[s] if t >= 0 else f"({graph.names[s]})"
        for s, d, t in zip(graph.src.tolist(), graph.dst.tolist(), tensors.tolist(), strict=True)
        if d == at
    }


def test_what_stays_in_a_layer_is_made_again_from_what_is_kept():
    program = recompute(chain(), ["h.*"])
    graph = program.graph
    again = [name for name in graph.names if name.endswith("@again")]
    assert again == ["a1@again", "a0@again"]
    assert reads(graph, "a1@again") == {"b0", "(loss)"}, "from the kept output of the layer before"
    assert reads(graph, "gb1") == {"loss", "a1@again"}
    assert reads(graph, "ga1") == {"gb1", "b0"}, "what another layer reads is kept"
    assert reads(graph, "gb0") == {"ga1", "a0@again"}
    assert reads(graph, "a0@again") == {"x", "(ga1)"}, "when the backward pass is there"
    assert graph.names.index("a1@again") + 1 == graph.names.index("gb1")
    assert graph.phases[graph.index("a1@again")] == "b"


def test_a_program_says_what_is_done_twice():
    graph = chain()
    program = recompute(graph, ["h.*"])
    assert program.source is graph
    assert len(program.parts_of(graph.index("a1"))) == 2
    assert program.whole[graph.index("a1")] == -1
    assert program.whole[graph.index("b1")] == program.graph.index("b1")
    assert program.graph.flops.sum() == graph.flops.sum() + 6


def test_calls_name_what_ops_read_now():
    graph = recompute(chain(), ["h.*"]).graph
    for at, call in enumerate(graph.args):
        if call is not None:
            named = {graph.names[arg["op"]] for arg in call[0]}
            data = {name for name in reads(graph, graph.names[at]) if not name.startswith("(")}
            assert named == data


@pytest.mark.parametrize(
    ("name", "pattern", "least"),
    [("gpt3-330m", "h.*", 0.35), ("bert-large", "**.layer.*", 0.9)],
)
def test_real_layers_hold_less_at_their_peak(name, pattern, least):
    graph = lm.read(f"example:{name}")
    program = recompute(graph, [pattern])
    made = program.graph

    def peak(one: lm.OpGraph) -> int:
        order = np.arange(one.reduced.graph.n_ops, dtype=np.int32)
        return fast.peak_bytes(one.reduced.graph, order)[0]

    assert peak(made) < least * peak(graph)
    forward = np.array([phase == "f" for phase in graph.phases])
    assert graph.flops.sum() < made.flops.sum() < graph.flops.sum() + graph.flops[forward].sum()
    segment = instances(graph.modules, [pattern], "recompute")
    is_copy = np.array([one.endswith("@again") for one in made.names])
    assert set(np.unique(segment[program.serves[is_copy]])) == set(range(segment.max() + 1))
    # No op of the backward pass reads what is done again where it was done first.
    carries = (made.src if made.tensor is None else made.tensor) >= 0
    done = np.isin(program.serves, program.serves[is_copy]) & ~is_copy
    backward = np.array([phase == "b" for phase in made.phases])
    assert not (done[made.src] & backward[made.dst] & carries).any()
    assert not any("bernoulli" in made.kinds[op] for op in np.flatnonzero(is_copy).tolist())


def test_a_recipe_recomputes_and_shards():
    graph = lm.read("example:gpt3-330m")
    recipe = lm.Recipe({"dp": 2}, recompute=("h.*",))
    program = shard(graph, recipe)
    assert program.recipe is recipe
    assert program.source is graph
    again = recompute(graph, ["h.*"]).graph
    assert program.graph.n_ops >= 2 * again.n_ops


def test_what_cannot_be_recomputed_is_refused():
    with pytest.raises(lm.InputError, match="recompute: no module is 'g"):
        recompute(chain(), ["g.*"])
    forward = lm.OpGraph({"name": ["a"], "module": ["h.0"], "phase": ["f"]}, {"src": [], "dst": []})
    with pytest.raises(lm.InputError, match="no op of the graph is of a backward pass"):
        recompute(forward, ["h.*"])
    two = lm.transforms.replicate(lm.read("example:lenet"), 2).graph
    with pytest.raises(lm.InputError, match="recompute first, then shard"):
        recompute(two, ["m.*"])


def test_a_program_says_what_recomputation_costs() -> None:
    program = recompute(lm.read("example:gpt3-330m"), ["h.*"])
    more = program.graph.flops.sum() / program.source.flops.sum() - 1
    (note,) = program.notes
    assert f"{more:.0%} more FLOPs" in note
    assert f"{program.graph.n_ops - program.source.n_ops} ops" in note


# ---- some ops of a module -----------------------------------------------------------------------

#: In the layers of GPT-330M, what has as many elements as there are pairs of tokens.
SCORES = (
    "h.* | h.* aten.bmm.default#0 | h.* aten.mul.Tensor | h.* aten.masked_fill.Scalar"
    " | h.* aten._softmax.default"
)


def again(graph: lm.OpGraph) -> set[str]:
    return {name.removesuffix("@again") for name in graph.names if name.endswith("@again")}


def test_of_a_module_only_what_is_said_is_made_again():
    one = recompute(chain(), ["h.* | h.* op#0"]).graph
    assert again(one) == {"a0", "a1"}
    # Within the module, outputs are not kept for its other ops.
    assert reads(one, "gb1") == {"loss", "a1@again"}
    with pytest.raises(lm.InputError, match=r"recompute: no op is 'h\.\* gelu'"):
        recompute(chain(), ["h.* | h.* gelu"])


def test_what_leaves_the_module_is_kept_whoever_is_meant():
    assert again(recompute(chain(), ["h.0 | h.* op#1"]).graph) == set(), "h.1 reads b0"
    # The model is one module: then nothing leaves it but what another line means.
    assert "b0" in again(recompute(chain(), ["** | h.0 op#1"]).graph)


def test_views_go_with_what_they_show():
    graph = lm.read("example:gpt3-330m")
    made = recompute(graph, [SCORES]).graph
    done = again(made)
    assert {"_softmax_3", "expand_14", "view_41", "detach_3"} <= done
    assert not {"bmm_7", "addmm_12", "gelu_3"} & done


def test_scores_of_attention_are_alive_one_layer_at_a_time():
    """The softmax of each of 24 layers is 1 GiB, and no other is kept."""
    graph = lm.read("example:gpt3-330m")
    softmax = int(graph.output_bytes[graph.index("_softmax")])

    def peak(lines: list[str]) -> int:
        one = recompute(graph, lines).graph if lines else graph
        order = np.arange(one.reduced.graph.n_ops, dtype=np.int32)
        return fast.peak_bytes(one.reduced.graph, order)[0]

    assert peak([]) - peak([SCORES]) == pytest.approx(23 * softmax, rel=0.1)
    assert peak(["h.*"]) < peak([SCORES]) < peak([])


def test_the_wait_is_for_the_gradient_and_not_for_a_view_of_the_copy():
    graph = lm.read("example:gpt3-330m")
    made = recompute(graph, [SCORES]).graph
    waits = {name for name in reads(made, "bmm_6@again") if name.startswith("(")}
    assert waits == {"(_unsafe_view_205)"}


def test_a_line_says_the_ops_that_it_is_made_of():
    graph = lm.read("example:gpt3-330m")
    wanted = np.array([kind in ("aten.gelu.default", "aten.bmm.default") for kind in graph.kinds])
    second = {graph.index(f"bmm_{2 * layer + 1}") for layer in range(24)}
    wanted[list(second)] = False
    line = line_of(graph, "h.*", wanted)
    assert line == "h.* | h.* aten.bmm.default#0 | h.* aten.gelu.default"
    meant = RecomputedSegments.of_lines(graph, [line]).of >= 0
    forward = np.array([phase == "f" for phase in graph.phases])
    assert (meant[forward] == wanted[forward]).all()
    wanted[graph.index("gelu")] = False
    assert line_of(graph, "h.*", wanted) is None, "layers differ"
    assert line_of(graph, "h.*", np.zeros(graph.n_ops, dtype=bool)) is None


def test_lines_of_one_module_are_made_again_one_by_one():
    graph = lm.read("example:gpt3-330m")
    norms = "h.* | h.*.ln_* aten.native_layer_norm.default"
    both = recompute(graph, [SCORES, norms]).graph
    assert again(both) == again(recompute(graph, [SCORES]).graph) | again(
        recompute(graph, [norms]).graph
    )
    names = both.names
    # The second norm of a layer is needed before its attention, and made when it is.
    assert names.index("native_layer_norm_7@again") < names.index("_softmax_3@again")
