"""Attention in a part of a model: where it is, and whether tokens attend to those behind them.

A fused kernel is told (``is_causal``), or is given a mask. Written out, attention is a softmax of a
product, and a mask is what is added to the product, or chosen by: an array of queries by keys. What
a mask holds, no graph says. Queries of other tokens than the keys, as those of a step that reads a
cache, need no mask for all they may attend to: they do not tell the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from loadmaster.dimensions.call import NamedCall, skeleton
from loadmaster.dimensions.rules import rule_of
from loadmaster.model.arguments import tensors
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import parse_output

#: Words of which the kind of an op of attention has one.
_WORDS = ("attention", "softmax")

#: Families of ops that multiply queries by keys.
_PRODUCTS = ("product", "einsum")


def attention(graph: OpGraph, ops: Iterable[int]) -> list[int]:
    """The ops among some that are attention, or the softmax of it.

    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> found = attention(graph, [op for op in range(graph.n_ops) if graph.phases[op] == "f"])
    >>> sorted({graph.kinds[op] for op in found})
    ['aten._log_softmax.default', 'aten._softmax.default']
    """
    return [op for op in ops if any(word in graph.kinds[op].lower() for word in _WORDS)]


def is_two_way(graph: OpGraph, ops: Iterable[int]) -> bool:
    """True if all attention among some ops surely lets tokens attend to later ones.

    False where there is a mask, where the graph does not say what ops were called with, and where
    there is no attention.
    """
    directions = [_two_way(graph, op) for op in attention(graph, ops)]
    known = [one for one in directions if one is not None]
    return bool(known) and all(known)


def _two_way(graph: OpGraph, op: int) -> bool | None:
    """True if nothing tells the order of tokens; None: it is no attention of tokens to all."""
    kind = graph.kinds[op]
    if "softmax" in kind.lower():
        return _of_softmax(graph, op)
    rule, args = rule_of(kind), None if graph.args is None else graph.args[op]
    if rule is None or "is_causal" not in rule.arguments or args is None:
        return False
    positional, keywords = skeleton(args)
    call = NamedCall(kind, positional, dict(keywords), (), (), rule.arguments)
    if call.value("is_causal", False) or call.value("attn_mask") or call.value("attn_bias"):
        return False
    tokens = [_sizes(graph, source)[-2:-1] for source in tensors(args)][:2]
    return None if len(set(tokens)) > 1 or (1,) in tokens else True


def _of_softmax(graph: OpGraph, softmax: int) -> bool | None:
    """True if a product comes to a softmax without a mask of queries by keys."""
    sizes = _sizes(graph, softmax)
    if len(sizes) < 3 or sizes[-1] != sizes[-2] or sizes[-1] < 2:
        return None
    todo, seen, of_product = [softmax], {softmax}, False
    while todo:
        for source in set(graph.src[graph.dst == todo.pop()].tolist()) - seen:
            seen.add(source)
            rule, output_sizes = rule_of(graph.kinds[source]), _sizes(graph, source)
            if rule is not None and rule.family in _PRODUCTS:
                of_product = True
            elif prod(output_sizes) == prod(sizes) and not _is_given(graph, source):
                todo.append(source)
            elif output_sizes[-2:] == sizes[-2:]:
                return False
    return True if of_product else None


def _is_given(graph: OpGraph, op: int) -> bool:
    """True if an array has no computed numbers: it is of booleans, or there before the step."""
    return bool(graph.stands_for[op] >= 0) or graph.outputs[op].startswith("b8")


def _sizes(graph: OpGraph, op: int) -> tuple[int, ...]:
    return parse_output(graph.outputs[op])[0][1] or ()
